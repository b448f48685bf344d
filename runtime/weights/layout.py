"""The tensors of the checkpoint that a model profile describes: names, dtypes, shapes (facts/models.md 3). No data."""

from collections.abc import Iterator
from dataclasses import dataclass

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.facts import ModelFacts, TensorPart
from firmtoken.compiler.tensor_bytes import NVFP4_BLOCK
from firmtoken.runtime.weights.checkpoint import LOGICAL_PREFIX
from firmtoken.runtime.weights.conventions import BLOCK_SCALE, MODELOPT, Convention
from firmtoken.runtime.weights.stored import stacked_sources
from firmtoken.schema.model import Model

PLAIN = {"bf16": "BF16", "fp32": "F32"}
Suffixed = tuple[str, str, tuple[int, ...], str]
"""Suffix, dtype, shape and role of one tensor of a quantised matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidTensor:
    """One tensor of a checkpoint."""

    name: str
    """As the file spells it."""
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    row: str
    """The plan's weight row that it belongs to (`in_norm`, `a_log`, ...), or a routed expert's `gate`, `up`, `down`,
    `gate_up` (stacked)."""
    role: str
    """`numbers`; of a quantised matrix `codes`, `scale` (FP8: of the matrix, NVFP4: of blocks), `global_scale`,
    `input_scale`, `kv_scale`."""


def checkpoint_layout(
    model: Model,
    *,
    convention: Convention = MODELOPT,
    input_scales: bool = True,
    kv_scales: bool = False,
) -> Iterator[LaidTensor]:
    """All tensors that the model needs: those outside layers, then layer by layer.

    `input_scales`: one beside each quantised matrix, which weight-only kernels do not read. `kv_scales`: one beside
    each projection of keys and of values.
    """
    [family] = [family for family in FAMILIES if family.name == model.family]
    prefix = family.config.prefix
    facts = family.describe(model, "cuda")
    experts = model.quantization.experts
    is_stacked = family.config.stacks_plain_experts and experts in PLAIN
    for row, part in (*_outside(facts), *_inside(facts, experts, is_stacked=is_stacked)):
        name = prefix + part.name.removeprefix(LOGICAL_PREFIX) if _is_logical(part) else part.name
        yield from _stored(row, name, part, convention, input_scales=input_scales)
        if kv_scales and name.endswith(("k_proj.weight", "v_proj.weight")):
            stem = name.removesuffix(".weight")
            letter = stem[-len("k_proj")]
            yield LaidTensor(
                name=f"{stem}.{letter}_scale", dtype="F32", shape=(), row=row, role="kv_scale"
            )


def _is_logical(part: TensorPart) -> bool:
    return part.name.startswith(LOGICAL_PREFIX)


def _outside(facts: ModelFacts) -> Iterator[tuple[str, TensorPart]]:
    for tensor in facts.tensors:
        if not tensor.axis:
            for part in tensor.parts:
                yield tensor.name, part


def _inside(
    facts: ModelFacts, experts: str, *, is_stacked: bool
) -> Iterator[tuple[str, TensorPart]]:
    """Row and tensor, layer by layer."""
    for layer, kind in enumerate(facts.layer_kinds):
        for tensor in facts.tensors:
            if tensor.axis in ("layer", kind):
                for part in tensor.parts:
                    name = part.name.format(l=layer)
                    yield tensor.name, TensorPart(name=name, shape=part.shape, format=part.format)
        if is_stacked:
            yield from _stacked_experts(facts, layer, experts)
        else:
            yield from _experts(facts, layer, experts)


def _experts(facts: ModelFacts, layer: int, format_name: str) -> Iterator[tuple[str, TensorPart]]:
    wide, narrow = (facts.expert_width, facts.hidden_size), (facts.hidden_size, facts.expert_width)
    for expert in range(facts.experts_per_layer):
        for row, source, shape in zip(
            ("gate", "up", "down"), facts.expert_sources, (wide, wide, narrow), strict=True
        ):
            name = f"{source.format(l=layer, e=expert)}.weight"
            yield row, TensorPart(name=name, shape=shape, format=format_name)


def _stacked_experts(
    facts: ModelFacts, layer: int, format_name: str
) -> Iterator[tuple[str, TensorPart]]:
    gate_up, down = stacked_sources(facts.expert_sources)
    count, width, hidden = facts.experts_per_layer, facts.expert_width, facts.hidden_size
    for row, source, shape in (
        ("gate_up", gate_up, (count, 2 * width, hidden)),
        ("down", down, (count, hidden, width)),
    ):
        yield row, TensorPart(name=source.format(l=layer), shape=shape, format=format_name)


def _stored(
    row: str, name: str, part: TensorPart, convention: Convention, *, input_scales: bool
) -> Iterator[LaidTensor]:
    """The tensors of one matrix or vector."""
    if part.format in PLAIN:
        dtype = PLAIN[part.format]
        yield LaidTensor(name=name, dtype=dtype, shape=part.shape, row=row, role="numbers")
        return
    stem = name.removesuffix(".weight")
    coded = _fp8(part) if part.format == "fp8" else _nvfp4(part, convention)
    for suffix, dtype, shape, role in coded:
        if input_scales or role != "input_scale":
            yield LaidTensor(name=stem + suffix, dtype=dtype, shape=shape, row=row, role=role)


def _fp8(part: TensorPart) -> tuple[Suffixed, ...]:
    return (
        (".weight", "F8_E4M3", part.shape, "codes"),
        (BLOCK_SCALE, "F32", (), "scale"),
        (MODELOPT.input_scale, "F32", (), "input_scale"),
    )


def _nvfp4(part: TensorPart, convention: Convention) -> tuple[Suffixed, ...]:
    num_rows, columns = part.shape
    return (
        (convention.codes, "U8", (num_rows, columns // 2), "codes"),
        (BLOCK_SCALE, "F8_E4M3", (num_rows, columns // NVFP4_BLOCK), "scale"),
        (convention.global_scale, "F32", convention.scalar, "global_scale"),
        (convention.input_scale, "F32", convention.scalar, "input_scale"),
    )
