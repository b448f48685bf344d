"""Down halves of NVFP4 experts for the pairs of a few rows (W4A16): the Triton functions that are launched.

`down_pairs` writes a row for each pair. `down_combine` goes through the experts of a row in order, their weights on the
columns, before lanes are added up: nothing is written between, and the order of the sum is always the same. In both a
group of LANES lanes makes OUTPUTS numbers, a block of sixteen columns to a lane.
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
from firmtoken.runtime.kernels.slot_offsets import DOWN_GLOBAL_BYTES, slot_offsets

SHARED_TYPES = {"shared_codes_ptr": "*u8", "shared_scale_ptr": "*u8", "shared_globals_ptr": "*fp32"}


@triton.jit(do_not_specialize=("first",))
def down_pairs(  # noqa: PLR0915  a kernel is one function (design/STYLE.md)
    a_ptr,
    slots_ptr,
    arena_ptr,
    rows_ptr,
    shared_a_ptr,
    share_ptr,
    shared_codes_ptr,
    shared_scale_ptr,
    shared_globals_ptr,
    s_ptr,
    first,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    SHARED: tl.constexpr,
    SLOT_BYTES: tl.constexpr,
    CODES_AT: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBAL_AT: tl.constexpr,
    WARPS: tl.constexpr,
    LANES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """rows[T*PAIRS, HIDDEN] = down a, a[T*PAIRS, WIDTH] of any float type.

    The expert of pair (row, place) is slot `first + slots[row, place]` of the arena (uint8); below 0 the pair gives
    zeros. Where SHARED (its width) is not 0, each row has one pair more: s[T, HIDDEN] from shared_a[T, SHARED],
    times share[T].

    Program (row * pairs + place, tile of WARPS * OUTPUTS outputs); lanes lie along the width. EARLY (`early_start.py`):
    all but a, shared_a and share must be older than the launch before this one.
    """
    per_row: tl.constexpr = PAIRS + (SHARED > 0)
    row = (tl.program_id(0) // per_row).to(tl.int64)
    place = tl.program_id(0) % per_row
    slot = tl.load(slots_ptr + row * PAIRS + place, mask=place < PAIRS, other=0)
    live = slot >= 0
    slot_ptr = arena_ptr + (slot + first).to(tl.int64) * SLOT_BYTES
    codes_ptr = slot_ptr + CODES_AT
    scale_ptr = slot_ptr + SCALE_AT
    global_ptr = (slot_ptr + GLOBAL_AT).to(tl.pointer_type(tl.float32))
    width = WIDTH
    vector_ptr = a_ptr + (row * PAIRS + place) * WIDTH
    out_ptr = rows_ptr + (row * PAIRS + place) * HIDDEN
    if SHARED > 0:
        is_shared = place == PAIRS
        codes_ptr = tl.where(is_shared, shared_codes_ptr, codes_ptr)
        scale_ptr = tl.where(is_shared, shared_scale_ptr, scale_ptr)
        global_ptr = tl.where(is_shared, shared_globals_ptr, global_ptr)
        width = tl.where(is_shared, SHARED, WIDTH)
        vector_ptr = tl.where(is_shared, shared_a_ptr + row * SHARED, vector_ptr)
        out_ptr = tl.where(is_shared, s_ptr + row * HIDDEN, out_ptr)
    factor = tl.load(global_ptr, mask=live, other=0.0) * UNSHIFT
    blocks = width // BLOCK_CODES
    most_blocks: tl.constexpr = (SHARED if SHARED > WIDTH else WIDTH) // BLOCK_CODES

    groups: tl.constexpr = WARPS * WARP_LANES // LANES
    group = tl.arange(0, groups)[:, None]  # [groups, 1]
    lane = tl.arange(0, LANES)[None, :]  # [1, LANES]
    first_output = tl.program_id(1) * (groups * OUTPUTS) + group * OUTPUTS
    # All loads before the first use: what is asked for later waits for memory a second time.
    codes = ()
    scales = ()
    for step in tl.static_range(0, most_blocks, LANES):
        block = tl.broadcast_to(lane + step, (groups, LANES))
        for turn in tl.static_range(OUTPUTS):
            output = first_output + turn
            taken = live & (block < blocks) & (output < HIDDEN)
            codes += (load_codes(codes_ptr + output * blocks * CODES_BYTES, block, taken),)
            scales += (tl.load(scale_ptr + output * blocks + block, mask=taken, other=0),)
    if EARLY:
        start_next_after_last()
    sums = ()
    for _ in tl.static_range(OUTPUTS):
        sums += (tl.zeros((groups, LANES), tl.float32),)
    for step in tl.static_range(0, most_blocks, LANES):
        block = tl.broadcast_to(lane + step, (groups, LANES))
        columns = load_columns(vector_ptr, block, live & (block < blocks), RAISED)
        new_sums = ()
        for turn in tl.static_range(OUTPUTS):
            new_sums += (sums[turn] + multiply_block(codes[turn], scales[turn], columns),)
        sums = new_sums
        codes = codes[OUTPUTS:]
        scales = scales[OUTPUTS:]

    if SHARED > 0:
        factor *= tl.load(share_ptr + row, mask=is_shared, other=1.0)
    output = first_output + tl.arange(0, OUTPUTS)[None, :]  # [groups, OUTPUTS]
    found = tile_of_sums(sums, groups, OUTPUTS) * factor
    tl.store(out_ptr + output, found.to(rows_ptr.dtype.element_ty), mask=output < HIDDEN)


@triton.jit(do_not_specialize=("first",))
def down_combine(  # noqa: C901, PLR0915  a kernel is one function (design/STYLE.md)
    a_ptr,
    slots_ptr,
    wts_ptr,
    arena_ptr,
    hid_ptr,
    shared_a_ptr,
    share_ptr,
    shared_codes_ptr,
    shared_scale_ptr,
    shared_globals_ptr,
    first,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    SHARED: tl.constexpr,
    SLOT_BYTES: tl.constexpr,
    CODES_AT: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBAL_AT: tl.constexpr,
    WARPS: tl.constexpr,
    LANES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """hid[T, HIDDEN] += sum over pairs of wts[T, PAIRS] * down a, + the shared expert's where SHARED is not 0.

    Operands as in `down_pairs`. Program (row, tile of outputs). EARLY as in `down_pairs`.
    """
    row = tl.program_id(0).to(tl.int64)
    groups: tl.constexpr = WARPS * WARP_LANES // LANES
    group = tl.arange(0, groups)[:, None]  # [groups, 1]
    lane = tl.arange(0, LANES)[None, :]  # [1, LANES]
    first_output = tl.program_id(1) * (groups * OUTPUTS) + group * OUTPUTS
    # All loads before the first use: what is asked for later waits for memory a second time.
    codes = ()
    scales = ()
    factors = ()
    for place in tl.static_range(PAIRS):
        slot = tl.load(slots_ptr + row * PAIRS + place)
        live = slot >= 0
        slot_ptr = arena_ptr + (slot + first).to(tl.int64) * SLOT_BYTES
        global_ptr = (slot_ptr + GLOBAL_AT).to(tl.pointer_type(tl.float32))
        weight = tl.load(wts_ptr + row * PAIRS + place)
        factors += (weight * tl.load(global_ptr, mask=live, other=0.0) * RAISED,)
        for step in tl.static_range(0, WIDTH // BLOCK_CODES, LANES):
            block = tl.broadcast_to(lane + step, (groups, LANES))
            for turn in tl.static_range(OUTPUTS):
                code, scale = _load_blocks(
                    slot_ptr + CODES_AT,
                    slot_ptr + SCALE_AT,
                    first_output + turn,
                    block,
                    live & (first_output + turn < HIDDEN),
                    WIDTH // BLOCK_CODES,
                )
                codes += (code,)
                scales += (scale,)
    if SHARED > 0:
        factors += (tl.load(shared_globals_ptr) * RAISED,)
        for step in tl.static_range(0, SHARED // BLOCK_CODES, LANES):
            block = tl.broadcast_to(lane + step, (groups, LANES))
            for turn in tl.static_range(OUTPUTS):
                code, scale = _load_blocks(
                    shared_codes_ptr,
                    shared_scale_ptr,
                    first_output + turn,
                    block,
                    first_output + turn < HIDDEN,
                    SHARED // BLOCK_CODES,
                )
                codes += (code,)
                scales += (scale,)
    if EARLY:
        start_next_after_last()

    sums = ()
    for _ in tl.static_range(OUTPUTS):
        sums += (tl.zeros((groups, LANES), tl.float32),)
    for place in tl.static_range(PAIRS):
        vector_ptr = a_ptr + (row * PAIRS + place) * WIDTH
        for step in tl.static_range(0, WIDTH // BLOCK_CODES, LANES):
            block = tl.broadcast_to(lane + step, (groups, LANES))
            columns = load_columns(vector_ptr, block, block < WIDTH // BLOCK_CODES, factors[place])
            new_sums = ()
            for turn in tl.static_range(OUTPUTS):
                new_sums += (sums[turn] + multiply_block(codes[turn], scales[turn], columns),)
            sums = new_sums
            codes = codes[OUTPUTS:]
            scales = scales[OUTPUTS:]
    if SHARED > 0:
        factor = factors[PAIRS] * tl.load(share_ptr + row)
        vector_ptr = shared_a_ptr + row * SHARED
        for step in tl.static_range(0, SHARED // BLOCK_CODES, LANES):
            block = tl.broadcast_to(lane + step, (groups, LANES))
            columns = load_columns(vector_ptr, block, block < SHARED // BLOCK_CODES, factor)
            new_sums = ()
            for turn in tl.static_range(OUTPUTS):
                new_sums += (sums[turn] + multiply_block(codes[turn], scales[turn], columns),)
            sums = new_sums
            codes = codes[OUTPUTS:]
            scales = scales[OUTPUTS:]

    output = first_output + tl.arange(0, OUTPUTS)[None, :]  # [groups, OUTPUTS]
    hid_at = hid_ptr + row * HIDDEN + output
    hid = tl.load(hid_at, mask=output < HIDDEN, other=0.0).to(tl.float32)
    hid += tile_of_sums(sums, groups, OUTPUTS) * UNSHIFT
    tl.store(hid_at, hid.to(hid_ptr.dtype.element_ty), mask=output < HIDDEN)


@triton.jit
def _load_blocks(codes_ptr, scale_ptr, output, block, taken, BLOCKS: tl.constexpr):
    """Codes and scale bits of blocks of a row of weights; 0 outside."""
    taken = taken & (block < BLOCKS)
    codes = load_codes(codes_ptr + output * (BLOCKS * CODES_BYTES), block, taken)
    return codes, tl.load(scale_ptr + output * BLOCKS + block, mask=taken, other=0)


def down_builds(
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
    """The one form of `moe_down`: with the shared expert where there is its a."""
    shared = launch.columns("shared_a") if "shared_a" in launch.operands else 0
    constants = {
        **_down_constants(hidden_size, expert_width, num_experts_per_token),
        "SHARED": shared,
        "WARPS": warps,
        "LANES": lanes,
        "OUTPUTS": outputs,
        "EARLY": bool(early),
    }
    tiles = -(-hidden_size // outputs_of_a_program(warps, lanes, outputs))
    grid = (launch.num_rows * (num_experts_per_token + bool(shared)), tiles)
    name = "pairs and the shared expert" if shared else "pairs"
    return (down_build(name, launch.pointer("a"), constants, grid),)


def down_build(
    name: str, activation: str, constants: dict[str, int | bool], grid: tuple[int, int]
) -> Build:
    """One form; `activation` is the type of a pointer to a, to rows and to s, and of others that are not read."""
    fp32 = "*fp32" if constants["SHARED"] else activation
    return Build(
        name=name,
        function=down_pairs,
        arguments={
            "a_ptr": activation,
            "slots_ptr": "*i32" if constants["PAIRS"] else "*u8",
            "arena_ptr": "*u8",
            "rows_ptr": activation,
            "shared_a_ptr": activation,
            "share_ptr": fp32,
            **SHARED_TYPES,
            "shared_globals_ptr": fp32,
            "s_ptr": activation,
            "first": "i32",
        },
        constants=constants,
        num_warps=int(constants["WARPS"]),
        grid=grid,
    )


def down_combine_builds(
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
    """The one form of `moe_down` and `combine` together; with the shared expert where there is its a."""
    shared = launch.columns("shared_a") if "shared_a" in launch.operands else 0
    activation = launch.pointer("a")
    tiles = -(-hidden_size // outputs_of_a_program(warps, lanes, outputs))
    return (
        Build(
            name="rows",
            function=down_combine,
            arguments={
                "a_ptr": activation,
                "slots_ptr": "*i32",
                "wts_ptr": "*fp32",
                "arena_ptr": "*u8",
                "hid_ptr": activation,
                "shared_a_ptr": activation,
                "share_ptr": "*fp32",
                **SHARED_TYPES,
                "first": "i32",
            },
            constants={
                **_down_constants(hidden_size, expert_width, num_experts_per_token),
                "SHARED": shared,
                "WARPS": warps,
                "LANES": lanes,
                "OUTPUTS": outputs,
                "EARLY": bool(early),
            },
            num_warps=warps,
            grid=(launch.num_rows, tiles),
        ),
    )


def _down_constants(hidden_size: int, expert_width: int, pairs: int) -> dict[str, int | bool]:
    """What the slots of experts fix, without a shared expert."""
    offsets = slot_offsets(hidden_size, expert_width)
    return {
        "HIDDEN": hidden_size,
        "WIDTH": expert_width,
        "PAIRS": pairs,
        "SHARED": 0,
        "SLOT_BYTES": slot_bytes(slot_parts("nvfp4", hidden_size, expert_width)),
        "CODES_AT": offsets["down"],
        "SCALE_AT": offsets["down_scale"],
        "GLOBAL_AT": offsets["globals"] + DOWN_GLOBAL_BYTES,
    }
