"""What kernel tests share: batches of segments, the tiny reference model, an arena filled with random experts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.ops import find_op
from firmtoken.runtime.kernels import CARDS, load_entry
from firmtoken.runtime.kernels.batch import Batch, Draw, Segment
from firmtoken.runtime.kernels.expert_slots import ExpertArena, make_arena

PAGE_SIZE = 64


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    """Kernels run as the engine runs them, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sequence's share of a launch, as a test says it."""

    rows: int
    start: int = 0
    pages: tuple[int, ...] = ()
    live: int = 1
    shadow: int = 2
    boundary: int = 0
    token_ids: tuple[int, ...] = ()


def batch_of(
    parts: Sequence[Part],
    *,
    padding: int = 0,
    draws: tuple[Draw, ...] = (),
    page_size: int = PAGE_SIZE,
    **more: Any,
) -> Batch:
    """A batch of these parts, then padded rows at the sentinel page."""
    segments, token_ids, positions, token_slots = [], [], [], []
    first = 0
    for part in parts:
        segments.append(
            Segment(
                first=first,
                rows=part.rows,
                start=part.start,
                pages=torch.tensor(part.pages, dtype=torch.int64),
                live=part.live,
                shadow=part.shadow,
                boundary=part.boundary,
            )
        )
        here = range(part.start, part.start + part.rows)
        token_ids += part.token_ids or [0] * part.rows
        positions += here
        if part.pages:
            token_slots += [part.pages[p // page_size] * page_size + p % page_size for p in here]
        else:
            token_slots += [0] * part.rows
        first += part.rows
    spare = [0] * padding
    return Batch(
        rows=first + padding,
        real_rows=first,
        token_ids=torch.tensor([*token_ids, *spare], dtype=torch.int64),
        positions=torch.tensor([*positions, *spare], dtype=torch.int64),
        token_slots=torch.tensor([*token_slots, *spare], dtype=torch.int64),
        segments=tuple(segments),
        draws=draws,
        **more,
    )


@pytest.fixture
def part() -> type[Part]:
    return Part


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    return batch_of


@pytest.fixture
def poisoned() -> Callable[..., torch.Tensor]:
    """Outputs start as NaN (or as a wild integer): whatever a kernel leaves unwritten shows."""

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, torch.nan if dtype.is_floating_point else 12_345, dtype=dtype)

    return make


def find_kernel(op: str, name: str = "") -> Callable[..., Any]:
    """The kernel that ranks first on the CPU, or the one of this name."""
    ready = [card for card in CARDS if card.op == op and "cpu" in card.devices]
    named = [card for card in ready if name in ("", card.name)]
    return load_entry(min(named, key=lambda card: card.rank).entry)


@pytest.fixture
def kernel() -> Callable[..., Callable[..., Any]]:
    return find_kernel


@pytest.fixture
def launch() -> Callable[..., Any]:
    """Calls a kernel and checks what any kernel must keep: operands that it does not write are as they were."""

    def run(op: str, batch: Batch, *, name: str = "", **given: Any) -> Any:
        written = {operand.rstrip("?") for operand in find_op(op).writes}
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        kept = {key: value.clone() for key, value in tensors.items() if key not in written}
        result = find_kernel(op, name)(batch, **given)
        for key, value in kept.items():
            same = torch.equal(value.view(torch.uint8), tensors[key].view(torch.uint8))
            assert same or value.numel() == 0, f"{op} changed `{key}`"
        return result

    return run


@pytest.fixture
def make_experts() -> Callable[..., ExpertArena]:
    """An arena of fp32 slots with random experts."""

    def make(num_slots: int, hidden_size: int, width: int) -> ExpertArena:
        layout = slot_parts("fp32", hidden_size, width)
        arena = make_arena(torch.zeros(num_slots, slot_bytes(layout), dtype=torch.uint8), layout)
        arena.parts["gate_up"].normal_(std=0.1)
        arena.parts["down"].normal_(std=0.1)
        return arena

    return make


def build_model(seed: int = 0, **changes: Any) -> Qwen3_5MoeForCausalLM:
    """The tiny model of facts/models.md 6.1, with norms and biases perturbed so that a forgotten one shows."""
    torch.manual_seed(seed)
    values: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 128,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.05,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 48,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    config = Qwen3_5MoeTextConfig(**(values | changes))
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.inference_mode(mode=False), torch.no_grad():
        model = Qwen3_5MoeForCausalLM(config).float().eval()
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith("dt_bias"):
                parameter.add_(0.5 * torch.randn_like(parameter))
            parameter.requires_grad_(False)
    return model


@pytest.fixture(scope="session")
def model() -> Qwen3_5MoeForCausalLM:
    return build_model()
