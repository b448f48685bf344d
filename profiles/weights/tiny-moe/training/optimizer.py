"""Float32 masters of bf16 weights: Muon for the matrices inside layers, AdamW for everything else."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import layout
import number_formats as formats
import torch
from torch import Tensor, nn

MATRICES = re.compile(
    r"(in_proj_qkv|in_proj_z|out_proj|[qkvo]_proj|(gate|up|down)_proj)\.weight$"
    r"|experts\.(gate_up_proj|down_proj)$"
)
MOMENTUM = 0.95
DECAY = 0.05
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Masters:
    """Owns the float32 weights; the model holds their bf16 copies, rounded to the stored formats if asked."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = dict(model.named_parameters())
        self.values = {
            name: value.detach().float().clone() for name, value in self._weights.items()
        }
        self._matrices = [name for name in self.values if MATRICES.search(name)]
        others = [name for name in self.values if not MATRICES.search(name)]
        self._momentum = {name: torch.zeros_like(self.values[name]) for name in self._matrices}
        self._others = others
        self._adam = torch.optim.AdamW(
            [self.values[name] for name in others], lr=0.0, betas=(0.9, 0.95), weight_decay=0.0
        )

    def step(self, matrix_rate: float, other_rate: float, *, rounded: bool) -> None:
        for name in self._others:
            self.values[name].grad = self._weights[name].grad.float()
        for group in self._adam.param_groups:
            group["lr"] = other_rate
        self._adam.step()
        self._muon(matrix_rate)
        self.publish(rounded=rounded)
        for weight in self._weights.values():
            weight.grad = None

    @torch.no_grad()
    def publish(self, *, rounded: bool) -> None:
        """Copy the masters into the model, through the stored number formats if `rounded`."""
        for name, weight in self._weights.items():
            master = self.values[name].to(torch.bfloat16)
            weight.copy_(round_as_stored(name, master) if rounded else master)

    def state(self) -> dict[str, Any]:  # torch's own optimiser state is untyped
        return {
            "values": self.values,
            "momentum": self._momentum,
            "adam": self._adam.state_dict(),
        }

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        for name, value in state["values"].items():
            self.values[name].copy_(value)
        for name, value in state["momentum"].items():
            self._momentum[name].copy_(value)
        self._adam.load_state_dict(state["adam"])

    @torch.no_grad()
    def _muon(self, rate: float) -> None:
        by_shape: defaultdict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name in self._matrices:
            grad = self._weights[name].grad.float()
            momentum = self._momentum[name].lerp_(grad, 1 - MOMENTUM)
            update = grad.lerp(momentum, MOMENTUM)
            value = self.values[name].mul_(1 - rate * DECAY)
            for part, whole in zip(_split(name, update), _split(name, value), strict=True):
                wide = part.shape[-2] <= part.shape[-1]
                part, whole = (part, whole) if wide else (part.mT, whole.mT)
                by_shape[part.shape[-2:]].append((part, whole))
        for pairs in by_shape.values():
            stacked = torch.cat([part.reshape(-1, *part.shape[-2:]) for part, _ in pairs])
            size = 0.2 * max(stacked.shape[-2:]) ** 0.5
            direction = orthogonal(stacked) * (-rate * size)
            start = 0
            for part, whole in pairs:
                count = part.numel() // (part.shape[-2] * part.shape[-1])
                whole.add_(direction[start : start + count].view_as(whole))
                start += count


def _split(name: str, value: Tensor) -> tuple[Tensor, ...]:
    """The matrices that one parameter holds: gate and up are two."""
    if name.endswith("experts.gate_up_proj"):
        return value.chunk(2, dim=-2)
    return (value if value.ndim == 3 else value[None],)


def orthogonal(stacked: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices, by Newton-Schulz."""
    a, b, c = NEWTON_SCHULZ
    x = stacked.to(torch.bfloat16)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.float()


def round_as_stored(name: str, weight: Tensor) -> Tensor:
    """The weight after a trip through its stored format."""
    if name.endswith("experts.gate_up_proj"):
        pairs = weight.unflatten(-2, (2, -1))
        return formats.from_nvfp4(formats.to_nvfp4(pairs)).flatten(-3, -2).to(weight.dtype)
    if layout.FUSED_EXPERTS.search(name) or layout.NVFP4_MODULES.search(name):
        return formats.from_nvfp4(formats.to_nvfp4(weight)).to(weight.dtype)
    if layout.FP8_MODULES.search(name):
        values, scale = formats.to_fp8(weight)
        return (values.float() * scale).to(weight.dtype)
    return weight
