"""A kernel card: what one kernel can do, as data, so that it is chosen without importing it (D13)."""

from dataclasses import dataclass, replace
from typing import Required, TypedDict, Unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Compute capabilities, both ends included, on which a kernel does not run, and why."""

    first: tuple[int, int]
    last: tuple[int, int]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimit:
    """Which sizes of a model a kernel takes; a model that lacks one of the fields is not limited by it."""

    sizes: tuple[str, ...]
    """Fields of `model.geometry`, `linear.value_head_dim` for instance; several are multiplied."""
    multiple_of: int = 1
    one_of: tuple[int, ...] = ()
    """Empty = any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCard:
    """One kernel for one op. Cards lie beside their kernels and import no torch."""

    op: str
    name: str
    entry: str
    """`module:function`; empty for `status: planned`."""
    phases: tuple[str, ...]
    """`decode`, `prefill` or both."""
    devices: tuple[str, ...]
    """`cpu`, `cuda`."""
    formats: tuple[str, ...]
    """Formats of the deciding operand (weights, KV or expert slots) that it takes."""
    rank: int
    """Lower is preferred among usable kernels."""
    because: str
    """Why it has its rank: one clause."""
    status: str = "ready"
    """`ready`, `planned` (nothing launches it yet, whether there is source or not), or `foreign` (never chosen)."""
    evidence: str = "documented"
    min_capability: tuple[int, int] = (0, 0)
    max_capability: tuple[int, int] = (99, 9)
    excluded: tuple[Excluded, ...] = ()
    """Capabilities within these bounds that it lacks too, for a reason worth more words."""
    not_called: str = ""
    """Why FirmToken does not call it where it would run; only of a foreign kernel."""
    requires: tuple[str, ...] = ()
    """Packages beyond torch: `triton`, `flashinfer`."""
    head_dims: tuple[int, ...] = ()
    """Head sizes it takes; empty = any."""
    page_sizes: tuple[int, ...] = ()
    """Page sizes it takes; empty = any."""
    limits: tuple[SizeLimit, ...] = ()
    max_rows: int = 2**31
    capturable: bool = True
    ignores_stream: bool = False
    respects_holds: bool = False
    in_place: tuple[tuple[str, str], ...] = ()
    workspace: str = ""
    """Backend of `workspaces.py` whose device memory it needs beside its operands; empty = none."""
    local_bytes: int = 0
    """What a thread spills to local memory, as compiled; a card of a kernel that is only planned cannot know."""
    hazards: tuple[str, ...] = ()
    """Ids of hazards.yaml that concern it."""
    builds: str = ""
    """`module:function` that says what its Triton source is compiled to (`Build`s); empty = no source yet."""
    constants: tuple[tuple[str, int], ...] = ()
    """What it is compiled with (tiles, warps) beside the op's own constants: in the plan, never tuned at run time."""
    computed: tuple[tuple[str, str], ...] = ()
    """More of these, each with the rule of `computed_constants.py` that has its number for a machine and a model."""
    takes_shared: tuple[str, ...] = ()
    """Formats of a shared expert that it computes in the same launch, one more expert of each row (`fold_shared`)."""


class GpuCard(TypedDict, total=False):
    """What `planned_gpu_card` takes."""

    op: Required[str]
    name: Required[str]
    phases: Required[tuple[str, ...]]
    formats: Required[tuple[str, ...]]
    rank: Required[int]
    because: Required[str]
    min_capability: tuple[int, int]
    requires: tuple[str, ...]
    workspace: str
    builds: str
    constants: tuple[tuple[str, int], ...]
    computed: tuple[tuple[str, str], ...]
    takes_shared: tuple[str, ...]
    limits: tuple[SizeLimit, ...]


def planned_gpu_card(
    *,
    op: str,
    name: str,
    phases: tuple[str, ...],
    formats: tuple[str, ...],
    rank: int,
    because: str,
    min_capability: tuple[int, int] = (8, 0),
    requires: tuple[str, ...] = ("triton",),
    workspace: str = "",
    builds: str = "",
    constants: tuple[tuple[str, int], ...] = (),
    computed: tuple[tuple[str, str], ...] = (),
    takes_shared: tuple[str, ...] = (),
    limits: tuple[SizeLimit, ...] = (),
) -> KernelCard:
    """A card of a GPU kernel that nothing launches yet: plans may name it, `ft run` refuses it (D13)."""
    card = _without_entry(op, name, phases, formats, rank=rank, because=because, status="planned")
    return replace(
        card,
        min_capability=min_capability,
        requires=requires,
        workspace=workspace,
        builds=builds,
        constants=constants,
        computed=computed,
        takes_shared=takes_shared,
        limits=limits,
    )


def gpu_card(*, entry: str, **card: Unpack[GpuCard]) -> KernelCard:
    """A card of a GPU kernel that the runtime launches."""
    return replace(planned_gpu_card(**card), entry=entry, status="ready")


def foreign_gpu_card(
    *,
    op: str,
    name: str,
    phases: tuple[str, ...] = ("decode", "prefill"),
    formats: tuple[str, ...],
    not_called: str,
    excluded: tuple[Excluded, ...] = (),
    hazards: tuple[str, ...] = (),
) -> KernelCard:
    """A card of a kernel that users ask about and FirmToken does not call: shown with its reason, refused by name."""
    card = _without_entry(op, name, phases, formats, rank=99, because=not_called, status="foreign")
    return replace(card, not_called=not_called, excluded=excluded, hazards=hazards)


def multiples(multiple_of: int, *sizes: tuple[str, ...]) -> tuple[SizeLimit, ...]:
    """Each of these sizes only in multiples of a number."""
    return tuple(SizeLimit(sizes=names, multiple_of=multiple_of) for names in sizes)


def below(first: tuple[int, int], because: str) -> Excluded:
    """Excluded below a capability, given as the first that is not."""
    major, minor = first
    last = (major, minor - 1) if minor else (major - 1, 9)
    return Excluded(first=(0, 0), last=last, because=because)


def above(last: tuple[int, int], because: str) -> Excluded:
    """Excluded above a capability, given as the last that is not."""
    return Excluded(first=(last[0], last[1] + 1), last=(99, 9), because=because)


def _without_entry(
    op: str,
    name: str,
    phases: tuple[str, ...],
    formats: tuple[str, ...],
    *,
    rank: int,
    because: str,
    status: str,
) -> KernelCard:
    """A GPU's kernel that nothing here can launch."""
    return KernelCard(
        op=op,
        name=name,
        entry="",
        phases=phases,
        devices=("cuda",),
        formats=formats,
        rank=rank,
        because=because,
        status=status,
    )
