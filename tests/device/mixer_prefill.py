"""Prefill kernels of the mixers, and the router's, on a real GPU: right, then how fast. A plain script, no test of CI.

    PYTHONPATH=.src python tests/device/mixer_prefill.py [--seconds N]

Prints JSON lines. `check`: fresh random inputs, poisoned outputs, against fp64 or fp32. `time`: microseconds a launch
in a CUDA graph, the floor by an H200's data sheet, its share. Exit code 1 where a check fails. Needs torch and Triton.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import torch
from mixer_prefill_checks import check_attention, check_gdn, check_rest, check_route
from mixer_prefill_operands import (
    ATTENTION_FORMS,
    GDN_FORMS,
    MODELS,
    ROUTE_FORMS,
    Launch,
    Part,
    attention_operands,
    emit,
    gdn_operands,
    make_rows,
    route_operands,
    run_attention,
    run_gdn,
    run_route,
)
from mixer_prefill_times import time_attention, time_gdn, time_rest, time_route, try_gdn

CHECKS = (check_gdn, check_route, check_rest, check_attention)


def forms() -> Iterator[Launch]:
    """A small launch of each form."""
    for (model, coded), found in ATTENTION_FORMS.items():
        rows = make_rows((Part(rows=70),), MODELS[model][2])
        for form in found:
            for fp8_units in (True, False)[: 1 + (coded and form["block"] == 32)]:
                yield (
                    lambda rows=rows, model=model, coded=coded, form=form, units=fp8_units: (
                        run_attention(
                            rows,
                            attention_operands(rows, model, coded=coded),
                            model,
                            form,
                            fp8_units=units,
                        )
                    )
                )
    rows = make_rows((Part(rows=70),))
    for form in GDN_FORMS:
        yield lambda rows=rows, form=form: run_gdn(rows, gdn_operands(70, 3), form)
    for form in ROUTE_FORMS:
        for sigmoid, hidden_size in ((False, 2048), (True, 3072)):
            yield lambda rows=rows, form=form, sigmoid=sigmoid, size=hidden_size: run_route(
                rows, route_operands(70, size, sigmoid=sigmoid), form
            )
    yield lambda: [None for _ in check_rest()] and None


def compile_all(seconds: float) -> None:
    """Fills the compiler's cache with several processes, because one takes longer than all that is measured."""
    count = max(1, min(14, (os.cpu_count() or 2) - 2))
    command = [sys.executable, __file__, "--warm", str(count), "--index"]
    workers = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for index in range(count)
    ]
    ends = time.monotonic() + seconds
    for index, worker in enumerate(workers):
        try:
            _, errors = worker.communicate(timeout=max(0.1, ends - time.monotonic()))
            if worker.returncode:
                emit(warm=index, failed=errors.decode(errors="replace")[-300:])
        except subprocess.TimeoutExpired:
            emit(warm=index, failed="too slow")
            worker.kill()


def check_all(begun: float) -> int:
    """How many checks failed."""
    failures = 0
    for check in CHECKS:
        worst: dict[str, float] = {}
        try:
            for line in check():
                case = line["case"]
                worst[case] = max(worst.get(case, 0.0), line["error"])
                if line["error"] > line["bound"]:
                    failures += 1
                    emit(check=line, ok=False)
        except Exception as error:
            failures += 1
            emit(check=check.__name__, ok=False, failed=repr(error)[-600:])
        emit(checked=check.__name__, worst=worst, seconds=round(time.monotonic() - begun, 1))
        torch.cuda.empty_cache()
    return failures


MEASURES = {
    "gdn": time_gdn,
    "attention": time_attention,
    "route": time_route,
    "rest": time_rest,
    **{f"gdn {n}": partial(time_gdn, (n,)) for n in range(1, len(GDN_FORMS))},
}
"""Each in a process of its own: an illegal access ends one, and no other."""


def try_forms() -> set[int]:
    """Forms of gdn that fail, tried side by side; launches are awaited, so that a traceback names the function."""
    command = [sys.executable, __file__, "--try"]
    tries = {
        number: subprocess.Popen(
            [*command, str(number)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        )
        for number in range(len(GDN_FORMS))
    }
    failed = set()
    for number, process in tries.items():
        errors = process.communicate()[1].decode(errors="replace")
        if process.returncode:
            failed.add(number)
            places = [line.strip() for line in errors.splitlines() if "triton_chunk" in line]
            emit(tried=GDN_FORMS[number], ok=False, places=places[-3:], failed=errors[-200:])
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--measure", default="")
    parser.add_argument("--try", type=int, default=-1, dest="tried")
    arguments = parser.parse_args()
    begun = time.monotonic()
    torch.manual_seed(time.time_ns() % 2**31)
    torch.backends.cuda.matmul.allow_tf32 = False
    if arguments.warm:
        for index, launch in enumerate(forms()):
            if index % arguments.warm == arguments.index:
                launch()
        torch.cuda.synchronize()
        return 0
    if arguments.measure:
        MEASURES[arguments.measure]()
        return 0
    if arguments.tried >= 0:
        try_gdn(arguments.tried)
        return 0
    compile_all(arguments.seconds / 2)
    emit(compiled=round(time.monotonic() - begun, 1))
    failed = try_forms()
    emit(tried=round(time.monotonic() - begun, 1), failed=sorted(failed))
    failures = check_all(begun) + len(failed)
    for measure in MEASURES:
        left = arguments.seconds - (time.monotonic() - begun)
        if left > 3 and measure not in {f"gdn {number}" for number in failed}:
            try:
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", measure],
                    timeout=left, check=False, capture_output=True, text=True,
                )  # fmt: skip
                print(done.stdout, end="", flush=True)
                if done.returncode:
                    emit(measure=measure, failed=done.stderr[-300:])
            except subprocess.TimeoutExpired as error:
                print((error.stdout or b"").decode(), end="", flush=True)
        emit(done=measure, seconds=round(time.monotonic() - begun, 1))
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
