"""`lower`: a family's layers to program templates, with offload and yields, before kernels and streams are chosen.

Names: a value that lives inside one program gets its prefix (`decode.h`); what outlives it has none (`kv[l,1]`).
Owner 0 is the open prefill, owner 1 the running batch (D5).
"""

from dataclasses import replace

from firmtoken.compiler.facts import Batches, ModelFacts
from firmtoken.compiler.family import Family
from firmtoken.compiler.passes.fuse import fuse
from firmtoken.compiler.passes.lower_experts import (
    Shape,
    ahead,
    experts,
    first_waves,
    localise,
    shorthand,
)
from firmtoken.compiler.plan import Programs
from firmtoken.compiler.prescribed_routes import has_routes
from firmtoken.compiler.program import Block, BlockOf, Body, Item, Loop, Program, Step, When, Yield
from firmtoken.compiler.slot_split import LEAST_WAVES

OPEN_PREFILL, RUNNING = "0", "1"


def lower(
    family: Family,
    facts: ModelFacts,
    batches: Batches,
    *,
    layout: str,
    snapshots: bool,
    captured: bool,
) -> Programs:
    """Programs of this layout; `kernel` is empty and there are no events yet."""
    prescribed = has_routes(facts)
    offload, waves = layout != "resident", layout == "waves"
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
        waves=waves,
        columns=1 if waves else batches.columns,
    )
    extend = replace(prefill, prefix="extend", hidden="hid", columns=1)
    chunks = -(-facts.max_positions // batches.moe_chunk)
    tiles = -(-batches.moe_chunk // batches.mixer_tile)
    whole = {"layers": facts.num_layers, "chunks": 1, "tiles": 1}
    looped = {**whole, "waves": LEAST_WAVES} if waves else whole
    bounds = {**looped, "chunks": chunks, "tiles": tiles}
    if prefill.columns > 1:
        bounds["columns"] = prefill.columns
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
                "experts": experts(family, decode, prescribed=prescribed),
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
                "experts": experts(family, prefill, prescribed=prescribed),
                **({"ahead": ahead(prefill, "l+1")} if layout == "offload" else {}),
            },
        ),
        extend=Program(
            captured=False,
            closed=True,
            sizes=(),
            bounds=looped,
            entry_waits=(),
            body=(*restore, *_extend_body(extend), *_head(family, extend, "last")),
            blocks={
                **_mixer_blocks(family, facts, extend),
                "experts": experts(family, extend, prescribed=prescribed),
            },
        ),
        park=_park(facts) if snapshots and facts.num_linear else None,
    )


def _layers(*body: Item) -> Loop:
    return Loop(loop="l", count="layers", body=body)


def _chunks(*body: Item) -> Loop:
    return Loop(loop="c", count="chunks", body=body)


def _tiles(*body: Item) -> Loop:
    return Loop(loop="t", count="tiles", body=body)


def _embed(shape: Shape) -> Body:
    hidden = f"{shape.prefix}.{shape.hidden}"
    return (shorthand("embed", writes=f"hid:{hidden}", weights="table:embed", rows="tokens"),)


def _layer_major(shape: Shape) -> Body:
    """A span goes through layer l while experts are on their way: what l + 1 misses (D7), or the next waves (D8)."""
    first = first_waves(shape, "0") if shape.waves else ahead(shape, "0")
    whole: Body = (When(when="l+1<layers", body=(Block(block="ahead"),)),)
    return (
        _chunks(*_embed(shape)),
        *first,
        _layers(
            *(() if shape.waves else whole),
            _chunks(
                _tiles(BlockOf(block_of="kind", suffix=".mixer")),
                Block(block="experts"),
                Yield(program="decode"),
            ),
            replace(
                shorthand("mark", rows="1"),
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


def _gather(shape: Shape) -> Step:
    source = f"{shape.prefix}.{shape.hidden}"
    return shorthand(
        "copy", reads=f"source:{source}", writes=f"target:{shape.prefix}.last", rows="tokens"
    )


def _head(family: Family, shape: Shape, last: str) -> Body:
    steps = tuple(localise(step, shape, last=last) for step in fuse(family.head()))
    tokens = shorthand(
        "sample",
        reads=f"logits:{shape.prefix}.logits",
        writes=f"tokens:{shape.prefix}.tokens",
        rows="sequences",
    )
    return (*steps, tokens)


def _mixer_blocks(family: Family, facts: ModelFacts, shape: Shape) -> dict[str, Body]:
    return {
        f"{kind}.mixer": tuple(localise(step, shape) for step in fuse(family.mixer(kind)))
        for kind in sorted(set(facts.layer_kinds))
    }


def _restore_states(facts: ModelFacts, *, snapshots: bool) -> Body:
    """Before layer 0 every sequence that enters gets its states: a snapshot's, or zero."""
    if not facts.num_linear:
        return ()
    step = shorthand(
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
    snapshot = shorthand(
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
