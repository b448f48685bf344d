"""Largest inputs of every quantised matrix over sample tokens: the checkpoint's input scales."""

from __future__ import annotations

from collections.abc import Callable

import layout
import torch
from torch import Tensor, nn
from torch.nn import functional


@torch.no_grad()
def largest_inputs(model: nn.Module, rows: list[list[int]]) -> dict[str, Tensor]:
    """By parameter name; experts have one value each, [32] for gate and up together and for down."""
    largest: dict[str, Tensor] = {}

    def record(name: str, value: Tensor) -> None:
        largest[name] = torch.maximum(largest[name], value) if name in largest else value

    hooks = [
        module.register_forward_pre_hook(_linear_hook(f"{name}.weight", record))
        for name, module in model.named_modules()
        if layout.FP8_MODULES.search(f"{name}.weight")
        or layout.NVFP4_MODULES.search(f"{name}.weight")
    ]
    hooks += [
        module.register_forward_pre_hook(_experts_hook(name, record))
        for name, module in model.named_modules()
        if name.endswith("mlp.experts")
    ]
    for row in rows:
        model(torch.tensor([row]))
    for hook in hooks:
        hook.remove()
    return largest


Record = Callable[[str, Tensor], None]
Hook = Callable[[nn.Module, tuple[Tensor, ...]], None]


def _linear_hook(name: str, record: Record) -> Hook:
    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        record(name, inputs[0].abs().amax())

    return hook


def _experts_hook(name: str, record: Record) -> Hook:
    def hook(experts: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        hidden, chosen, _ = inputs
        at_input = torch.zeros(layout.EXPERTS)
        at_down = torch.zeros(layout.EXPERTS)
        for expert in chosen.unique().tolist():
            states = hidden[(chosen == expert).any(dim=-1)]
            gate, up = functional.linear(states, experts.gate_up_proj[expert]).chunk(2, dim=-1)
            at_input[expert] = states.abs().amax()
            at_down[expert] = (functional.silu(gate) * up).abs().amax()
        record(f"{name}.gate_up_proj", at_input)
        record(f"{name}.down_proj", at_down)

    return hook
