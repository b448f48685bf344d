"""Inspection: what an engine's process does right now, read from shared memory and /proc, never asked of itself."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import BadPlan, plan_from_json
from firmtoken.compiler.program import BoundStep, Flat
from firmtoken.compiler.unroll import describe_step, unroll
from firmtoken.runtime.engine.position import PositionReader, StreamPosition
from firmtoken.runtime.server.report import PositionReport, StepReport, StreamReport, ThreadReport

SAMPLE_S = 0.25
"""CPU shares are measured over this."""
STAT_STATE, STAT_USER, STAT_SYSTEM = 0, 11, 12
"""Fields of /proc/PID/task/TID/stat behind the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """A thread at one moment."""

    name: str
    state: str
    ticks: int


async def threads_of(pid: int, streams: Mapping[int, str]) -> tuple[ThreadReport, ...]:
    """Threads of a process with their CPU shares; none if it is gone. `streams`: thread -> stream."""
    before = _sample(pid)
    await asyncio.sleep(SAMPLE_S)
    after = _sample(pid)
    per_s = os.sysconf("SC_CLK_TCK")
    return tuple(
        ThreadReport(
            id=thread,
            name=now.name,
            state=now.state,
            cpu_share=round((now.ticks - before[thread].ticks) / per_s / SAMPLE_S, 2),
            stream=streams.get(thread),
        )
        for thread, now in sorted(after.items())
        if thread in before
    )


class NoPlan:
    """What runs there is no plan of ours: an engine that speaks our protocol and is scripted."""


def plan_of(plan_json: bytes) -> Plan | NoPlan:
    """The plan that an engine was started with."""
    try:
        return plan_from_json(plan_json)
    except BadPlan:
        return NoPlan()


def describe_position(
    reader: PositionReader,
    plan: Plan | NoPlan,
    *,
    pid: int,
    waited_s: float,
    due_s: float,
    shares: Mapping[int, float],
) -> PositionReport:
    """The engine's words in the plan's terms; words that make no sense there are shown as nothing."""
    if isinstance(plan, NoPlan):
        return PositionReport(
            due_s=due_s, overdue_s=waited_s - due_s, units=reader.units, streams=(), culprit=None
        )
    found = reader.streams(plan.streams.names)
    flats = {name: _flat_of(reader, plan, at.program) for name, at in found.items()}
    streams = tuple(
        _stream_report(name, at, flats[name], pid=pid, shares=shares) for name, at in found.items()
    )
    # A stream that waits for another says so. Of several that run, the one that computes has the CPU.
    running = [stream for stream in streams if stream.state == "running"]
    busiest = max(running, key=lambda stream: stream.cpu_share or 0, default=None)
    return PositionReport(
        due_s=due_s,
        overdue_s=round(waited_s - due_s, 3),
        units=reader.units,
        streams=streams,
        culprit=None if busiest is None else busiest.text,
    )


def stream_threads(reader: PositionReader, plan: Plan | NoPlan, pid: int) -> dict[int, str]:
    """Thread -> stream: `main` is the process's first thread."""
    if isinstance(plan, NoPlan):
        return {}
    return {at.thread or pid: name for name, at in reader.streams(plan.streams.names).items()}


def describe_steps(reader: PositionReader, now_ns: int) -> tuple[StepReport, ...]:
    """The last runs, oldest first."""
    return tuple(
        StepReport(
            run=step.run,
            program=step.program,
            rows=step.rows,
            num_seqs=step.num_seqs,
            begun_s=round((now_ns - step.begun_ns) / 1e9, 3),
            took_ms=round((step.ended_ns - step.begun_ns) / 1e6, 3) if step.ended_ns else None,
        )
        for step in reader.steps()
    )


def _flat_of(reader: PositionReader, plan: Plan, program: str) -> Flat:
    """The program as its last run unrolled it."""
    template = dict(plan.programs.named()).get(program)
    try:
        run = reader.run_of(program)
    except msgspec.MsgspecError:  # it was written while we read it, or its writer died over it
        return ()
    if template is None or run is None or sum(run.tiles) > plan.schedule.prefill_span:
        return ()
    chunks = max(1, len(run.tiles))
    return unroll(template, plan.model.layer_kinds, chunks=chunks, tiles=run.tiles)


def _stream_report(
    name: str, at: StreamPosition, flat: Flat, *, pid: int, shares: Mapping[int, float]
) -> StreamReport:
    thread = at.thread or pid
    item = flat[at.launch] if at.launch < len(flat) else None
    step = item if isinstance(item, BoundStep) else None
    text = "nothing" if step is None else f"{describe_step(step, at.program)}, launch {at.launch}"
    return StreamReport(
        name=name,
        state=at.state,
        program=at.program,
        launch=at.launch,
        op=None if step is None else step.step.op,
        kernel=None if step is None else step.step.kernel,
        layer=None if step is None else step.at.get("l"),
        text=text,
        thread=thread,
        cpu_share=shares.get(thread),
    )


def _sample(pid: int) -> dict[int, Ticks]:
    found = {}
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return {}
    for task in tasks:
        try:
            text = (task / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has just ended
            continue
        # The name is in brackets and may hold anything, brackets too.
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 1 :].split()
        ticks = int(fields[STAT_USER]) + int(fields[STAT_SYSTEM])
        found[int(task.name)] = Ticks(name=name, state=fields[STAT_STATE], ticks=ticks)
    return found
