"""`ft bench`: the engine alone and through HTTP on this machine, beside the plan's estimate."""

import asyncio
import json
import logging
import os
import platform
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime

from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.bench import http
from firmtoken.runtime.bench.engine import EngineBench
from firmtoken.runtime.bench.measure import (
    FREE_TOKENS,
    LEAST_CONTEXT,
    Prompts,
    decode_rows,
    first_token_rows,
)
from firmtoken.runtime.bench.rows import Row, Stream
from firmtoken.runtime.bench.workload import prompts as make_prompts
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.fit import require_fit
from firmtoken.runtime.cli.this_machine import compute_threads
from firmtoken.runtime.exit_codes import FAILED, REFUSED
from firmtoken.runtime.server.errors import ApiError, EngineDead
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.life import EngineSpec
from firmtoken.runtime.server.serving import model_folder, serving_plan
from firmtoken.runtime.server.tokenizer import load_tokenizer

READY = "ready "
LAST_LINES = 20
"""Of what a server said that did not become ready."""


def bench(argument: str, overrides: Sequence[str], *, runs: int, form: str) -> int:
    """Measure and print; the exit code."""
    compiled = compile_argument(argument, overrides)
    require_fit(compiled)
    _require_room(compiled)
    prompts = _prompts(compiled)
    try:
        rows = asyncio.run(_engine_rows(compiled, prompts, runs))
        with server(argument, overrides) as address:
            rows += asyncio.run(_http_rows(compiled, address, prompts, runs))
    except (ApiError, http.BenchFailed) as error:
        raise Failure(str(error), exit_code=FAILED) from error
    _print(compiled, rows, form)
    return 0


def _require_room(compiled: Compiled) -> None:
    context = compiled.plan.context.effective
    if context < LEAST_CONTEXT:
        raise Failure(
            f"the effective context is {context} tokens, and the measured requests take {LEAST_CONTEXT}",
            exit_code=REFUSED,
            hint=f"`--set serving.context={LEAST_CONTEXT}`",
        )


def _prompts(compiled: Compiled) -> Prompts:
    folder = model_folder(compiled.plan)
    if folder is None:
        raise Failure(
            "`model.source`: only a checkpoint in a folder can be measured", exit_code=FAILED
        )
    try:
        tokenizer = load_tokenizer(folder, now=datetime.now).tokenizer
    except ModelFolderFault as error:
        raise Failure(str(error), exit_code=FAILED, hint=error.hint) from error
    return lambda length, count, salt: make_prompts(
        tokenizer.encode, length=length, count=count, salt=salt
    )


async def _engine_rows(compiled: Compiled, prompts: Prompts, runs: int) -> list[Row]:
    plan = compiled.plan
    threads = compiled.loaded.profile.hardware.host.threads
    spec = EngineSpec(
        plan_json=plan_to_json(plan),
        segments=serving_plan(plan).segments,
        environment=dict(os.environ) | plan.environment,
        threads=threads if isinstance(threads, int) else compute_threads(),
        start_s=plan.schedule.deadlines.start_s,
        answer_s=plan.schedule.deadlines.decode_s,
        most_restarts=0,  # a measurement that lost its engine is none
    )
    log = logging.getLogger("firmtoken.bench")
    log.setLevel(logging.ERROR)
    alone = EngineBench(spec, log)

    async def run(batch: Sequence[Sequence[int]], output: int) -> list[Stream]:
        return await alone.run(batch, output=output)

    estimate = plan.estimates.decode_tokens_per_s
    try:
        async with alone:
            return await decode_rows("engine", run, prompts, runs=runs, estimate=estimate)
    except EngineDead as error:
        death = alone.death
        assert death is not None
        raise Failure(death.cause, exit_code=death.exit_code, hint=death.hint) from error


async def _http_rows(compiled: Compiled, address: str, prompts: Prompts, runs: int) -> list[Row]:
    async def run(batch: Sequence[Sequence[int]], output: int) -> list[Stream]:
        return await asyncio.to_thread(http.run, address, batch, output=output)

    plan = compiled.plan
    longest = plan.context.effective - FREE_TOKENS
    rows = await decode_rows(
        "HTTP", run, prompts, runs=runs, estimate=plan.estimates.decode_tokens_per_s
    )
    return rows + await first_token_rows("HTTP", run, prompts, runs=runs, longest=longest)


@contextmanager
def server(argument: str, overrides: Sequence[str]) -> Iterator[str]:
    """`ft run` in a process of its own, as clients meet it."""
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
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        said: deque[str] = deque(maxlen=LAST_LINES)
        listening = threading.Thread(target=said.extend, args=(process.stderr,))
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
            yield address
        finally:
            process.terminate()
            listening.join()


def _address(output: Iterable[str]) -> str | None:
    """Where it listens; None if it ended before it said so."""
    for line in output:
        if line.startswith(READY):
            return line.split()[1]
    return None


def _print(compiled: Compiled, rows: Sequence[Row], form: str) -> None:
    plan = compiled.plan
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if form == "json":
        facts = {
            "profile": plan.profile.name,
            "fingerprint": plan.fingerprint,
            "machine": machine,
            "rows": [asdict(measured) for measured in rows],
        }
        print(json.dumps(facts, indent=2))
        return
    print(f"{plan.profile.name} on {machine}, plan {plan.fingerprint[:12]}")
    for measured in rows:
        estimate = f"   estimated {measured.estimate:,.0f}" if measured.estimate else ""
        print(f"  {measured.name:<36}{measured.value:>10,.3f} {measured.unit}{estimate}")
