"""Cards say what kernels can do, and kernels take exactly the operands of their op."""

import inspect

import pytest

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.ops import OP_NAMES, SHARED_OPERANDS, find_op
from firmtoken.runtime.kernels import CARDS, load_entry

READY = [card for card in CARDS if card.status == "ready"]
CONSTANTS = {
    "add_norm": {"eps"},
    "qk_norm_rope_kv": {
        "num_q_heads",
        "num_kv_heads",
        "head_dim",
        "rotary_dim",
        "rope_theta",
        "eps",
        "gated",
        "page_size",
    },
    "row_norm_rope_kv": {
        "num_q_heads",
        "num_kv_heads",
        "head_dim",
        "rotary_dim",
        "rope_theta",
        "eps",
        "page_size",
    },
    "attention": {"num_q_heads", "num_kv_heads", "head_dim", "gated", "page_size", "scale"},
    "gdn": {
        "num_key_heads",
        "num_value_heads",
        "key_head_dim",
        "value_head_dim",
        "conv_kernel",
        "eps",
    },
    "route": {"num_experts_per_token"},
    "route_sigmoid": {"num_experts_per_token"},
    "prescribe": {"conversation"},
    "admit": {"num_experts"},
    "moe_gate_up": {"hidden_size", "expert_width", "num_experts_per_token"},
    "moe_down": {"hidden_size", "expert_width", "num_experts_per_token"},
    "head": {"eps"},
}


def title(card: KernelCard) -> str:
    return f"{card.op}-{card.name}"


@pytest.mark.parametrize("card", READY, ids=title)
def test_a_ready_kernel_takes_the_operands_of_its_op_and_its_constants(card: KernelCard) -> None:
    op = find_op(card.op)
    operands = {*op.reads, *op.writes, *op.weights, *op.addresses}
    if not card.takes_shared:
        operands -= {f"{name}?" for name in SHARED_OPERANDS.get(card.op, ())}
    optional = {name.rstrip("?") for name in operands if name.endswith("?")}
    parameters = inspect.signature(load_entry(card.entry)).parameters
    # A name of its own keeps it apart from the operand `rows` of some ops.
    assert next(iter(parameters)) in ("batch", "rows")
    keywords = {
        name: parameter.default is None
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    named = {name.rstrip("?") for name in operands}
    own = {name for name, _ in (*card.constants, *card.computed)}
    if "workspace" in keywords:
        assert card.workspace
        own.add("workspace")
    wanted = named | CONSTANTS.get(card.op, set()) | set(op.indices) | own
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        wanted -= own - keywords.keys()  # it hands its constants on by name
    given = {name for name, is_optional in keywords.items() if is_optional}
    if (
        "cuda" in card.devices
    ):  # it may leave out what no plan of a GPU gives it, and need what all of them do
        wanted -= (optional | set(op.indices)) - keywords.keys()
    else:
        assert set(op.indices) <= given
    assert keywords.keys() == wanted
    assert given <= optional | set(op.indices)
    always_written = {name for name in op.writes if not name.endswith("?")}
    assert not {name for name in always_written if keywords[name]}


def test_kernels_that_agree_on_an_order_of_columns_come_in_pairs() -> None:
    """What one of them writes no other can read: there must be nothing to choose."""
    names = [
        [
            card.name
            for card in CARDS
            if (card.op, card.devices, card.phases) == (op, ("cuda",), ("prefill",))
            and "nvfp4" in card.formats
            and card.status != "foreign"
        ]
        for op in ("moe_gate_up", "moe_down")
    ]
    assert names == [["triton_grouped_nvfp4"]] * 2


def test_every_op_has_a_ready_kernel_on_the_cpu_for_each_phase_in_which_it_occurs() -> None:
    missing = []
    for op in OP_NAMES:
        phases = {phase for card in READY if card.op == op for phase in card.phases}
        wanted = {"admit": {"decode"}, "resolve": {"prefill"}}.get(op, {"decode", "prefill"})
        if not wanted <= phases:
            missing.append(op)
    assert missing == []


def test_every_op_has_a_card_for_a_gpu_of_capability_8_9() -> None:
    usable = {
        card.op
        for card in CARDS
        if "cuda" in card.devices and not card.not_called
        if card.min_capability <= (8, 9) <= card.max_capability
    }
    assert usable == set(OP_NAMES)


def test_names_are_unique_within_an_op() -> None:
    names = [title(card) for card in CARDS]
    assert len(names) == len(set(names))


def test_a_planned_card_has_no_entry_and_a_ready_one_has() -> None:
    assert {bool(card.entry) for card in READY} == {True}
    assert {card.entry for card in CARDS if card.status == "planned"} == {""}
