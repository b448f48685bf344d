"""`bound_batches`: the largest launch of each kind, and the sizes that decode is captured at (D6)."""

from typing import Literal

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import Batches, ModelFacts
from firmtoken.compiler.hazards import Hazard, hazards_with_cap
from firmtoken.compiler.machine import Machine, describe_machine, uses_graphs
from firmtoken.compiler.situation import describe_situation
from firmtoken.compiler.tensor_bytes import align_up
from firmtoken.schema.profile import Profile

CHUNK_UNIT = 64
"""Tokens of a GDN chunk; tiles, chunks and the pages of hybrid models are multiples of it."""

# Largest device in bytes, mixer tile, MoE chunk. 34 MB of arena buy 8 % of prefill on a 24 GB card (prototype.md 3).
GPU_SIZES = ((14 * 2**30, 2048, 2048), (48 * 2**30, 2048, 8192), (2**62, 4096, 8192))
CPU_SIZES = (512, 512)
COLUMN_BLOCKS = {"cuda": 4, "cpu": 1}
"""Blocks of the down projection's output, the largest buffer of a chunk: a fourth of its bytes, for reading its input
four times (prototype.md 3). CPU kernels gain nothing that RAM would miss."""
PREFILL_GRAPH_ROWS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048)
"""A short prompt is padded to the next of these: launching 700 kernels one by one takes longer than running them."""
BLOCK_UNIT = 64
"""A block is a multiple of so many columns, as the tiles of a grouped product are."""


def bound_batches(profile: Profile, facts: ModelFacts) -> Batches:
    """Limits of one launch; raises `PlanError` for a chunk that no program can run."""
    machine = describe_machine(profile.hardware)
    tile, chunk, because = _auto_sizes(machine, profile)
    asked = profile.schedule.prefill_chunk
    if asked != "auto":
        _refuse_odd_chunk(asked)
        tile, chunk = min(asked, tile), asked
        because = f"`schedule.prefill_chunk` asks for {asked:,} tokens"
    longest, why = _longest_piece(profile, facts)
    bound = align_up(longest, CHUNK_UNIT)
    if asked == "auto" and bound < chunk:
        tile, chunk = min(tile, bound), bound
        because = f"{why} {longest:,} tokens"
    _refuse_long_extend(profile.schedule.on_demand_below, tile)
    return Batches(
        max_num_seqs=profile.serving.requests,
        graph_batch_sizes=graph_batch_sizes(profile.serving.requests),
        prefill_graph_rows=(short_prompt_rows(machine.kind, tile) if uses_graphs(profile) else ()),
        mixer_tile=tile,
        moe_chunk=chunk,
        columns=column_blocks(describe_machine(profile.hardware).kind, facts.hidden_size),
        because=because,
    )


def short_prompt_rows(kind: str, tile: int) -> tuple[int, ...]:
    """The lengths of a short prompt that a device of this kind captures, if it captures any."""
    return tuple(rows for rows in PREFILL_GRAPH_ROWS if rows <= tile) if kind == "cuda" else ()


def column_blocks(kind: str, hidden_size: int) -> int:
    """As many as the device likes, if blocks of that many are whole units; else half as many."""
    blocks = COLUMN_BLOCKS[kind]
    while blocks > 1 and hidden_size % (blocks * BLOCK_UNIT):
        blocks //= 2
    return blocks


def _longest_piece(profile: Profile, facts: ModelFacts) -> tuple[int, str]:
    """The most tokens that one launch can ever get, and why."""
    prompt, span = _longest_prompt(profile, facts), profile.schedule.prefill_span
    if span != "auto" and span < prompt:
        return span, "`schedule.prefill_span` asks for"
    return prompt, "no prompt is longer than"


def graph_batch_sizes(requests: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `requests` itself."""
    powers = [1 << power for power in range(requests.bit_length()) if 1 << power < requests]
    return (*powers, requests)


def _auto_sizes(machine: Machine, profile: Profile) -> tuple[int, int, str]:
    if machine.kind == "cpu":
        return (*CPU_SIZES, "a CPU gains nothing from larger launches")
    tile, chunk = next(sizes for most, *sizes in GPU_SIZES if machine.capacity <= most)
    because = f"mixers in tiles of {tile:,} keep activations small, experts pay off at {chunk:,}"
    situation = describe_situation(profile, cache=None)
    for hazard, cap in hazards_with_cap("prefill_chunk", situation):
        if cap < chunk:
            tile, chunk, because = min(tile, cap), cap, _capped(hazard, cap)
    return tile, chunk, because


def _capped(hazard: Hazard, cap: int) -> str:
    return f"capped at {cap:,} tokens by {hazard.id}: {hazard.effect}"


def _refuse_odd_chunk(asked: int) -> None:
    if asked % CHUNK_UNIT == 0:
        return
    near = max(CHUNK_UNIT, round(asked / CHUNK_UNIT) * CHUNK_UNIT)
    raise PlanError(
        (
            Refusal(
                field="schedule.prefill_chunk",
                message=f"a chunk of `{asked}` tokens is no multiple of {CHUNK_UNIT}",
                hint=f"did you mean `{near}`?",
                code="contradiction",
            ),
        )
    )


def _refuse_long_extend(asked: int | Literal["auto"], tile: int) -> None:
    # `extend` is one tile: prompts of `asked` - 1 tokens must still fit.
    if asked == "auto" or asked - 1 <= tile:
        return
    raise PlanError(
        (
            Refusal(
                field="schedule.on_demand_below",
                message=f"on demand takes one mixer tile of {tile:,} tokens at most, not `{asked - 1}`",
                hint=f"set it to at most {tile + 1}",
                code="contradiction",
            ),
        )
    )


def _longest_prompt(profile: Profile, facts: ModelFacts) -> int:
    context = profile.serving.context
    return min(context, facts.max_positions) if isinstance(context, int) else facts.max_positions
