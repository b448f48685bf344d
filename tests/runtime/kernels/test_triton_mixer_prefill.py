"""The mixers' prefill kernels in Triton are right under the interpreter (`test_gpu_builds.py` compiles them)."""

import pytest
from tests.runtime.kernels.interpreter import interpret


@pytest.mark.parametrize(
    "cases", [("gdn",), ("attention",), ("route", "copy", "restore")], ids=" ".join
)
def test_kernels_agree_with_the_references_under_the_interpreter(cases: tuple[str, ...]) -> None:
    interpret("interpreted_mixer_prefill.py", *cases)
