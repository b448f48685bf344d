"""One folder an op: cards (data, no torch), a reference, implementations.

A kernel is `kernel(batch, *, <operands>, <constants>) -> None` (`fetch` returns the bytes it moved, `admit` its hits).
Operands have the names of `compiler/ops.py`, are cut to the launch's rows, and are written in place; an absent operand
is left out. Nothing is kept between calls.
"""

import importlib
from collections.abc import Callable
from typing import Any

from firmtoken.compiler.cards import KernelCard
from firmtoken.runtime.kernels import (
    add_norm,
    admit,
    attention,
    combine,
    copy,
    embed,
    fetch,
    foreign,
    gdn,
    head,
    linear,
    mark,
    moe_down,
    moe_gate_up,
    prescribe,
    qk_norm_rope_kv,
    resolve,
    restore,
    route,
    route_sigmoid,
    row_norm_rope_kv,
    sample,
    shared_expert,
    snapshot,
)

CARDS: tuple[KernelCard, ...] = (
    *embed.CARDS,
    *add_norm.CARDS,
    *linear.CARDS,
    *qk_norm_rope_kv.CARDS,
    *row_norm_rope_kv.CARDS,
    *attention.CARDS,
    *gdn.CARDS,
    *route.CARDS,
    *route_sigmoid.CARDS,
    *prescribe.CARDS,
    *resolve.CARDS,
    *admit.CARDS,
    *fetch.CARDS,
    *moe_gate_up.CARDS,
    *moe_down.CARDS,
    *shared_expert.CARDS,
    *combine.CARDS,
    *snapshot.CARDS,
    *restore.CARDS,
    *copy.CARDS,
    *mark.CARDS,
    *head.CARDS,
    *sample.CARDS,
    *foreign.FOREIGN,
)

# Operands and constants differ by op; the contract docstrings and `compiler/ops.py` state them.
Kernel = Callable[..., Any]


def load_entry(entry: str) -> Kernel:
    """The kernel that a card's `module:function` names; imports that module only now."""
    module, _, name = entry.partition(":")
    kernel: Kernel = getattr(importlib.import_module(module), name)
    return kernel
