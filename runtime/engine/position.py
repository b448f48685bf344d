"""Where the engine is, in shared memory: written before each launch, read by whoever watches (D18). No torch here.

    words   int64 x 64    0 units begun | 1 nanoseconds until the next is due, 0 = nothing is | 2 runs begun
                          3 answers SIGUSR1
                          8 + 2 s       what stream s is at: program, launch, state (`pack`) | 9 + 2 s its thread
    steps   64 x 6 words  the last runs: number, program, rows, sequences, begun, ended (monotonic nanoseconds)
    notes   6 x 4 KiB     JSON behind its length: the sizes of each program's last run; which segments are filled

The writer sets no clock of its own against a deadline: it says how long the next unit may take, and the watcher counts
the time that it has seen pass. So a suspended machine or a jumping clock stalls nobody.
"""

import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

PROGRAMS = ("decode", "prefill", "extend", "park")
IDLE, WAITING, RUNNING = 0, 1, 2
STATES = ("idle", "waiting", "running")

WORD = 8
NUM_WORDS = 64
UNITS, DUE_NS, RUNS, ANSWERS = 0, 1, 2, 3
FIRST_STREAM = 8
NUM_STEPS = 64
STEP_WORDS = 6
NOTE_BYTES = 4096
LENGTH_BYTES = 4
FILLED = len(PROGRAMS)
SPENT = FILLED + 1
STEPS_AT = NUM_WORDS * WORD
NOTES_AT = STEPS_AT + NUM_STEPS * STEP_WORDS * WORD
POSITION_BYTES = NOTES_AT + (len(PROGRAMS) + 2) * NOTE_BYTES
PROGRAM_SHIFT = 40
STATE_BITS = 2


