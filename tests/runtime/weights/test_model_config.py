"""A model profile from config files: the public ones, what is refused, and that no file is a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.profile import make_model_profile, yaml_text
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.model_config import read_model
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import Model
from firmtoken.schema.references import shipped_folder

CONFIGS = Path(__file__).resolve().parents[2] / "compiler" / "configs"
CASES = Path(__file__).parent / "cases"
TINY = shipped_folder() / "weights" / "tiny-moe"
REFUSED = "MiniMax-M2.5"
Edit = Callable[..., Path]


def model_of(folder: Path) -> dict[str, Any]:
    return read_model(folder, name=folder.name, source={"path": "."})


def shipped(name: str) -> Model:
    return load_profile("h200-qwen", [f"model=ft:models/{name}"]).profile.model


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """`edited("Qwen3-30B-A3B", norm_topk_prob=False)`: a copy whose config says so; None removes a key."""

    def edit(name: str, file: str = "config.json", **changes: object) -> Path:
        folder = tmp_path / name
        shutil.copytree(CONFIGS / name, folder)
        path = folder / file
        content = json.loads(path.read_text()) | changes
        kept = {key: value for key, value in content.items() if value is not None}
        path.write_text(json.dumps(kept))
        return folder

    return edit


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as caught:
        model_of(folder)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.iterdir()))
def test_the_model_profile_is_the_golden_one(
    name: str, golden: Callable[[Path, str], None]
) -> None:
    try:
        text = yaml_text(model_of(CONFIGS / name))
    except LoadError as error:
        assert name == REFUSED
        text = f"{error}\nhint: {error.hint}\n"
    golden(CASES / f"{name}.model.yaml", text)


@pytest.mark.parametrize(
    ("config", "name", "same_formats"),
    [
        ("Qwen3.6-35B-A3B-NVFP4", "qwen3.6-35b-a3b-nvfp4", True),
        ("Qwen3.5-35B-A3B", "qwen3.5-35b-a3b", True),
        ("Qwen3.5-35B-A3B", "ornith-1.5-35b-a3b-nvfp4", False),
        ("MiniMax-M2.5-NVFP4", "minimax-m2.5-nvfp4", True),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b-nvfp4", False),
    ],
)
def test_the_shipped_models_say_what_the_config_files_say(
    config: str, name: str, same_formats: bool
) -> None:
    found, wanted = Model.model_validate(model_of(CONFIGS / config)), shipped(name)
    assert (found.family, found.geometry, found.dialect) == (
        wanted.family,
        wanted.geometry,
        wanted.dialect,
    )
    if same_formats:
        assert found.quantization == wanted.quantization


def test_the_sister_of_nvidias_qwen3_30b_has_its_formats() -> None:
    found = Model.model_validate(model_of(CONFIGS / "Qwen3-235B-A22B-NVFP4"))
    assert found.quantization == shipped("qwen3-30b-a3b-nvfp4").quantization


def test_the_embedded_checkpoint_gives_the_embedded_models_profile() -> None:
    found, wanted = Model.model_validate(model_of(TINY)), shipped("tiny-moe")
    assert found.geometry == wanted.geometry
    assert found.quantization == wanted.quantization


def test_the_command_writes_a_model_that_a_profile_can_name(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    assert make_model_profile(str(TINY), output=str(file)) == 0
    profile = load_profile("tiny-cpu", [f"model={file}"]).profile
    assert profile.model.source == shipped("tiny-moe").source


def test_a_folder_without_a_config_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"`config\.json`: expected a readable file") as caught:
        make_model_profile(str(tmp_path), output=None)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("Qwen3-30B-A3B", {"model_type": "llama"}, "found `llama`"),
        ("Qwen3-30B-A3B", {"norm_topk_prob": False}, "`norm_topk_prob: True`, found `False`"),
        ("Qwen3-30B-A3B", {"norm_topk_prob": None}, "`norm_topk_prob: True`, found none"),
        ("Qwen3-30B-A3B", {"mlp_only_layers": [0]}, r"`mlp_only_layers: None`, found `\[0\]`"),
        ("Qwen3-30B-A3B", {"rope_scaling": {"type": "yarn"}}, "`rope_scaling: None`"),
        ("Qwen3-30B-A3B", {"head_dim": None}, "expected `head_dim`, found none"),
        ("Qwen3-30B-A3B", {"head_dim": 128.5}, "that fit `model.geometry.head_dim`"),
        ("Qwen3-30B-A3B", {"num_key_value_heads": 5}, "does not divide"),
        ("Qwen3-30B-A3B", {"torch_dtype": "float16"}, "found `float16`"),
        ("Qwen3-30B-A3B", {"torch_dtype": []}, r"found `\[\]`"),
        ("MiniMax-M2.5-NVFP4", {"scoring_func": "softmax"}, "found `softmax`"),
        ("MiniMax-M2.5-NVFP4", {"attn_type_list": [1, 0]}, "`attn_type_list: 1`"),
        ("MiniMax-M2.5-NVFP4", {"shared_intermediate_size": 8}, "found `8`"),
        ("MiniMax-M2.5-NVFP4", {"qk_norm_type": "per_head"}, "found `per_head`"),
    ],
)
def test_a_config_of_another_model_is_refused_by_name(
    name: str, changes: dict[str, object], sentence: str, edited: Edit
) -> None:
    with pytest.raises(LoadError, match=sentence):
        model_of(edited(name, **changes))


def test_layers_in_another_order_are_refused(edited: Edit) -> None:
    name = "Qwen3.5-35B-A3B"
    text = json.loads((CONFIGS / name / "config.json").read_text())["text_config"]
    text["layer_types"] = text["layer_types"][1:] + text["layer_types"][:1]
    assert "`layer_types` of 40 layers" in refusal(edited(name, text_config=text))


def test_a_config_without_the_familys_shared_expert_is_refused(edited: Edit) -> None:
    name = "Qwen3.5-35B-A3B"
    text = json.loads((CONFIGS / name / "config.json").read_text())["text_config"]
    text["shared_expert_intermediate_size"] = 0
    assert "`model.geometry.shared_intermediate_size`" in refusal(edited(name, text_config=text))


def test_a_part_in_two_formats_is_refused_with_a_module_of_each(edited: Edit) -> None:
    name, file = "MiniMax-M2.5-NVFP4", "hf_quant_config.json"
    stated = json.loads((CONFIGS / name / file).read_text())["quantization"]
    stated["exclude_modules"].remove("model.layers.7.self_attn*")
    found = refusal(edited(name, file, quantization=stated))
    assert "bf16 for `model.layers.0.self_attn.q_proj`" in found
    assert "nvfp4 for `model.layers.7.self_attn.q_proj`" in found


def test_an_output_projection_may_have_a_format_of_its_own(edited: Edit) -> None:
    name, file = "Qwen3-235B-A22B-NVFP4", "hf_quant_config.json"
    stated = json.loads((CONFIGS / name / file).read_text())["quantization"]
    stated["exclude_modules"] += [f"model.layers.*.self_attn.{part}_proj" for part in "qkv"]
    found = model_of(edited(name, file, quantization=stated))["quantization"]
    assert (found["attention"], found["attention_out"]) == ("bf16", "nvfp4")
    assert "attention_out" not in model_of(CONFIGS / name)["quantization"]


def test_the_separate_file_counts_before_the_config(edited: Edit) -> None:
    folder = edited("MiniMax-M2.5-NVFP4", quantization_config={"quant_method": "fp8"})
    assert model_of(folder)["quantization"]["experts"] == "nvfp4"
    (folder / "hf_quant_config.json").unlink()
    assert "`quant_method: fp8`" in refusal(folder)


def test_keys_and_values_may_be_declared_in_the_config_alone(edited: Edit) -> None:
    folder = edited("MiniMax-M2.5-NVFP4")
    (folder / "hf_quant_config.json").unlink()
    assert model_of(folder) == model_of(CONFIGS / "MiniMax-M2.5-NVFP4")


def test_a_router_that_an_export_forgot_to_except_is_not_quantised() -> None:
    name = "Qwen3.5-122B-A10B-NVFP4"
    stated = json.loads((CONFIGS / name / "hf_quant_config.json").read_text())["quantization"]
    assert not [module for module in stated["exclude_modules"] if module.endswith("mlp.gate")]
    assert model_of(CONFIGS / name)["quantization"]["router"] == "bf16"


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = JSON | st.lists(JSON, max_size=3) | st.dictionaries(st.text(max_size=8), JSON, max_size=3)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_value_in_any_place_is_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = data.draw(st.sampled_from(["MiniMax-M2.5-NVFP4", "Qwen3.5-35B-A3B"]))
    folder = tmp_path_factory.mktemp("config")
    for path in (CONFIGS / name).iterdir():
        content = json.loads(path.read_text())
        inner = [value for value in content.values() if isinstance(value, dict)]
        for level in (content, *inner):
            for key in data.draw(st.sets(st.sampled_from(sorted(level)), max_size=2)):
                level[key] = data.draw(VALUES)
        (folder / path.name).write_text(json.dumps(content))
    try:
        model_of(folder)
    except LoadError as error:
        assert str(error).isprintable()
