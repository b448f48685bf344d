"""How far a kernel may be from its reference, and how far it is.

References compute in fp32 from the very numbers that the kernel reads, so what may differ is the order of sums and what
the kernel rounds: its output, and numbers on the way that it keeps in 16 bits. Differences are told as parts of the
largest number of a row: within a row sums have one size, and rows of deep and shallow sequences have not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.batch import Batch

SUMS = 2.0**-13
"""Sums of fp32 products in another order: 4,096 of them, each off by a unit of the largest (2^-24), are off by 2^-12
at the very most, and by far less where signs are mixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How an op is checked."""

    roundings: int | None
    """Roundings to the format of activations between what is read and what is written; none at all: a plain copy."""


CHECKS = {
    "embed": Check(roundings=None),
    "copy": Check(roundings=None),
    "restore": Check(roundings=None),
    "snapshot": Check(roundings=None),
    "prescribe": Check(roundings=None),
    "sample": Check(roundings=None),
    "linear": Check(roundings=1),  # parts of a sum that several programs share
    "head": Check(roundings=1),  # the normed row
    "add_norm": Check(roundings=1),  # the sum, before its norm
    "qk_norm_rope_kv": Check(roundings=1),  # normed, before its rotation
    "row_norm_rope_kv": Check(roundings=1),
    "attention": Check(roundings=2),  # weights of the softmax; the sum, before its gate
    # Convolved rows, their inverse, changes of the state and the state itself; then a norm, which makes up for small
    # heads: 0.034 was found on an H200 where tiny-moe's own weights cancel (NOTES.md), mistakes are above 0.1.
    "gdn": Check(roundings=24),
    "route": Check(roundings=0),
    "route_sigmoid": Check(roundings=0),
    "moe_gate_up": Check(roundings=2),  # both halves
    "moe_down": Check(roundings=1),
    "shared_expert": Check(roundings=2),  # the inner row; the sum, before its share
    "combine": Check(roundings=1),  # the sum of experts, before the rest
}
"""Ops that are checked: all that write numbers which somebody reads, on a GPU."""

WIDE = {"recurrent_state": 2}
"""Dimensions of what counts as a row: a state is one matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of one operand."""

    operand: str
    found: float
    """Part of the largest number of a row; infinite where there is no number, or an integer is another."""
    bound: float

    @property
    def share(self) -> float:
        """Above 1 it is too much."""
        if self.found == 0:
            return 0.0
        return self.found / self.bound if self.bound else math.inf


def bound_of(op: str, written: torch.dtype, activations: torch.dtype) -> float:
    """How far an operand of format `written` may be; 0 = equal."""
    roundings = CHECKS[op].roundings
    if roundings is None or not written.is_floating_point:
        return 0.0
    return half_unit(written) + roundings * half_unit(activations) + SUMS


def half_unit(dtype: torch.dtype) -> float:
    """How far rounding takes a number, as part of it."""
    return torch.finfo(dtype).eps / 2


def difference(found: torch.Tensor, wanted: torch.Tensor, dims: int) -> float:
    """Largest, as part of the largest wanted number of its row (the last `dims` dimensions).

    Where the reference left NaN the contract leaves open what is there.
    """
    if not wanted.is_floating_point():
        return math.inf if bool((found != wanted).any()) else 0.0
    rows = wanted.flatten(-dims) if dims > 1 else wanted
    known = ~rows.isnan()
    size = rows.abs().nan_to_num(0.0).amax(-1, keepdim=True)
    apart = (found.view(rows.shape) - rows).abs()
    # Of a row of zeros anything else is infinite.
    share = torch.where(apart == 0, 0.0, apart / size)
    share = share.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(share[known].max()) if bool(known.any()) else 0.0


def routed(
    found: Mapping[str, torch.Tensor], host: Mapping[str, torch.Tensor], batch: Batch
) -> dict[str, float]:
    """Differences of `ids` and `wts`: near ties may be broken otherwise, and weights are those of the chosen."""
    real = batch.real_rows
    logits = host["h"][:real] @ host["router"].t()
    scores = logits.sigmoid() if "bias" in host else logits
    wanted_by = scores + host["bias"] if "bias" in host else logits
    ids, weights = found["ids"].long(), found["wts"]
    num_experts = logits.shape[1]
    ordered = ids[:real].sort(1).values
    legal = bool((ordered[:, 1:] > ordered[:, :-1]).all())
    legal = legal and bool((ordered >= 0).all() and (ordered < num_experts).all())
    legal = legal and bool((ids[real:] == -1).all() and (weights[real:] == 0).all())
    if not legal:
        return {"ids": math.inf, "wts": math.inf}
    best = wanted_by.topk(ids.shape[1]).values
    size = wanted_by.abs().amax(1, keepdim=True)
    missed = ((best - wanted_by.gather(1, ids[:real])) / size).abs()
    chosen = scores.gather(1, ids[:real])
    wanted = chosen / chosen.sum(1, keepdim=True) if "bias" in host else chosen.softmax(1)
    return {"ids": float(missed.max()), "wts": difference(weights[:real], wanted, 1)}
