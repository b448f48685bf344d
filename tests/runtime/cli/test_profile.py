"""`ft profile model` as a person runs it."""

from pathlib import Path

from tests.runtime.cli.console import python

CONFIGS = Path(__file__).resolve().parents[2] / "compiler" / "configs"
SCRIPT = (
    "import sys\nfrom firmtoken.runtime.cli.run import main\n"
    "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
)


def test_a_model_file_is_printed_without_torch() -> None:
    done = python("-c", SCRIPT, "profile", "model", str(CONFIGS / "MiniMax-M2.5-NVFP4"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Made by `ft profile model`")
    assert "name: MiniMax-M2.5-NVFP4\nfamily: minimax_m2\n" in done.stdout


def test_what_cannot_be_served_is_2_with_the_reason_and_prints_nothing() -> None:
    done = python("-c", SCRIPT, "profile", "model", str(CONFIGS / "MiniMax-M2.5"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "found `quant_method: fp8`\n  hint: use an export of ModelOpt" in done.stderr
