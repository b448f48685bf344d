"""Exports of one model in every format give the logits of the numbers that they stand for (D19)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runtime.embedded.pairs import Pair, own_difference, random_tokens
from tests.runtime.embedded.tiny_models import FAMILIES, eager, tiny_model
from tests.runtime.weights.exports import Export, compressed_tensors, write_export
from transformers import AutoModelForCausalLM

from firmtoken.runtime.cli.profile import make_model_profile
from firmtoken.runtime.weights.conventions import COMPRESSED_TENSORS, MODELOPT

TOKENS = random_tokens(70)
STEPS = 3
EXPERTS = r"experts\.\d+\.\w+"
SHARED = r"shared_expert\.\w+_proj"
ATTENTION = r"self_attn\.[qkvo]_proj"
LINEAR = r"linear_attn\.(in_proj_qkv|in_proj_z|out_proj)"
GATES = r"experts\.\d+\.(gate_proj|w1)"
KINDS = ("linear", "linear", "linear", "full")
WRAPPED = "model.language_model."


def mixed_layers() -> dict[str, dict[str, str]]:
    """As nvidia's Qwen3.6 lists them (facts/models.md 3.3)."""
    nvfp4, fp8 = {"quant_algo": "W4A16_NVFP4"}, {"quant_algo": "FP8"}
    listed = {"lm_head": nvfp4}
    for layer, kind in enumerate(KINDS):
        stem = f"{WRAPPED}layers.{layer}."
        listed[f"{stem}mlp.experts"] = nvfp4
        listed |= {f"{stem}mlp.shared_expert.{part}_proj": nvfp4 for part in ("gate", "up", "down")}
        names = (
            ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")
            if kind == "linear"
            else tuple(f"self_attn.{part}_proj" for part in "qkvo")
        )
        listed |= {stem + name: fp8 for name in names}
    return listed


EXPORTS = {
    "ModelOpt, mixed": (
        "qwen3_5_moe",
        Export(
            convention=MODELOPT,
            formats={EXPERTS: "nvfp4", SHARED: "nvfp4", "lm_head": "nvfp4"}
            | {ATTENTION: "fp8", LINEAR: "fp8"},
            declared={"quant_algo": "MIXED_PRECISION", "quantized_layers": mixed_layers()},
            prefix=WRAPPED,
        ),
    ),
    "ModelOpt, W4A4, the router not excepted": (
        "qwen3_moe",
        Export(
            convention=MODELOPT,
            formats={EXPERTS: "nvfp4", ATTENTION: "nvfp4"},
            declared={
                "quant_algo": "NVFP4",
                "kv_cache_quant_algo": "FP8",
                "exclude_modules": ["lm_head"],
            },
            kv_scales=True,
        ),
    ),
    "ModelOpt, experts only": (
        "minimax_m2",
        Export(
            convention=MODELOPT,
            formats={EXPERTS: "nvfp4"},
            declared={
                "quant_algo": "NVFP4",
                "exclude_modules": ["lm_head", "*self_attn*", "*block_sparse_moe.gate"],
            },
        ),
    ),
    "compressed-tensors, hybrid": (
        "qwen3_5_moe",
        Export(
            convention=COMPRESSED_TENSORS,
            formats={EXPERTS: "nvfp4", SHARED: "nvfp4", ATTENTION: "nvfp4"},
            declared=compressed_tensors(
                ["lm_head", r"re:.*linear_attn.*", r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$"]
            ),
            prefix=WRAPPED,
        ),
    ),
    "compressed-tensors": (
        "qwen3_moe",
        Export(
            convention=COMPRESSED_TENSORS,
            formats={EXPERTS: "nvfp4", ATTENTION: "nvfp4"},
            declared=compressed_tensors(["lm_head", r"re:.*mlp\.gate$"]),
        ),
    ),
    "gates ten times as loud": (
        "qwen3_moe",
        Export(
            convention=MODELOPT,
            formats={EXPERTS: "nvfp4"},
            declared={"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]},
            louder={GATES: 10.0},
        ),
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of the families as transformers saves them."""
    folders = {}
    for family in FAMILIES:
        folders[family] = tmp_path_factory.mktemp(family) / "plain"
        tiny_model(family).save_pretrained(folders[family])
    return folders


def check(checkpoint: Path, reference: Path, start: Callable[..., Any], *overrides: str) -> Any:
    """Logits of an engine on `checkpoint` are those of transformers on `reference`."""
    model = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32).eval()
    eager(model.config)
    file = checkpoint.with_suffix(".yaml")
    assert make_model_profile(str(checkpoint), output=str(file)) == 0
    running = start("tiny-cpu", f"model={file}", "serving.context=1k", *overrides)
    pair = Pair(model=model, running=running, own_difference=own_difference(model, TOKENS))
    assert pair.excess_alone(1, TOKENS, STEPS) <= 1
    return running


@pytest.mark.parametrize("name", EXPORTS)
def test_logits_are_those_of_the_numbers_that_an_export_stands_for(
    name: str, plain: dict[str, Path], start: Callable[..., Any], tmp_path: Path
) -> None:
    family, export = EXPORTS[name]
    reference = write_export(plain[family], tmp_path / "export", export)
    decoded = check(tmp_path / "export", reference, start)
    packed = check(
        tmp_path / "export",
        reference,
        start,
        "kernels.moe_gate_up=torch_nvfp4",
        "kernels.moe_down=torch_nvfp4",
    )
    assert (decoded.plan.experts.format, packed.plan.experts.format) == ("fp32", "nvfp4")


def test_experts_that_a_release_stacks_by_layer_are_the_same_model(
    plain: dict[str, Path], start: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "stacked"
    folder.mkdir()
    tensors = load_file(plain["qwen3_5_moe"] / "model.safetensors")
    for layer in range(len(KINDS)):
        stem = f"model.layers.{layer}.mlp.experts."
        gates, ups, downs = (
            torch.stack([tensors.pop(f"{stem}{e}.{part}_proj.weight") for e in range(8)])
            for part in ("gate", "up", "down")
        )
        tensors[stem + "gate_up_proj"] = torch.cat((gates, ups), dim=1)
        tensors[stem + "down_proj"] = downs
    renamed = {name.replace("model.", WRAPPED, 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    (folder / "config.json").write_text((plain["qwen3_5_moe"] / "config.json").read_text())
    check(folder, plain["qwen3_5_moe"], start)


def test_attention_in_fp32_beside_experts_in_nvfp4_is_cast(
    plain: dict[str, Path], start: Callable[..., Any], tmp_path: Path
) -> None:
    export = EXPORTS["ModelOpt, experts only"][1]
    reference = write_export(plain["minimax_m2"], tmp_path / "export", export)
    stored = load_file(tmp_path / "export" / "model.safetensors")
    kinds = {name.rsplit(".", 2)[-2]: tensor.dtype for name, tensor in stored.items()}
    assert kinds["q_proj"] == torch.float32
    for name, tensor in stored.items():
        if "self_attn" not in name and tensor.dtype == torch.float32 and tensor.dim() > 1:
            stored[name] = tensor.bfloat16()
    save_file(stored, tmp_path / "export" / "model.safetensors", metadata={"format": "pt"})
    check(tmp_path / "export", reference, start)
