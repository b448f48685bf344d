"""`unroll`: a template and its counts to the flat list that the runtime walks and the checker reads."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from firmtoken.compiler.program import (
    Block,
    BlockOf,
    Body,
    BoundStep,
    BoundYield,
    Flat,
    Item,
    Loop,
    Program,
    Step,
    Value,
    When,
    Yield,
)

REFERENCE = re.compile(r"^(?P<name>[a-z_][a-z0-9_.]*)(\[(?P<index>[^\]]+)\])?$")
INDEX = re.compile(
    r"^(?:(?P<int>\d+)|\(?(?P<var>[a-z])(?P<plus>[+-]\d+)?\)?(?:%(?P<mod>\d+))?)$",
)
CONDITION = re.compile(r"^(?P<left>[^<=]+)(?P<op><|==)(?P<right>\w+)$")


class BadReference(ValueError):
    """A reference, index or condition outside the grammar of D5."""


@lru_cache(maxsize=4096)
def parse_reference(text: str) -> tuple[str, tuple[str, ...]]:
    """`name[i,j]` -> name and index texts; raises `BadReference`."""
    match = REFERENCE.match(text)
    if match is None:
        raise BadReference(f"`{text}` is not `name`, `name[i]` or `name[i,j]`")
    index = match["index"]
    return match["name"], tuple(index.split(",")) if index else ()


@lru_cache(maxsize=1024)
def _parse_index(text: str) -> tuple[str, int, int]:
    match = INDEX.match(text.strip())
    if match is None:
        raise BadReference(f"`{text}` is not an index")
    if match["int"] is not None:
        return "", int(match["int"]), 0
    return match["var"], int(match["plus"] or 0), int(match["mod"] or 0)


def bind_index(text: str, at: Mapping[str, int]) -> int:
    """Value of an index expression; raises `BadReference` for an unbound variable."""
    var, plus, mod = _parse_index(text)
    if var and var not in at:
        raise BadReference(f"`{text}` names a loop variable that is not open here")
    value = (at[var] if var else 0) + plus
    return value % mod if mod else value


def bind(text: str, at: Mapping[str, int]) -> Value:
    """A reference with its indices evaluated."""
    name, index = parse_reference(text)
    return Value(name, tuple(bind_index(part, at) for part in index))


def bind_all(texts: Sequence[str], at: Mapping[str, int]) -> tuple[Value, ...]:
    """`bind` for each."""
    return tuple(bind(text, at) for text in texts)


def holds_true(condition: str, at: Mapping[str, int], bounds: Mapping[str, int], kind: str) -> bool:
    """Whether a `when` condition is true at this place."""
    match = CONDITION.match(condition.replace(" ", ""))
    if match is None:
        raise BadReference(f"`{condition}` is not `index < limit` or `index == limit`")
    if match["left"] == "kind":
        return kind == match["right"]
    left, right = bind_index(match["left"], at), match["right"]
    limit = bounds[right] if right in bounds else bind_index(right, at)
    return left < limit if match["op"] == "<" else left == limit


def layer_period(kinds: Sequence[str]) -> int:
    """Layers after which their kinds begin anew: up to the first `full` one, or one where none is."""
    return kinds.index("full") + 1 if "full" in kinds else 1


def unroll(
    program: Program,
    layer_kinds: Sequence[str],
    *,
    chunks: int = 1,
    tiles: Sequence[int] = (),
) -> Flat:
    """The flat list for `chunks` chunks of `tiles[c]` tiles each (one tile each if not given).

    `layer_kinds[l]` is `linear` or `full`; a shorter tuple than the model's unrolls a shorter model.
    """
    bounds = {**program.bounds, "layers": len(layer_kinds), "chunks": chunks}
    counts = tuple(tiles) or (1,) * chunks
    return tuple(_walk(program.body, program, layer_kinds, bounds, counts, {}))


def _walk(
    body: Body,
    program: Program,
    kinds: Sequence[str],
    bounds: Mapping[str, int],
    tiles: Sequence[int],
    at: dict[str, int],
) -> Iterator[BoundStep | BoundYield]:
    kind = kinds[at["l"]] if "l" in at else ""
    for item in body:
        if isinstance(item, Step):
            yield bind_step(item, at)
        elif isinstance(item, Yield):
            yield BoundYield(program=item.program, at=dict(at))
        elif isinstance(item, Loop):
            count = tiles[at.get("c", 0)] if item.count == "tiles" else bounds[item.count]
            for value in range(count):
                inner = {**at, item.loop: value}
                yield from _walk(item.body, program, kinds, bounds, tiles, inner)
        else:
            yield from _walk(
                _inside(item, program, kind, at, bounds), program, kinds, bounds, tiles, at
            )


def _inside(
    item: Item, program: Program, kind: str, at: Mapping[str, int], bounds: Mapping[str, int]
) -> Body:
    if isinstance(item, When):
        return item.body if holds_true(item.when, at, bounds, kind) else ()
    if isinstance(item, Block):
        return program.blocks[item.block]
    assert isinstance(item, BlockOf)
    return program.blocks[kind + item.suffix]


def bind_step(step: Step, at: Mapping[str, int]) -> BoundStep:
    """A step with every reference bound at this place."""
    # Operands repeat what is read and written, so each reference is bound once.
    bound = {
        text: bind(text, at) for text in (*step.reads, *step.writes, *step.weights, *step.addresses)
    }
    return BoundStep(
        step=step,
        reads=tuple(bound[text] for text in step.reads),
        writes=tuple(bound[text] for text in step.writes),
        weights=tuple(bound[text] for text in step.weights),
        waits=bind_all(step.waits, at),
        records=bind_all(step.records, at),
        holds=bind_all(step.holds, at),
        drops=bind_all(step.drops, at),
        operands={
            name: bound[text] if text in bound else bind(text, at)
            for name, text in step.operands.items()
        },
        indices={name: bind_index(text, at) for name, text in step.indices.items()},
        at=dict(at),
    )


def describe_step(bound: BoundStep, program: str) -> str:
    """Which launch of a program it is, for people: "`moe_down` (layer 3 of decode, stream `main`)"."""
    layer = bound.at.get("l")
    wave = f", wave {bound.at['w']}" if "w" in bound.at else ""
    place = program if layer is None else f"layer {layer}{wave} of {program}"
    if layer is None and bound.writes:
        place += f", for `{bound.writes[0]}`"
    return f"`{bound.step.op}` ({place}, stream `{bound.step.stream}`)"
