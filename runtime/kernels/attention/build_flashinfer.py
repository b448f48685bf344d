"""Compiles one module of flashinfer with nvcc, in a process of its own: JSON on stdin, JSON on stdout.

`FLASHINFER_CUDA_ARCH_LIST` names the capability; flashinfer's cache keeps the result, by version and capability.
"""

import os
import subprocess
import sys
import time

import flashinfer
import msgspec
import torch
from flashinfer.jit import gen_batch_prefill_module

from firmtoken.runtime.kernels.attention.flashinfer_module import FlashinferBuilt, FlashinferModule

KV_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def build(module: FlashinferModule) -> FlashinferBuilt:
    """Generate and compile it; raises where nvcc objects, whose words are then on stderr.

    It is not linked: that needs the driver's library, which a machine without a GPU may not have.
    """
    begun = time.monotonic()
    spec = gen_batch_prefill_module(
        module.backend,
        torch.bfloat16,
        KV_DTYPES[module.kv_dtype],
        torch.bfloat16,
        torch.int32,
        head_dim_qk=module.head_dim,
        head_dim_vo=module.head_dim,
        pos_encoding_mode=0,
        use_sliding_window=False,
        use_logits_soft_cap=False,
        use_fp16_qk_reduction=False,
    )
    spec.write_ninja()
    ninja = ("ninja", "-C", str(spec.build_dir))
    listed = subprocess.run(
        (*ninja, "-t", "targets", "rule", "cuda_compile"),
        capture_output=True,
        text=True,
        check=True,
    )
    objects = [line for line in listed.stdout.splitlines() if line.endswith(".o")]
    subprocess.run((*ninja, *objects), check=True)
    return FlashinferBuilt(
        flashinfer=flashinfer.__version__,
        objects=len(objects),
        seconds=time.monotonic() - begun,
    )


def main() -> None:
    """One request, one result; what flashinfer, ninja and nvcc print goes to stderr."""
    module = msgspec.json.decode(sys.stdin.buffer.read(), type=FlashinferModule)
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    built = build(module)
    with os.fdopen(answer, "wb") as file:
        file.write(msgspec.json.encode(built))


if __name__ == "__main__":
    main()
