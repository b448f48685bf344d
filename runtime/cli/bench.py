"""`ft bench`: the engine alone and through HTTP on this machine, beside the plan's estimate."""

import asyncio
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.bench import http
from firmtoken.runtime.bench.engine import EngineBench
from firmtoken.runtime.bench.measure import Prompts, decode_rows, first_token_rows
from firmtoken.runtime.bench.rows import Row, Stream
from firmtoken.runtime.bench.workload import prompts as make_prompts
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.cli.failure import FAILED, REFUSED, Failure
from firmtoken.runtime.cli.this_machine import compute_threads, lacks
from firmtoken.runtime.server.client import EngineSpec
from firmtoken.runtime.server.errors import ApiError
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.serving import model_folder, serving_plan
from firmtoken.runtime.server.tokenizer import load_tokenizer

READY = "ready "


def bench(argument: str, overrides: Sequence[str], *, runs: int, form: str) -> int:
    """Measure and print; the exit code."""
    compiled = compile_argument(argument, overrides)
    for lack in lacks(compiled.plan):
        raise Failure(lack.message, exit_code=REFUSED, hint=lack.hint)
    prompts = _prompts(compiled)
    try:
        rows = asyncio.run(_engine_rows(compiled, prompts, runs))
        with _server(argument, overrides) as address:
            rows += asyncio.run(_http_rows(compiled, address, prompts, runs))
    except (ApiError, http.BenchFailed) as error:
        raise Failure(str(error), exit_code=FAILED) from error
    _print(compiled, rows, form)
    return 0


def _prompts(compiled: Compiled) -> Prompts:
    folder = model_folder(compiled.plan)
    if folder is None:
        raise Failure(
            "`model.source`: only a checkpoint in a folder can be measured", exit_code=FAILED
        )
    try:
        tokenizer = load_tokenizer(folder).tokenizer
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
    )
    log = logging.getLogger("firmtoken.bench")
    log.setLevel(logging.ERROR)
    async with EngineBench(spec, log) as engine:

        async def run(batch: Sequence[Sequence[int]], output: int) -> list[Stream]:
            return await engine.run(batch, output=output)

        estimate = plan.estimates.decode_tokens_per_s
        return await decode_rows("engine", run, prompts, runs=runs, estimate=estimate)


async def _http_rows(compiled: Compiled, address: str, prompts: Prompts, runs: int) -> list[Row]:
    async def run(batch: Sequence[Sequence[int]], output: int) -> list[Stream]:
        return await asyncio.to_thread(http.run, address, batch, output=output)

    plan = compiled.plan
    longest = plan.context.effective - 64
    rows = await decode_rows(
        "HTTP", run, prompts, runs=runs, estimate=plan.estimates.decode_tokens_per_s
    )
    return rows + await first_token_rows("HTTP", run, prompts, runs=runs, longest=longest)


@contextmanager
def _server(argument: str, overrides: Sequence[str]) -> Iterator[str]:
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
    ]
    for override in overrides:
        command += ["--set", override]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith(READY):
                yield line.split()[1]
                return
        raise http.BenchFailed(
            f"`ft run` ended with exit code {process.wait()} before it was ready"
        )
    finally:
        process.terminate()
        process.wait()


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
