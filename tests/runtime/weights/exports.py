"""A plain checkpoint of transformers written anew as exporters write it, and the numbers that it then stands for."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.runtime.weights.conftest import decode_nvfp4, quantise_fp8, quantise_nvfp4

from firmtoken.runtime.weights.conventions import COMPRESSED_TENSORS, MODELOPT, Convention

NVFP4_SCHEME = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}


@dataclass(frozen=True, kw_only=True)
class Export:
    """Which modules are stored how."""

    convention: Convention
    formats: Mapping[str, str]
    """Expression that a module's name ends with -> `nvfp4` or `fp8`."""
    declared: dict[str, Any]  # JSON
    """`quantization` of hf_quant_config.json, or `quantization_config` of the config."""
    prefix: str = "model."
    kv_scales: bool = False
    louder: Mapping[str, float] = field(default_factory=dict)
    """Expression -> what a module's numbers are multiplied with before they are stored."""

    def format_of(self, module: str) -> str | None:
        found = (name for end, name in self.formats.items() if re.search(f"(?:{end})$", module))
        return next(found, None)


def compressed_tensors(ignore: list[str]) -> dict[str, Any]:  # JSON
    """`quantization_config` of an export in NVFP4 with one group."""
    group = {
        "format": "nvfp4-pack-quantized",
        "input_activations": {**NVFP4_SCHEME, "dynamic": "local"},
        "targets": ["Linear"],
        "weights": {**NVFP4_SCHEME, "dynamic": False},
    }
    return {
        "config_groups": {"group_0": group},
        "format": "nvfp4-pack-quantized",
        "ignore": ignore,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
    }


def write_export(plain: Path, folder: Path, export: Export) -> Path:
    """`plain` as this export in `folder`; returns a folder with what it stands for, which transformers can read."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        # Weights are bf16 before anybody quantises them.
        tensor = tensor.bfloat16().float()
        for end, factor in export.louder.items():
            if re.search(f"(?:{end})$", module):
                tensor = tensor * factor
        parts, numbers[name] = stored(tensor, export.format_of(module), export.convention)
        for suffix, part in parts.items():
            tensors[spelled(module if suffix else name, export.prefix) + suffix] = part.contiguous()
        if export.kv_scales and module.endswith(("k_proj", "v_proj")):
            tensors[f"{spelled(module, export.prefix)}.{module[-6]}_scale"] = torch.tensor(1.0)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    if export.convention is COMPRESSED_TENSORS:
        config["quantization_config"] = export.declared
    else:
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": export.declared})
        (folder / "hf_quant_config.json").write_text(text)
    (folder / "config.json").write_text(json.dumps(config))
    reference = folder.with_name(folder.name + "-numbers")
    shutil.copytree(plain, reference)
    save_file(numbers, reference / "model.safetensors", metadata={"format": "pt"})
    return reference


def stored(
    tensor: torch.Tensor, format_name: str | None, convention: Convention
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Tensors by suffix, and the numbers that they stand for."""
    if format_name == "fp8":
        parts = quantise_fp8(tensor)
        return parts, parts[".weight"].float() * parts[".weight_scale"]
    if format_name == "nvfp4":
        parts = quantise_nvfp4(tensor)
        return spelled_nvfp4(parts, tensor, convention), decode_nvfp4(parts)
    return {"": tensor}, tensor


def spelled_nvfp4(
    parts: dict[str, torch.Tensor], matrix: torch.Tensor, convention: Convention
) -> dict[str, torch.Tensor]:
    """ModelOpt's tensors of a matrix as each exporter writes them: the same codes and block scales."""
    if convention is MODELOPT:
        return parts
    amax = matrix.abs().max()
    return {
        convention.codes: parts[".weight"],
        ".weight_scale": parts[".weight_scale"],
        convention.global_scale: (2688 / amax).view(convention.scalar),
        convention.input_scale: torch.full(convention.scalar, 100.0),
    }


def spelled(module: str, prefix: str) -> str:
    """With the prefix of the export."""
    return prefix + module.removeprefix("model.") if module.startswith("model.") else module
