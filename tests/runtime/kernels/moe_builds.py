"""What the Triton kernels of a layer's experts are compiled to for Qwen3.6-35B-A3B and MiniMax-M2.5 at decode."""

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels.add_norm.rows import add_norm_row
from firmtoken.runtime.kernels.builds import Build
from firmtoken.runtime.kernels.combine.rows import combine_row
from firmtoken.runtime.kernels.moe_down.nvfp4_pairs import down_combine, down_pairs
from firmtoken.runtime.kernels.moe_gate_up.nvfp4_pairs import gate_up_pairs
from firmtoken.runtime.kernels.route.norm_top_k import norm_route_rows
from firmtoken.runtime.kernels.route.top_k import route_rows
from firmtoken.runtime.kernels.slot_offsets import DOWN_GLOBAL_BYTES, slot_offsets

EXPERTS, CHOSEN = 256, 8
SHARED_KINDS = {"shared_codes_ptr": "*u8", "shared_scale_ptr": "*u8", "shared_globals_ptr": "*fp32"}
ROUTE_KINDS = {
    "router_ptr": "*bf16",
    "bias_ptr": "*fp32",
    "num_rows_ptr": "*i32",
    "logits_ptr": "*fp32",
    "arrived_ptr": "*i32",
    "ids_ptr": "*i32",
    "wts_ptr": "*fp32",
}
GATE_UP_KINDS = {
    "x_ptr": "*bf16",
    "slots_ptr": "*i32",
    "arena_ptr": "*u8",
    "a_ptr": "*bf16",
    **SHARED_KINDS,
    "shared_gate_ptr": "*bf16",
    "shared_a_ptr": "*bf16",
    "share_ptr": "*fp32",
    "first": "i32",
}
DOWN_KINDS = {
    "a_ptr": "*bf16",
    "slots_ptr": "*i32",
    "arena_ptr": "*u8",
    "rows_ptr": "*bf16",
    "shared_a_ptr": "*bf16",
    "share_ptr": "*fp32",
    **SHARED_KINDS,
    "s_ptr": "*bf16",
    "first": "i32",
}
DOWN_COMBINE_KINDS = {
    "a_ptr": "*bf16",
    "slots_ptr": "*i32",
    "wts_ptr": "*fp32",
    "arena_ptr": "*u8",
    "hid_ptr": "*bf16",
    "shared_a_ptr": "*bf16",
    "share_ptr": "*fp32",
    **SHARED_KINDS,
    "first": "i32",
}


def qwen(num_rows: int, num_outputs: int, *, early: int) -> tuple[Build, ...]:
    """With the shared expert as one more."""
    return (
        *_experts(2048, 512, 512, up_tile=(1, 32, 2), down_tile=(1, 8, 4), early=early),
        *_router(2048, sigmoid=False, at_once=2, early=early),
        _build(
            add_norm_row,
            {
                "hid_ptr": "*bf16",
                "y_ptr": "*bf16",
                "h_ptr": "*bf16",
                "norm_ptr": "*bf16",
                "eps": "fp32",
            },
            {"HIDDEN": 2048, "ADDED": True, "NORMED": True, "EARLY": bool(early)},
            num_warps=8,
        ),
        _build(
            combine_row,
            {"rows_ptr": "*bf16", "wts_ptr": "*fp32", "hid_ptr": "*bf16", "s_ptr": "*bf16"},
            {"HIDDEN": 2048, "PAIRS": CHOSEN, "SHARED": True, "COLUMNS": 512, "EARLY": bool(early)},
            num_warps=2,
        ),
    )


def minimax(num_rows: int, num_outputs: int, *, early: int) -> tuple[Build, ...]:
    """Without a shared expert."""
    return (
        *_experts(3072, 1536, 0, up_tile=(1, 32, 2), down_tile=(1, 16, 4), early=early),
        *_router(3072, sigmoid=True, at_once=1, early=early),
    )


def _experts(
    hidden: int,
    width: int,
    shared: int,
    *,
    up_tile: tuple[int, int, int],
    down_tile: tuple[int, int, int],
    early: int,
) -> tuple[Build, ...]:
    """Tiles are (warps, lanes, outputs)."""
    offsets = slot_offsets(hidden, width)
    sizes = {
        "HIDDEN": hidden,
        "WIDTH": width,
        "PAIRS": CHOSEN,
        "SHARED": shared,
        "SLOT_BYTES": slot_bytes(slot_parts("nvfp4", hidden, width)),
    }
    up = {"SCALE_AT": offsets["gate_scale"], "GLOBALS_AT": offsets["globals"]}
    down = {
        "CODES_AT": offsets["down"],
        "SCALE_AT": offsets["down_scale"],
        "GLOBAL_AT": offsets["globals"] + DOWN_GLOBAL_BYTES,
    }
    forms = (
        (gate_up_pairs, GATE_UP_KINDS, up, up_tile),
        (down_pairs, DOWN_KINDS, down, down_tile),
        (down_combine, DOWN_COMBINE_KINDS, down, (1, 32, 4 if shared else 1)),
    )
    return tuple(
        _build(
            function,
            kinds,
            {
                **sizes,
                **parts,
                "WARPS": warps,
                "LANES": lanes,
                "OUTPUTS": outputs,
                "EARLY": bool(early),
            },
            num_warps=warps,
        )
        for function, kinds, parts, (warps, lanes, outputs) in forms
    )


def _router(hidden: int, *, sigmoid: bool, at_once: int, early: int) -> tuple[Build, ...]:
    constants = {
        "HIDDEN": hidden,
        "EXPERTS": EXPERTS,
        "CHOSEN": CHOSEN,
        "SIGMOID": sigmoid,
        "AT_ONCE": at_once,
        "EARLY": bool(early),
    }
    row = {"hid_ptr": "*bf16", "y_ptr": "*bf16", "norm_ptr": "*bf16"}
    both = {**row, "h_ptr": "*bf16", **ROUTE_KINDS, "eps": "fp32"}
    return (
        _build(route_rows, {"h_ptr": "*bf16", **ROUTE_KINDS}, constants, num_warps=1),
        _build(norm_route_rows, both, constants, num_warps=1),
    )


def _build(function, kinds: dict[str, str], constants: dict[str, int], *, num_warps: int) -> Build:
    return Build(
        name=function.__name__,
        function=function,
        arguments=kinds,
        constants=constants,
        num_warps=num_warps,
        grid=(1,),
    )