class RunNote(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of one run: with the plan they say what each of its launches is."""

    run: int
    tiles: tuple[int, ...]
    """Tiles of each chunk."""
    rows: int
    num_seqs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """What one stream is at."""

    program: str
    launch: int
    """Index in the unrolled program."""
    state: str
    """`idle`, `waiting` (for an event) or `running`."""
    thread: int
    """The thread's number in the system; 0 before the stream ran anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """One run of a program."""

    run: int
    program: str
    rows: int
    num_seqs: int
    begun_ns: int
    ended_ns: int
    """0 while it runs, or if it was given up."""


def pack(program: str, launch: int, state: int) -> int:
    """A stream's word."""
    return PROGRAMS.index(program) << PROGRAM_SHIFT | launch << STATE_BITS | state


class Position:
    """The writer's side; one thread writes each word."""

    def __init__(
        self,
        memory: mmap.mmap | bytearray | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`memory`: POSITION_BYTES of it; nobody watches a position without any."""
        self._clock_ns = clock_ns
        self._memory = memoryview(bytearray(POSITION_BYTES) if memory is None else memory)
        self.words = self._memory[:STEPS_AT].cast("q")
        """Streams write their own: an assignment is all that a launch can afford."""
        self.least_ns = 0
        """What every unit may take at least: before the engine is ready, all is done for the first time."""
        self._steps = self._memory[STEPS_AT:NOTES_AT].cast("q")

    def due(self, seconds: float) -> None:
        """A unit begins; the next one is due after that time."""
        words = self.words
        words[DUE_NS] = max(self.least_ns, int(seconds * 1e9))
        words[UNITS] += 1

    def idle(self) -> None:
        """Nothing is due until somebody asks for something."""
        self.words[DUE_NS] = 0
        self.words[UNITS] += 1

    def answer(self) -> None:
        """SIGUSR1 writes stacks from now on; before, it would end the process."""
        self.words[ANSWERS] = 1

    def begin_run(self, program: str, tiles: tuple[int, ...], rows: int, num_seqs: int) -> int:
        """A program begins; its number."""
        run = self.words[RUNS]
        self.words[RUNS] = run + 1
        number = PROGRAMS.index(program)
        note = RunNote(run=run, tiles=tiles, rows=rows, num_seqs=num_seqs)
        self._write_note(number, msgspec.json.encode(note))
        at = run % NUM_STEPS * STEP_WORDS
        entry = (run, number, rows, num_seqs, self._clock_ns(), 0)
        for index, word in enumerate(entry):
            self._steps[at + index] = word
        return run

    def end_run(self, run: int) -> None:
        """The program went through."""
        self._steps[run % NUM_STEPS * STEP_WORDS + STEP_WORDS - 1] = self._clock_ns()

    def filled(self) -> dict[str, str]:
        """Segment -> what it was filled with; survives the engine that filled it (D11)."""
        return msgspec.json.decode(self._read_note(FILLED) or b"{}", type=dict[str, str])

    def fill(self, segment: str, digest: str) -> None:
        """`segment` is complete; an empty digest says that it is not."""
        self._write_note(FILLED, msgspec.json.encode(self.filled() | {segment: digest}))

    def spent(self) -> list[int]:
        """Faults of the plan that have happened; a test's engine comes back without them."""
        return msgspec.json.decode(self._read_note(SPENT) or b"[]", type=list[int])

    def spend(self, fault: int) -> None:
        """A fault of the plan happens now."""
        self._write_note(SPENT, msgspec.json.encode([*self.spent(), fault]))

    def _write_note(self, number: int, text: bytes) -> None:
        at = NOTES_AT + number * NOTE_BYTES
        assert len(text) <= NOTE_BYTES - LENGTH_BYTES
        self._memory[at : at + LENGTH_BYTES] = bytes(LENGTH_BYTES)  # whoever reads now finds none
        self._memory[at + LENGTH_BYTES : at + LENGTH_BYTES + len(text)] = text
        self._memory[at : at + LENGTH_BYTES] = len(text).to_bytes(LENGTH_BYTES, "little")

    def _read_note(self, number: int) -> bytes:
        return read_note(self._memory, number)


class PositionReader:
    """The watcher's side: reads what another process writes, or has written before it died."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memoryview(memory)
        self._words = self._memory[:STEPS_AT].cast("q")

    @property
    def units(self) -> int:
        """Units begun: it moves while the engine lives."""
        return self._words[UNITS]

    @property
    def answers(self) -> bool:
        """The engine can be asked for its stacks."""
        return self._words[ANSWERS] == 1

    @property
    def due_s(self) -> float:
        """Seconds in which the next unit is due; 0 = nothing is."""
        return self._words[DUE_NS] / 1e9

    def restart(self, seconds: float) -> None:
        """A new engine begins, of which nothing is known; what segments hold and which faults are spent stays."""
        self._memory[: NOTES_AT + len(PROGRAMS) * NOTE_BYTES] = bytes(
            NOTES_AT + len(PROGRAMS) * NOTE_BYTES
        )
        self._words[DUE_NS] = int(seconds * 1e9)

    def close(self) -> None:
        """Lets go of the memory, so that its owner can."""
        self._words.release()
        self._memory.release()

    def streams(self, names: Sequence[str]) -> dict[str, StreamPosition]:
        """What each stream is at."""
        found = {}
        for number, name in enumerate(names):
            word = self._words[FIRST_STREAM + 2 * number]
            # Whoever dies may leave anything here: a number that means nothing is shown as the first.
            program, state = word >> PROGRAM_SHIFT, word & (1 << STATE_BITS) - 1
            found[name] = StreamPosition(
                program=PROGRAMS[program if 0 <= program < len(PROGRAMS) else 0],
                launch=(word & (1 << PROGRAM_SHIFT) - 1) >> STATE_BITS,
                state=STATES[state if state < len(STATES) else 0],
                thread=self._words[FIRST_STREAM + 2 * number + 1],
            )
        return found

    def run_of(self, program: str) -> RunNote | None:
        """The sizes of a program's last run."""
        text = read_note(self._memory, PROGRAMS.index(program))
        return msgspec.json.decode(text, type=RunNote) if text else None

    def steps(self) -> tuple[StepTaken, ...]:
        """The last runs, oldest first."""
        with self._memory[STEPS_AT:NOTES_AT].cast("q") as words:
            flat = words.tolist()
        rows = [flat[at : at + STEP_WORDS] for at in range(0, len(flat), STEP_WORDS)]
        taken = [
            StepTaken(
                run=run,
                program=PROGRAMS[program if 0 <= program < len(PROGRAMS) else 0],
                rows=num_rows,
                num_seqs=num_seqs,
                begun_ns=begun,
                ended_ns=ended,
            )
            for run, program, num_rows, num_seqs, begun, ended in rows
            if begun
        ]
        return tuple(sorted(taken, key=lambda step: step.run))


def read_note(memory: memoryview, number: int) -> bytes:
    """One note; empty if there is none, or if it is being written."""
    at = NOTES_AT + number * NOTE_BYTES
    length = int.from_bytes(memory[at : at + LENGTH_BYTES], "little")
    if length > NOTE_BYTES - LENGTH_BYTES:
        return b""
    return bytes(memory[at + LENGTH_BYTES : at + LENGTH_BYTES + length])
