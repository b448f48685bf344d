"""What a hazard's condition can ask about a plan: its machine, its software, its sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

from firmtoken.compiler.conditions import Found, Numbers, version
from firmtoken.compiler.facts import CacheChoice
from firmtoken.compiler.machine import pinnable_bytes
from firmtoken.schema.hardware import Gpu, Hardware, Software
from firmtoken.schema.profile import Profile

FIELDS: Mapping[str, str] = {
    "capability": "hardware.gpu.compute_capability",
    "memory": "hardware.gpu.memory",
    "shared_memory": "hardware.gpu.shared_memory_per_block",
    "os": "hardware.software.os",
    "torch": "hardware.software.torch",
    "triton": "hardware.software.triton",
    "flashinfer": "hardware.software.flashinfer",
    "cuda": "hardware.software.cuda",
    "nvcc": "hardware.software.nvcc",
    "toolkit": "hardware.software.nvcc",
    "driver": "hardware.software.driver",
    "banks": "hardware.host.banks",
    "pinnable_percent": "hardware.host.pinnable",
    "graphs": "graphs",
    "requests": "serving.requests",
    "context": "serving.context",
    "expert_slots": "experts.slots",
    "slot_words": "experts.slots",
    "kv_dtype": "cache.kv_dtype",
    "page_size": "cache.page_size",
    "head_dim": "model.geometry.head_dim",
    "hidden_size": "model.geometry.hidden_size",
    "expert_width": "model.geometry.moe_intermediate_size",
}
"""Subject -> the profile's field that says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Subject -> what the profile says; `None` where it says nothing. Empty for a CPU, which no hazard concerns."""

    found: Mapping[str, Found]


def describe_situation(profile: Profile, cache: CacheChoice | None) -> Situation:
    """All subjects; those of the KV cache only once it is chosen."""
    gpu = profile.hardware.gpu
    if gpu is None:
        return Situation(found={})
    found: dict[str, Found] = {
        **_machine(profile.hardware, gpu),
        **_software(profile.hardware.software),
        **_sizes(profile),
        "graphs": profile.graphs,
        "page_size": (cache.page_size,) if cache is not None else None,
        "kv_dtype": cache.kv_dtype if cache is not None else None,
    }
    return Situation(found=found)


def installed(software: Software) -> Mapping[str, str | None]:
    """Package -> the version that a hardware profile lists for it, if any."""
    return {
        "torch": software.torch,
        "triton": software.triton,
        "flashinfer": software.flashinfer,
        "cuda": software.cuda,
        "nvcc": software.nvcc,
        "driver": software.driver,
    }


def _machine(hardware: Hardware, gpu: Gpu) -> dict[str, Found]:
    host = hardware.host
    return {
        "capability": gpu.capability,
        "memory": (gpu.memory,),
        "shared_memory": (gpu.shared_memory_per_block,),
        "banks": host.banks,
        "pinnable_percent": (100 * pinnable_bytes(hardware) // host.memory,),
    }


def _software(software: Software) -> dict[str, Found]:
    versions = {package: version(text or "") for package, text in installed(software).items()}
    # A name such as `nightly` has no number to compare: as good as unknown.
    found: dict[str, Found] = {package: numbers or None for package, numbers in versions.items()}
    return {**found, "os": software.os, "toolkit": _toolkit(versions["nvcc"], versions["cuda"])}


def _toolkit(nvcc: Numbers, cuda: Numbers) -> str | None:
    if not nvcc or not cuda:
        return None
    return "same" if nvcc[0] == cuda[0] else "other"


def _sizes(profile: Profile) -> dict[str, Found]:
    geometry, slots = profile.model.geometry, profile.experts.slots
    if slots == "auto":
        slots = geometry.num_layers * geometry.num_experts
    matrix = geometry.hidden_size * geometry.moe_intermediate_size
    context = profile.serving.context
    if not isinstance(context, int):
        context = geometry.max_position_embeddings
    return {
        "head_dim": (geometry.head_dim,),
        "hidden_size": (geometry.hidden_size,),
        "expert_width": (geometry.moe_intermediate_size,),
        "expert_slots": (slots,),
        "slot_words": (slots * matrix // 4,),
        "requests": (profile.serving.requests,),
        "context": (context,),
    }
