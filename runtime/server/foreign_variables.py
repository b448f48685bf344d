"""Variables of the environment that alter torch or CUDA and are not ours (D17)."""

from collections.abc import Collection, Mapping

PREFIXES = (
    "ATEN_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "FLASHINFER_",
    "GOMP_",
    "KMP_",
    "LD_PRELOAD",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH",
    "TRITON_",
)
OURS = frozenset({"CUDA_VISIBLE_DEVICES"})
"""Read on purpose."""
HARMLESS = frozenset({"CUDA_HOME", "CUDA_PATH", "CUDA_VERSION"})
"""Facts that images and installers set for compilers."""


def foreign_variables(environ: Mapping[str, str], planned: Collection[str]) -> dict[str, str]:
    """Those that are set, sorted by name; what the plan sets itself is not foreign."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if name.startswith(PREFIXES)
        and name not in OURS
        and name not in HARMLESS
        and name not in planned
    }
