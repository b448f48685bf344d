"""What is refused beside the compiler's own refusals, before anything is served."""

import pytest

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure


def test_a_dialect_that_nobody_reads_is_refused_with_its_place_and_the_nearest() -> None:
    with pytest.raises(Failure) as failure:
        compile_argument("tiny-cpu", ["model.dialect=qwen35"])
    assert failure.value.exit_code == 2
    assert failure.value.text == (
        "--set: `model.dialect`: unknown dialect `qwen35`: known are `qwen3_5`, `qwen3`,"
        " `minimax_m2`\n  hint: did you mean `qwen3_5`?"
    )
