"""The Triton kernels of a layer's experts compute what the references do (`test_gpu_builds.py` compiles them)."""

import pytest
from tests.runtime.kernels.interpreter import interpret


@pytest.mark.parametrize("part", ["experts", "shared", "sums", "router", "norm"])
def test_it_is_right_under_the_interpreter(part: str) -> None:
    interpret("interpreted_moe.py", part)
