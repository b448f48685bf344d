"""A step that failed, in one sentence; and whether the engine can go on after it."""

import torch

from firmtoken.runtime.engine.program import LaunchFailed

MAX_IN_A_ROW = 3
"""So many failed steps without a good one between are no accident."""
NO_MEMORY_ON_CPU = "can't allocate memory"
"""What torch's allocator says; its class is RuntimeError."""


class EngineBroken(Exception):
    """The engine cannot go on; its process ends and another one begins."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether it asked for memory that is not there: nothing was written then, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and NO_MEMORY_ON_CPU in str(error)


def sentence(failed: LaunchFailed) -> str:
    """For the client and the log: "out of memory in `moe_down` (layer 3 of decode, stream `main`)"."""
    error = failed.__cause__
    if is_out_of_memory(error):
        return f"out of memory in {failed}"
    said = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    return f"{failed} failed: {name}: {said}" if said else f"{failed} failed: {name}"


def why_broken(failed: LaunchFailed, in_a_row: int, *, survives: bool) -> str:
    """Why the engine cannot go on; empty if it can."""
    if in_a_row >= MAX_IN_A_ROW:
        return f"{in_a_row} steps in a row failed, the last one: {sentence(failed)}"
    if not survives and not is_out_of_memory(failed.__cause__):
        return f"the device is in an unknown state: {sentence(failed)}"
    return ""
