"""A kernel card: what one kernel can do, as data, so that it is chosen without importing it (D13)."""

from dataclasses import dataclass


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
    """`ready` or `planned`."""
    evidence: str = "documented"
    min_capability: tuple[int, int] = (0, 0)
    max_capability: tuple[int, int] = (99, 9)
    requires: tuple[str, ...] = ()
    """Packages beyond torch: `triton`, `flashinfer`."""
    head_dims: tuple[int, ...] = ()
    """Head sizes it takes; empty = any."""
    page_sizes: tuple[int, ...] = ()
    """Page sizes it takes; empty = any."""
    max_rows: int = 2**31
    capturable: bool = True
    ignores_stream: bool = False
    respects_holds: bool = False
    in_place: tuple[tuple[str, str], ...] = ()
    workspace_bytes: int = 0
    hazards: tuple[str, ...] = ()
    """Ids of hazards.yaml that concern it."""


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
) -> KernelCard:
    """A card of a GPU kernel that is not written yet: plans may name it, `ft run` refuses it (D13)."""
    return KernelCard(
        op=op,
        name=name,
        entry="",
        phases=phases,
        devices=("cuda",),
        formats=formats,
        rank=rank,
        because=because,
        status="planned",
        min_capability=min_capability,
        requires=requires,
    )
