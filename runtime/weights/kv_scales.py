"""The checkpoint's scales of FP8 keys and values. They are stored here with scale 1.0, which must be no narrower.

E4M3 has a sign, four bits of exponent and a largest number of 448: a scale below 1 only moves numbers nearer to it, and
ModelOpt raises such scales to 1 when it exports. A scale above 1 says that numbers above 448 were seen: these would be
clipped, so it is refused rather than left out (facts/models.md 7.15).
"""

from collections.abc import Iterator
from functools import partial

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.conventions import KV_SCALES
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import TensorHeader
from firmtoken.runtime.weights.reader import Reader
from firmtoken.runtime.weights.reading import BytesOf, Job

LARGEST_SCALE = 1.0


def kv_scale_jobs(plan: Plan, checkpoint: Checkpoint) -> Iterator[Job]:
    """One job for each scale of the text model, where keys and values are kept in FP8."""
    if plan.kv_cache.dtype != "fp8":
        return
    for name, header in checkpoint.tensors.items():
        if name.startswith(checkpoint.prefix) and name.endswith(KV_SCALES):
            yield Job(tensors=(header,), do=partial(require_no_wider, header))


def require_no_wider(header: TensorHeader, bytes_of: BytesOf) -> None:
    """Raises `LoadError` for a scale under which some number would be clipped at scale 1.0, or that is no scale."""
    scale = float(Reader(bytes_of).read(header).max())
    if not 0 < scale <= LARGEST_SCALE:
        raise LoadError(
            file=header.file,
            tensor=header.name,
            expected=f"a scale above 0, at most {LARGEST_SCALE:g}, since FP8 keys and values are kept with scale 1",
            found=f"{scale:g}",
            hint="set `cache.kv_dtype` to `bf16`",
        )
