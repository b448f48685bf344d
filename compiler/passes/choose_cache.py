"""`choose_cache`: prefix cache, page size and the number format of keys and values (D4)."""

from dataclasses import replace

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import CacheChoice, ModelFacts
from firmtoken.compiler.machine import describe_machine
from firmtoken.compiler.quantities import size
from firmtoken.compiler.tensor_bytes import ELEMENT_BYTES
from firmtoken.schema.profile import Profile

HYBRID_PAGE = 64
"""Boundaries of pages, snapshots and GDN chunks coincide."""
PLAIN_PAGE = 16
KEPT = "keeps the beginnings of prompts, so that a next turn computes only what is new"


def choose_cache(profile: Profile, facts: ModelFacts) -> CacheChoice:
    """What is cached and how; raises `PlanError` for a KV dtype that the device has no kernel for."""
    hybrid = facts.num_linear > 0
    kind = describe_machine(profile.hardware).kind
    cache_type, type_because = _choose_type(profile, hybrid=hybrid)
    page_size, page_because = _choose_page_size(profile, hybrid=hybrid)
    dtype, dtype_because = _choose_kv_dtype(profile, kind)
    conv_bytes = ELEMENT_BYTES["fp32" if kind == "cpu" else "bf16"]
    state_bytes = (
        facts.conv_elements * conv_bytes + facts.recurrent_elements * ELEMENT_BYTES["fp32"]
    )
    return CacheChoice(
        type=cache_type,
        page_size=page_size,
        kv_dtype=dtype,
        kv_bytes_per_element=ELEMENT_BYTES[dtype],
        state_bytes_per_sequence=facts.num_linear * state_bytes,
        snapshots=cache_type == "hybrid_radix",
        because=f"{type_because}; {page_because}; {dtype_because}",
    )


def without_snapshots(cache: CacheChoice) -> CacheChoice:
    """For a host that has no room for one snapshot: no prefix cache. One asked for by name is refused before."""
    if not cache.snapshots:
        return cache
    room = size(cache.state_bytes_per_sequence)
    return replace(
        cache,
        type="none",
        snapshots=False,
        because=f"none: the host has no room for a single snapshot of {room}; {cache.because}",
    )


def _choose_type(profile: Profile, *, hybrid: bool) -> tuple[str, str]:
    asked = profile.cache.type
    if asked != "auto":
        return asked, f"`cache.type` asks for {asked}"
    if hybrid:
        return (
            "hybrid_radix",
            f"hybrid_radix {KEPT}; linear layers hold a state, so that takes snapshots of it",
        )
    return "radix", f"radix {KEPT}"


def _choose_page_size(profile: Profile, *, hybrid: bool) -> tuple[int, str]:
    asked = profile.cache.page_size
    if asked != "auto":
        return asked, f"`cache.page_size` asks for {asked}"
    if hybrid:
        return HYBRID_PAGE, f"pages of {HYBRID_PAGE} tokens end where snapshots may lie"
    return PLAIN_PAGE, f"pages of {PLAIN_PAGE} tokens waste little at a request's end"


def _choose_kv_dtype(profile: Profile, kind: str) -> tuple[str, str]:
    asked, declared = profile.cache.kv_dtype, profile.model.quantization.kv_cache
    if kind == "cpu":
        if asked not in ("auto", "fp32"):
            raise PlanError((_not_on_cpu(asked),))
        return "fp32", "the CPU device computes in fp32"
    if asked == "fp32":
        raise PlanError((_not_on_gpu(asked),))
    if asked != "auto":
        return asked, f"`cache.kv_dtype` asks for {_spelled(asked)}"
    if declared is not None:
        return declared, f"the checkpoint declares keys and values in {_spelled(declared)}"
    return "bf16", "the checkpoint declares no format for keys and values"


def _spelled(dtype: str) -> str:
    # A checkpoint's own scales are not applied; the loader refuses those that would have a wider range.
    return "fp8, kept at scale 1.0" if dtype == "fp8" else dtype


def _not_on_cpu(asked: str) -> Refusal:
    return Refusal(
        field="cache.kv_dtype",
        message=f"the CPU device keeps keys and values in fp32, not `{asked}`",
        hint="remove `cache.kv_dtype`, or set it to `fp32`",
        code="no_kernel",
    )


def _not_on_gpu(asked: str) -> Refusal:
    return Refusal(
        field="cache.kv_dtype",
        message=f"no attention kernel for a GPU takes `{asked}` keys and values",
        hint="use `bf16` or `fp8`",
        code="no_kernel",
    )
