"""What a GPU's kernels read of a batch says the same as the batch of the CPU's kernels, whatever was there before."""

import random
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from firmtoken.compiler.batch_layout import batch_layouts
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.batches import SPAN, BatchBuilder, cut_rows
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.messages import Sampling
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Piece, Span
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN
from firmtoken.schema.load import load_profile

PROFILE = Path(__file__).parents[2] / "device" / "tiny-cuda.yaml"
PAGE = 64
DRAWN_TOKENS = [4095, 0, 77, 5]


@pytest.fixture(scope="module")
def plan() -> Plan:
    overrides = ["hardware.gpu.memory=4GiB", "serving.context=4k", "schedule.prefill_chunk=512"]
    plan = compile_profile(load_profile(str(PROFILE), overrides).profile, CARDS)
    # Smaller than its own tile, so that a few hundred rows are cut.
    return replace(plan, schedule=replace(plan.schedule, mixer_tile=128))


@pytest.fixture
def builders(plan: Plan) -> tuple[BatchBuilder, DeviceBatches]:
    names = ("decode.batch", "span.batch")
    places = {name: torch.full((2**20,), 0xAB, dtype=torch.uint8) for name in names}
    places["decode.tokens"] = torch.tensor(DRAWN_TOKENS)
    views: Any = SimpleNamespace(tensor=lambda value: places[str(value)])
    return BatchBuilder(PAGE, hybrid=True), DeviceBatches(plan, views)


