"""`allocate_buffers`: activations by liveness, once, at the largest legal size (D6).

What only `main` touches is packed by its intervals on that stream: order on one stream is happens-before, so intervals
are exact. What lives across a yield, or is touched by a side stream, shares its bytes with nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from firmtoken.compiler.batch_layout import batch_layouts
from firmtoken.compiler.facts import Batches, Laid, ModelFacts
from firmtoken.compiler.places import Buffer
from firmtoken.compiler.plan import Programs, Streams
from firmtoken.compiler.program import BoundStep, BoundYield, Flat, Program
from firmtoken.compiler.tensor_bytes import ELEMENT_BYTES, align_up
from firmtoken.compiler.unroll import layer_period, unroll


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    name: str
    unit: str
    capacity: int
    width: int
    dtype: str

    @property
    def bytes(self) -> int:
        return align_up(self.capacity * self.width * ELEMENT_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lives:
    """Intervals of ticks in which a name holds something that is still read."""

    intervals: tuple[tuple[int, int], ...]
    over_yield: bool
    indexed: bool


def allocate_buffers(
    facts: ModelFacts,
    batches: Batches,
    programs: Programs,
    streams: Streams,
    *,
    layout: str,
    page_size: int,
) -> Laid:
    """Places of everything whose size does not depend on the memory split."""
    capacities = _capacities(facts, batches)
    buffers: list[Buffer] = []
    arena = fixed = 0
    for name, program in programs.named():
        if name == "park":
            continue  # it touches states and snapshots only
        columns = program.bounds.get("columns", 1)
        sized = _sized(facts, name, capacities[name], columns)
        lives = _lives(_largest(program, facts), sized)
        packed, end = _pack(sized, lives)
        arena = max(arena, end)
        parked, fixed = _parked(sized, lives, fixed)
        buffers += packed + parked
        fixed = _outputs(buffers, name, capacities[name]["sequences"], fixed)
    from_host, host_bytes = _from_host(facts, batches, page_size, fixed)
    tables, table_bytes = ([], 0) if layout == "resident" else _tables(facts, layout)
    return Laid(
        placement="resident" if layout == "resident" else "offload",
        programs=programs,
        streams=streams,
        buffers=(*buffers, *from_host, *tables),
        activation_bytes=arena,
        parked_bytes_per_token=_parked_per_token(buffers, batches),
        input_bytes=fixed + host_bytes,
        host_input_bytes=host_bytes,
        table_bytes=table_bytes,
        launches=_launches(programs.decode, facts),
        prefill_launches=_launches(programs.prefill, facts),
    )


def _launches(program: Program, facts: ModelFacts) -> int:
    flat = unroll(program, facts.layer_kinds, chunks=1, tiles=(1,))
    return sum(isinstance(item, BoundStep) for item in flat)


def _capacities(facts: ModelFacts, batches: Batches) -> dict[str, dict[str, int]]:
    seqs, k = batches.max_num_seqs, facts.experts_per_token

    def units(tokens: int, tile: int) -> dict[str, int]:
        return {"tokens": tokens, "tile": tile, "pairs": tokens * k, "sequences": seqs}

    return {
        "decode": units(seqs, seqs),
        "prefill": units(batches.moe_chunk, batches.mixer_tile),
        "extend": units(batches.mixer_tile, batches.mixer_tile),
    }


def _sized(
    facts: ModelFacts, program: str, capacity: Mapping[str, int], columns: int
) -> tuple[_Sized, ...]:
    parts = {"rows": columns}  # of a chunk's down projection, one block of columns at a time
    own = [
        (value.name, value.unit, value.width // parts.get(value.name, 1), value.dtype)
        for value in facts.values
    ]
    own.append(("slots", "tokens", facts.experts_per_token, "int32"))
    return tuple(
        _Sized(
            name=f"{program}.{name}",
            unit="tokens" if unit == "tile" and program != "prefill" else unit,
            capacity=capacity[unit],
            width=width,
            dtype=dtype,
        )
        for name, unit, width, dtype in own
    )


def _largest(program: Program, facts: ModelFacts) -> Flat:
    """A run that shows every lifetime: each kind of layer followed by each, two chunks, two tiles if it has them."""
    kinds = facts.layer_kinds
    period = layer_period(kinds)
    chunks = min(2, program.bounds["chunks"])
    tiles = min(2, program.bounds["tiles"])
    some = kinds[max(0, period - 3) : period + 1]
    return unroll(program, some, chunks=chunks, tiles=(tiles,) * chunks)


def _lives(flat: Flat, sized: tuple[_Sized, ...]) -> dict[str, _Lives]:
    names = {row.name for row in sized}
    defined: dict[tuple[str, tuple[int, ...]], int] = {}
    last: dict[tuple[str, tuple[int, ...]], int] = {}
    intervals: dict[str, list[tuple[int, int]]] = {}
    yields: list[int] = []

    def close(key: tuple[str, tuple[int, ...]]) -> None:
        if key in defined:
            intervals.setdefault(key[0], []).append((defined.pop(key), last.pop(key)))

    indexed: dict[str, bool] = {}
    for tick, item in enumerate(flat):
        if isinstance(item, BoundYield):
            yields.append(tick)
            continue
        for value in (*item.reads, *item.writes):
            if value.name not in names:
                continue
            assert item.step.stream == "main", f"{value} is touched by `{item.step.stream}`"
            key = (value.name, value.index)
            indexed[value.name] = bool(value.index)
            updates = value in item.reads or item.continues
            if value in item.writes and not updates:
                close(key)
            defined.setdefault(key, tick)
            last[key] = tick
    for key in tuple(defined):
        close(key)
    return {
        name: _Lives(
            intervals=tuple(spans),
            over_yield=any(start < at < end for start, end in spans for at in yields),
            indexed=indexed[name],
        )
        for name, spans in intervals.items()
    }


def _pack(sized: tuple[_Sized, ...], lives: Mapping[str, _Lives]) -> tuple[list[Buffer], int]:
    """Greedy by size, first fit below or between what lives at the same time."""
    placed: list[tuple[_Sized, int]] = []
    buffers = []
    end = 0
    for row in sorted(sized, key=lambda row: -row.bytes):
        life = lives.get(row.name)
        if life is None or life.over_yield:
            continue
        offset = _first_fit(row, life, placed, lives)
        placed.append((row, offset))
        end = max(end, offset + row.bytes)
        buffers.append(
            _buffer(
                row, "activation", "activations", offset, because="placed by liveness on `main`"
            )
        )
    return buffers, end


def _first_fit(
    row: _Sized,
    life: _Lives,
    placed: list[tuple[_Sized, int]],
    lives: Mapping[str, _Lives],
) -> int:
    taken = sorted(
        (offset, offset + other.bytes)
        for other, offset in placed
        if _interfere(life, lives[other.name])
    )
    offset = 0
    for start, stop in taken:
        if offset + row.bytes <= start:
            break
        offset = max(offset, stop)
    return offset


def _interfere(one: _Lives, other: _Lives) -> bool:
    """Whether two names ever hold something at once; touching counts, since outputs may not overlap inputs."""
    ours, theirs = sorted(one.intervals), sorted(other.intervals)
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if ours[i][0] <= theirs[j][1] and theirs[j][0] <= ours[i][1]:
            return True
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return False


def _parked(
    sized: tuple[_Sized, ...], lives: Mapping[str, _Lives], fixed: int
) -> tuple[list[Buffer], int]:
    buffers = []
    for row in sized:
        life = lives.get(row.name)
        if life is None or not life.over_yield:
            continue
        because = "lives across a yield, where a decode step may run"
        if life.indexed:
            buffers.append(
                _buffer(row, "activation", "parked_hidden", 0, because=because, index=("chunk",))
            )
        else:
            buffers.append(_buffer(row, "activation", "inputs", fixed, because=because))
            fixed += row.bytes
    return buffers, fixed


def _outputs(buffers: list[Buffer], program: str, sequences: int, fixed: int) -> int:
    row = _Sized(
        name=f"{program}.tokens", unit="sequences", capacity=sequences, width=1, dtype="int64"
    )
    buffers.append(
        _buffer(row, "activation", "inputs", fixed, because="read by the host after the program")
    )
    return fixed + row.bytes


def _buffer(
    row: _Sized, kind: str, space: str, offset: int, *, because: str, index: tuple[str, ...] = ()
) -> Buffer:
    shape: tuple[int | str, ...] = (row.unit,) if row.width == 1 else (row.unit, row.width)
    return Buffer(
        name=row.name,
        kind=kind,
        space=space,
        index=index,
        offset=offset,
        bytes=row.bytes,
        stride=(row.bytes,) * len(index),
        ring=(0,) * len(index),
        places=(),
        view_of=(),
        dtype=row.dtype,
        shape=shape,
        because=because,
    )


def _parked_per_token(buffers: list[Buffer], batches: Batches) -> int:
    rows = [row for row in buffers if row.space == "parked_hidden"]
    return sum(row.bytes for row in rows) // batches.moe_chunk


def _from_host(
    facts: ModelFacts, batches: Batches, page_size: int, offset: int
) -> tuple[list[Buffer], int]:
    """Batches of a decode step and of a span, which may be open at the same time; and their bytes."""
    decode, span = batch_layouts(
        rows=batches.moe_chunk,
        tile=batches.mixer_tile,
        sequences=batches.max_num_seqs,
        positions=facts.max_positions,
        page_size=page_size,
    )
    buffers = []
    begin = offset
    for name, layout in (("decode.batch", decode), ("span.batch", span)):
        size = align_up(layout.bytes)
        row = _Sized(name=name, unit="", capacity=size, width=1, dtype="u8")
        because = "token ids, positions, page tables and sampling, by one copy from the host"
        buffers.append(
            replace(
                _buffer(row, "pinned", "inputs", offset, because=because), shape=(layout.bytes,)
            )
        )
        offset += size
    return buffers, offset - begin


def _tables(facts: ModelFacts, layout: str) -> tuple[list[Buffer], int]:
    """Residency: where experts are, how recently used, and what a program found missing."""
    rows: list[Buffer] = []
    offset = 0
    for name, kind, axes, ring, count, dtype, view_of in _table_rows(facts, layout):
        size = align_up(count * ELEMENT_BYTES[dtype])
        copies = ring or (facts.num_layers if axes else 1)
        # Of two indices the second counts: all layers take the same places in turn.
        stride = (0,) * (len(axes) - 1) + (size,) if axes else ()
        rows.append(
            Buffer(
                name=name,
                kind=kind,
                space="tables",
                index=axes,
                offset=offset,
                bytes=size,
                stride=stride,
                ring=tuple(ring if step else 0 for step in stride),
                places=(),
                view_of=view_of,
                dtype=dtype,
                shape=(count,),
                because=f"found ahead for one {axes[-1]} while the other computes"
                if ring
                else "residency",
            )
        )
        offset += size * copies
    return rows, offset


def _table_rows(
    facts: ModelFacts, layout: str
) -> Iterator[tuple[str, str, tuple[str, ...], int, int, str, tuple[str, ...]]]:
    experts = facts.experts_per_layer
    sources = ("table", "cache")
    yield "table", "persistent", ("layer",), 0, experts, "int32", ()
    yield "lru", "persistent", ("layer",), 0, experts, "int64", ()
    ahead: dict[str, tuple[str, ...]] = {"prefill": ("layer",), "extend": ()}
    if layout == "waves":
        ahead = dict.fromkeys(ahead, ("layer", "wave"))
    for name, axes in ahead.items():
        ring = 2 if axes else 0
        yield f"{name}.map", "view", axes, ring, experts, "int32", sources
        yield f"{name}.miss", "activation", axes, ring, 1 + 2 * experts, "int32", ()
    yield "decode.miss", "activation", (), 0, 1 + 2 * experts, "int32", ()
