"""Where the engine is: what it writes before each launch is what a watcher reads."""

import importlib

import pytest

from firmtoken.compiler.unroll import unroll
from firmtoken.runtime.engine.position import (
    NUM_STEPS,
    POSITION_BYTES,
    RUNNING,
    WAITING,
    Position,
    PositionReader,
    pack,
)


def test_a_run_is_told_with_its_sizes_and_its_end() -> None:
    memory = bytearray(POSITION_BYTES)
    position, reader = Position(memory, iter(range(100, 999)).__next__), PositionReader(memory)
    number = position.begin_run("prefill", (2, 1), 300, 2)
    note = reader.run_of("prefill")
    assert note is not None
    assert (note.run, note.tiles, note.rows, note.num_seqs) == (0, (2, 1), 300, 2)
    assert reader.run_of("decode") is None
    (step,) = reader.steps()
    assert (step.program, step.begun_ns, step.ended_ns) == ("prefill", 100, 0)
    position.end_run(number)
    assert reader.steps()[0].ended_ns == 101


def test_the_last_64_runs_are_kept_in_order() -> None:
    memory = bytearray(POSITION_BYTES)
    position = Position(memory)
    for _ in range(NUM_STEPS + 10):
        position.end_run(position.begin_run("decode", (1,), 1, 1))
    runs = [step.run for step in PositionReader(memory).steps()]
    assert runs == list(range(10, NUM_STEPS + 10))


def test_streams_say_program_launch_and_state() -> None:
    memory = bytearray(POSITION_BYTES)
    position, reader = Position(memory), PositionReader(memory)
    position.words[8] = pack("extend", 70_000, RUNNING)
    position.words[10] = pack("decode", 3, WAITING)
    streams = reader.streams(("main", "link"))
    assert (streams["main"].program, streams["main"].launch) == ("extend", 70_000)
    assert streams["main"].state == "running"
    assert (streams["link"].launch, streams["link"].state) == (3, "waiting")


def test_what_is_due_has_a_floor_before_the_engine_is_ready() -> None:
    memory = bytearray(POSITION_BYTES)
    position, reader = Position(memory), PositionReader(memory)
    position.least_ns = 60_000_000_000
    position.due(2.0)
    assert (reader.units, reader.due_s) == (1, 60.0)
    position.least_ns = 0
    position.due(2.0)
    assert (reader.units, reader.due_s) == (2, 2.0)
    position.idle()
    assert (reader.units, reader.due_s) == (3, 0.0)


def test_a_new_engine_knows_what_is_filled_and_nothing_else() -> None:
    memory = bytearray(POSITION_BYTES)
    position, reader = Position(memory), PositionReader(memory)
    position.begin_run("park", (), 0, 0)
    position.fill("bank", "abc")
    position.spend(2)
    reader.restart(30.0)
    assert reader.steps() == () and reader.run_of("park") is None
    assert reader.due_s == 30.0
    assert Position(memory).filled() == {"bank": "abc"}
    assert Position(memory).spent() == [2]


def test_a_note_that_is_half_written_reads_as_none() -> None:
    memory = bytearray(POSITION_BYTES)
    position, reader = Position(memory), PositionReader(memory)
    position.begin_run("decode", (1,), 1, 1)
    start = memory.find(b'{"run"') - 4
    memory[start : start + 4] = (10**6).to_bytes(4, "little")
    assert reader.run_of("decode") is None


def test_the_position_of_a_launch_is_its_place_in_the_unrolled_program(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("tiny-cpu")
    plan, reader = bench.plan, PositionReader(bench.interpreter.position._memory)
    names = plan.streams.names
    entry = next(row.entry for row in plan.kernels if row.op == "moe_down")
    module, name = entry.split(":")
    original = getattr(importlib.import_module(module), name)
    seen = []

    def look(*arguments: object, **operands: object) -> object:
        seen.append(reader.streams(names)["main"])
        return original(*arguments, **operands)

    monkeypatch.setitem(bench.interpreter._kernels._loaded, entry, look)
    bench.add(1, list(range(1, 200)), 2)
    bench.drain()
    note = reader.run_of("prefill")
    assert note is not None and note.rows == 199
    kinds = plan.model.layer_kinds
    flat = {
        "prefill": unroll(plan.programs.prefill, kinds, chunks=1, tiles=note.tiles),
        "decode": unroll(plan.programs.decode, kinds),
    }
    assert [at.program for at in seen] == ["prefill"] * len(kinds) + ["decode"] * len(kinds)
    for layer, at in enumerate(seen):
        found = flat[at.program][at.launch]
        assert (found.step.op, found.step.stream, at.state) == ("moe_down", "main", "running")
        assert found.at["l"] == layer % len(kinds)
    (link,) = [at for name, at in reader.streams(names).items() if name != "main"]
    assert link.state == "idle" and link.thread > 0
    assert reader.units > len(kinds)  # a layer of a span is a unit
    assert all(step.ended_ns > step.begun_ns for step in reader.steps())


@pytest.mark.parametrize(
    ("op", "named"),
    [
        ("moe_down", "`moe_down` (layer 0 of prefill, stream `main`)"),
        ("fetch", "`fetch` (prefill, for `staged[0]`, stream `link`)"),
    ],
)
def test_a_launch_that_raises_is_named(
    start, monkeypatch: pytest.MonkeyPatch, op: str, named: str
) -> None:
    bench = start("tiny-cpu")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no more")

    kernels = bench.interpreter._kernels
    entry = next(row.entry for row in bench.plan.kernels if row.op == op)
    monkeypatch.setitem(kernels._loaded, entry, fail)
    bench.add(1, list(range(1, 200)), 2)
    bench.drain()
    assert bench.end(1).message == f"out of memory in {named}"
