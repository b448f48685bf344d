"""`ft bench`: the engine alone and through HTTP on this machine, beside the plan's estimate."""

import asyncio
import json
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.bench import http
from firmtoken.runtime.bench.engine import EngineBench
from firmtoken.runtime.bench.estimates import PlanEstimates
from firmtoken.runtime.bench.measure import (
    Alone,
    Bench,
    Prompts,
    Run,
    client_rows,
    engine_rows,
)
from firmtoken.runtime.bench.questions import QUESTIONS, STREAMS, Questions
from firmtoken.runtime.bench.rows import Row, Stream, row
from firmtoken.runtime.bench.workload import prompts as make_prompts
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.cli.fit import require_fit, require_runnable
from firmtoken.runtime.cli.model_texts import model_texts
from firmtoken.runtime.cli.progress import LineProgress
from firmtoken.runtime.cli.this_gpu import GIB, choose_gpu, engine_environment
from firmtoken.runtime.cli.this_machine import compute_threads
from firmtoken.runtime.engine.messages import Sampling
from firmtoken.runtime.exit_codes import FAILED, REFUSED
from firmtoken.runtime.memory.gpus import find_gpus
from firmtoken.runtime.server.errors import ApiError, EngineDead
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.life import EngineSpec
from firmtoken.runtime.server.serving import serving_plan
from firmtoken.runtime.server.tokenizer import load_tokenizer

Describe = Callable[[str, Run], Bench]
"""(where, run) -> what is asked there."""

READY = "ready "
LAST_LINES = 20
"""Of what a server said that did not become ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a user may say about the measurement."""

    runs: int
    temperature: float
    top_p: float
    form: str
    """`table` or `json`."""

    @property
    def sampling(self) -> Sampling:
        """How every request draws its tokens."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=0, min_p=0.0, seed=0)


def bench(
    argument: str,
    overrides: Sequence[str],
    wish: Wish,
    *,
    from_hub: Callable[[Plan], Plan],
) -> int:
    """Measure and print; the exit code. `from_hub` fetches a checkpoint that is not in a folder; raises `Failure`."""
    compiled = compile_argument(argument, overrides)
    require_runnable(compiled)
    require_fit(compiled)
    questions = QUESTIONS[compiled.plan.device.kind]
    _require_room(compiled, questions)
    if "hub" in compiled.plan.model.source:
        compiled = replace(compiled, plan=from_hub(compiled.plan))
    prompts = _prompts(compiled)
    progress = LineProgress(on_terminal=sys.stderr.isatty())
    describe = partial(_describe, compiled, questions, prompts, wish, progress)
    memory = watch_memory(compiled.plan)
    try:
        progress.say("starting the engine alone")
        alone = asyncio.run(_engine_rows(compiled, describe, wish, progress))
        progress.say("starting the server")
        with server(argument, overrides, progress.say) as served:
            at_ready = memory("at ready")
            rows = asyncio.run(_http_rows(compiled, describe, wish, served.address, alone))
            at_end = memory("after these requests")
    except (ApiError, http.BenchFailed) as error:
        raise Failure(str(error), exit_code=FAILED) from error
    finally:
        progress.end()
    start = row("start to ready", "s", [served.start_s])
    show(compiled, [*alone.decode, *alone.steps, *rows, start, *at_ready, *at_end], wish)
    return 0


def _require_room(compiled: Compiled, questions: Questions) -> None:
    context, least = compiled.plan.context.effective, questions.least_context
    if context < least:
        raise Failure(
            f"the effective context is {context} tokens, and the measured requests take {least}",
            exit_code=REFUSED,
            hint=f"`--set serving.context={least}`",
        )


def _describe(
    compiled: Compiled,
    questions: Questions,
    prompts: Prompts,
    wish: Wish,
    progress: LineProgress,
    where: str,
    run: Run,
) -> Bench:
    together = min(STREAMS, compiled.plan.schedule.max_num_seqs)
    return Bench(
        where=where,
        run=run,
        prompts=prompts,
        questions=questions,
        estimates=PlanEstimates(compiled.loaded.profile, compiled.plan),
        runs=wish.runs,
        streams=tuple(dict.fromkeys((1, together))),
        begin=lambda name: progress.say(f"measuring: {name}"),
    )


def watch_memory(plan: Plan) -> Callable[[str], list[Row]]:
    """Asks the driver what the GPU has given since now; no rows where there is none."""
    if plan.device.kind != "cuda":
        return lambda when: []
    before = choose_gpu(find_gpus(), plan.device.index)
    assert before is not None, "the plan fits this machine"

    def given(when: str) -> list[Row]:
        now = choose_gpu(find_gpus(), before.uuid)
        assert now is not None, "no GPU leaves"
        estimate = plan.memory.device.total / GIB
        taken = (before.free - now.free) / GIB
        return [row(f"device memory {when}", "GiB", [taken], estimate=estimate)]

    return given


def _prompts(compiled: Compiled) -> Prompts:
    try:
        with model_texts(compiled.plan) as folder:
            tokenizer = load_tokenizer(folder, now=datetime.now).tokenizer
    except ModelFolderFault as error:
        raise Failure(str(error), exit_code=FAILED, hint=error.hint) from error
    return lambda length, count, salt: make_prompts(
        tokenizer.encode, length=length, count=count, salt=salt
    )


class ToldLines(logging.Handler):
    """What an engine says of itself, told as it comes."""

    def __init__(self, progress: LineProgress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """One line of its log."""
        if record.levelno < logging.WARNING:
            self._progress.say(record.getMessage())
        else:
            self._progress.end()
            say(record.getMessage(), None)


async def _engine_rows(
    compiled: Compiled, describe: Describe, wish: Wish, progress: LineProgress
) -> Alone:
    plan = compiled.plan
    threads = compiled.loaded.profile.hardware.host.threads
    spec = EngineSpec(
        plan_json=plan_to_json(plan),
        segments=serving_plan(plan).segments,
        environment={**os.environ, **plan.environment, **engine_environment(plan, os.environ)},
        threads=threads if isinstance(threads, int) else compute_threads(),
        start_s=plan.schedule.deadlines.start_s,
        answer_s=plan.schedule.deadlines.decode_s,
        most_restarts=0,  # a measurement that lost its engine is none
        timed=QUESTIONS[plan.device.kind].timed,
    )
    log = logging.getLogger("firmtoken.bench")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [ToldLines(progress)]
    alone = EngineBench(spec, wish.sampling, log)

    async def run(batch: Sequence[Sequence[int]], output: int) -> list[Stream]:
        return await alone.run(batch, output=output)

    try:
        async with alone:
            log.setLevel(logging.WARNING)  # from here on rows say what is done
            return await engine_rows(describe("engine", run), alone.counters)
    except EngineDead as error:
        death = alone.death
        assert death is not None
        raise Failure(death.cause, exit_code=death.exit_code, hint=death.hint) from error


async def _http_rows(
    compiled: Compiled, describe: Describe, wish: Wish, address: str, alone: Alone
) -> list[Row]:
    async def run(batch: Sequence[Sequence[int]], output: int) -> list[Stream]:
        return await asyncio.to_thread(
            http.run, address, batch, output=output, sampling=wish.sampling
        )

    context = compiled.plan.context.effective
    return await client_rows(describe("HTTP", run), alone, context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that is ready."""

    address: str
    start_s: float
    """From the command to the line that says so."""


