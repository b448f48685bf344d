"""What the host hands to the device for a program: numbers of each row, sequence and launch, in one copy."""

from collections.abc import Mapping

from tests.compiler.plan_checker_model import Json, up

FIELD = 16
"""Every tensor of a batch begins at a multiple of it."""
SEQUENCE = (4, 4, 4, 4, 8, 8)
"""Bytes of a draw: temperature, top_p, top_k, min_p; seed and position."""


def batch_bytes(plan: Json, asked: Json) -> Mapping[str, int]:
    """Of a decode step, one row a sequence, and of a span, a chunk in tiles; each tile and the chunk is a launch."""
    schedule = plan["schedule"]
    sequences, chunk = schedule["max_num_seqs"], schedule["moe_chunk"]
    longest = asked["model"]["geometry"]["max_position_embeddings"]
    pages = -(-longest // plan["kv_cache"]["page_size"])
    of_sequences = [*(sequences * width for width in SEQUENCE), sequences * up(pages * 4, FIELD)]
    # Whose row it is; in a span by tile and by chunk, and states to copy (2 numbers) and to restore (3).
    decode = [sequences * 4]
    span = [chunk * 4, chunk * 4, sequences * 2 * 4, sequences * 3 * 4]
    tiles = -(-chunk // schedule["mixer_tile"])
    return {
        "decode.batch": _padded(
            *_rows(sequences), *decode, *_launches(1, sequences), *of_sequences
        ),
        "span.batch": _padded(
            *_rows(chunk), *span, *_launches(tiles + 1, sequences), *of_sequences
        ),
    }


def _rows(rows: int) -> tuple[int, ...]:
    """Token, position, and where its keys go."""
    return rows * 4, rows * 4, rows * 8


def _launches(launches: int, sequences: int) -> tuple[int, ...]:
    """How many rows are real; each sequence's first row and the end; where it starts; its live and shadow state; where
    a page ends in it. Of each launch whole fields."""
    numbers = (1, sequences + 1, sequences, sequences, sequences, sequences)
    return tuple(launches * up(count * 4, FIELD) for count in numbers)


def _padded(*tensors: int) -> int:
    return sum(up(size, FIELD) for size in tensors)
