"""What config files say of formats, and that headers, plan and config files must agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.weights.exports import compressed_tensors

from firmtoken.compiler.places import WeightPart
from firmtoken.runtime.weights.checkpoint import open_checkpoint
from firmtoken.runtime.weights.declared import CONFIG, SEPARATE
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.format_check import require_declared_formats
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.runtime.weights.quantization import declared


def declared_formats(ignore: list[str], **groups: Any) -> Callable[[str], str | None]:
    config = compressed_tensors(ignore)
    config["config_groups"] |= groups
    return declared({"quantization_config": config}, None).format_of


def test_compressed_tensors_ignores_whole_names_and_expressions() -> None:
    found = declared_formats(["lm_head", r"re:.*mlp\.gate$", "model.language_model.layers.0.a"])
    assert found("lm_head") is found("model.layers.7.mlp.gate") is found("model.layers.0.a") is None
    assert found("model.layers.0.a.b") == found("model.layers.7.mlp.gate_proj") == "nvfp4"


def test_compressed_tensors_takes_a_target_by_name_before_one_by_class() -> None:
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    found = declared_formats([], group_1={"targets": ["re:.*self_attn.*"], "weights": fp8})
    assert found("model.layers.0.self_attn.q_proj") == "fp8"
    assert found("model.layers.0.mlp.up_proj") == "nvfp4"


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "strategy channel"),
        ({"num_bits": 4, "type": "int", "group_size": 128}, "num_bits 4, type int, group_size 128"),
    ],
)
def test_a_scheme_of_compressed_tensors_that_nothing_here_reads_is_refused(
    weights: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(LoadError, match=sentence):
        declared_formats([], group_1={"targets": ["a"], "weights": weights})


def test_an_expression_of_compressed_tensors_that_is_none_is_refused() -> None:
    with pytest.raises(LoadError, match=r"`re:\(`, which is no expression"):
        declared_formats(["re:("])


def declare(folder: Path, layers: dict[str, str]) -> None:
    listed = {module: {"quant_algo": name} for module, name in layers.items()}
    said = {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    (folder / CONFIG).write_text("{}")
    (folder / SEPARATE).write_text(json.dumps({"quantization": said}))


DECLARED = {
    "lm_head": "W4A16_NVFP4",
    "model.layers.1.self_attn.q_proj": "FP8",
    **{f"model.language_model.layers.{layer}.mlp.experts": "NVFP4" for layer in range(3)},
    **{f"model.layers.{layer}.linear_attn.in_proj_qkv": "FP8" for layer in (0, 2)},
}


@pytest.fixture
def checked_plan(plan_of: Callable[..., Any]) -> Any:
    plan = plan_of()
    plan.model.family = "qwen3_5_moe"
    return plan


def test_headers_that_are_as_the_config_files_say_are_accepted(
    written: Any, checked_plan: Any
) -> None:
    # Of a router that is listed nothing is expected, since nobody quantises it.
    declare(written.folder, DECLARED | {"model.layers.0.linear_attn.in_proj_b": "NVFP4"})
    require_declared_formats(checked_plan, open_checkpoint(written.folder))


@pytest.mark.parametrize(
    ("module", "said", "tensor", "sentence"),
    [
        ("lm_head", None, "lm_head", "expected BF16, F16 or F32, as `hf_quant_config.json` says"),
        (
            "model.layers.1.self_attn.q_proj",
            "NVFP4",
            "model.language_model.layers.1.self_attn.q_proj",
            "expected NVFP4 (U8 with its scales), as `hf_quant_config.json` says, found F8_E4M3",
        ),
        (
            "model.language_model.layers.2.mlp.experts",
            "FP8",
            "model.language_model.layers.2.mlp.experts.0.gate_proj",
            "expected FP8 (F8_E4M3 with `weight_scale`), as `hf_quant_config.json` says, found U8",
        ),
    ],
)
def test_headers_that_contradict_the_config_files_are_refused(
    written: Any,
    checked_plan: Any,
    module: str,
    said: str | None,
    tensor: str,
    sentence: str,
) -> None:
    changed = DECLARED | ({module: said} if said else {})
    if said is None:
        del changed[module]
    declare(written.folder, changed)
    with pytest.raises(LoadError) as caught:
        require_declared_formats(checked_plan, open_checkpoint(written.folder))
    assert caught.value.tensor == tensor + ".weight"
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kept", "found"),
    [("q_proj", "bf16", "F8_E4M3"), ("embed", "fp8", "BF16"), ("lm_head", "fp8", "U8")],
)
def test_a_row_that_the_plan_keeps_in_another_format_is_refused(
    written: Any, plan_of: Callable[..., Any], name: str, kept: str, found: str
) -> None:
    plan = plan_of()
    for weight_row in plan.weights:
        if weight_row.name == name:
            object.__setattr__(
                weight_row, "parts", (WeightPart(rows=weight_row.shape[0], format=kept),)
            )
    with pytest.raises(LoadError) as caught:
        preflight(plan, written.folder)
    assert "as the plan keeps it" in caught.value.expected and caught.value.found == found
