"""Launches of Triton kernels that compile and launch nothing: what they need is known only by who launches them.

Triton compiles a kernel when it is first launched, one after the other: a plan of Qwen3.6 took a core of the H200's
host a minute. Two thirds of that are C++ without the interpreter's lock, or processes of `ptxas` and the C compiler, so
threads share it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any  # arguments differ by kernel

from triton import AsyncCompileMode
from triton.runtime._async_compile import FutureKernel
from triton.runtime.jit import JITFunction


@contextmanager
def compile_only(threads: int) -> Iterator[None]:
    """Launches only compile, so many at a time; when it ends all are ready to be launched.

    That holds for the whole process, so no other thread may launch Triton kernels meanwhile. Raises what a compiler
    raises.
    """
    launch = JITFunction.run
    kernels: dict[int, Any] = {}

    def compile_it(function: Any, *arguments: Any, **options: Any) -> Any:
        kernel = launch(function, *arguments, **{**options, "warmup": True})
        kernels[id(kernel)] = kernel
        return kernel

    JITFunction.run = compile_it
    try:
        with ThreadPoolExecutor(threads) as pool:
            with AsyncCompileMode(pool):
                yield
            # What Triton leaves to the first launch: a launcher, for which it runs the C compiler, and the module.
            list(pool.map(_loaded, kernels.values()))
    finally:
        JITFunction.run = launch


def _loaded(kernel: Any) -> Any:
    """What launches it. Triton 3.6 hands out a promise that is not the kernel itself, as that of 3.7 is."""
    compiled = kernel.result() if isinstance(kernel, FutureKernel) else kernel
    return compiled.run
