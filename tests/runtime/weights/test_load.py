"""What arrives in a plan's places is what the checkpoint stands for, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from firmtoken.runtime.kernels.expert_slots import make_arena
from firmtoken.runtime.weights import fill
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import TensorHeader
from firmtoken.runtime.weights.load import load
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.runtime.weights.reading import BUFFER_BYTES, Job
from firmtoken.runtime.weights.stored import Stored

Plan = Any
MATRICES = (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))


def ignore(phase: str, done: int, total: int) -> None:
    pass


def test_dense_weights_are_decoded_stacked_and_shifted(
    written: Any, plan_of: Callable[..., Plan], memory_of: Callable[[Plan], Any]
) -> None:
    plan = plan_of()
    memory = memory_of(plan)
    load(plan, preflight(plan, written.folder), memory, ignore)
    numbers = written.numbers
    got = memory.weights
    assert torch.equal(got["embed", 0], numbers["model.embed_tokens"])
    assert torch.equal(got["lm_head", 0], numbers["lm_head"])
    assert torch.equal(got["q_proj", 0], numbers["model.layers.1.self_attn.q_proj"])
    for layer in range(3):
        norm = numbers[f"model.layers.{layer}.input_layernorm"]
        assert torch.equal(got["in_norm", layer], 1 + norm)
    for ordinal, layer in enumerate((0, 2)):
        stem = f"model.layers.{layer}.linear_attn."
        stacked = torch.cat((numbers[stem + "in_proj_qkv"], numbers[stem + "in_proj_b"]))
        assert torch.equal(got["in_proj", ordinal], stacked)
        assert torch.equal(got["conv", ordinal], numbers[stem + "conv1d"].squeeze(1))
        assert torch.equal(got["a_log", ordinal], numbers[stem + "A_log"])


@pytest.mark.parametrize("placement", ["offload", "resident"])
def test_fp32_slots_hold_decoded_experts(
    written: Any, plan_of: Callable[..., Plan], memory_of: Callable[[Plan], Any], placement: str
) -> None:
    plan = plan_of(placement=placement)
    memory = memory_of(plan)
    load(plan, preflight(plan, written.folder), memory, ignore)
    for layer in range(3):
        own = memory.banks[layer] if placement == "offload" else memory.arena[3 * layer :]
        arena = make_arena(own, plan.experts.slot_parts)
        for expert in range(3):
            for name, module in MATRICES:
                wanted = written.numbers[f"model.layers.{layer}.mlp.experts.{expert}.{module}"]
                assert torch.equal(arena.matrices[name][expert], wanted)
    untouched = memory.arena if placement == "offload" else torch.cat(memory.banks)
    assert (untouched == 255).all()
    assert sorted(memory.complete) == [0, 1, 2]


@pytest.mark.report(54, 55)
def test_nvfp4_slots_hold_the_files_own_bytes_and_three_scales(
    written: Any, plan_of: Callable[..., Plan], memory_of: Callable[[Plan], Any]
) -> None:
    plan = plan_of(format_name="nvfp4")
    memory = memory_of(plan)
    load(plan, preflight(plan, written.folder), memory, ignore)
    arena = make_arena(memory.banks[2], plan.experts.slot_parts)
    for index, (name, module) in enumerate(MATRICES):
        parts = written.packed[f"model.layers.2.mlp.experts.1.{module}"]
        assert torch.equal(arena.matrices[name][1], parts[".weight"])
        scales = arena.matrices[f"{name}_scale"][1].view(torch.uint8)
        assert torch.equal(scales, parts[".weight_scale"].view(torch.uint8))
        assert arena.matrices["globals"][1][index] == parts[".weight_scale_2"]


def test_progress_counts_every_byte_that_is_read_once(
    written: Any, plan_of: Callable[..., Plan], memory_of: Callable[[Plan], Any]
) -> None:
    calls: list[tuple[str, int, int]] = []
    plan = plan_of()
    load(plan, preflight(plan, written.folder), memory_of(plan), lambda *call: calls.append(call))
    used = 0
    for name, tensor in written.tensors.items():
        if not name.startswith(("mtp.", "model.visual.")) and not name.endswith("input_scale"):
            used += tensor.numel() * tensor.element_size()
    assert calls[0] == ("weights", 0, used)
    assert calls[-1] == ("weights", used, used)


@pytest.mark.parametrize("scale", [0.0, 3.0, float("nan")])
def test_a_global_scale_out_of_range_is_refused(
    written: Any, plan_of: Callable[..., Plan], memory_of: Callable[[Plan], Any], scale: float
) -> None:
    name = "model.language_model.layers.1.mlp.experts.2.up_proj.weight_scale_2"
    written.tensors[name] = torch.tensor(scale)
    written.save()
    plan = plan_of()
    with pytest.raises(LoadError) as caught:
        load(plan, preflight(plan, written.folder), memory_of(plan), ignore)
    assert str(caught.value) == (
        f"`{name}` in `{caught.value.file}`: expected a scale between 1e-08 and 1, found {scale:g}"
    )
    assert "reciprocals" in caught.value.hint


def load_fault(written: Any, plan: Plan, memory: Any) -> LoadError:
    written.save()
    with pytest.raises(LoadError) as caught:
        load(plan, preflight(plan, written.folder), memory, ignore)
    return caught.value


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model.language_model.embed_tokens.weight", "nan"),
        ("model.language_model.layers.0.linear_attn.A_log", "inf"),
        ("model.language_model.layers.2.input_layernorm.weight", "-inf"),
        ("model.language_model.layers.1.self_attn.q_proj.weight", "nan"),  # fp8
    ],
)
def test_a_dense_number_that_is_not_finite_is_refused(
    written: Any,
    plan_of: Callable[..., Plan],
    memory_of: Callable[[Plan], Any],
    name: str,
    number: str,
) -> None:
    stored = written.tensors[name].float()
    stored.view(-1)[-1] = float(number)
    written.tensors[name] = stored.to(written.tensors[name].dtype)
    plan = plan_of()
    fault = load_fault(written, plan, memory_of(plan))
    assert str(fault) == (
        f"`{name}` in `{fault.file}`: expected only finite numbers, found {number}"
    )
    assert fault.hint == "the file is damaged; copy or download it again"


@pytest.mark.parametrize("format_name", ["fp32", "nvfp4"])
@pytest.mark.parametrize(("code", "found"), [(0x7F, "nan"), (0xFF, "nan"), (0xB8, "-1")])
def test_a_block_scale_that_is_negative_or_no_number_is_refused(
    written: Any,
    plan_of: Callable[..., Plan],
    memory_of: Callable[[Plan], Any],
    format_name: str,
    code: int,
    found: str,
) -> None:
    name = "model.language_model.layers.1.mlp.experts.2.down_proj.weight_scale"
    written.tensors[name].view(torch.uint8)[3, 0] = code
    plan = plan_of(format_name=format_name)
    fault = load_fault(written, plan, memory_of(plan))
    assert str(fault) == (
        f"`{name}` in `{fault.file}`: expected block scales that are positive or 0, found {found}"
    )


def test_a_block_scale_of_minus_zero_is_zero(
    written: Any, plan_of: Callable[..., Plan], memory_of: Callable[[Plan], Any]
) -> None:
    name = "model.language_model.layers.1.mlp.experts.2.down_proj.weight_scale"
    written.tensors[name].view(torch.uint8)[3, 0] = 0x80
    written.save()
    plan = plan_of()
    load(plan, preflight(plan, written.folder), memory_of(plan), ignore)


@pytest.mark.parametrize("format_name", ["fp32", "nvfp4"])
def test_matrices_that_are_read_in_pieces_are_the_same(
    written: Any,
    plan_of: Callable[..., Plan],
    memory_of: Callable[[Plan], Any],
    monkeypatch: pytest.MonkeyPatch,
    format_name: str,
) -> None:
    plan = plan_of(format_name=format_name)
    inventory = preflight(plan, written.folder)
    whole, cut = memory_of(plan), memory_of(plan)
    read = load(plan, inventory, whole, ignore)
    monkeypatch.setattr(fill, "PIECE_BYTES", 80)  # five rows of 16 bytes
    assert load(plan, inventory, cut, ignore).dense_bytes > read.dense_bytes  # scales again
    assert all(torch.equal(cut.weights[key], tensor) for key, tensor in whole.weights.items())
    assert all(map(torch.equal, cut.banks, whole.banks))


def test_a_piece_leaves_room_for_its_scales() -> None:
    matrix = TensorHeader(
        name="w", file="a", dtype="U8", shape=(4096, 32_768), bytes=2**27, offset=0
    )
    scale = replace(matrix, name="s", dtype="F8_E4M3", shape=(4096, 4096), bytes=2**24)
    stored = Stored(format="nvfp4", shape=(4096, 65_536), weight=matrix, scale=scale)
    cut = list(fill.pieces(stored))
    assert [row for row, _ in cut] == list(range(0, 4096, 128))
    assert sum(piece.bytes for _, piece in cut) == stored.bytes
    jobs = [Job(tensors=piece.tensors, do=lambda _: None) for _, piece in cut]
    assert max(job.room for job in jobs) < BUFFER_BYTES * 5 // 8
