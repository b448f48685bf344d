"""A small checkpoint in nvidia's layout, written here by its own quantiser, and a plan that wants it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.places import Weight, WeightPart

HIDDEN, WIDTH, HEADS, CHANNELS, VOCAB, EXPERTS = 32, 16, 4, 24, 48, 3
KINDS = ("linear", "full", "linear")
PREFIX = "model.language_model."
BOUNDARIES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def quantise_nvfp4(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """facts/models.md 3.2, one number at a time where it is cheap to be obvious."""
    num_rows, columns = matrix.shape
    global_scale = matrix.abs().max() / (6 * 448)
    blocks = matrix.view(num_rows, columns // 16, 16)
    scale = (blocks.abs().amax(-1) / 6 / global_scale).to(torch.float8_e4m3fn)
    scaled = blocks / (scale.float() * global_scale).clamp(min=1e-12).unsqueeze(-1)
    codes = torch.bucketize(scaled.abs(), BOUNDARIES) + 8 * (scaled < 0)
    codes = codes.view(num_rows, columns).to(torch.uint8)
    return {
        ".weight": codes[:, ::2] | codes[:, 1::2] << 4,
        ".weight_scale": scale,
        ".weight_scale_2": global_scale,
        ".input_scale": torch.tensor(0.01),
    }


def decode_nvfp4(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same numbers back, in plain Python: ((e2m1 * scale) * global), each product rounded to fp32."""
    packed, scale = parts[".weight"].tolist(), parts[".weight_scale"].float().tolist()
    rows = []
    for row, scales in zip(packed, scale, strict=True):
        numbers = []
        for index, byte in enumerate(row):
            for code in (byte & 15, byte >> 4):
                value = VALUES[code & 7] * (-1 if code & 8 else 1)
                numbers.append(value * scales[2 * index // 16])
        rows.append(numbers)
    return torch.tensor(rows) * parts[".weight_scale_2"]


def quantise_fp8(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = matrix.abs().max() / 448
    return {
        ".weight": (matrix / scale).to(torch.float8_e4m3fn),
        ".weight_scale": scale,
        ".input_scale": torch.tensor(0.02),
    }


@dataclass
class Written:
    """A checkpoint on disk and what it must decode to."""

    folder: Path
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, torch.Tensor] = field(default_factory=dict)
    """Logical module name -> fp32"""
    packed: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def add(
        self, source: str, shape: tuple[int, ...], kind: str, *, suffix: str = ".weight"
    ) -> None:
        matrix = torch.randn(shape) * 0.05
        name = source.replace("model.", PREFIX, 1) if source.startswith("model.") else source
        if kind == "nvfp4":
            parts = quantise_nvfp4(matrix)
            self.packed[source] = parts
            self.numbers[source] = decode_nvfp4(parts)
        elif kind == "fp8":
            parts = quantise_fp8(matrix)
            self.numbers[source] = parts[".weight"].float() * parts[".weight_scale"]
        else:
            parts = {suffix: matrix.to(torch.bfloat16)}
            self.numbers[source] = parts[suffix].float()
        for ending, tensor in parts.items():
            self.tensors[name + ending] = tensor.contiguous()

    def save(self) -> None:
        """Two shards, names dealt out in turn, so that siblings lie in different files; a stray third file."""
        names = sorted(self.tensors)
        weight_map = {}
        for shard in range(2):
            file = f"model-{shard + 1:05}-of-00002.safetensors"
            mine = {name: self.tensors[name] for name in names[shard::2]}
            save_file(mine, self.folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(mine, file)
        save_file({"stray.weight": torch.zeros(3)}, self.folder / "stray.safetensors")
        index = {"metadata": {}, "weight_map": weight_map}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_checkpoint(folder: Path) -> Written:
    torch.manual_seed(1)
    written = Written(folder)
    written.add("model.embed_tokens", (VOCAB, HIDDEN), "bf16")
    written.add("lm_head", (VOCAB, HIDDEN), "nvfp4")
    for layer, kind in enumerate(KINDS):
        stem = f"model.layers.{layer}."
        written.add(stem + "input_layernorm", (HIDDEN,), "bf16")
        if kind == "linear":
            written.add(stem + "linear_attn.in_proj_qkv", (CHANNELS, HIDDEN), "fp8")
            written.add(stem + "linear_attn.in_proj_b", (HEADS, HIDDEN), "bf16")
            written.add(stem + "linear_attn.conv1d", (CHANNELS, 1, 4), "bf16")
            written.add(stem + "linear_attn.A_log", (HEADS,), "bf16", suffix="")
        else:
            written.add(stem + "self_attn.q_proj", (CHANNELS, HIDDEN), "fp8")
        for expert in range(EXPERTS):
            module = f"{stem}mlp.experts.{expert}."
            written.add(module + "gate_proj", (WIDTH, HIDDEN), "nvfp4")
            written.add(module + "up_proj", (WIDTH, HIDDEN), "nvfp4")
            written.add(module + "down_proj", (HIDDEN, WIDTH), "nvfp4")
    written.tensors["model.visual.patch.weight"] = torch.zeros(2)
    written.tensors["mtp.fc.weight"] = torch.zeros(2)
    written.save()
    return written


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_checkpoint(tmp_path)


def weight(
    name: str,
    axis: str,
    shape: tuple[int, ...],
    *sources: str,
    rows: tuple[int, ...] = (),
    add: float = 0.0,
) -> Weight:
    return Weight(
        name=name,
        axis=axis,
        space="weights",
        offset=0,
        stride=0,
        bytes=0,
        dtype="fp32",
        shape=shape,
        sources=sources,
        parts=tuple(WeightPart(rows=count, format="fp32") for count in rows or shape[:1]),
        add=add,
    )


def make_plan(*, format_name: str = "fp32", placement: str = "offload") -> Any:
    """The fields of a plan that loading reads."""
    layer, parts = "model.layers.{l}.", slot_parts(format_name, HIDDEN, WIDTH)
    linear = layer + "linear_attn."
    resident = placement == "resident"
    return SimpleNamespace(
        weights=(
            weight("embed", "", (VOCAB, HIDDEN), "model.embed_tokens"),
            weight("in_norm", "layer", (HIDDEN,), layer + "input_layernorm", add=1.0),
            weight(
                "in_proj",
                "linear",
                (CHANNELS + HEADS, HIDDEN),
                linear + "in_proj_qkv",
                linear + "in_proj_b",
                rows=(CHANNELS, HEADS),
            ),
            weight("conv", "linear", (CHANNELS, 4), linear + "conv1d"),
            weight("a_log", "linear", (HEADS,), linear + "A_log"),
            weight("q_proj", "full", (CHANNELS, HIDDEN), layer + "self_attn.q_proj"),
            weight("lm_head", "", (VOCAB, HIDDEN), "lm_head"),
        ),
        model=SimpleNamespace(layer_kinds=KINDS),
        kv_cache=SimpleNamespace(dtype="fp32"),
        experts=SimpleNamespace(
            placement=placement,
            slots_per_layer=(EXPERTS,) * 3 if resident else (2, 1, 1),
            per_layer=EXPERTS,
            slot_bytes=slot_bytes(parts),
            slot_parts=parts,
            format=format_name,
            sources=tuple(f"{layer}mlp.experts.{{e}}.{p}_proj" for p in ("gate", "up", "down")),
        ),
    )


@pytest.fixture
def plan_of() -> Callable[..., Any]:
    return make_plan


class Memory:
    """Places in ordinary tensors, filled with NaN or 0xFF so that a byte left out shows."""

    def __init__(self, plan: Any) -> None:
        kinds = plan.model.layer_kinds
        counts = {"": 1, "layer": len(kinds), "linear": kinds.count("linear"), "full": 1}
        self.weights = {
            (row.name, ordinal): torch.full(row.shape, torch.nan)
            for row in plan.weights
            for ordinal in range(counts[row.axis])
        }
        size = plan.experts.slot_bytes
        self.banks = [
            torch.full((plan.experts.per_layer, size), 255, dtype=torch.uint8) for _ in kinds
        ]
        count = sum(plan.experts.slots_per_layer)
        self.arena = torch.full((count, size), 255, dtype=torch.uint8)
        self.is_resident = plan.experts.placement == "resident"
        self.complete: list[int] = []
        """Layers, in the order in which they were called filled."""

    def sections(self, weight: Weight, ordinal: int) -> dict[str, torch.Tensor]:
        return {"rows": self.weights[weight.name, ordinal]}

    def experts(self, layer: int) -> torch.Tensor:
        bank = self.banks[layer]
        return self.arena[layer * len(bank) :][: len(bank)] if self.is_resident else bank

    def filled(self, layer: int) -> None:
        assert not (self.experts(layer) == 255).all(dim=1).any()
        self.complete.append(layer)

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


@pytest.fixture
def memory_of() -> type[Memory]:
    return Memory
