"""After an engine is ready no launch asks for a form of a kernel that was not launched before: nothing is compiled.

Found on a GPU as a first prompt of 6,008 tokens that took 0.9 s instead of 0.15: two addresses were no multiples of 16.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.runtime.engine.recorded_forms import Recording, constant, function_name

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.check_kernels import kernel_requests
from firmtoken.runtime.kernels import load_entry
from firmtoken.runtime.kernels.builds import Build, Launch

DEVICE = Path(__file__).parents[2] / "device"
QWEN = str(DEVICE / "h200-synthetic.yaml")
TINY = str(DEVICE / "tiny-cuda.yaml")
ALONE = (1, 7, 17, 600, 640, 1912, 2049, 2065, 3001, 6008, 8191, 16_389)
ROUNDS = 6
"""Of prompts that come at once."""
Record = Callable[..., Recording]


def named(overrides: tuple[str, ...]) -> str:
    """`tiny-cuda.yaml serving.requests=1`"""
    return " ".join((Path(overrides[0]).name, *overrides[1:]))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    return lambda profile, *overrides: Recording(monkeypatch, profile, overrides)


def traffic(recording: Recording) -> list[tuple[int, ...]]:
    """Prompts of any length, alone and together, as long as the plan allows, but of few spans."""
    rng, schedule = random.Random(7), recording.plan.schedule
    requests = schedule.max_num_seqs
    most = min(recording.plan.context.effective - 4, 3 * schedule.prefill_span)
    together = [
        tuple(rng.choice((rng.randrange(1, 40), rng.randrange(1, 3000))) for _ in range(count))
        for count in (rng.randrange(1, requests + 2) for _ in range(ROUNDS))
    ]
    alone: list[tuple[int, ...]] = [(length,) for length in ALONE]
    return [tuple(min(length, most) for length in prompts) for prompts in alone + together]


@pytest.mark.parametrize(
    "overrides",
    [
        (QWEN,),
        pytest.param((QWEN, "serving.requests=1"), marks=pytest.mark.slow),
        (TINY,),
        (TINY, "serving.requests=1"),
        pytest.param((TINY, "serving.requests=16", "serving.context=16k"), marks=pytest.mark.slow),
        (TINY, "schedule.prefill_chunk=64", "serving.requests=5"),
        pytest.param(
            (TINY, "schedule.prefill_span=100", "serving.requests=3"), marks=pytest.mark.slow
        ),
        (TINY, "graphs=off", "serving.requests=1"),
        pytest.param(("h200-minimax", "schedule.prefill_chunk=12288"), marks=pytest.mark.slow),
        ("4090-qwen3-30b", "serving.context=600"),
    ],
    ids=named,
)
def test_nothing_is_compiled_after_ready(record: Record, overrides: tuple[str, ...]) -> None:
    recording = record(*overrides)
    recording.warm_up()
    ready = len(recording.forms)
    assert ready
    for prompts in traffic(recording):
        recording.serve(*prompts)
        assert recording.forms[ready:] == [], prompts


@pytest.mark.parametrize(
    "overrides",
    [
        (QWEN,),
        (TINY, "kernels.shared_expert.decode=triton_nvfp4", "serving.requests=3"),
        pytest.param(("h200-minimax", "kernels.linear.decode=triton_bf16"), marks=pytest.mark.slow),
        ("4090-qwen3-30b",),
        pytest.param(("4090-ornith",), marks=pytest.mark.slow),
    ],
    ids=named,
)
def test_every_form_that_a_start_makes_is_one_that_evidence_is_compiled_from(
    record: Record, overrides: tuple[str, ...]
) -> None:
    recording = record(*overrides)
    recording.warm_up()
    known = {as_launched(build) for build in planned_builds(recording.plan)}
    made = {
        (form.function, tuple(pair[:2] for pair in form.arguments), form.constants, form.num_warps)
        for form in recording.forms
    }
    assert made - known == set()


def planned_builds(plan: Plan) -> Iterator[Build]:
    for _, request in kernel_requests(plan):
        for form in request.forms:
            launch = Launch(
                format=request.format, num_rows=request.num_rows, operands=form.operands
            )
            yield from load_entry(request.builds)(launch, **request.constants)


def as_launched(build: Build) -> tuple[object, ...]:
    constants = frozenset((name, constant(value)) for name, value in build.constants.items())
    return function_name(build.function), tuple(build.arguments.items()), constants, build.num_warps


def test_what_is_compiled_depends_on_no_address_and_no_integer_of_a_launch(record: Record) -> None:
    for profile, *overrides in (
        (QWEN,),
        (TINY, "kernels.shared_expert.decode=triton_nvfp4", "serving.requests=3"),
        ("h200-minimax", "kernels.linear.decode=triton_bf16"),
    ):
        recording = record(profile, *overrides)
        for prompts in traffic(recording)[:20]:
            recording.serve(*prompts)
        assert [name for form in recording.forms for name in form.looked_at] == []


@pytest.mark.parametrize("profile", [QWEN, TINY], ids=lambda profile: Path(profile).name)
def test_a_start_asks_for_nothing_that_was_not_compiled_ahead(record: Record, profile: str) -> None:
    recording = record(profile)
    recording.compile_ahead()
    ahead = set(recording.forms)
    assert ahead
    recording.warm_up()
    assert set(recording.forms) == ahead
