"""Random weights of a plan, made on the GPU, straight into its places."""

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.kernels.expert_slots import typed_view

E2M1_DEVIATION = 2.93
"""Of the sixteen codes, each as likely."""


def fill_random(plan: Plan, views: Views, seed: int = 1) -> None:
    """Projections keep unit scale; all codes and scales are finite."""
    torch.manual_seed(seed)
    for weight in plan.weights:
        kinds = plan.model.layer_kinds
        count = 1
        if weight.axis:
            count = sum(weight.axis in ("layer", kind) for kind in kinds)
        for ordinal in range(count):
            for name, tensor in views.sections(weight, ordinal).items():
                fill_section(weight.name, name, tensor, columns=weight.shape[-1])
    slots = views.experts.slots
    for part in plan.experts.slot_parts:
        tensor = typed_view(slots, part)
        for begin in range(0, len(tensor), 256):
            some = tensor[begin : begin + 256]
            if part.name == "globals":
                hidden, width = (
                    plan.model.geometry["hidden_size"],
                    plan.experts.slot_parts[0].shape[0],
                )
                for column, inner in enumerate((hidden, hidden, width)):
                    some[:, column] = inner**-0.5 / E2M1_DEVIATION
            elif part.dtype == "fp8":
                some.copy_(torch.full(some.shape, 1.0, device=some.device).to(some.dtype))
            else:
                some.random_(0, 256)


def fill_section(row: str, name: str, tensor: torch.Tensor, *, columns: int) -> None:
    """One section of a dense weight."""
    numbers = torch.randn(tensor.shape, device=tensor.device)
    uniform = torch.rand(tensor.shape, device=tensor.device)
    match name:
        case "packed":
            tensor.random_(0, 256)
        case "codes":
            tensor.copy_(numbers.to(tensor.dtype))
        case "scale":
            tensor.copy_(torch.ones_like(numbers).to(tensor.dtype))
        case "scales":
            tensor.fill_(columns**-0.5)
        case "globals":
            tensor.fill_(columns**-0.5 / E2M1_DEVIATION * (3 if row == "lm_head" else 1))
        case _:
            made = {
                "a_log": (uniform * 15 + 1).log(),
                "dt_bias": uniform * 4 - 6,
                "embed": numbers,
                "conv": numbers * 0.5,
            }
            norm = 1 + 0.1 * numbers if "norm" in row else numbers * columns**-0.5
            tensor.copy_(made.get(row, norm))
