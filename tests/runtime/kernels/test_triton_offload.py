"""The kernels of offloaded experts on a GPU do what plain Python does, step after step, under the interpreter."""

import pytest
from tests.runtime.kernels.interpreter import interpret


@pytest.mark.parametrize("op", ["admit", "resolve", "fetch"])
def test_a_kernel_of_offloaded_experts_does_what_plain_python_does(op: str) -> None:
    interpret("interpreted_offload.py", op, "20")
