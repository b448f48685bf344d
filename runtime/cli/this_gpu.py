"""Which GPU of this machine a plan gets, and what keeps it from running there: no torch, no CUDA context (D15)."""

from collections.abc import Iterator, Mapping

from firmtoken.compiler.conditions import version
from firmtoken.compiler.hazard_effects import said
from firmtoken.compiler.hazards import find_hazard, holds
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.situation import Situation
from firmtoken.runtime.memory.gpus import FoundGpu, find_gpus

MIB, GIB = 2**20, 2**30
ROOM_BYTES = 64 * MIB
"""Added to what others hold, in a hint: they may take a little more by the time it is followed."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_gpu(gpus: tuple[FoundGpu, ...], wanted: str) -> FoundGpu | None:
    """The plan's device (`auto`, an index or a UUID) among them; `auto` is the one with the most free memory."""
    if wanted == "auto":
        return max(gpus, key=lambda gpu: gpu.free, default=None)
    return next((gpu for gpu in gpus if wanted in (str(gpu.index), gpu.uuid)), None)


def engine_environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes the engine see the GPU that was chosen and checked, where there are several; raises `NoNvml`.

    A person's own CUDA_VISIBLE_DEVICES (D17) stands where the profile says `auto`.
    """
    wanted = plan.device.index
    if plan.device.kind != "cuda" or (wanted == "auto" and VISIBLE in environ):
        return {}
    gpus = find_gpus()
    gpu = choose_gpu(gpus, wanted)
    return {VISIBLE: gpu.uuid} if gpu is not None and len(gpus) > 1 else {}


def differences(plan: Plan, gpu: FoundGpu) -> Iterator[tuple[str, str]]:
    """What keeps this GPU from running the plan: a sentence, and what mends it."""
    gpu_of_plan = plan.hardware["gpu"]
    assert isinstance(gpu_of_plan, dict)
    planned = str(gpu_of_plan["compute_capability"])
    if gpu.capability != planned:
        yield (
            f"the {gpu.name} here has compute capability {gpu.capability}, and the plan"
            f" `{plan.profile.name}` is made for {planned}",
            "choose a profile of this card, or plan for it: "
            f"`--set hardware.gpu.compute_capability={gpu.capability}`",
        )
    yield from _old_driver(plan, gpu)
    # What the driver and other programs hold is inside the profile's reserve.
    needed, name = plan.memory.device.total, plan.profile.name
    if needed > gpu.free:
        others = sum(holder.bytes for holder in gpu.holders)
        held = ", ".join(f"process {one.pid} {one.bytes / GIB:.2f} GiB" for one in gpu.holders)
        yield (
            f"the plan `{name}` needs {needed / GIB:.2f} GiB of the {gpu.name}, {gpu.free / GIB:.2f} GiB are free"
            + (f" ({held})" if others else ""),
            "end other programs on it, or plan beside them: "
            f"`--set hardware.gpu.memory={gpu.total // MIB}MiB"
            f" --set hardware.gpu.reserve={(gpu.total - gpu.free + ROOM_BYTES) // MIB}MiB`",
        )


def _old_driver(plan: Plan, gpu: FoundGpu) -> Iterator[tuple[str, str]]:
    """H-83 of the driver that is loaded: the one that the profile lists is an assumption about this machine."""
    software = plan.hardware["software"]
    assert isinstance(software, dict)
    hazard = find_hazard("H-83")
    situation = Situation(
        found={
            "cuda": version(str(software["cuda"] or "")) or None,
            "driver": version(gpu.driver) or None,
        }
    )
    if holds(hazard, situation):
        yield (
            f"the NVIDIA driver here is {gpu.driver}; {said(hazard, situation)}",
            f"install {hazard.alternative}; `nvidia-smi` shows the one that is loaded",
        )
