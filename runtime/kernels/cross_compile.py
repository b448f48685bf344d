"""Compiles Triton kernels for cards that are not here, each in a process that has so long and no longer (no torch)."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from firmtoken.compiler.operands import LaunchForm

REGISTERS_PER_BLOCK = 65_536
"""Of one block, capability 5.0 to 12.0 (CUDA C++ Programming Guide, technical specifications)."""
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
"""Programs along x, y, z (the same table)."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel with the constants of a plan's row."""

    builds: str
    """The card's."""
    constants: dict[str, int | float | str]
    capability: tuple[int, int]
    format: str
    """Of the deciding operand."""
    num_rows: int
    """Of its largest launch."""
    forms: tuple[LaunchForm, ...]
    """All in which it is launched."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What one build takes."""

    name: str
    registers: int
    """Of a thread."""
    local_bytes: int
    """Of a thread, in device memory: what did not fit into registers."""
    shared_bytes: int
    """Of a block."""
    threads: int
    """Of a block."""
    grid: tuple[int, ...]
    seconds: float
    """With a full compiler cache next to nothing."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All builds of a kernel."""

    triton: str
    """The version that compiled them."""
    builds: tuple[Built, ...]


class NotCompiled(Exception):
    """There is no result, and why, as the end of a sentence: `did not end within 120 s`."""


def compile_kernel(request: Request, *, limit_s: float, environ: Mapping[str, str]) -> Result:
    """The result; raises `NotCompiled`."""
    answer = run_worker(
        "firmtoken.runtime.kernels.compile_kernel", request, limit_s=limit_s, environ=environ
    )
    return msgspec.json.decode(answer, type=Result)


def run_worker(
    module: str, request: msgspec.Struct, *, limit_s: float, environ: Mapping[str, str]
) -> bytes:
    """What a module, run as a program, answers to a request; raises `NotCompiled`.

    One that takes longer is ended with all that it started: compilers are processes of their own.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=dict(environ),
    )
    try:
        output, errors = process.communicate(msgspec.json.encode(request), timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise NotCompiled(f"did not end within {limit_s:g} s and was ended") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        raise NotCompiled(_said(errors, process.returncode))
    return output


def _said(errors: bytes, code: int) -> str:
    """The last line that calls itself an error, else the last: a caller of compilers speaks last and knows less."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\berror\b", line)]
    last = (named or lines or ["no word"])[-1]
    return f"ended with code {code}: {last[:500]}"


def unfit(built: Built, *, shared_memory_per_block: int) -> str:
    """Why this build cannot run, or not as meant; empty if it can."""
    if built.shared_bytes > shared_memory_per_block:
        return (
            f"wants {built.shared_bytes:,} B of shared memory a block, the card has "
            f"{shared_memory_per_block:,} B"
        )
    if built.local_bytes:
        return f"spills {built.local_bytes:,} B a thread to device memory, beside {built.registers} registers"
    if built.registers * built.threads > REGISTERS_PER_BLOCK:
        return (
            f"wants {built.registers} registers for each of {built.threads} threads, a block has "
            f"{REGISTERS_PER_BLOCK:,}"
        )
    for axis, programs, limit in zip("xyz", built.grid, GRID_LIMITS, strict=False):
        if programs > limit:
            return f"wants {programs:,} programs along {axis}, {limit:,} is the most"
    return ""
