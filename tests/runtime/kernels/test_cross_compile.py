"""Kernels compile for cards that are not here, and what does not fit, hangs or is wrong is told with numbers."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.cli.console import SOURCE

from firmtoken.compiler.operands import LaunchForm, Operand
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.cross_compile import (
    Built,
    NotCompiled,
    Request,
    Result,
    compile_kernel,
    run_worker,
    unfit,
)

ROOT = Path(__file__).resolve().parents[3]
SHARED_8_9 = 99 * 1024
FITS = Built(
    name="x",
    registers=128,
    local_bytes=0,
    shared_bytes=SHARED_8_9,
    threads=512,
    grid=(2**31 - 1, 65_535),
    seconds=1.0,
)


class Note(msgspec.Struct):
    """Where the worker writes the pid of its child."""

    note: str


def compiled(
    builds: str,
    capability: tuple[int, int] = (8, 9),
    *,
    constants: Mapping[str, int | float | str] | None = None,
) -> Result:
    request = Request(
        builds=builds,
        constants=dict(constants or {}),
        capability=capability,
        format="nvfp4",
        num_rows=4096,
        forms=(LaunchForm(operands={"w": Operand(dtype="nvfp4", shape=(248_320, 2048))}),),
    )
    return compile_kernel(request, limit_s=120, environ=environment())


def environment() -> dict[str, str]:
    """Workers find the package and these tests."""
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}


def greedy(name: str) -> str:
    return f"tests.runtime.kernels.greedy_builds:{name}"


def reasons(result: Result) -> list[str]:
    return [unfit(built, shared_memory_per_block=SHARED_8_9) for built in result.builds]


def of_card(op: str, capability: tuple[int, int], constants: dict[str, float]) -> Result:
    [card] = [card for card in CARDS if (card.op, card.name) == (op, "triton_nvfp4")]
    early = {"early": int(capability >= (9, 0))}
    return compiled(
        card.builds, capability, constants={**constants, **dict(card.constants), **early}
    )


@pytest.mark.parametrize("capability", [(8, 0), (8, 9)])
def test_nvfp4_rows_fit_without_spills(capability: tuple[int, int]) -> None:
    result = of_card("linear", capability, {})
    assert set(reasons(result)) == {""}
    by_rows = ["1 row", "2 rows", "4 rows", "8 rows"]
    assert [built.name for built in result.builds] == [*by_rows, "tiles of 16 rows"]
    assert {built.shared_bytes for built in result.builds[:4]} == {0}
    assert (result.builds[0].grid, result.builds[4].grid) == ((62_080, 1), (15_520, 256))


def test_the_head_fits_too() -> None:
    result = of_card("head", (12, 0), {"eps": 1e-6})
    assert set(reasons(result)) == {""}
    tiles = ["tiles of 4 rows", "tiles of 8 rows"]
    assert [built.name for built in result.builds] == ["1 row", "2 rows", *tiles]


@pytest.mark.slow
@pytest.mark.parametrize("op", ["linear", "head"])
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_nvfp4_rows_fit_everywhere(op: str, capability: tuple[int, int]) -> None:
    constants = {"eps": 1e-6} if op == "head" else {}
    assert set(reasons(of_card(op, capability, constants))) == {""}


def test_shared_memory_beyond_the_card_is_told_in_bytes() -> None:
    assert reasons(compiled(greedy("shared"))) == [
        "wants 262,144 B of shared memory a block, the card has 101,376 B"
    ]


def test_spills_are_told_in_bytes() -> None:
    [told] = reasons(compiled(greedy("spilling")))
    assert re.fullmatch(r"spills [\d,]+ B a thread to device memory, beside \d+ registers", told)


def test_an_error_of_the_source_is_the_compilers_own_last_line() -> None:
    with pytest.raises(NotCompiled, match=r"ended with code 1: .*no_such_name"):
        compiled(greedy("wrong"))


def test_a_compiler_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    worker = "tests.runtime.kernels.hanging_worker"
    with pytest.raises(NotCompiled, match=r"did not end within 5 s and was ended"):
        run_worker(worker, Note(note=str(note)), limit_s=5, environ=environment())
    for _ in range(100):
        if not is_running(int(note.read_text())):
            return
        time.sleep(0.05)
    raise AssertionError("its child lives on")


def is_running(pid: int) -> bool:
    """A process that ended stays as a zombie until whoever adopted it has looked."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        (
            {"shared_bytes": SHARED_8_9 + 1},
            "wants 101,377 B of shared memory a block, the card has 101,376 B",
        ),
        ({"local_bytes": 8}, "spills 8 B a thread to device memory, beside 128 registers"),
        ({"threads": 1024}, "wants 128 registers for each of 1024 threads, a block has 65,536"),
        ({"grid": (2**31, 1)}, "wants 2,147,483,648 programs along x, 2,147,483,647 is the most"),
        ({"grid": (1, 65_536)}, "wants 65,536 programs along y, 65,535 is the most"),
        ({"grid": (1, 1, 65_536)}, "wants 65,536 programs along z, 65,535 is the most"),
    ],
)
def test_each_limit_is_met_to_the_last_and_no_further(change: dict[str, Any], told: str) -> None:
    built = msgspec.structs.replace(FITS, **change)
    assert unfit(built, shared_memory_per_block=SHARED_8_9) == told
