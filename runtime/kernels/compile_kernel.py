"""Compiles all builds of one Triton kernel for a capability, in a process of its own: JSON on stdin, JSON on stdout.

It needs Triton, no GPU and no torch. `cross_compile.py` starts it, because a compiler can hang or kill its process.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from firmtoken.runtime.kernels import load_entry
from firmtoken.runtime.kernels.builds import Build, Launch, merged
from firmtoken.runtime.kernels.cross_compile import Built, Request, Result

WARP_LANES = 32
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_build(build: Build, capability: tuple[int, int]) -> Built:
    """What the build takes on that card; whatever Triton or ptxas object to is raised as they say it."""
    begun = time.monotonic()
    major, minor = capability
    names = (*build.arguments, *build.constants)
    pointers = [name for name, kind in build.arguments.items() if kind.startswith("*")]
    source = ASTSource(
        build.function,
        {**build.arguments, **dict.fromkeys(build.constants, "constexpr")},
        constexprs=dict(build.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", 10 * major + minor, WARP_LANES),
        options={"num_warps": build.num_warps},
    )
    used = _resources(compiled.asm["cubin"])
    return Built(
        name=build.name,
        registers=used["REG"],
        local_bytes=used["STACK"] + used["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        threads=WARP_LANES * build.num_warps,
        grid=build.grid,
        seconds=time.monotonic() - begun,
    )


def _resources(cubin: bytes) -> dict[str, int]:
    """`REG`, `STACK`, `SHARED`, `LOCAL` of the one function of a cubin; spills are part of STACK."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name: int(amount) for name, amount in re.findall(r"\b([A-Z]+):(\d+)", told)}


def main() -> None:
    """One request, one result."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    builds_of = load_entry(request.builds)
    launches = (
        Launch(format=request.format, num_rows=request.num_rows, operands=form.operands)
        for form in request.forms
    )
    builds = merged(
        build for launch in launches for build in builds_of(launch, **request.constants)
    )
    built = tuple(compile_build(build, request.capability) for build in builds)
    sys.stdout.buffer.write(msgspec.json.encode(Result(triton=triton.__version__, builds=built)))


if __name__ == "__main__":
    main()
