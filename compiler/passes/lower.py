"""`lower`: a family's layers to program templates, with offload and yields, before kernels and streams are chosen.

Names: a value that lives inside one program gets its prefix (`decode.h`); what outlives it has none (`kv[l,1]`).
Owner 0 is the open prefill, owner 1 the running batch (D5).
"""

from dataclasses import dataclass, replace

from firmtoken.compiler.facts import Batches, ModelFacts
from firmtoken.compiler.family import Family
from firmtoken.compiler.passes.fuse import fuse
from firmtoken.compiler.plan import Programs
from firmtoken.compiler.program import Block, BlockOf, Body, Item, Loop, Program, Step, When, Yield

OPEN_PREFILL, RUNNING = "0", "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What differs between the programs of one placement."""

    prefix: str
    owner: str
    hidden: str
    """Reference of the hidden states: `hid`, or `hid[c]` where a span parks them."""
    addressing: str
    """`ids` (resident), `map` (through resolve) or `slots` (through admit)."""


def lower(
    family: Family,
    facts: ModelFacts,
    batches: Batches,
    *,
    placement: str,
    snapshots: bool,
    captured: bool,
) -> Programs:
    """Programs of this placement; `kernel` is empty and there are no events yet."""
    offload = placement == "offload"
    decode = Shape(
        prefix="decode",
        owner=RUNNING,
        hidden="hid",
        addressing="slots" if offload else "ids",
    )
    prefill = Shape(
        prefix="prefill",
        owner=OPEN_PREFILL,
        hidden="hid[c]" if offload else "hid",
        addressing="map" if offload else "ids",
    )
    extend = replace(prefill, prefix="extend", hidden="hid")
    chunks = -(-facts.max_positions // batches.moe_chunk)
    tiles = -(-batches.moe_chunk // batches.mixer_tile)
    bounds = {"layers": facts.num_layers, "chunks": chunks, "tiles": tiles}
    whole = {"layers": facts.num_layers, "chunks": 1, "tiles": 1}
    restore = _restore_states(facts, snapshots=snapshots)
    prefill_body = _layer_major(prefill) if offload else _chunk_major(prefill)
    return Programs(
        decode=Program(
            captured=captured,
            closed=True,
            sizes=batches.graph_batch_sizes,
            bounds=whole,
            entry_waits=(),
            body=(*_embed(decode), _layers(Block(block="layer")), *_head(family, decode, "hid")),
            blocks={
                **_mixer_blocks(family, facts, decode),
                "experts": _experts(family, decode),
                "layer": (BlockOf(block_of="kind", suffix=".mixer"), Block(block="experts")),
            },
        ),
        prefill=Program(
            captured=False,
            closed=True,
            sizes=(),
            bounds=bounds,
            entry_waits=(),
            body=(*restore, *prefill_body, *_head(family, prefill, "last")),
            blocks={
                **_mixer_blocks(family, facts, prefill),
                "experts": _experts(family, prefill),
                **({"ahead": _ahead(prefill, "l+1")} if offload else {}),
            },
        ),
        extend=Program(
            captured=False,
            closed=True,
            sizes=(),
            bounds=whole,
            entry_waits=(),
            body=(*restore, *_extend_body(extend), *_head(family, extend, "last")),
            blocks={
                **_mixer_blocks(family, facts, extend),
                "experts": _experts(family, extend),
            },
        ),
        park=_park(facts) if snapshots and facts.num_linear else None,
    )


def _step(op: str, *, rows: str, reads: str = "", writes: str = "", weights: str = "") -> Step:
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


def _layers(*body: Item) -> Loop:
    return Loop(loop="l", count="layers", body=body)


def _chunks(*body: Item) -> Loop:
    return Loop(loop="c", count="chunks", body=body)


def _tiles(*body: Item) -> Loop:
    return Loop(loop="t", count="tiles", body=body)


def _embed(shape: Shape) -> Body:
    hidden = f"{shape.prefix}.{shape.hidden}"
    return (_step("embed", writes=f"hid:{hidden}", weights="table:embed", rows="tokens"),)


def _layer_major(shape: Shape) -> Body:
    """A span goes through layer l while the missing experts of l + 1 are on their way (D7)."""
    return (
        _chunks(*_embed(shape)),
        *_ahead(shape, "0"),
        _layers(
            When(when="l+1<layers", body=(Block(block="ahead"),)),
            _chunks(
                _tiles(BlockOf(block_of="kind", suffix=".mixer")),
                Block(block="experts"),
                Yield(program="decode"),
            ),
            replace(
                _step("mark", rows="1"),
                drops=("cache[l]", "table[l]"),
            ),
        ),
        _chunks(_gather(shape)),
    )


def _chunk_major(shape: Shape) -> Body:
    """Everything is resident: nothing to wait for; a chunk goes through all layers, with a yield after each."""
    return (
        _chunks(
            *_embed(shape),
            _layers(
                _tiles(BlockOf(block_of="kind", suffix=".mixer")),
                Block(block="experts"),
                Yield(program="decode"),
            ),
            _gather(shape),
        ),
    )


def _extend_body(shape: Shape) -> Body:
    return (
        *_embed(shape),
        _layers(BlockOf(block_of="kind", suffix=".mixer"), Block(block="experts")),
        _gather(shape),
    )


def _ahead(shape: Shape, layer: str) -> Body:
    """Find and fetch what layer `layer` misses; nothing of that layer may change until it is done."""
    prefix = shape.prefix
    table, cache = f"table[{layer}]", f"cache[{layer}]"
    found, missing, staged = f"{prefix}.map[{layer}]", f"{prefix}.miss[{layer}]", f"staged[{layer}]"
    resolve = _step(
        "resolve", reads=f"table:{table}", writes=f"map:{found} miss:{missing}", rows="1"
    )
    return (
        replace(
            resolve,
            holds=(cache, table),
            addresses=(staged,),
            operands={**resolve.operands, "staged": staged},
        ),
        _fetch(missing, layer, f"staged:{staged}"),
    )


def _fetch(missing: str, layer: str, targets: str) -> Step:
    return _step("fetch", reads=f"miss:{missing} bank:bank[{layer}]", writes=targets, rows="1")


def _gather(shape: Shape) -> Step:
    source = f"{shape.prefix}.{shape.hidden}"
    return _step(
        "copy", reads=f"source:{source}", writes=f"target:{shape.prefix}.last", rows="tokens"
    )


def _head(family: Family, shape: Shape, last: str) -> Body:
    steps = tuple(_localise(step, shape, last=last) for step in fuse(family.head()))
    tokens = _step(
        "sample",
        reads=f"logits:{shape.prefix}.logits",
        writes=f"tokens:{shape.prefix}.tokens",
        rows="sequences",
    )
    return (*steps, tokens)


def _mixer_blocks(family: Family, facts: ModelFacts, shape: Shape) -> dict[str, Body]:
    return {
        f"{kind}.mixer": tuple(_localise(step, shape) for step in fuse(family.mixer(kind)))
        for kind in sorted(set(facts.layer_kinds))
    }


def _experts(family: Family, shape: Shape) -> Body:
    """The second half of a layer, with what the addressing needs before the routed experts run."""
    steps = [_localise(step, shape) for step in fuse(family.experts())]
    placed = [_address(step, shape) for step in steps]
    ids = f"{shape.prefix}.ids"
    at = next(index for index, step in enumerate(placed) if ids in step.writes) + 1
    return (*placed[:at], *_find(shape), *_shared_first(placed[at:]))


def _shared_first(steps: list[Step]) -> tuple[Step, ...]:
    """The shared expert needs no routed expert, so it runs while those are fetched."""
    return tuple(sorted(steps, key=lambda step: step.op != "shared_expert"))


def _find(shape: Shape) -> Body:
    """Between `route` and the experts: find slots and fetch what is missing."""
    prefix = shape.prefix
    if shape.addressing == "slots":
        admit = _step(
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
    if shape.addressing == "map" and prefix == "extend":
        resolve = _step(
            "resolve",
            reads=f"ids:{prefix}.ids table:table[l]",
            writes=f"map:{prefix}.map miss:{prefix}.miss",
            rows="tokens",
        )
        return (
            replace(
                resolve,
                addresses=("staged[l]",),
                operands={**resolve.operands, "staged": "staged[l]"},
            ),
            _fetch(f"{prefix}.miss", "l", "staged:staged[l]"),
        )
    return ()


def _address(step: Step, shape: Shape) -> Step:
    """Routed-expert steps get the operands by which they find their slots."""
    if step.op not in ("moe_gate_up", "moe_down"):
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
        found = f"{prefix}.map" if prefix == "extend" else f"{prefix}.map[l]"
        operands["map"] = found
        reads += [found, "staged[l]"]
    return replace(step, reads=tuple(reads), operands=operands)


def _localise(step: Step, shape: Shape, *, last: str = "last") -> Step:
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


def _restore_states(facts: ModelFacts, *, snapshots: bool) -> Body:
    """Before layer 0 every sequence that enters gets its states: a snapshot's, or zero."""
    if not facts.num_linear:
        return ()
    step = _step(
        "restore",
        reads="snaps:snaps[l]" if snapshots else "",
        writes="conv_state:conv_state[l,0] recurrent_state:recurrent_state[l,0]",
        rows="1",
    )
    return (_layers(When(when="kind==linear", body=(step,))),)


def _park(facts: ModelFacts) -> Program:
    """Copies the shadow states of listed sequences to snapshot slots, beside whatever runs next.

    It may run at a yield, where only the running batch (owner 1) may be read; elsewhere it owns all sequences.
    """
    snapshot = _step(
        "snapshot",
        reads="conv_state:conv_state[l,1] recurrent_state:recurrent_state[l,1]",
        writes="snaps:snaps[l]",
        rows="1",
    )
    return Program(
        captured=False,
        closed=False,
        sizes=(),
        bounds={"layers": facts.num_layers, "chunks": 1, "tiles": 1},
        entry_waits=(),
        body=(_layers(When(when="kind==linear", body=(snapshot,))),),
        blocks={},
    )