@contextmanager
def server(
    argument: str, overrides: Sequence[str], tell: Callable[[str], None]
) -> Iterator[Served]:
    """`ft run` in a process of its own, as clients meet it; `tell` gets what it logs before it is ready."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "firmtoken.runtime.cli.run",
        "run",
        argument,
        "--port",
        "0",
        "--set",
        "server.log_file=off",
    ]
    for override in overrides:
        command += ["--set", override]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        said: deque[str] = deque(maxlen=LAST_LINES)
        ready = threading.Event()
        listening = threading.Thread(target=_listen, args=(process.stderr, said, ready, tell))
        listening.start()
        try:
            address = _address(process.stdout)
            if address is None:
                code = process.wait()
                listening.join()
                last = "".join(said).rstrip()
                raise http.BenchFailed(
                    f"`ft run` ended with exit code {code} before it was ready:\n{last}"
                )
            ready.set()
            yield Served(address=address, start_s=time.perf_counter() - begun)
        finally:
            process.terminate()
            listening.join()


def _listen(
    lines: Iterable[str], said: deque[str], ready: threading.Event, tell: Callable[[str], None]
) -> None:
    for line in lines:
        said.append(line)
        _, informs, text = line.rstrip("\n").partition(" INFO ")
        if informs and not ready.is_set():
            tell(text)


def _address(output: Iterable[str]) -> str | None:
    """Where it listens; None if it ended before it said so."""
    for line in output:
        if line.startswith(READY):
            return line.split()[1]
    return None


def show(compiled: Compiled, rows: Sequence[Row], wish: Wish) -> None:
    """Prints the rows as the user wished."""
    plan = compiled.plan
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if wish.form == "json":
        facts = {
            "profile": plan.profile.name,
            "fingerprint": plan.fingerprint,
            "machine": machine,
            "temperature": wish.temperature,
            "top_p": wish.top_p,
            "rows": [asdict(measured) for measured in rows],
        }
        print(json.dumps(facts, indent=2))
        return
    print(f"{plan.profile.name} on {machine}, plan {plan.fingerprint[:12]}")
    for measured in rows:
        line = f"  {measured.name:<52}{measured.value:>10,.3f} {measured.unit:<6}"
        if measured.estimate:
            line += f" estimated {measured.estimate:,.4g}"
        if measured.note:
            line += f" ({measured.note})"
        print(line.rstrip())
