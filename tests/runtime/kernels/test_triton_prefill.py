"""The Triton products of many rows compute what the references do (`test_gpu_builds.py` compiles them)."""

import pytest
from tests.runtime.kernels.interpreter import interpret


@pytest.mark.parametrize("parts", ["tiles experts map", "products coded", "shared sums"])
def test_it_is_right_under_the_interpreter(parts: str) -> None:
    interpret("interpreted_prefill.py", *parts.split())
