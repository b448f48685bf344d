"""Programmatic dependent launch: a kernel that starts while the one before it still runs (device functions in Triton).

On capability 9.0 and above a launch may say that its programs can start as soon as all of the launch before have
started; they then wait in the kernel for its end, at the place where they need what it wrote. What is read before that
place must be older: written by launches before the last one, each of which waited for its own last one, or weights.
Nothing may be written before it, and every program waits, also one that has nothing to do: a launch that could end
without would tell the next one nothing of those before. Elsewhere a kernel is compiled without (EARLY off), and
launches follow one another.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl


@triton.jit
def start_next_after_last():
    """Waits for the launch before this one, then lets the next one start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


def launch_options(*, early: bool) -> dict[str, bool]:
    """What the launch itself must be told."""
    return {"launch_pdl": True} if early else {}
