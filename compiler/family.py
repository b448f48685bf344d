"""What a model family must say of itself: its tensors, its numbers, and one layer of each kind as primitive ops."""

from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.program import Step
from firmtoken.schema.model import Model


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
