"""What each family lowers to, and that its models compile for a GPU and for the CPU, where every op has a kernel."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.family_tensors import dense_tensors, matrix
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.steps import steps_of
from firmtoken.compiler.tensor_bytes import tensor_bytes

PlanOf = Callable[..., Plan]
OFFLOAD = "experts.placement=offload"
QWEN3_DECODE = (
    "embed add_norm linear qk_norm_rope_kv attention linear add_norm "
    "route moe_gate_up moe_down combine head sample"
)
MINIMAX_DECODE = (
    "embed add_norm linear row_norm_rope_kv attention linear add_norm "
    "route_sigmoid admit fetch moe_gate_up moe_down combine head sample"
)
NEW = ("4090-qwen3-30b", "4090-ornith", "4090-minimax", "h200-minimax", "pro6000-minimax")


def small(model: str, *geometry: str) -> tuple[str, ...]:
    """A model of this family that fits the CPU profile's 119 MiB."""
    values = (
        *geometry,
        "hidden_size=128",
        "num_layers=3",
        "num_q_heads=6",
        "num_kv_heads=2",
        "head_dim=32",
        "rotary_dim=16",
        "num_experts=8",
        "num_experts_per_token=2",
        "moe_intermediate_size=64",
        "vocab_size=512",
    )
    shape = tuple(f"model.geometry.{value}" for value in values)
    return (f"model=ft:models/{model}", *shape)


def ops(plan: Plan, program: str = "decode") -> list[str]:
    found = dict(plan.programs.named())[program]
    return [step.op for step in steps_of(found)]


@pytest.mark.parametrize("coded", ["nvfp4", "fp8"])
def test_a_tensor_of_several_formats_has_that_of_its_first_part(coded: str) -> None:
    parts = (matrix("large", 64, 32, format_name=coded), matrix("small", 16, 32))
    found = dense_tensors("cuda").tensor("in_proj", "linear", *parts)
    assert (found.dtype, found.shape) == (coded, (80, 32))
    assert found.bytes == tensor_bytes((64, 32), coded) + tensor_bytes((16, 32), "bf16")
    assert dense_tensors("cpu").tensor("in_proj", "linear", *parts).bytes == 80 * 32 * 4


def test_qwen3_moe_has_neither_states_nor_a_shared_expert(plan_of: PlanOf) -> None:
    plan = plan_of("4090-qwen3-30b")
    assert set(plan.model.layer_kinds) == {"full"} and len(plan.model.layer_kinds) == 48
    assert plan.kv_cache.type == "radix" and plan.programs.park is None
    assert plan.kv_cache.state_slots == plan.kv_cache.snapshot_slots == 0
    assert sorted(ops(plan)) == sorted(QWEN3_DECODE.split())
    assert not {row.name for row in plan.buffers} & {"conv_state", "recurrent_state", "snaps"}


def test_minimax_routes_by_sigmoid_and_norms_whole_rows(plan_of: PlanOf) -> None:
    plan = plan_of("pro6000-minimax")
    assert sorted(ops(plan)) == sorted(MINIMAX_DECODE.split())
    shapes = {row.name: row.shape for row in plan.weights}
    assert shapes["q_norm"] == (6144,) and shapes["k_norm"] == (1024,)
    assert shapes["router_bias"] == (256,)
    route = next(row for row in plan.kernels if row.op == "route_sigmoid")
    assert route.constants["num_experts_per_token"] == 8
    rope = next(row for row in plan.kernels if row.op == "row_norm_rope_kv")
    assert (rope.constants["rotary_dim"], rope.constants["head_dim"]) == (64, 128)


def test_qwen3_5_moe_still_gates_attention_and_shares_an_expert(plan_of: PlanOf) -> None:
    plan = plan_of("4090-qwen")
    found = ops(plan)
    assert {"gdn", "route", "qk_norm_rope_kv"} <= set(found)
    assert "shared_expert" in {row.op for row in plan.kernels}
    assert not {"route_sigmoid", "row_norm_rope_kv"} & set(found)


