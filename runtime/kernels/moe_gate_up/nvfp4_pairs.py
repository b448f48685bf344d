"""Gate and up halves of NVFP4 experts for the pairs of a few rows (W4A16): the Triton function that is launched.

A group of LANES lanes makes OUTPUTS numbers of `a` for one (row, expert) pair, a block of sixteen columns to a lane:
the columns of x are widened once for 2 * OUTPUTS rows of weights, and each lane sums over all its blocks of a row
before lanes are added up. Pairs of one expert read its weights again, from L2 as a rule: at decode few rows share an
expert (of 32 pairs over 256 experts 30 are distinct), and nothing need be sorted.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.nvfp4_blocks import (
    BLOCK_CODES,
    CODES_BYTES,
    RAISED,
    UNSHIFT,
    WARP_LANES,
    load_codes,
    load_columns,
    multiply_block,
    outputs_of_a_program,
    tile_of_sums,
)
from firmtoken.runtime.kernels.slot_offsets import slot_offsets


# `first` is not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("first",))
def gate_up_pairs(  # noqa: PLR0915  a kernel is one function (design/STYLE.md)
    x_ptr,
    slots_ptr,
    arena_ptr,
    a_ptr,
    shared_codes_ptr,
    shared_scale_ptr,
    shared_globals_ptr,
    shared_gate_ptr,
    shared_a_ptr,
    share_ptr,
    first,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    SHARED: tl.constexpr,
    SLOT_BYTES: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBALS_AT: tl.constexpr,
    WARPS: tl.constexpr,
    LANES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """a[T*PAIRS, WIDTH] = silu(gate x) * (up x), x[T, HIDDEN] of any float type.

    The expert of pair (row, place) is slot `first + slots[row, place]` of the arena (uint8): gate and up joined, codes
    at 0, scales at SCALE_AT, a global scale for each; below 0 the pair gives zeros. Where SHARED (its width) is not 0,
    each row has one pair more: the shared expert, shared_a[T, SHARED]; and share[T] = sigmoid(x gate^T) is made by a
    program of its own, the last of axis 1, which has no outputs.

    Program (row * pairs + place, tile of outputs). EARLY: see `early_start.py`; nothing here can be read before.
    """
    per_row: tl.constexpr = PAIRS + (SHARED > 0)
    blocks: tl.constexpr = HIDDEN // BLOCK_CODES
    row = (tl.program_id(0) // per_row).to(tl.int64)
    place = tl.program_id(0) % per_row
    x_row = x_ptr + row * HIDDEN
    if EARLY:
        start_next_after_last()

    is_shared = place == PAIRS
    slot = tl.load(slots_ptr + row * PAIRS + place, mask=place < PAIRS, other=0)
    live = slot >= 0
    slot_ptr = arena_ptr + (slot + first).to(tl.int64) * SLOT_BYTES
    codes_ptr = slot_ptr
    scale_ptr = slot_ptr + SCALE_AT
    globals_ptr = (slot_ptr + GLOBALS_AT).to(tl.pointer_type(tl.float32))
    width = WIDTH
    out_ptr = a_ptr + (row * PAIRS + place) * WIDTH
    if SHARED > 0:
        codes_ptr = tl.where(is_shared, shared_codes_ptr, codes_ptr)
        scale_ptr = tl.where(is_shared, shared_scale_ptr, scale_ptr)
        globals_ptr = tl.where(is_shared, shared_globals_ptr, globals_ptr)
        width = tl.where(is_shared, SHARED, WIDTH)
        out_ptr = tl.where(is_shared, shared_a_ptr + row * SHARED, out_ptr)

    gate_global = tl.load(globals_ptr, mask=live, other=0.0) * UNSHIFT
    up_global = tl.load(globals_ptr + 1, mask=live, other=0.0) * UNSHIFT

    groups: tl.constexpr = WARPS * WARP_LANES // LANES
    group = tl.arange(0, groups)[:, None]  # [groups, 1]
    lane = tl.arange(0, LANES)[None, :]  # [1, LANES]
    first_output = tl.program_id(1) * (groups * OUTPUTS) + group * OUTPUTS
    # All loads before the first use: what is asked for later waits for memory a second time.
    codes = ()
    scales = ()
    for step in tl.static_range(0, blocks, LANES):
        block = tl.broadcast_to(lane + step, (groups, LANES))
        for turn in tl.static_range(2 * OUTPUTS):
            output = first_output + turn // 2
            taken = live & (block < blocks) & (output < width)
            matrix_row = output + (turn % 2) * width
            codes += (load_codes(codes_ptr + matrix_row * (blocks * CODES_BYTES), block, taken),)
            scales += (tl.load(scale_ptr + matrix_row * blocks + block, mask=taken, other=0),)
    sums = ()
    for _ in tl.static_range(2 * OUTPUTS):
        sums += (tl.zeros((groups, LANES), tl.float32),)
    for step in tl.static_range(0, blocks, LANES):
        block = tl.broadcast_to(lane + step, (groups, LANES))
        columns = load_columns(x_row, block, live & (block < blocks), RAISED)
        new_sums = ()
        for turn in tl.static_range(2 * OUTPUTS):
            new_sums += (sums[turn] + multiply_block(codes[turn], scales[turn], columns),)
        sums = new_sums
        codes = codes[2 * OUTPUTS :]
        scales = scales[2 * OUTPUTS :]

    gate = tile_of_sums(sums[0::2], groups, OUTPUTS) * gate_global
    up = tile_of_sums(sums[1::2], groups, OUTPUTS) * up_global
    found = gate * tl.sigmoid(gate) * up
    output = first_output + tl.arange(0, OUTPUTS)[None, :]  # [groups, OUTPUTS]
    tl.store(out_ptr + output, found.to(a_ptr.dtype.element_ty), mask=output < width)
    if SHARED > 0:  # noqa: SIM102  one is known to the compiler, the other is not
        if is_shared & (tl.program_id(1) == tl.num_programs(1) - 1):
            tl.store(share_ptr + row, _share(x_row, shared_gate_ptr, HIDDEN, WARPS))


@triton.jit
def _share(x_row, gate_ptr, HIDDEN: tl.constexpr, WARPS: tl.constexpr):
    """sigmoid(x gate^T): how much of the shared expert this row takes."""
    chunk: tl.constexpr = WARPS * WARP_LANES * 8
    sums = tl.zeros((chunk,), tl.float32)
    for step in tl.static_range(0, HIDDEN, chunk):
        column = step + tl.arange(0, chunk)
        there = column < HIDDEN
        x = tl.load(x_row + column, mask=there, other=0.0).to(tl.float32)
        sums += x * tl.load(gate_ptr + column, mask=there, other=0.0).to(tl.float32)
    return tl.sigmoid(tl.sum(sums, axis=0))


def gate_up_builds(
    launch: Launch,
    *,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    warps: int,
    lanes: int,
    outputs: int,
    early: int,
) -> tuple[Build, ...]:
    """The one form of `moe_gate_up`: with the shared expert where there is its a."""
    shared = launch.columns("shared_a") if "shared_a" in launch.operands else 0
    offsets = slot_offsets(hidden_size, expert_width)
    slots = {
        "WIDTH": expert_width,
        "PAIRS": num_experts_per_token,
        "SHARED": shared,
        "SLOT_BYTES": slot_bytes(slot_parts("nvfp4", hidden_size, expert_width)),
        "SCALE_AT": offsets["gate_scale"],
        "GLOBALS_AT": offsets["globals"],
    }
    tile = {"WARPS": warps, "LANES": lanes, "OUTPUTS": outputs, "EARLY": bool(early)}
    tiles = -(-max(expert_width, shared) // outputs_of_a_program(warps, lanes, outputs))
    return (
        gate_up_build(
            "pairs and the shared expert" if shared else "pairs",
            launch.pointer("x"),
            {"HIDDEN": hidden_size, **slots, **tile},
            (launch.num_rows * (num_experts_per_token + bool(shared)), tiles + bool(shared)),
        ),
    )


def gate_up_build(
    name: str, activation: str, constants: dict[str, int | bool], grid: tuple[int, int]
) -> Build:
    """One form; `activation` is the type of a pointer to x and to a, and of others that are not read."""
    fp32 = "*fp32" if constants["SHARED"] else activation
    return Build(
        name=name,
        function=gate_up_pairs,
        arguments={
            "x_ptr": activation,
            "slots_ptr": "*i32" if constants["PAIRS"] else "*u8",
            "arena_ptr": "*u8",
            "a_ptr": activation,
            "shared_codes_ptr": "*u8",
            "shared_scale_ptr": "*u8",
            "shared_globals_ptr": fp32,
            "shared_gate_ptr": activation,
            "shared_a_ptr": activation,
            "share_ptr": fp32,
            "first": "i32",
        },
        constants=constants,
        num_warps=int(constants["WARPS"]),
        grid=grid,
    )
