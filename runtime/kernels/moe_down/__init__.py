"""moe_down(hidden_size, expert_width, num_experts_per_token): rows[T*k,H] = down a, a[T*k,I].

Pairs find their expert as in moe_gate_up; pairs with id or slot -1 give zeros, rows of an expert that map has at -1
(another wave's) stay as they are. With `block` rows[T*k,B] has B of the H columns, from block * B on. The card's format
is that of the slots. A kernel and the moe_gate_up of its name may agree on an order of a's columns.

Where a kernel takes the shared expert too: s[T,H] = share[T] * (shared_down[H,I] shared_a[T,I]).
"""

from firmtoken.compiler.cards import KernelCard, gpu_card, multiples, planned_gpu_card
from firmtoken.runtime.kernels.tile_shapes import PAIR_TILES, STEP_COLUMNS

CARDS = (
    KernelCard(
        op="moe_down",
        name="torch_grouped",
        entry="firmtoken.runtime.kernels.moe_down.torch_grouped:moe_down",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="one product an expert",
    ),
    KernelCard(
        op="moe_down",
        name="torch_gather",
        entry="firmtoken.runtime.kernels.moe_down.torch_gather:moe_down",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=2,
        because="copies each pair's weights",
    ),
    KernelCard(
        op="moe_down",
        name="torch_nvfp4",
        entry="firmtoken.runtime.kernels.moe_down.torch_nvfp4:moe_down",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("nvfp4",),
        rank=1,
        because="decodes each expert at use",
    ),
    gpu_card(
        op="moe_down",
        name="triton_nvfp4",
        entry="firmtoken.runtime.kernels.moe_down.triton_nvfp4:moe_down",
        phases=("decode",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers",
        builds="firmtoken.runtime.kernels.moe_down.nvfp4_pairs:down_builds",
        constants=(("warps", 1), ("outputs", 4)),
        computed=(("lanes", "down_lanes"), ("early", "early_start")),
        takes_shared=("nvfp4",),
    ),
    gpu_card(
        op="moe_down",
        name="triton_grouped_nvfp4",
        entry="firmtoken.runtime.kernels.moe_down.triton_grouped_nvfp4:moe_down",
        phases=("prefill",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights once for a tile of an expert's rows",
        builds="firmtoken.runtime.kernels.moe_down.nvfp4_groups:down_builds",
        constants=PAIR_TILES,
        computed=(
            ("large_stages", "large_tile_stages"),
            ("quads", "quads"),
            ("num_experts", "num_experts"),
        ),
        workspace="operand_order",
        limits=multiples(STEP_COLUMNS, ("moe_intermediate_size",)),
    ),
    planned_gpu_card(
        op="moe_down",
        name="triton_grouped_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="one tile an expert",
    ),
)
