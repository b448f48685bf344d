"""The second half of a layer as steps: routing, finding where experts are, fetching the missing ones, the experts.

A layer's misses may come in waves (D8): wave `w` lies in half `w % 2` of the staging range, and as soon as its experts
are done that half is filled for the wave after next, of this layer or the next one. So the link stands still only while
both halves are full. What the cache holds belongs to wave 0.
"""

from dataclasses import dataclass, replace

from firmtoken.compiler.family import Family
from firmtoken.compiler.passes.fuse import fuse
from firmtoken.compiler.prescribed_routes import PRESCRIBE
from firmtoken.compiler.program import Body, Loop, Step, When

ROUTED = ("moe_gate_up", "moe_down")
"""Ops that read expert slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What differs between the programs of one layout."""

    prefix: str
    owner: str
    hidden: str
    """Reference of the hidden states: `hid`, or `hid[c]` where a span parks them."""
    addressing: str
    """`ids` (resident), `map` (through resolve) or `slots` (through admit)."""
    waves: bool = False
    """Whether a layer's misses come in waves; with `map` only."""
    columns: int = 1
    """In how many blocks of output columns the down projection comes; 1 in waves, which need all columns at the end."""

    @property
    def routes_first(self) -> bool:
        """Whether only what is routed to is fetched, instead of all that is missing, a layer ahead (D7)."""
        return self.prefix == "extend"


def shorthand(op: str, *, rows: str, reads: str = "", writes: str = "", weights: str = "") -> Step:
    """A fused step in the shorthand of `family.primitive`: `operand:reference` words."""
    operands: dict[str, str] = {}
    sides = []
    for side in (reads, writes, weights):
        pairs = dict(word.split(":", 1) for word in side.split())
        operands |= pairs
        sides.append(tuple(pairs.values()))
    return Step(
        op=op,
        kernel="",
        stream="main",
        reads=sides[0],
        writes=sides[1],
        weights=sides[2],
        rows=rows,
        operands=operands,
    )


def localise(step: Step, shape: Shape, *, last: str = "last") -> Step:
    """Program-local names get the prefix, the hidden states their index, the states their owner."""

    def rename(reference: str) -> str:
        if reference == "hid":
            return f"{shape.prefix}.{shape.hidden}"
        if reference == "last":
            return f"{shape.prefix}.{last}"
        if "[" in reference:
            return reference.replace(",o]", f",{shape.owner}]")
        return f"{shape.prefix}.{reference}"

    rows = step.rows
    if rows == "tile" and shape.prefix != "prefill":
        rows = "tokens"  # one tile is the whole launch
    weights = set(step.weights)
    return replace(
        step,
        reads=tuple(map(rename, step.reads)),
        writes=tuple(map(rename, step.writes)),
        operands={
            name: reference if reference in weights else rename(reference)
            for name, reference in step.operands.items()
        },
        rows=rows,
    )


def experts(family: Family, shape: Shape, *, prescribed: bool) -> Body:
    """The second half of a layer, with what the addressing needs before the routed experts run.

    `prescribed`: a table says which experts, whatever the router chooses.
    """
    steps = [_address(localise(step, shape), shape) for step in fuse(family.experts())]
    ids = f"{shape.prefix}.ids"
    at = next(index for index, step in enumerate(steps) if ids in step.writes) + 1
    if prescribed:
        steps.insert(at, localise(PRESCRIBE, shape))
        at += 1
    # The shared expert needs no routed expert, so it runs while those are fetched.
    shared = tuple(step for step in steps[at:] if step.op == "shared_expert")
    routed = tuple(step for step in steps[at:] if step.op in ROUTED)
    rest = tuple(step for step in steps[at:] if step not in (*shared, *routed))
    first = (*steps[:at], *_find(shape), *shared)
    if shape.waves:
        return (*first, *_in_waves(routed, shape), *rest)
    if shape.columns > 1:
        gate_up, down = routed
        return (*first, gate_up, _in_blocks(down, *rest))
    return (*first, *routed, *rest)


