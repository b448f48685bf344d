"""A plan meets a machine that is smaller than its profile says."""

import re
from pathlib import Path

import pytest

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.fit import require_fit, require_runnable
from firmtoken.runtime.cli.this_machine import available_bytes, has_nvidia_gpu

GIB = 2**30
MIB = 2**20


def machine(root: Path, *, free: int) -> Path:
    """The root of a file system in which so many bytes are free."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: 99 kB\nMemAvailable: {free // 1024} kB\nSwapFree: 0 kB\n"
    )
    return root


def limit(folder: Path, most: str, *, used: int, reclaimable: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {reclaimable}\n")


def refusal(root: Path, *overrides: str) -> Failure:
    with pytest.raises(Failure) as failure:
        require_fit(compile_argument("tiny-cpu", overrides), root=root)
    assert failure.value.exit_code == 3
    return failure.value


@pytest.mark.parametrize("more", [(), ("serving.requests=8",)])
def test_a_context_that_leaves_experts_off_the_device_is_told_the_longest_that_runs(
    more: tuple[str, ...],
) -> None:
    with pytest.raises(Failure) as failure:
        require_runnable(compile_argument("4090-qwen", ("serving.context=max", *more)))
    hint = failure.value.hint
    assert hint is not None
    [override] = re.findall(r"^`--set (serving.context=[0-9]+)` runs$", hint)
    followed = compile_argument("4090-qwen", (override, *more))
    require_runnable(followed)
    assert f"up to {followed.plan.context.effective:,} tokens of context" in failure.value.text


@pytest.mark.parametrize(
    "asked",
    [
        ("4090-qwen", "serving.context=max", "experts.placement=offload"),
        ("4090-qwen", "experts.placement=offload"),
        ("4090-qwen", "serving.context=max", "experts.slots=200"),
        ("4090-qwen", "serving.pool=300k"),
        ("4090-minimax",),
    ],
    ids=lambda asked: " ".join(asked),
)
def test_no_shorter_context_is_named_where_none_runs(asked: tuple[str, ...]) -> None:
    name, *overrides = asked
    with pytest.raises(Failure) as failure:
        require_runnable(compile_argument(name, overrides))
    assert "serving.context" not in str(failure.value.hint)
    assert "tokens of context" not in failure.value.text


def test_a_machine_with_less_than_the_profile_says_runs_the_same_plan(tmp_path: Path) -> None:
    compiled = compile_argument("tiny-cpu", ())
    assert compiled.loaded.profile.hardware.host.memory > 2 * GIB
    require_fit(compiled, root=machine(tmp_path, free=2 * GIB))


def test_another_plan_is_refused_with_what_differs_and_the_line_that_runs_it(
    tmp_path: Path,
) -> None:
    """The host pays for snapshots with an eighth of what it has left."""
    compiled = compile_argument("tiny-cpu", ())
    memory = compiled.plan.memory
    root = machine(tmp_path, free=memory.device.total + memory.host.total + 8 * MIB)
    failure = refusal(root)
    assert re.search(r"^~ kv_cache.snapshot_slots: 32 -> \d+$", failure.text, re.MULTILINE)
    assert "effective context 16,384 of 32,768" in failure.text
    assert failure.hint is not None
    assert failure.hint.startswith("this runs that one: --set ")
    settings = re.findall(r"--set (\S+)", failure.hint)
    require_fit(compile_argument("tiny-cpu", settings), root=root)


def test_too_little_memory_is_said_with_both_numbers(tmp_path: Path) -> None:
    failure = refusal(machine(tmp_path, free=GIB // 2))
    assert re.match(
        r"the plan needs \d\.\d\d GiB of host memory, 0\.50 GiB are free$", failure.text
    )


def test_what_is_said_to_fit_into_less_memory_does(tmp_path: Path) -> None:
    root = machine(tmp_path, free=18 * GIB)
    with pytest.raises(Failure) as failure:
        require_fit(compile_argument("4090-qwen", ()), root=root)
    assert failure.value.hint is not None
    smaller = compile_argument("4090-qwen", re.findall(r"--set ([\w.=]+)", failure.value.hint))
    assert smaller.plan.memory.host.total <= 18 * GIB
    hint = refusal(machine(tmp_path / "cpu", free=GIB // 2)).hint
    assert hint == "end other programs, or plan a smaller arena: `hardware.cpu.memory`"


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Failure) as failure:
        require_fit(compile_argument("4090-qwen", ()), root=machine(tmp_path, free=GIB))
    assert failure.value.exit_code == 3
    lines = failure.value.text.splitlines()
    assert lines[0].startswith("this machine has no NVIDIA GPU, and the plan `4090-qwen` needs one")
    assert lines[1].startswith("  hint: run it where that GPU is")
    assert lines[2].endswith("GiB of host memory, 1.00 GiB are free")


def test_the_limit_of_a_container_counts_without_its_file_pages(tmp_path: Path) -> None:
    root = machine(tmp_path, free=8 * GIB)
    assert available_bytes(root) == 8 * GIB
    top = root / "sys/fs/cgroup"
    limit(top, "max", used=5, reclaimable=0)
    assert available_bytes(root) == 8 * GIB
    limit(top, str(4 * GIB), used=3 * GIB, reclaimable=GIB)
    assert available_bytes(root) == 2 * GIB


def test_every_limit_above_the_process_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, free=8 * GIB)
    (root / "proc/self/cgroup").write_text("4:memory:/old\n0::/a/b\n")
    limit(root / "sys/fs/cgroup/a/b", str(4 * GIB), used=0, reclaimable=0)
    limit(root / "sys/fs/cgroup/a", str(3 * GIB), used=0, reclaimable=0)
    assert available_bytes(root) == 3 * GIB


@pytest.mark.parametrize(
    "shown", ["proc/driver/nvidia/gpus/0000:01:00.0", "dev/nvidia0", "dev/dxg"]
)
def test_a_gpu_is_seen_natively_by_its_device_alone_and_through_wsl(
    tmp_path: Path, shown: str
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()  # the driver's own: it shows no GPU
    assert not has_nvidia_gpu(tmp_path)
    (tmp_path / shown).mkdir(parents=True)
    assert has_nvidia_gpu(tmp_path)
