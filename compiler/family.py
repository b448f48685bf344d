"""What a model family must say of itself: its tensors, its numbers, its config, and its layers as primitive ops."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from firmtoken.compiler.errors import Refusal
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.program import Step
from firmtoken.schema.contradictions import CHECKPOINT
from firmtoken.schema.model import Geometry, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """Matrices of a checkpoint that a model profile gives one number format."""

    field: str
    """Of `quantization` in a model profile."""
    axis: str
    """`layer`, `linear`, `full`, or empty (once)."""
    modules: tuple[str, ...]
    """Their logical names; `{l}` is the layer, and the first expert stands for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """What the family's `config.json` says, and what it may not say."""

    dialect: str
    """The one that its checkpoints speak unless a profile names another."""
    keys: Mapping[str, str]
    """Geometry field -> key, where the key is not the usual one."""
    stated: Mapping[str, object]
    """Values without which it is another model; a key that is missing is one too. Of a list, each item."""
    granted: Mapping[str, object]
    """The same, but a missing key means this value."""
    parts: tuple[CheckpointPart, ...]
    prefix: str = "model."
    """How its published files spell the logical prefix `model.`."""
    stacks_plain_experts: bool = False
    """Whether a release that is not quantised has one tensor for gate and up of a whole layer, and one for down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family. Primitive ops are joined by the pass `fuse`; a family never writes a fused op itself."""

    name: str
    describe: Callable[[Model, str], ModelFacts]
    """Geometry and quantisation to facts, for a device kind (`cpu` keeps everything in fp32)."""
    mixer: Callable[[str], tuple[Step, ...]]
    """The first half of a layer of this kind (`linear`, `full`), up to and with the norm before the experts.

    Reads `hid`, writes `hid` and `h`; names are local to a program, layer index `l`, owner `o` where state is kept.
    """
    experts: Callable[[], tuple[Step, ...]]
    """The second half: reads `h` and `hid`, writes `hid`; routed experts by `ids`, addressed later."""
    head: Callable[[], tuple[Step, ...]]
    """From `last` to `logits`."""
    config: CheckpointConfig
    linear_layers: bool = False
    """Whether it has layers of linear attention."""
    shared_expert: bool = False
    """Whether each layer has a shared expert."""


def misfits(family: Family, geometry: Geometry) -> Iterator[Refusal]:
    """Parts that a geometry describes and the family has no use for, or that it lacks: never dropped in silence."""
    parts = (
        ("linear", "linear-attention layers", family.linear_layers, geometry.linear is not None),
        (
            "shared_intermediate_size",
            "a shared expert",
            family.shared_expert,
            geometry.shared_intermediate_size > 0,
        ),
    )
    for field, part, wanted, given in parts:
        if wanted and not given:
            message = f"a model of `{family.name}` has {part}, and its geometry has none"
        elif given and not wanted:
            message = f"no model of `{family.name}` has {part}"
        else:
            continue
        yield Refusal(
            field=f"model.geometry.{field}",
            message=message,
            hint=f"{CHECKPOINT}, or name its family",
            code="contradiction",
        )


def primitive(
    op: str,
    operands: str,
    *,
    writes: str,
    weights: str = "",
    rows: str,
) -> Step:
    """A primitive step in shorthand: three lists of `operand:reference` pairs, one word where both are the same."""
    read, written, constant = _pairs(operands), _pairs(writes), _pairs(weights)
    return Step(
        op=op,
        kernel="",
        stream="main",
        reads=tuple(read.values()),
        writes=tuple(written.values()),
        weights=tuple(constant.values()),
        rows=rows,
        operands={**read, **written, **constant},
    )


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for word in text.split():
        name, _, reference = word.partition(":")
        pairs[name] = reference or name
    return pairs
