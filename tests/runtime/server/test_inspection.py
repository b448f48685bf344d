"""Inspection: whatever a dead or busy engine left in shared memory, something is said of it."""

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.engine.position import (
    FIRST_STREAM,
    NOTES_AT,
    POSITION_BYTES,
    PROGRAMS,
    RUNNING,
    Position,
    PositionReader,
    pack,
)
from firmtoken.runtime.server.inspection import describe_position
from firmtoken.runtime.server.report import StreamReport

NOTE_AT = NOTES_AT + PROGRAMS.index("prefill") * 4096


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_argument("tiny-cpu", ()).plan


def main_stream(plan: Plan, memory: bytearray) -> StreamReport:
    position = describe_position(
        PositionReader(memory), plan, pid=1, waited_s=0.0, due_s=1.0, shares={}
    )
    return next(stream for stream in position.streams if stream.name == "main")


def in_prefill(plan: Plan) -> bytearray:
    memory = bytearray(POSITION_BYTES)
    position = Position(memory)
    position.begin_run("prefill", (1, 1), 512, 1)
    main = FIRST_STREAM + 2 * plan.streams.names.index("main")
    position.words[main] = pack("prefill", 1, RUNNING)
    return memory


def test_a_launch_is_named_by_the_sizes_of_its_run(plan: Plan) -> None:
    assert main_stream(plan, in_prefill(plan)).op is not None


def test_sizes_that_are_just_being_written_name_no_launch(plan: Plan) -> None:
    """The reader takes no lock: it may find the length of one note and the text of another."""
    memory = in_prefill(plan)
    memory[NOTE_AT] -= 3
    stream = main_stream(plan, memory)
    assert (stream.op, stream.program, stream.launch) == (None, "prefill", 1)


def test_sizes_that_no_run_has_are_not_unrolled(plan: Plan) -> None:
    """It would take the server's whole memory."""
    memory = in_prefill(plan)
    Position(memory).begin_run("prefill", (2**50,), 512, 1)
    assert main_stream(plan, memory).op is None