def ahead(shape: Shape, layer: str, wave: str = "") -> Body:
    """Find and fetch what `layer` misses, or a wave of it; nothing of that layer may change until it is done."""
    index = f"[{layer},{wave}]" if wave else f"[{layer}]"
    at = "" if shape.routes_first and not wave else index
    table, cache, staged = f"table[{layer}]", f"cache[{layer}]", f"staged{index}"
    found, missing = f"{shape.prefix}.map{at}", f"{shape.prefix}.miss{at}"
    ids = f"ids:{shape.prefix}.ids " if shape.routes_first else ""
    resolve = shorthand(
        "resolve",
        reads=f"{ids}table:{table}",
        writes=f"map:{found} miss:{missing}",
        rows="tokens" if shape.routes_first else "1",
    )
    holds = not shape.routes_first and wave in ("", "0")
    return (
        replace(
            resolve,
            holds=(cache, table) if holds else (),
            addresses=(staged,),
            operands={**resolve.operands, "staged": staged},
            indices={"wave": wave} if wave else {},
        ),
        _fetch(missing, layer, f"staged:{staged}"),
    )


def first_waves(shape: Shape, layer: str) -> Body:
    """Both halves of the ring."""
    return (*ahead(shape, layer, "0"), *ahead(shape, layer, "1"))


def _in_waves(routed: tuple[Step, ...], shape: Shape) -> Body:
    """Each wave writes the rows of its own pairs; the first may leave anything in those of the others."""
    rows = f"{shape.prefix}.rows"
    later = tuple(
        replace(step, reads=(*step.reads, rows)) if rows in step.writes else step for step in routed
    )
    refill: Body = (When(when="w+2<waves", body=ahead(shape, "l", "w+2")),)
    if not shape.routes_first:
        for wave, when in (("0", "w+2==waves"), ("1", "w+1==waves")):
            following = When(when="l+1<layers", body=ahead(shape, "l+1", wave))
            refill = (*refill, When(when=when, body=(following,)))
    body = (When(when="w==0", body=routed), When(when="0<w", body=later), *refill)
    return (Loop(loop="w", count="waves", body=body),)


def _in_blocks(*steps: Step) -> Loop:
    """Rows of one block of columns at a time, each summed before the next takes their place (D6)."""
    body = tuple(replace(step, indices={"block": "b"}) for step in steps)
    return Loop(loop="b", count="columns", body=body)


def _fetch(missing: str, layer: str, targets: str) -> Step:
    return shorthand("fetch", reads=f"miss:{missing} bank:bank[{layer}]", writes=targets, rows="1")


def _find(shape: Shape) -> Body:
    """Between `route` and the experts: find slots and fetch what is missing."""
    if shape.addressing == "slots":
        return _admit(shape)
    if shape.addressing == "map" and shape.routes_first:
        return first_waves(shape, "l") if shape.waves else ahead(shape, "l")
    return ()


def _admit(shape: Shape) -> Body:
    prefix = shape.prefix
    admit = shorthand(
        "admit",
        reads=f"ids:{prefix}.ids table:table[l] lru:lru[l]",
        writes=f"slots:{prefix}.slots table:table[l] lru:lru[l] miss:{prefix}.miss",
        rows="tokens",
    )
    addresses = {"cache": "cache[l]", "overflow": "overflow"}
    return (
        replace(
            admit,
            addresses=tuple(addresses.values()),
            operands={**admit.operands, **addresses},
        ),
        replace(
            _fetch(f"{prefix}.miss", "l", "cache:cache[l] overflow:overflow"),
            reads=(f"{prefix}.miss", "bank[l]", "cache[l]", "overflow"),
        ),
    )


def _address(step: Step, shape: Shape) -> Step:
    """Routed-expert steps get the operands by which they find their slots."""
    if step.op not in ROUTED:
        return step
    prefix = shape.prefix
    operands = {**step.operands, "experts": "cache[l]"}
    reads = [*step.reads, "cache[l]"]
    if shape.addressing == "slots":
        del operands["ids"]
        operands["slots"] = f"{prefix}.slots"
        reads = [ref for ref in reads if ref != f"{prefix}.ids"]
        reads += [f"{prefix}.slots", "overflow"]
    elif shape.addressing == "map":
        index = "[l,w]" if shape.waves else "[l]"
        found = (
            f"{prefix}.map" if shape.routes_first and not shape.waves else f"{prefix}.map{index}"
        )
        operands["map"] = found
        reads += [found, f"staged{index}"]
    return replace(step, reads=tuple(reads), operands=operands)
