"""`ft run` on a broken checkpoint: one sentence, a hint, exit code 1, and nothing that goes on."""

import os
import sys
from pathlib import Path

import pytest
from tests.runtime.started import Started
from tests.runtime.weights.breakages import (
    IN_THE_FOLDER,
    IN_THE_OTHER_FILES,
    IN_THE_TENSORS,
    IN_THE_VALUES,
    Copy,
)

from firmtoken.schema.references import shipped_folder

ALL = IN_THE_FOLDER | IN_THE_TENSORS | IN_THE_OTHER_FILES | IN_THE_VALUES
SOURCES = Path(__file__).resolve().parents[3] / ".src"


def run(folder: Path) -> Started:
    command = [sys.executable, "-P", "-m", "firmtoken.runtime.cli.run", "run", "tiny-cpu"]
    command += ["--port", "0", "--set", f"model.source.path={folder}"]
    state = os.environ["XDG_STATE_HOME"]
    return Started(command, environ={"PYTHONPATH": str(SOURCES), "XDG_STATE_HOME": state})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a deleted shard", "`model-00001-of-00003.safetensors`: expected a readable file"),
        ("a missing scale", "gate_proj.weight` in `model-00001-of-00003.safetensors`: expected"),
        ("a config of another rotary base", "`config.json`: expected `rope_theta: 10000000.0`"),
        ("no template", "chat_template.jinja: no such file"),
    ],
)
def test_what_the_files_show_ends_it_before_an_engine_is_started(
    name: str, said: str, tmp_path: Path
) -> None:
    ALL[name](Copy(shipped_folder() / "weights" / "tiny-moe", tmp_path))
    process = run(tmp_path)
    try:
        assert process.exit_code(60) == 1
        assert len(process.errors) == 2
        assert said in process.errors[0]
        assert process.errors[1].startswith("  hint: ")
    finally:
        process.close()


def test_what_only_the_numbers_show_ends_the_engine_and_the_server_with_its_sentence(
    tmp_path: Path,
) -> None:
    ALL["a block scale of NaN"](Copy(shipped_folder() / "weights" / "tiny-moe", tmp_path))
    process = run(tmp_path)
    try:
        engine = process.engine_pid()
        assert process.exit_code(60) == 1
        sentence, hint = process.errors[-2:]
        assert "gate_proj.weight_scale` in `model-00001-of-00003.safetensors`: " in sentence
        assert "expected block scales that are positive or 0, found nan" in sentence
        assert hint.startswith("  hint: the file is damaged")
        assert not any(line.startswith("ready") for line in process.output)
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
    finally:
        process.close()
