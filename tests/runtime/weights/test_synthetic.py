"""Synthetic weights: equal for equal seeds whoever asks for which part, and any network of them keeps unit scale."""

import hashlib
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.runtime.synthetic_models import SHIPPED

from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.weights.header import ITEM_BYTES
from firmtoken.runtime.weights.layout import LaidTensor
from firmtoken.runtime.weights.reader import DTYPES, SCALE_RANGE
from firmtoken.runtime.weights.synthetic import GAINS, PIECE_BYTES, SyntheticWeights, num_bytes
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import Model

EXPERT = "model.language_model.layers.2.mlp.experts.5."
DIGEST = "cf6d375a8c82a2176688304db6b5b11b91b938cdabe850ad94a27be5cb85840e"
"""Of tiny-moe with seed 1."""
MOST_ROWS = 512
"""Of one matrix that a test makes."""


def model_of(profile: str) -> Model:
    return load_profile(profile).profile.model


def whole(weights: SyntheticWeights, name: str) -> bytes:
    memory = bytearray(num_bytes(weights.tensors[name]))
    weights.fill(name, 0, memoryview(memory))
    return bytes(memory)


@pytest.fixture(scope="module")
def tiny() -> SyntheticWeights:
    return SyntheticWeights(model_of("tiny-cpu"), 1)


@pytest.fixture(scope="module")
def large() -> SyntheticWeights:
    return SyntheticWeights(model_of("4090-qwen"), 1)


def test_the_stream_is_the_same_on_every_machine(tiny: SyntheticWeights) -> None:
    """Another digest would be another checkpoint for a seed that somebody has written down."""
    digest = hashlib.sha256()
    for name in tiny.tensors:
        digest.update(whole(tiny, name))
    assert digest.hexdigest() == DIGEST


def test_any_part_of_a_tensor_is_what_the_whole_has_there(large: SyntheticWeights) -> None:
    draw = random.Random(0)
    for name in (
        EXPERT + "gate_proj.weight",
        "lm_head.weight_scale",
        "model.language_model.norm.weight",
    ):
        size = num_bytes(large.tensors[name])
        expected = whole(large, name)
        for _ in range(20):
            first = draw.randrange(0, size, 4)
            part = bytearray(4 * draw.randint(1, min(size - first, 3 * PIECE_BYTES) // 4))
            large.fill(name, first, memoryview(part))
            assert part == expected[first : first + len(part)], (name, first, len(part))


def test_order_and_threads_change_nothing(tiny: SyntheticWeights) -> None:
    names = list(tiny.tensors)[:600]
    in_order = [whole(tiny, name) for name in names]
    with ThreadPoolExecutor(8) as pool:
        backwards = list(pool.map(lambda name: whole(tiny, name), reversed(names)))
    assert backwards[::-1] == in_order


def test_another_seed_or_name_gives_other_bytes(tiny: SyntheticWeights) -> None:
    other = SyntheticWeights(model_of("tiny-cpu"), 2)
    names = [
        f"{EXPERT}{part}_proj.weight{kind}" for part in ("gate", "up") for kind in ("", "_scale_2")
    ]
    made = {whole(weights, name) for weights in (tiny, other) for name in names}
    assert len(made) == 2 * len(names)


def samples(weights: SyntheticWeights) -> list[LaidTensor]:
    """The first tensor of each row, role and dtype."""
    found: dict[tuple[str, str, str], LaidTensor] = {}
    for tensor in weights.tensors.values():
        found.setdefault((tensor.row, tensor.role, tensor.dtype), tensor)
    return list(found.values())


def numbers(weights: SyntheticWeights, tensor: LaidTensor) -> torch.Tensor:
    """Of a vector all, of a matrix its first rows."""
    rows = [min(tensor.shape[0], MOST_ROWS)] if len(tensor.shape) > 1 else tensor.shape[:1]
    shape = (*rows, *tensor.shape[1:])
    raw = torch.empty(math.prod(shape) * ITEM_BYTES[tensor.dtype], dtype=torch.uint8)
    weights.fill(tensor.name, 0, raw.numpy().data)
    return raw.view(DTYPES[tensor.dtype]).view(shape)


def matrix(weights: SyntheticWeights, tensor: LaidTensor) -> torch.Tensor:
    """What its codes, or its numbers, stand for."""
    stored = numbers(weights, tensor)
    if tensor.role == "numbers":
        return stored.float()
    stem = tensor.name.removesuffix("weight")
    scale = numbers(weights, weights.tensors[stem + "weight_scale"])
    if tensor.dtype == "F8_E4M3":
        return stored.float() * scale
    return dequantise(
        stored, scale, float(numbers(weights, weights.tensors[stem + "weight_scale_2"]))
    )


@pytest.mark.parametrize("profile", SHIPPED)
def test_every_projection_keeps_unit_scale(profile: str) -> None:
    weights = SyntheticWeights(model_of(profile), 1)
    seen = set()
    for tensor in samples(weights):
        if len(tensor.shape) > 1 and tensor.role in ("codes", "numbers") and tensor.row != "embed":
            values = matrix(weights, tensor)
            gain = float(values.square().mean().sqrt()) * math.sqrt(values.shape[-1])
            wanted = GAINS.get(tensor.row, 1.0)
            # bf16 has steps of an octave and scales differ within half of one; a bit more for small matrices.
            assert wanted / 1.5 < gain < wanted * 1.5, tensor
            assert abs(float(values.mean())) < 0.1 * float(values.std()) or values.numel() < 4096
            seen.add(tensor.row)
    assert {"router", "gate", "up", "down", "qkv_proj", "attn_out"} <= seen


@pytest.mark.parametrize("profile", SHIPPED)
def test_every_number_is_one_that_the_loader_takes(profile: str) -> None:
    weights = SyntheticWeights(model_of(profile), 1)
    for tensor in samples(weights):
        values = numbers(weights, tensor).float()
        assert values.isfinite().all(), tensor
        if tensor.role == "scale":
            assert values.min() > 0
        if tensor.role in ("scale", "global_scale") and not tensor.shape:
            low, high = SCALE_RANGE
            assert low < float(values) < high


def test_norms_lie_around_one_and_states_decay_as_usual(tiny: SyntheticWeights) -> None:
    """Zero-centred ones around 0, on disk."""
    values = {
        tensor.row: numbers(tiny, tensor).float()
        for tensor in samples(tiny)
        if tensor.role == "numbers"
    }
    for row, neutral in (
        ("in_norm", 0),
        ("post_norm", 0),
        ("final_norm", 0),
        ("q_norm", 0),
        ("gdn_norm", 1),
    ):
        assert 0.05 < float((values[row] - neutral).abs().mean()) < 0.15, row
        assert float((values[row] - neutral).abs().max()) < 0.21, row
    steps = torch.nn.functional.softplus(values["dt_bias"])
    assert float(steps.min()) > 0.9e-3 and float(steps.max()) < 1.1e-1
    assert float(values["a_log"].exp().min()) >= 1 and float(values["a_log"].exp().max()) < 16.2


def test_gate_and_up_have_scales_of_their_own(large: SyntheticWeights) -> None:
    scales = [
        whole(large, f"{EXPERT}{part}_proj.weight_scale_2") for part in ("gate", "up", "down")
    ]
    assert len(set(scales)) == 3
