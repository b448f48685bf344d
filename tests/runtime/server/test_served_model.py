"""A model's folder against the dialect that its facts name."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from tests.runtime.server.conftest import VOCAB
from tests.runtime.server.speaking import speaking

from firmtoken.runtime.dialects.registry import DIALECTS
from firmtoken.runtime.server.detokenizer import Detokenizer
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.served_model import ServedModel, load_served_model


@pytest.mark.parametrize("special", [False, True], ids=["plain tags", "special tags"])
@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS])
def test_tags_are_read_and_the_end_of_a_turn_is_not_shown(
    model_folder: Path, tmp_path: Path, name: str, special: bool
) -> None:
    model = speaking(model_folder, tmp_path / "model", name, special_tags=special)
    assert model.takes_tools
    text = "a<think></think>" + "".join(model.dialect.call_tags)
    shown = Detokenizer(model.tokenizer)
    ids = model.tokenizer.encode(text + model.dialect.end_of_turn)
    assert len(ids) == 6
    assert "".join(map(shown.feed, ids)) == text


@pytest.mark.report(69)
def test_a_checkpoint_whose_answers_would_not_stop_at_their_turns_end_is_refused(
    model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    speaking(model_folder, folder, "qwen3", special_tags=False)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": 258}))
    with pytest.raises(ModelFolderFault) as fault:
        load(folder, "qwen3")
    assert str(fault.value) == (
        f"{path}: `eos_token_id` lacks 257 (`<|im_end|>`), which ends a turn in dialect `qwen3`"
    )
    assert fault.value.hint == "add 257 to `eos_token_id`"
    path.write_text(json.dumps({"eos_token_id": [258, 257]}))
    load(folder, "qwen3")


def test_a_dialect_whose_turns_end_otherwise_is_refused(model_folder: Path) -> None:
    with pytest.raises(ModelFolderFault) as fault:
        load(model_folder, "minimax_m2")
    assert str(fault.value).endswith(
        "tokenizer.json: no token `[e~[`, which ends a turn in dialect `minimax_m2`"
    )


def test_a_misspelt_dialect_names_the_nearest(model_folder: Path) -> None:
    with pytest.raises(ModelFolderFault) as fault:
        load(model_folder, "qwen35")
    assert fault.value.hint == "`model.dialect`: did you mean `qwen3_5`?"


def load(folder: Path, dialect: str) -> ServedModel:
    return load_served_model(
        folder, dialect=dialect, vocab_size=VOCAB, now=lambda: datetime(2026, 1, 2)
    )
