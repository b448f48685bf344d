"""Reading a model's folder, and text to ids and back."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.served_model import ServedModel, load_served_model

EOS = '{"eos_token_id": 257, '


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(model_folder, tmp_path / "copy"))


def load(folder: Path, dialect: str = "qwen3_5", vocab_size: int = 320) -> ServedModel:
    return load_served_model(
        folder, dialect=dialect, vocab_size=vocab_size, now=lambda: datetime(2026, 1, 2)
    )


def test_text_survives_encoding_and_decoding(served_model: ServedModel) -> None:
    text = "the naïve café 你好 🙂\n\tdef f(x): return x**2"
    ids = served_model.tokenizer.encode(text)
    assert served_model.tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(ids) < len(text.encode())


def test_special_tokens_in_a_text_are_parsed(served_model: ServedModel) -> None:
    assert served_model.tokenizer.encode("<|im_end|>") == [257]
    assert served_model.tokenizer.decode([257, 259], skip_special_tokens=True) == "<think>"
    assert served_model.tokenizer.decode([257, 259], skip_special_tokens=False) == (
        "<|im_end|><think>"
    )


def test_an_id_without_a_token_writes_nothing(served_model: ServedModel) -> None:
    assert served_model.tokenizer.token_bytes(319) == b""
    assert served_model.tokenizer.token_bytes(-1) == b""


def test_defaults_come_from_generation_config(served_model: ServedModel) -> None:
    defaults = served_model.defaults
    assert defaults.stop_token_ids == (257, 258)
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.3, 0.95, 20)
    assert defaults.min_p == 0.0


def test_a_config_without_sampling_is_greedy(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": 257, "do_sample": false}')
    assert load(folder).defaults.temperature == 0.0


def test_a_saved_truncation_does_not_cut_prompts(folder: Path) -> None:
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(saved))
    assert len(load(folder).tokenizer.encode("a long text that is not cut")) > 4


def test_a_template_inside_the_tokenizer_config_is_used(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(
        '{"chat_template": "{{ eos_token }}", "eos_token": {"content": "<|im_end|>"}}'
    )
    template = load(folder).template
    assert template.render([], add_generation_prompt=True, variables={}) == "<|im_end|>"


def test_a_model_without_a_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelFolderFault) as fault:
        load(folder)
    assert str(fault.value) == (
        f"{folder}/chat_template.jinja: no such file, "
        "and `tokenizer_config.json` has no `chat_template`"
    )
    assert "copy the checkpoint's own template" in fault.value.hint


@pytest.mark.report(47)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "not a tokenizer: "),
        ("tokenizer.json", "", "not a tokenizer: "),
        ("tokenizer_config.json", "[1]", "expected a JSON mapping"),
        ("tokenizer_config.json", "{,", "not JSON: "),
        ("generation_config.json", "{}", "Object missing required field `eos_token_id`"),
        ("generation_config.json", '{"eos_token_id": "x"}', "Expected `int | array`, got `str`"),
        ("generation_config.json", '{"eos_token_id": 999}', "`eos_token_id` has 999, but the"),
        ("generation_config.json", '{"eos_token_id": -1}', "Expected `int` >= 0"),
        ("generation_config.json", '{"eos_token_id": [257, true]}', "Expected `int`, got `bool`"),
        ("generation_config.json", EOS + '"temperature": -0.5}', "Expected `float` >= 0"),
        ("generation_config.json", EOS + '"temperature": 1e400}', "not JSON: Number out of range"),
        ("generation_config.json", EOS + f'"temperature": {10**400}}}', ""),
        ("generation_config.json", EOS + '"top_p": 1.5}', "Expected `float` <= 1"),
        ("generation_config.json", EOS + f'"top_k": {10**30}}}', "Expected `int` <= 2147483648"),
        ("generation_config.json", EOS + '"top_k": 2.5}', "Expected `int | null`, got `float`"),
        ("generation_config.json", EOS + '"min_p": "0"}', "Expected `float | null`, got `str`"),
        ("generation_config.json", "[" * 50_000, "not JSON: "),
        ("chat_template.jinja", "", "the chat template makes an empty prompt"),
        ("chat_template.jinja", "{{ x }}", "the chat template fails on one message of a user: "),
        ("chat_template.jinja", "{% if %}", "the chat template does not compile: line 1: "),
    ],
)
def test_a_broken_file_is_named_with_its_fault(
    folder: Path, name: str, content: str, message: str
) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelFolderFault) as fault:
        load(folder)
    assert str(fault.value).startswith(f"{folder / name}: {message}")
    assert fault.value.hint


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"],
)
def test_what_is_no_regular_file_is_refused_and_not_read(
    folder: Path, name: str, kind: str
) -> None:
    path = folder / name
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to("/dev/zero")
    with pytest.raises(ModelFolderFault, match=f"{name}: it is a .*, no regular file"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelFolderFault, match="no such file"):
        load(folder)


def test_a_missing_folder_is_told_apart_from_a_missing_file(folder: Path) -> None:
    with pytest.raises(ModelFolderFault) as fault:
        load(folder / "nowhere")
    assert "model.source.path" in fault.value.hint


def test_a_tokenizer_larger_than_the_embedding_is_refused(folder: Path) -> None:
    with pytest.raises(ModelFolderFault, match="266 tokens, but the model has 260 rows"):
        load(folder, vocab_size=260)


def test_an_unknown_dialect_is_refused_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(ModelFolderFault, match="unknown dialect `klingon`: known are `qwen3_5`"):
        load(folder, dialect="klingon")


def test_a_tokenizer_that_is_not_byte_level_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(saved))
    with pytest.raises(ModelFolderFault, match="the decoder is `WordPiece`"):
        load(folder)
