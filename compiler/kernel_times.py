"""Seconds of what a kernel does, from a card's data sheet and the shares of it that were measured.

Bytes, decoding and products follow each other: that sum comes within 40 % of kernels of decode and of prefill on an
H200, both ways, and within 25 % of wholes (runtime/kernels/NOTES.md, "The estimate beside what was measured"). A CPU
decodes nothing: its products are FLOP at any number of rows.
"""

from firmtoken.compiler.computed_constants import EARLY_START
from firmtoken.compiler.estimate_constants import (
    ATTENTION_BLOCK,
    ATTENTION_BLOCK_S,
    ATTENTION_SHARE,
    BANDWIDTH_SHARE,
    DECODING,
    EARLY_LAUNCH_S,
    LANE_ROWS,
    LAUNCH_S,
    MULTIPLYING,
    PRODUCT_SHARE,
    TILE_ROWS,
)
from firmtoken.compiler.machine import Machine


def read_s(machine: Machine, num_bytes: float) -> float:
    """Device memory, read once."""
    return num_bytes / (BANDWIDTH_SHARE * machine.bandwidth)


def few_rows_s(machine: Machine, parameters: float, rows: float) -> float:
    """Weights with the rows of a decode step: decoded once, multiplied by lanes, beyond `LANE_ROWS` by tensor cores."""
    if machine.kind == "cpu":
        return _products_s(machine, parameters, rows)
    instructions = parameters * (DECODING + MULTIPLYING * min(rows, LANE_ROWS))
    more = max(0.0, rows - LANE_ROWS)
    return instructions / machine.instructions + _products_s(machine, parameters, more)


def many_rows_s(machine: Machine, parameters: float, rows: float) -> float:
    """Weights with the rows of a prompt: decoded once for each of the largest tiles, multiplied by tensor cores."""
    tiles = max(1.0, rows / TILE_ROWS[1])
    return _decoding_s(machine, parameters * tiles) + _products_s(machine, parameters, rows)


def grouped_rows_s(machine: Machine, parameters: float, rows: float) -> float:
    """The same for experts of a prompt with so many `rows` each, on average, half a tile of padding behind them."""
    if machine.kind == "cpu":
        return _products_s(machine, parameters, rows)
    tile = min(max(rows, TILE_ROWS[0]), TILE_ROWS[1])
    padded = rows + tile / 2
    tiles = max(1.0, padded / tile)
    return _decoding_s(machine, parameters * tiles) + _products_s(machine, parameters, padded)


def layer_attention_s(machine: Machine, flop: float, reach: int) -> float:
    """One layer's attention of a prompt's tokens, the last of which sees `reach`: arithmetic, or the way along them."""
    if machine.kind == "cpu":
        return flop / (PRODUCT_SHARE * machine.flops)
    way = -(-reach // ATTENTION_BLOCK) * ATTENTION_BLOCK_S
    return max(flop / (ATTENTION_SHARE * machine.flops), way)


def launch_s(machine: Machine) -> float:
    """A launch within a captured graph; a CPU has none."""
    if machine.kind == "cpu":
        return 0.0
    return EARLY_LAUNCH_S if machine.capability >= EARLY_START else LAUNCH_S


def _decoding_s(machine: Machine, weights: float) -> float:
    return 0.0 if machine.kind == "cpu" else weights * DECODING / machine.instructions


def _products_s(machine: Machine, parameters: float, rows: float) -> float:
    return 2 * parameters * rows / (PRODUCT_SHARE * machine.flops)