def make_sequence(number: int, tokens: int, computed: int) -> Sequence:
    rng = random.Random(number)
    pages = -(-tokens // PAGE)
    return Sequence(
        request_id=number,
        prompt_tokens=tokens,
        max_output=8,
        stop_token_ids=frozenset(),
        sampling=Sampling(
            temperature=0.5 * number, top_p=0.9, top_k=number, min_p=0.1, seed=number << 40
        ),
        arrival=number,
        token_ids=[rng.randrange(4096) for _ in range(tokens)],
        computed=computed,
        pages=tuple(rng.sample(range(1, 500), pages)),
        live=1 + 2 * number,
        shadow=2 + 2 * number,
    )


def same(batch: Batch, rows: DeviceRows) -> None:
    """Rows of sequences, and what says which they are; of padded rows only where they point."""
    real, sequences = batch.real_rows, len(batch.segments)
    assert rows.num_rows.tolist() == [real]
    assert rows.token_ids[:real].tolist() == batch.token_ids[:real].tolist()
    assert rows.positions[:real].tolist() == batch.positions[:real].tolist()
    assert rows.token_slots.tolist() == batch.token_slots.tolist()
    for number, segment in enumerate(batch.segments):
        own = slice(segment.first, segment.first + segment.rows)
        assert set(rows.sequences[own].tolist()) == {number}
        assert rows.first_rows[number : number + 2].tolist() == [own.start, own.stop]
        assert int(rows.starts[number]) == segment.start
        found = int(rows.live[number]), int(rows.shadow[number])
        assert found == (segment.live, segment.shadow)
        assert int(rows.boundary[number]) == segment.boundary
        pages = rows.pages[number, : len(segment.pages)]
        assert pages.tolist() == segment.pages.tolist()
    assert set(rows.sequences[real:].tolist()) <= {-1}
    assert not rows.live[sequences:].any()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_decode_step_has_a_row_for_each_sequence(
    builders: tuple[BatchBuilder, DeviceBatches], count: int
) -> None:
    plain, device = builders
    for first in (0, 7):  # again, over what is there already
        sequences = tuple(
            make_sequence(first + n, 1 + 63 * (n + 1), 63 * (n + 1)) for n in range(count)
        )
        decode = Decode(sequences=sequences, size=4)
        batch, rows = plain.decode(decode), device.decode(decode)
        same(batch, rows)
        assert rows.draws is not None
        for number, draw in enumerate(batch.draws):
            for name in DRAWN:
                found = getattr(rows.draws, name)[number].item()
                assert found == pytest.approx(getattr(draw, name))


@pytest.mark.parametrize("count", [1, 4])
def test_a_step_ahead_is_what_the_step_would_be_with_the_tokens_that_are_still_on_the_device(
    builders: tuple[BatchBuilder, DeviceBatches], count: int
) -> None:
    _, device = builders
    sequences = tuple(make_sequence(n, 40 * (n + 1), 40 * (n + 1) - 1) for n in range(count))
    device.decode(Decode(sequences=sequences, size=4))
    fields = [*DeviceRows.__annotations__]
    ahead = snapshot(device.decode(Decode(sequences=sequences, size=4, ahead=True)), fields)
    for sequence, token in zip(sequences, DRAWN_TOKENS, strict=False):
        sequence.token_ids.append(token)
        sequence.computed += 1
    assert ahead == snapshot(device.decode(Decode(sequences=sequences, size=4)), fields)


def test_a_step_ahead_of_a_token_that_could_not_be_drawn_reads_some_token(
    builders: tuple[BatchBuilder, DeviceBatches],
) -> None:
    _, device = builders
    sequences = (make_sequence(1, 40, 39), make_sequence(2, 40, 39))
    device._views.tensor(Value("decode.tokens"))[0] = NO_TOKEN
    rows = device.decode(Decode(sequences=sequences, size=2, ahead=True))
    assert rows.token_ids.tolist() == [0, DRAWN_TOKENS[1]]


def snapshot(rows: DeviceRows, fields: list[str]) -> dict[str, object]:
    """All numbers of a batch, and of what is drawn."""
    found: dict[str, object] = {}
    for name in fields:
        value = getattr(rows, name)
        found[name] = value.tolist() if isinstance(value, torch.Tensor) else None
    for name in DRAWN:
        found[name] = getattr(rows.draws, name).tolist()
    return found


DRAWN = ("temperature", "top_p", "top_k", "min_p", "seed", "position")


def test_a_span_of_several_pieces_is_cut_into_tiles_and_chunk(
    builders: tuple[BatchBuilder, DeviceBatches],
) -> None:
    plain, device = builders
    lengths = ((64, 0), (300, 128), (5, 0), (130, 64))
    sequences = [make_sequence(n, *length) for n, length in enumerate(lengths)]
    pieces = tuple(
        Piece(
            sequence=one,
            start=one.computed,
            end=len(one.token_ids),
            final=number != 1,
            boundary=(len(one.token_ids) - 1) // PAGE * PAGE,
        )
        for number, one in enumerate(sequences)
    )
    span = Span(program="prefill", pieces=pieces)
    cut = cut_rows(span.num_tokens, len(pieces), chunk=512, tile=128)
    wanted, found = plain.span(span, cut), device.span(span, cut)
    assert set(wanted) == set(found)
    for key, batch in wanted.items():
        rows = found[key]
        assert isinstance(batch, Batch) and isinstance(rows, DeviceRows)
        same(batch, rows)
    whole, chunk = found[SPAN], found["tokens", 0]
    assert isinstance(whole, DeviceRows) and isinstance(chunk, DeviceRows)
    assert chunk.copies is not None and whole.draws is not None
    plain_chunk, plain_whole = wanted["tokens", 0], wanted[SPAN]
    assert isinstance(plain_chunk, Batch) and isinstance(plain_whole, Batch)
    assert [tuple(pair) for pair in chunk.copies.tolist()] == list(plain_chunk.copies)
    assert whole.restores is not None
    restored = [tuple(move) for move in whole.restores.tolist()]
    assert [move for move in restored if move[1] >= 0] == list(plain_whole.moves)


def test_whatever_a_launch_is_given_begins_at_a_multiple_of_16_bytes() -> None:
    """Whichever tile it is and whichever sequence is its first, however many there are and however long tables are."""
    for count in range(1, 8):
        lengths = [30, 130, 65, 1, 64, 200, 22][:count]
        sequences = [make_sequence(n, length, 0) for n, length in enumerate(lengths)]
        pieces = tuple(
            Piece(sequence=one, start=0, end=len(one.token_ids), final=True, boundary=0)
            for one in sequences
        )
        layouts = batch_layouts(
            rows=512, tile=64, sequences=count, positions=4096 + 64 * count, page_size=PAGE
        )
        schedule = SimpleNamespace(moe_chunk=512, mixer_tile=64, max_num_seqs=count)
        plan: Any = SimpleNamespace(
            schedule=schedule,
            kv_cache=SimpleNamespace(page_size=PAGE),
            model=SimpleNamespace(
                geometry={"max_position_embeddings": 4096 + 64 * count}, layer_kinds=("linear",)
            ),
        )
        places = [torch.zeros(layout.bytes, dtype=torch.uint8) for layout in layouts]
        views: Any = SimpleNamespace(
            tensor=lambda value, places=places: places[str(value) == "span.batch"]
        )
        batches = DeviceBatches(plan, views).span(
            Span(program="prefill", pieces=pieces),
            cut_rows(sum(lengths), count, chunk=512, tile=64),
        )
        for key, rows in batches.items():
            assert isinstance(rows, DeviceRows)
            for field in fields(DeviceRows):
                value = getattr(rows, field.name)
                if isinstance(value, torch.Tensor):
                    assert value.data_ptr() % 16 == 0, (count, key, field.name)


def test_a_prompt_is_padded_to_the_rows_of_a_graph_and_reads_the_same_places(
    builders: tuple[BatchBuilder, DeviceBatches],
) -> None:
    _, device = builders
    one = make_sequence(3, 50, 0)
    piece = Piece(sequence=one, start=0, end=50, final=True, boundary=0)
    cut = cut_rows(64, 1, chunk=512, tile=512)
    captured, found = device.prompt(cut), device.span(Span(program="prefill", pieces=(piece,)), cut)
    for key, rows in found.items():
        at = captured[key]
        assert isinstance(rows, DeviceRows) and isinstance(at, DeviceRows)
        assert rows.num_rows.tolist() == [50] and rows.first_rows.tolist() == [0, 50]
        assert rows.sequences.tolist() == [0] * 50 + [-1] * 14
        assert not rows.token_slots[50:].any()
        for name in ("num_rows", "token_ids", "token_slots", "sequences", "first_rows", "pages"):
            ours, theirs = getattr(rows, name), getattr(at, name)
            assert ours.data_ptr() == theirs.data_ptr() and ours.shape == theirs.shape


def test_pieces_of_a_request_that_left_write_to_the_sentinel_only(
    builders: tuple[BatchBuilder, DeviceBatches],
) -> None:
    _, device = builders
    sequences = [make_sequence(n, 100, 0) for n in range(2)]
    pieces = tuple(
        Piece(sequence=one, start=0, end=100, final=True, boundary=64) for one in sequences
    )
    span = Span(program="prefill", pieces=pieces, dropped={0})
    rows = device.span(span, cut_rows(200, 2, chunk=512, tile=512))["tile", 0, 0]
    assert isinstance(rows, DeviceRows)
    assert not rows.token_slots[:100].any() and rows.token_slots[100:].all()
    assert rows.live.tolist() == [0, sequences[1].live]
    assert not rows.pages[0].any() and rows.pages[1, :2].tolist() == list(sequences[1].pages)


def test_batches_have_places_of_their_own_in_the_plan(plan: Plan) -> None:
    rows = {row.name: row for row in plan.buffers}
    first, second = rows["decode.batch"], rows["span.batch"]
    assert first.space == second.space == "inputs"
    assert first.offset + first.bytes <= second.offset
