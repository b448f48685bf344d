"""moe_gate_up(hidden_size, expert_width, num_experts_per_token): a[T*k,I] = silu(gate x) * (up x), x[T,H].

The expert of pair p = t*k + j is addressed by exactly one of: ids[T,k] (slot = experts.first + id), ids through
map[E] (slot = map[id]), or slots[T,k] (absolute). Pairs with id or slot -1 give zeros; those of an expert that map has
at -1 (another wave's) may give anything. The card's format is that of the slots. A kernel and the moe_down of its name
may agree on an order of a's columns.

Where a kernel takes the shared expert too: shared_a[T,I] of shared_gate_up[2I,H] (gate first) likewise, and
share[T] = sigmoid(x shared_gate[1,H]^T).
"""

from firmtoken.compiler.cards import KernelCard, gpu_card, multiples, planned_gpu_card
from firmtoken.runtime.kernels.tile_shapes import PAIR_TILES, STEP_COLUMNS

CARDS = (
    KernelCard(
        op="moe_gate_up",
        name="torch_grouped",
        entry="firmtoken.runtime.kernels.moe_gate_up.torch_grouped:moe_gate_up",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="one product an expert",
    ),
    KernelCard(
        op="moe_gate_up",
        name="torch_gather",
        entry="firmtoken.runtime.kernels.moe_gate_up.torch_gather:moe_gate_up",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=2,
        because="copies each pair's weights",
    ),
    KernelCard(
        op="moe_gate_up",
        name="torch_nvfp4",
        entry="firmtoken.runtime.kernels.moe_gate_up.torch_nvfp4:moe_gate_up",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("nvfp4",),
        rank=1,
        because="decodes each expert at use",
    ),
    gpu_card(
        op="moe_gate_up",
        name="triton_nvfp4",
        entry="firmtoken.runtime.kernels.moe_gate_up.triton_nvfp4:moe_gate_up",
        phases=("decode",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers, both halves keep their scale",
        builds="firmtoken.runtime.kernels.moe_gate_up.nvfp4_pairs:gate_up_builds",
        constants=(("warps", 1), ("lanes", 32), ("outputs", 2)),
        computed=(("early", "early_start"),),
        takes_shared=("nvfp4",),
    ),
    gpu_card(
        op="moe_gate_up",
        name="triton_grouped_nvfp4",
        entry="firmtoken.runtime.kernels.moe_gate_up.triton_grouped_nvfp4:moe_gate_up",
        phases=("prefill",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights once for a tile of an expert's rows, both halves keep their scale",
        builds="firmtoken.runtime.kernels.moe_gate_up.nvfp4_groups:gate_up_builds",
        constants=PAIR_TILES,
        computed=(
            ("large_stages", "large_tile_stages"),
            ("quads", "quads"),
            ("num_experts", "num_experts"),
        ),
        workspace="operand_order",
        limits=multiples(STEP_COLUMNS, ("hidden_size",), ("moe_intermediate_size",)),
    ),
    planned_gpu_card(
        op="moe_gate_up",
        name="triton_grouped_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="multiplies both halves in one pass",
    ),
)
