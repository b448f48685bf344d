"""Which module of flashinfer a plan's attention needs, and how it is asked for (no torch, no flashinfer)."""

import msgspec


class FlashinferModule(msgspec.Struct, frozen=True, kw_only=True):
    """A batch prefill module: causal, no sliding window, no cap of the logits."""

    backend: str
    """`fa2` or `fa3`."""
    kv_dtype: str
    """`bf16` or `fp8`; queries and outputs are bf16."""
    head_dim: int


class FlashinferBuilt(msgspec.Struct, frozen=True, kw_only=True):
    """That nvcc compiled it, and of which version it is."""

    flashinfer: str
    objects: int
    """Object files."""
    seconds: float
    """Next to nothing if flashinfer's own cache had it."""
