"""The published configurations as checkpoints: tensors, bytes (facts/models.md 3.3 to 3.5, 3.10), headers that pass."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runtime.weights.headers_only import mtp_tensors, vision_tensors, write_headers

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.weights.conventions import COMPRESSED_TENSORS
from firmtoken.runtime.weights.layout import LaidTensor, checkpoint_layout
from firmtoken.runtime.weights.model_config import read_model
from firmtoken.runtime.weights.preflight import Inventory, preflight
from firmtoken.runtime.weights.synthetic import num_bytes
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import Model

CONFIGS = Path(__file__).resolve().parents[2] / "compiler" / "configs"
QWEN36, QWEN35 = "Qwen3.6-35B-A3B-NVFP4", "Qwen3.5-35B-A3B"
QWEN35_122B = "Qwen3.5-122B-A10B-NVFP4"
QWEN3, QWEN3_235B, MINIMAX = "Qwen3-30B-A3B", "Qwen3-235B-A22B-NVFP4", "MiniMax-M2.5-NVFP4"
PREFLIGHT_S = 30.0
"""Five times what 124,468 tensors took on the busy 2-core machine."""


def model_of(name: str, **formats: str) -> Model:
    data: Any = read_model(CONFIGS / name, name=name, source={"path": "."})
    data["quantization"] |= formats
    return Model.model_validate(data)


def config_of(name: str) -> Any:
    return json.loads((CONFIGS / name / "config.json").read_text())


def total(tensors: Iterable[LaidTensor], *roles: str) -> int:
    return sum(num_bytes(tensor) for tensor in tensors if tensor.role not in roles)


def of_experts(tensors: Iterable[LaidTensor]) -> list[LaidTensor]:
    return [tensor for tensor in tensors if tensor.row in ("gate", "up", "gate_up", "down")]


def test_qwen3_6_has_the_124468_tensors_of_the_census() -> None:
    text = list(checkpoint_layout(model_of(QWEN36)))
    unused = [*vision_tensors(config_of(QWEN36)), *mtp_tensors(config_of(QWEN36))]
    assert len(text) + len(unused) == 124_468
    in_layers = Counter(
        name.split(".layers.")[1].split(".")[0] for name in names(text) if ".layers." in name
    )
    assert {in_layers[str(layer)] for layer in range(40) if layer % 4 == 3} == {3102}
    assert {in_layers[str(layer)] for layer in range(40) if layer % 4 != 3} == {3103}
    assert total(text) == 20_825_156_824
    assert total(of_experts(text), "global_scale", "input_scale") == 18_119_393_280
    assert total(vision_tensors(config_of(QWEN36))) == 893_142_496
    assert total(mtp_tensors(config_of(QWEN36))) == 1_689_281_536
    assert total((*text, *unused)) == 23_407_580_856


def names(tensors: Iterable[LaidTensor]) -> list[str]:
    return [tensor.name for tensor in tensors]


def test_qwen3_5_is_stacked_in_bf16() -> None:
    tensors = list(checkpoint_layout(model_of(QWEN35)))
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in names(tensors)
    assert total(of_experts(tensors)) == 60 * 2**30
    assert total(tensors) == 2 * 34_660_610_688
    assert total(tensors) - total(of_experts(tensors)) == 4_896_711_936


def test_qwen3_30b_in_bf16_and_in_nvfp4() -> None:
    plain = list(checkpoint_layout(model_of(QWEN3)))
    assert total(plain) == 2 * 30_532_122_624
    assert total(plain) - total(of_experts(plain)) == 3_082_186_752
    packed = list(checkpoint_layout(model_of(QWEN3, experts="nvfp4", attention="nvfp4")))
    assert sum(tensor.role == "input_scale" for tensor in packed) == 18_624
    assert total(of_experts(packed), "global_scale", "input_scale") == 16_307_453_952


def test_minimax_is_the_index_total_of_the_file_without_input_scales() -> None:
    tensors = list(checkpoint_layout(model_of(MINIMAX)))
    assert total(tensors, "input_scale") == 134_401_534_976
    assert sum(tensor.role == "input_scale" for tensor in tensors) == 47_616
    assert total(of_experts(tensors), "input_scale") == 126_382_958_592


@pytest.mark.parametrize(
    ("name", "layers", "per_layer"), [(QWEN3_235B, 94, 4 + 3 * 128), (QWEN35_122B, 48, 3 * 256)]
)
def test_quantised_matrices_of_the_larger_sisters(name: str, layers: int, per_layer: int) -> None:
    tensors = list(checkpoint_layout(model_of(name)))
    codes = [tensor for tensor in tensors if tensor.role == "codes"]
    assert len(codes) == layers * per_layer
    assert not [tensor for tensor in codes if tensor.row in ("router", "embed", "lm_head")]


def test_redhats_export_of_qwen3_6_has_30880_input_scales() -> None:
    formats = {"attention": "nvfp4", "linear_attention": "bf16", "lm_head": "bf16"}
    tensors = list(checkpoint_layout(model_of(QWEN36, **formats), convention=COMPRESSED_TENSORS))
    scales = [name for name in names(tensors) if name.endswith(".input_global_scale")]
    assert len(scales) == 40 * 771 + 10 * 4
    # Published as about 22.9 GB; the vision tower is among them, the prediction layer may not be.
    assert 21e9 < total(tensors) + total(vision_tensors(config_of(QWEN36))) < 24e9


def plan_for(model: Model, folder: Path) -> Plan:
    """On a GPU and a host that are large enough for it."""
    file = folder / "model.yaml"
    data = model.model_dump(exclude_none=True)
    data["source"] = {"path": str(folder)}
    file.write_text(yaml.safe_dump(data))
    overrides = (f"model={file}", "hardware.host.memory=1TiB", "hardware.host.pinnable=900GiB")
    profile = load_profile("h200-qwen", [*overrides, "serving.context=8k"]).profile
    return compile_profile(profile, CARDS)


def accepted(folder: Path, model: Model, tensors: Iterable[LaidTensor]) -> Inventory:
    write_headers(folder, tensors)
    plan = plan_for(model, folder)
    started = time.perf_counter()
    found = preflight(plan, folder)
    assert time.perf_counter() - started < PREFLIGHT_S
    return found


def copy_configs(name: str, folder: Path) -> None:
    for path in (CONFIGS / name).iterdir():
        shutil.copy(path, folder)


def test_the_headers_of_qwen3_6_pass_preflight_in_seconds(tmp_path: Path) -> None:
    model = model_of(QWEN36)
    copy_configs(QWEN36, tmp_path)
    config = config_of(QWEN36)
    tensors = (*checkpoint_layout(model), *vision_tensors(config), *mtp_tensors(config))
    found = accepted(tmp_path, model, tensors)
    assert len(found.checkpoint.tensors) == 124_468
    assert len(found.experts) == 10_240
    assert {part.format for item in found.dense for part in item.parts} == {"plain", "fp8", "nvfp4"}


@pytest.mark.slow
def test_the_headers_of_minimax_pass_preflight_with_scales_of_keys_and_values(
    tmp_path: Path,
) -> None:
    model = model_of(MINIMAX)
    copy_configs(MINIMAX, tmp_path)
    # Attention in fp32, as one report of the file's size suggests, and without some input scales (3.4).
    tensors = [
        replace(tensor, dtype="F32") if ".self_attn." in tensor.name else tensor
        for tensor in checkpoint_layout(model, kv_scales=True)
        if not (tensor.role == "input_scale" and ".experts.7.w1" in tensor.name)
    ]
    found = accepted(tmp_path, model, tensors)
    assert len(found.experts) == 15_872
    assert {part.weight.dtype for item in found.dense for part in item.parts} == {"BF16", "F32"}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["nvfp4", "bf16"])
def test_the_headers_of_qwen3_235b_pass_preflight(tmp_path: Path, attention: str) -> None:
    """In the release of 2507 q, k and v are bf16 and have scales, and only o is NVFP4 (facts/models.md 3.5)."""
    is_older = attention == "nvfp4"
    model = model_of(QWEN3_235B, attention=attention, attention_out="nvfp4")
    if is_older:
        copy_configs(QWEN3_235B, tmp_path)
    found = accepted(tmp_path, model, checkpoint_layout(model, kv_scales=not is_older))
    assert len(found.experts) == 94 * 128
    formats = {i.weight.name: {p.format for p in i.parts} for i in found.dense}
    assert formats["attn_out"] == {"nvfp4"}
    assert formats["qkv_proj"] == {"nvfp4" if is_older else "plain"}


@pytest.mark.parametrize("name", [QWEN35, pytest.param(QWEN35_122B, marks=pytest.mark.slow)])
def test_the_headers_of_the_other_configurations_pass_preflight(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    copy_configs(name, tmp_path)
    accepted(tmp_path, model, (*checkpoint_layout(model), *vision_tensors(config_of(name))))
