"""The mixers' decode kernels in Triton: right under the interpreter, and compiled for cards that are not here."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from firmtoken.runtime.kernels.attention.split_kv import attention_builds
from firmtoken.runtime.kernels.builds import Build
from firmtoken.runtime.kernels.compile_kernel import compile_build
from firmtoken.runtime.kernels.cross_compile import unfit
from firmtoken.runtime.kernels.embed.gather import embed_builds
from firmtoken.runtime.kernels.gdn.head_steps import gdn_builds
from firmtoken.runtime.kernels.head_writes import HeadShape, head_builds
from firmtoken.runtime.kernels.linear.plain_rows import linear_builds
from firmtoken.runtime.kernels.linear.plain_tiles import tile_builds
from firmtoken.runtime.kernels.sample.digits import sample_builds

SHARED_MEMORY = 101_376
"""Of a block, capability 8.6, 8.9 and 12.0."""
QWEN = {"num_q_heads": 16, "num_kv_heads": 2, "head_dim": 256}
MINIMAX = {"num_q_heads": 48, "num_kv_heads": 8, "head_dim": 128}


def interpret(*cases: str) -> None:
    script = Path(__file__).with_name("interpreted_mixer.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *cases],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "cases",
    [("linear", "embed"), ("gdn",), ("heads", "encode"), ("attention",), ("sample",)],
    ids=" ".join,
)
def test_kernels_agree_with_the_references_under_the_interpreter(cases: tuple[str, ...]) -> None:
    interpret(*cases)


def heads(shape: dict[str, int], *, gated: bool, whole_row: bool) -> tuple[Build, ...]:
    rotation = {"rotary_dim": 64, "rope_theta": 1e7}
    head_shape = HeadShape(**shape, **rotation, gated=gated, whole_row=whole_row)
    return head_builds(4, warps=4, shape=head_shape)


def attend(shape: dict[str, int], format_name: str, *, gated: int) -> tuple[Build, ...]:
    return attention_builds(
        4,
        0,
        **shape,
        format_name=format_name,
        gated=gated,
        page_size=64,
        scale=0.0625,
        parts=132,
        block=32,
        least=2,
        columns=32,
        warps=4,
        stages=4,
    )


def step() -> tuple[Build, ...]:
    return gdn_builds(
        4,
        0,
        num_key_heads=16,
        num_value_heads=32,
        key_head_dim=128,
        value_head_dim=128,
        conv_kernel=4,
        eps=1e-6,
        columns=32,
        warps=4,
    )


def multiply(format_name: str) -> tuple[Build, ...]:
    by_rows = linear_builds(2, 12_352, format_name=format_name, outputs=4, unroll=4)
    tiles = tile_builds(
        16, 12_352, format_name=format_name, tile_outputs=32, block=256, stages=4, tile_warps=4
    )
    return *by_rows[:2], *tiles


OLD, NEW = (8, 6), (12, 0)


@pytest.mark.parametrize(
    ("capability", "builds"),
    [
        pytest.param(OLD, lambda: multiply("fp8_bits"), id="linear fp8 by bits, 8.6"),
        pytest.param(NEW, lambda: multiply("fp8"), id="linear fp8, 12.0"),
        pytest.param(OLD, step, id="gdn, 8.6"),
        pytest.param(OLD, lambda: heads(QWEN, gated=True, whole_row=False), id="qk norm, 8.6"),
        pytest.param(NEW, lambda: heads(MINIMAX, gated=False, whole_row=True), id="row norm, 12.0"),
        pytest.param(OLD, lambda: attend(QWEN, "fp8_bits", gated=1), id="attention by bits, 8.6"),
        pytest.param(NEW, lambda: attend(MINIMAX, "fp8", gated=0), id="attention fp8, 12.0"),
        pytest.param(OLD, lambda: embed_builds(4, 0, width=2048, block=1024, warps=4), id="embed"),
        pytest.param(OLD, lambda: sample_builds(4, 248_320, chunk=2048, warps=4), id="sample"),
    ],
)
def test_kernels_fit_cards_that_are_not_here(
    capability: tuple[int, int], builds: Callable[[], tuple[Build, ...]]
) -> None:
    for build in builds():
        built = compile_build(build, capability)
        assert not unfit(built, shared_memory_per_block=SHARED_MEMORY), build.name
