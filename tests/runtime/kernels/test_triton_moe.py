"""The Triton kernels of a layer's experts compute what the references do, as far as that can be seen without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.cli.console import SOURCE

from firmtoken.runtime.kernels.cross_compile import Request, compile_kernel, unfit

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("interpreted_moe.py")
SHARED_MEMORY = 99 * 1024


@pytest.mark.parametrize("part", ["experts", "shared", "sums", "router", "norm"])
def test_it_is_right_under_the_interpreter(part: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), part],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "TRITON_INTERPRET": "1"},
    )
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def misfits(model: str, capability: tuple[int, int], *, early: bool) -> dict[str, str]:
    request = Request(
        builds=f"tests.runtime.kernels.moe_builds:{model}",
        constants={"early": int(early)},
        capability=capability,
        num_rows=4,
        num_outputs=2048,
    )
    environ = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
    result = compile_kernel(request, limit_s=240, environ=environ)
    told = {b.name: unfit(b, shared_memory_per_block=SHARED_MEMORY) for b in result.builds}
    return {name: reason for name, reason in told.items() if reason}


def test_all_fit_without_spills_on_a_card_without_fp8() -> None:
    assert misfits("qwen", (8, 6), early=False) == {}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen", "minimax"])
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_all_fit_without_spills_everywhere(model: str, capability: tuple[int, int]) -> None:
    for early in {False, capability >= (9, 0)}:
        assert misfits(model, capability, early=early) == {}
