"""The mixers' decode kernels on a real GPU: right, then how fast. A plain script, no test of CI; needs torch, Triton.

    PYTHONPATH=.src python tests/device/mixer.py [--peak GB_PER_S] [--seconds N]

Prints JSON lines. `check`: fresh random inputs, poisoned outputs, against fp64. `time`: microseconds a launch in a CUDA
graph that walks through copies of the operands that together are larger than L2, GB/s of what must be read and
written, its share of `--peak`. `step`: 30 linear and 10 full mixer halves of Qwen3.6 as one graph. Exit code 1 where a
check fails.
"""

import argparse
import os
import subprocess
import sys
import time

import torch
from mixer_checks import check_attention, check_gdn, check_heads, check_linear, check_sample
from mixer_operands import WARM, emit
from mixer_times import time_attention, time_gdn, time_heads, time_linear, time_sample, time_step


def warm_up(index: int, count: int) -> None:
    """One launch of each of this process's cases, so that their kernels are in the compiler's cache."""
    WARM.index, WARM.count = index, count
    for check in (check_linear, check_gdn, check_heads, check_attention, check_sample):
        for _ in check():
            pass
    for measure in (time_gdn, time_heads, time_linear, time_attention, time_sample):
        measure(0.0)


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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=4800.0)
    parser.add_argument("--seconds", type=float, default=85.0)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--index", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.monotonic()
    torch.manual_seed(time.time_ns() % 2**31)
    if arguments.warm:
        warm_up(arguments.index, arguments.warm)
        return 0
    compile_all(arguments.seconds / 2)
    emit(compiled=round(time.monotonic() - begun, 1))
    failures = 0
    for check in (check_linear, check_gdn, check_heads, check_attention, check_sample):
        worst: dict[str, float] = {}
        try:
            for line in check():
                right = line["error"] <= line["bound"]
                worst[line["case"]] = max(worst.get(line["case"], 0.0), line["error"])
                if not right:
                    failures += 1
                    emit(check=line, ok=False)
        except Exception as error:
            failures += 1
            emit(check=check.__name__, ok=False, failed=repr(error)[-600:])
        emit(checked=check.__name__, worst=worst, seconds=round(time.monotonic() - begun, 1))
    for measure in (time_step, time_gdn, time_heads, time_linear, time_attention, time_sample):
        if time.monotonic() - begun < arguments.seconds:
            try:
                measure(arguments.peak)
            except Exception as error:
                emit(measure=measure.__name__, failed=repr(error)[-600:])
            torch.cuda.empty_cache()
        emit(done=measure.__name__, seconds=round(time.monotonic() - begun, 1))
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
