"""The gated delta net: chunks, single steps and transformers agree, whatever the slots held before."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import DynamicCache, Qwen3_5MoeForCausalLM

from firmtoken.runtime.kernels.batch import Batch

SLOTS, CHANNELS = 9, 2 * 2 * 32 + 4 * 16
SHAPE = {
    "num_key_heads": 2,
    "num_value_heads": 4,
    "key_head_dim": 32,
    "value_head_dim": 16,
    "conv_kernel": 4,
    "eps": 1e-6,
}
NAMES = ("torch_chunk", "torch_recurrent")
Launch = Callable[..., Any]
MakeBatch = Callable[..., Batch]


class Layer:
    """Layer 0 of the model with its own states; slots start dirty but for slot 0 and those zeroed."""

    def __init__(self, model: Qwen3_5MoeForCausalLM, launch: Launch) -> None:
        self.module = model.model.layers[0].linear_attn
        self.launch = launch
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        self.in_proj = torch.cat([getattr(self.module, name).weight for name in names])
        self.conv_state = torch.full((SLOTS, CHANNELS, 3), 9.0)
        self.recurrent_state = torch.full((SLOTS, 4, 32, 16), 9.0)

    def zero(self, *slots: int) -> None:
        self.conv_state[list(slots)] = 0
        self.recurrent_state[list(slots)] = 0

    def run(self, name: str, batch: Batch, x: torch.Tensor) -> torch.Tensor:
        """Output before the output projection, [T, Hv*Dv]."""
        o = torch.full((x.shape[0], 64), torch.nan)
        self.launch(
            "gdn",
            batch,
            name=name,
            u=x @ self.in_proj.t(),
            conv_state=self.conv_state,
            recurrent_state=self.recurrent_state,
            o=o,
            conv=self.module.conv1d.weight.squeeze(1),
            a_log=self.module.A_log,
            dt_bias=self.module.dt_bias,
            norm=self.module.norm.weight,
            **SHAPE,
        )
        return o

    def project(self, o: torch.Tensor) -> torch.Tensor:
        return o @ self.module.out_proj.weight.t()


@pytest.fixture
def layer(model: Qwen3_5MoeForCausalLM, launch: Launch) -> Layer:
    return Layer(model, launch)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 300])
def test_outputs_and_states_equal_transformers(
    layer: Layer,
    make_batch: MakeBatch,
    part: Any,
    model: Qwen3_5MoeForCausalLM,
    name: str,
    length: int,
) -> None:
    x = torch.randn(length, 128)
    cache = DynamicCache(config=model.config)
    wanted = layer.module(x.unsqueeze(0), cache=cache)[0]
    layer.zero(3)
    batch = make_batch([part(rows=length, live=3, shadow=4)])
    close(layer.project(layer.run(name, batch, x)), wanted)
    close(layer.recurrent_state[3], cache.get_recurrent_state(0, state_idx=0)[0])
    if length >= 3:
        close(layer.conv_state[3], cache.get_conv_state(0, state_idx=0)[0, :, -3:])
    untouched = [0, 1, 2, 4, 5, 6, 7, 8]
    assert (layer.conv_state[untouched] == 9).all()
    assert (layer.recurrent_state[untouched] == 9).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cuts", [(1, 64, 65), (63, 64, 100), (130,), (20, 20 + 64, 299)])
def test_a_sequence_in_pieces_equals_the_whole(
    layer: Layer, make_batch: MakeBatch, part: Any, name: str, cuts: Sequence[int]
) -> None:
    x = torch.randn(300, 128)
    layer.zero(1, 2)
    whole = layer.run(name, make_batch([part(rows=300, live=1)]), x)
    ends = [*cuts, 300]
    starts = [0, *cuts]
    pieces = [
        layer.run(name, make_batch([part(rows=end - start, start=start, live=2)]), x[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]
    close(torch.cat(pieces), whole)
    close(layer.recurrent_state[2], layer.recurrent_state[1])
    close(layer.conv_state[2], layer.conv_state[1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("start", "rows", "boundary"), [(0, 300, 256), (10, 54, 54), (0, 64, 64), (70, 58, 10)]
)
def test_the_shadow_slot_equals_a_run_that_stops_at_the_boundary_exactly(
    layer: Layer, make_batch: MakeBatch, part: Any, name: str, start: int, rows: int, boundary: int
) -> None:
    x = torch.randn(rows, 128)
    layer.conv_state[[1, 3]] = torch.randn(CHANNELS, 3)
    layer.recurrent_state[[1, 3]] = torch.randn(4, 32, 16)
    whole = part(rows=rows, start=start, live=1, shadow=2, boundary=boundary)
    layer.run(name, make_batch([whole]), x)
    layer.run(name, make_batch([part(rows=boundary, start=start, live=3)]), x[:boundary])
    close(layer.conv_state[2], layer.conv_state[3])
    torch.testing.assert_close(
        layer.recurrent_state[2], layer.recurrent_state[3], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_segments_of_unequal_length_do_not_mix_and_padding_is_zero(
    layer: Layer, make_batch: MakeBatch, part: Any, name: str
) -> None:
    lengths = (70, 1, 130, 2)
    texts = [torch.randn(n, 128) for n in lengths]
    layer.zero(1, 2, 3, 4, 5, 6, 7, 8)
    alone = []
    for slot, x in enumerate(texts, start=5):
        alone.append(layer.run(name, make_batch([part(rows=len(x), live=slot)]), x))
    parts = [part(rows=n, live=i + 1) for i, n in enumerate(lengths)]
    batch = make_batch(parts, padding=3)
    together = layer.run(name, batch, torch.cat((*texts, torch.randn(3, 128))))
    for segment, wanted in zip(batch.segments, alone, strict=True):
        close(together[segment.first : segment.first + segment.rows], wanted)
    assert (together[-3:] == 0).all()
    close(layer.recurrent_state[1:5], layer.recurrent_state[5:9])


def test_a_decode_step_of_several_sequences_equals_each_alone_and_keeps_shadows(
    layer: Layer, make_batch: MakeBatch, part: Any
) -> None:
    layer.conv_state[1:] = torch.randn(4, CHANNELS, 3).repeat(2, 1, 1)
    layer.recurrent_state[1:] = torch.randn(4, 4, 32, 16).repeat(2, 1, 1, 1)
    x = torch.randn(3, 128)
    parts = [part(rows=1, start=63, live=1, shadow=4, boundary=1)]
    parts += [part(rows=1, start=5 + i, live=2 + i, shadow=0) for i in range(2)]
    together = layer.run("torch_recurrent", make_batch(parts), x)
    for i in range(3):
        alone = layer.run("torch_recurrent", make_batch([part(rows=1, live=5 + i)]), x[i : i + 1])
        close(together[i], alone[0])
    close(layer.recurrent_state[1:4], layer.recurrent_state[5:8])
    assert torch.equal(layer.recurrent_state[4], layer.recurrent_state[1])
    assert torch.equal(layer.conv_state[4], layer.conv_state[1])
    assert (layer.recurrent_state[0] == 9).all()


@pytest.mark.parametrize("name", NAMES)
def test_strong_decay_neither_overflows_nor_underflows(
    layer: Layer, make_batch: MakeBatch, part: Any, name: str
) -> None:
    x = torch.randn(200, 128) * 30
    layer.zero(1)
    o = layer.run(name, make_batch([part(rows=200, live=1)]), x)
    assert o.isfinite().all()
    assert layer.recurrent_state[1].isfinite().all()