@pytest.mark.parametrize(("name", "reads"), [("4090-qwen", True), ("4090-qwen3-30b", False)])
def test_attention_reads_the_projection_only_for_its_gates(
    name: str, reads: bool, plan_of: PlanOf
) -> None:
    program = plan_of(name).programs.decode
    attention = next(step for step in steps_of(program) if step.op == "attention")
    assert ("qkv" in attention.operands) is reads
    assert ("decode.qkv" in attention.reads) is reads


def test_experts_are_found_between_either_routing_and_the_experts(plan_of: PlanOf) -> None:
    for name, route in (("pro6000-minimax", "route_sigmoid"), ("4090-qwen3-30b", "route")):
        order = ops(plan_of(name, OFFLOAD))
        assert order.index(route) < order.index("admit") < order.index("moe_gate_up")


def test_checkpoint_names_of_minimax_are_those_on_disk(plan_of: PlanOf) -> None:
    plan = plan_of("pro6000-minimax")
    sources = {row.name: row.sources for row in plan.weights}
    block = "model.layers.{l}.block_sparse_moe."
    assert sources["router"] == (block + "gate",)
    assert sources["router_bias"] == (block + "e_score_correction_bias",)
    # w1 gates, w3 is up, w2 is down.
    assert plan.experts.sources == tuple(
        block + f"experts.{{e}}.{part}" for part in ("w1", "w3", "w2")
    )


@pytest.mark.parametrize("placement", ["resident", "offload"])
@pytest.mark.parametrize("model", ["qwen3-30b-a3b-nvfp4", "minimax-m2.5-nvfp4"])
def test_the_cpu_device_has_a_kernel_for_every_op(
    model: str, placement: str, plan_of: PlanOf
) -> None:
    plan = plan_of(
        "tiny-cpu", *small(model), f"experts.placement={placement}", "serving.context=2k"
    )
    assert plan.experts.placement == placement
    assert {row.status for row in plan.kernels} == {"ready"}
    assert {row.dtype for row in plan.weights} == {"fp32"}


@pytest.mark.parametrize("name", NEW)
def test_a_new_profile_is_free_of_warnings_and_adds_up(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(name)
    assert plan.warnings == ()
    for ledger in (plan.memory.device, plan.memory.host):
        assert sum(line.bytes for line in ledger.lines) + ledger.free == ledger.budget
        assert ledger.free >= 0


def test_a_bf16_model_has_bf16_slots(plan_of: PlanOf) -> None:
    plan = plan_of("h200-qwen", "model=ft:models/qwen3.5-35b-a3b")
    assert (plan.experts.format, plan.experts.slot_bytes) == ("bf16", 6_291_456)
    assert plan.kv_cache.dtype == "bf16"


@pytest.mark.parametrize(
    ("overrides", "share", "context"),
    [
        (("serving.context=64k", "cache.kv_dtype=fp8"), 65, 65_536),
        (("serving.context=64k", "cache.kv_dtype=bf16"), 58, 65_536),
        (("serving.context=192k", "cache.kv_dtype=fp8"), 52, 196_608),
    ],
)
def test_minimax_on_a_pro_6000_keeps_the_share_of_experts_that_was_foreseen(
    overrides: tuple[str, ...], share: int, context: int, plan_of: PlanOf
) -> None:
    plan = plan_of("pro6000-minimax", *overrides)
    assert plan.context.effective == context
    assert abs(100 * plan.experts.resident_fraction - share) <= 2


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_auto_gives_minimax_on_a_pro_6000_at_least_64k(dtype: str, plan_of: PlanOf) -> None:
    plan = plan_of("pro6000-minimax", "serving.context=auto", f"cache.kv_dtype={dtype}")
    assert plan.context.effective >= 65_536


def test_minimax_does_not_fit_a_host_of_64_gib(plan_of: PlanOf) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of("4090-qwen", "model=ft:models/minimax-m2.5-nvfp4")
    assert caught.value.exit_code == 3
    assert {refusal.field for refusal in caught.value.refusals} == {"hardware.host.memory"}
