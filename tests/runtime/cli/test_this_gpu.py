"""What the driver says of this machine's GPUs, and what a plan makes of it; the driver is made up."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.this_gpu import VISIBLE, choose_gpu, differences, engine_environment
from firmtoken.runtime.memory.gpus import PACKAGE, FoundGpu, NoNvml, find_gpus

GIB = 2**30
Install = Callable[..., None]


class NvmlError(Exception):
    """What the package raises."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(free, ...)`: a driver with one GPU for each number of free bytes."""

    def make(
        *free: int,
        init: Exception | None = None,
        capability: tuple[int, int] = (9, 0),
        driver: str = "580.159.04",
    ) -> None:
        def start() -> None:
            if init is not None:
                raise init

        process = SimpleNamespace(pid=4711, usedGpuMemory=3 * GIB)
        unknown = SimpleNamespace(pid=4712, usedGpuMemory=None)
        nvml = SimpleNamespace(
            NVMLError=NvmlError,
            nvmlInit=start,
            nvmlShutdown=lambda: None,
            nvmlSystemGetDriverVersion=lambda: driver,
            nvmlDeviceGetCount=lambda: len(free),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(
                total=140 * GIB, free=free[index]
            ),
            nvmlDeviceGetCudaComputeCapability=lambda _: capability,
            nvmlDeviceGetName=lambda _: b"NVIDIA H200",
            nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
            nvmlDeviceGetComputeRunningProcesses=lambda _: [process, unknown],
        )
        monkeypatch.setitem(sys.modules, PACKAGE, nvml)  # type: ignore[arg-type]  # as good as one

    return make


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_argument("h200-qwen", ["hardware.gpu.memory=24GiB"]).plan


def told(plan: Plan, gpu: FoundGpu | None) -> list[tuple[str, str]]:
    assert gpu is not None
    return list(differences(plan, gpu))


def test_a_gpu_with_room_runs_the_plan(install: Install, plan: Plan) -> None:
    install(139 * GIB)
    [gpu] = find_gpus()
    assert (gpu.name, gpu.capability, gpu.free) == ("NVIDIA H200", "9.0", 139 * GIB)
    assert told(plan, gpu) == []


def test_who_holds_the_memory_is_said_and_the_settings_that_plan_beside_them_hold(
    install: Install, plan: Plan
) -> None:
    install(10 * GIB)
    [(message, hint)] = told(plan, choose_gpu(find_gpus(), "auto"))
    assert "needs 23.7" in message and "10.00 GiB are free" in message
    assert "process 4711 3.00 GiB" in message
    beside = compile_argument("h200-qwen", re.findall(r"--set ([^\s`]+)", hint)).plan
    assert told(beside, choose_gpu(find_gpus(), "auto")) == []


def test_another_capability_is_said_with_both(install: Install, plan: Plan) -> None:
    install(139 * GIB, capability=(8, 9))
    [(message, hint)] = told(plan, choose_gpu(find_gpus(), "0"))
    assert "compute capability 8.9" in message and "made for 9.0" in message
    assert "--set hardware.gpu.compute_capability=8.9" in hint


def test_a_driver_too_old_for_the_plan_is_said_before_anything_is_downloaded(
    install: Install, plan: Plan
) -> None:
    install(139 * GIB, driver="550.54.14")
    [(message, hint)] = told(plan, choose_gpu(find_gpus(), "auto"))
    assert message.startswith("the NVIDIA driver here is 550.54.14; H-83 (CUDA from 13.0, ")
    assert hint.startswith("install a driver of 580 or later; ")
    for young in ("580.65.06", "591.86"):
        install(139 * GIB, driver=young)
        assert told(plan, choose_gpu(find_gpus(), "auto")) == []


def test_a_profile_that_names_no_cuda_runs_with_any_driver(install: Install, plan: Plan) -> None:
    install(139 * GIB, driver="550.54.14")
    software = {"cuda": None, "driver": None}
    unknown = replace(plan, hardware={**plan.hardware, "software": software})
    assert told(unknown, choose_gpu(find_gpus(), "auto")) == []


def test_the_device_is_chosen_as_the_plan_says(install: Install) -> None:
    install(1 * GIB, 5 * GIB, 3 * GIB)
    gpus = find_gpus()
    found = [choose_gpu(gpus, wanted) for wanted in ("auto", "2", "GPU-0", "7")]
    assert [gpu and gpu.index for gpu in found] == [1, 2, 0, None]


def test_of_several_gpus_the_engine_sees_the_one_that_was_checked(
    install: Install, plan: Plan
) -> None:
    install(1 * GIB, 50 * GIB)
    second = replace(plan, device=replace(plan.device, index="0"))
    mine = {VISIBLE: "0"}
    assert engine_environment(plan, {}) == {VISIBLE: "GPU-1"}
    assert engine_environment(second, {}) == engine_environment(second, mine) == {VISIBLE: "GPU-0"}
    assert engine_environment(plan, mine) == {}
    install(50 * GIB)
    assert engine_environment(plan, {}) == {}


def test_a_driver_that_does_not_answer_is_a_sentence(install: Install) -> None:
    install(init=NvmlError("Driver/library version mismatch"))
    with pytest.raises(NoNvml, match="does not answer: Driver/library version mismatch"):
        find_gpus()


def test_a_gpu_that_is_lost_while_it_is_asked_is_a_sentence(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(50 * GIB)

    def lose(_: int) -> None:
        raise NvmlError("GPU is lost")

    monkeypatch.setattr(sys.modules[PACKAGE], "nvmlDeviceGetMemoryInfo", lose)
    with pytest.raises(NoNvml, match="does not answer: GPU is lost"):
        find_gpus()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(NoNvml, match="nvidia-ml-py") as caught:
        find_gpus()
    assert "firmtoken[gpu]" in caught.value.hint
