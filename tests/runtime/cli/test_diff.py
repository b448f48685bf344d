"""`ft diff`: figures, meaning, and the choices that differ with the reasons of both sides."""

from pathlib import Path

import pytest
from tests.conftest import Golden
from tests.runtime.cli.console import ft

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.diff import diff_text

CASES = Path(__file__).parent / "cases"
PAIRS = (
    ("4090-qwen", "pro6000-minimax"),
    ("4090-qwen", "h200-qwen"),
    ("tiny-cpu", "tiny-cpu-resident"),
)


def text_of(first: str, second: str, *overrides: str) -> str:
    return diff_text(compile_argument(first, ()).plan, compile_argument(second, overrides).plan)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_diff_is_the_golden_one(golden: Golden, first: str, second: str) -> None:
    golden(CASES / f"diff-{first}-{second}.txt", text_of(first, second))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_diff_fits_100_columns_and_says_first_what_it_means(first: str, second: str) -> None:
    text = text_of(first, second)
    assert max(map(len, text.splitlines())) <= 100
    assert text.index("what it means") < text.index("differences in the choices")


def test_a_choice_that_differs_has_the_reasons_of_both() -> None:
    text = text_of("tiny-cpu", "tiny-cpu", "serving.context=8k")
    assert "~ context.effective: 16384 -> 8192" in text
    assert "      tiny-cpu: 16,384 tokens were asked for" in text
    assert "      tiny-cpu: 8,192 tokens were asked for" in text


def test_a_reason_that_both_share_is_said_once() -> None:
    text = text_of("tiny-cpu", "tiny-cpu-resident")
    assert text.count("the CPU device computes in fp32") == 1
    assert "      both: hybrid_radix keeps the beginnings of prompts" in text


def test_another_kernel_is_told_with_both_reasons() -> None:
    text = text_of("tiny-cpu", "tiny-cpu", "kernels.attention.decode=torch_sdpa")
    assert "~ kernels.attention.decode[fp32]: torch_blocks -> torch_sdpa" in text
    assert "tiny-cpu: ranks first of 2 usable kernels" in text
    assert "tiny-cpu: `kernels.attention.decode` names it" in text
    assert "1 difference in the choices:" in text


def test_a_long_name_hides_no_figure(tmp_path: Path) -> None:
    for letter in "ab":
        (tmp_path / f"{letter}.yaml").write_text(f"extends: ft:tiny-cpu\nname: {letter * 200}\n")
    text = ft("diff", "./a.yaml", "./b.yaml", cwd=tmp_path).stdout
    (line,) = (line for line in text.splitlines() if "effective context" in line)
    assert line.split()[-2:] == ["16,384", "16,384"]
