"""The self-check reads real kernels of a GPU right: those that are right pass it, and one that is wrong does not."""

import pytest
from tests.runtime.kernels.interpreter import interpret

pytest.importorskip("triton")


@pytest.mark.parametrize("case", ["right", "wrong", "order"])
def test_under_the_interpreter(case: str) -> None:
    interpret("interpreted_self_check.py", case)
