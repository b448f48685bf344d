"""Hand-made models and machines, so that the split can be held against published ledgers to the byte."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from firmtoken.compiler.facts import (
    Candidates,
    Laid,
    ModelFacts,
    Split,
    TensorFacts,
    Workspace,
)
from firmtoken.compiler.fits import Fits
from firmtoken.compiler.machine import describe_machine
from firmtoken.compiler.passes.bound_batches import bound_batches
from firmtoken.compiler.passes.choose_cache import choose_cache
from firmtoken.compiler.passes.split_memory import split_memory
from firmtoken.compiler.plan import Programs, Streams
from firmtoken.compiler.program import Program
from firmtoken.schema.load import load_profile
from firmtoken.schema.profile import Profile

PROFILE = Path(__file__).resolve().parents[3] / "profiles" / "4090-qwen.yaml"
MIB, GIB = 2**20, 2**30

PRO_6000 = (
    "hardware.gpu.memory=95GiB",
    "hardware.gpu.bandwidth=1792GB/s",
    "hardware.gpu.flops.bf16=504TFLOPS",
    "hardware.link.h2d=52GB/s",
    "hardware.link.gather=46GB/s",
    "hardware.host.memory=256GiB",
    "hardware.host.pinnable=200GiB",
)


def tensor(name: str, num_bytes: int, *, read_by_decode: bool = True) -> TensorFacts:
    return TensorFacts(
        name=name,
        axis="",
        shape=(num_bytes,),
        dtype="u8",
        bytes=num_bytes,
        parts=(),
        read_by_decode=read_by_decode,
    )


QWEN = ModelFacts(
    family="qwen3_5_moe",
    layer_kinds=("linear", "linear", "linear", "full") * 10,
    hidden_size=2048,
    vocab_size=248_320,
    max_positions=262_144,
    tensors=(
        tensor("embed", 1_017_118_720, read_by_decode=False),
        tensor("dense", 1_688_644_824),
    ),
    experts_per_layer=256,
    experts_per_token=8,
    expert_width=512,
    shared_width=512,
    kv_elements_per_token=10_240,
    conv_elements=24_576,
    recurrent_elements=524_288,
    active_parameters=2_420_000_000,
    attention_flops_per_pair=4 * 10 * 16 * 256,
)
MINIMAX = replace(
    QWEN,
    layer_kinds=("full",) * 62,
    hidden_size=3072,
    max_positions=196_608,
    tensors=(
        tensor("embed", 1_229_193_216, read_by_decode=False),
        tensor("dense", 6_789_573_632),
    ),
    expert_width=1536,
    kv_elements_per_token=126_976,
    conv_elements=0,
    recurrent_elements=0,
    active_parameters=9_750_000_000,
    attention_flops_per_pair=4 * 62 * 48 * 128,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with the bytes of its layouts (facts/prototype.md 2.1)."""

    facts: ModelFacts
    slot_bytes: int
    activation_bytes: int
    workspaces: dict[str, int]
    table_bytes: int
    launches: int


CASES = {
    "qwen": Case(
        facts=QWEN,
        slot_bytes=1_769_728,
        activation_bytes=174_063_616,
        workspaces={"flashinfer": 150_994_944, "cublas": 8_388_608},
        table_bytes=245_760,
        launches=496,
    ),
    "minimax": Case(
        facts=MINIMAX,
        slot_bytes=7_962_880,
        activation_bytes=304_087_040,
        workspaces={"flashinfer": 165_675_008, "cublas": 33_554_432},
        table_bytes=380_928,
        launches=750,
    ),
}

EMPTY = Program(
    captured=False, closed=True, sizes=(), bounds={}, entry_waits=(), body=(), blocks={}
)
PROGRAMS = Programs(decode=EMPTY, prefill=EMPTY, extend=EMPTY, park=None)
STREAMS = Streams(layout="single", names=("main",), edges=(), because="a test")


def candidates_of(case: Case) -> Candidates:
    resident = Laid(
        placement="resident",
        programs=PROGRAMS,
        streams=STREAMS,
        buffers=(),
        activation_bytes=case.activation_bytes,
        parked_bytes_per_token=0,
        input_bytes=524_288,
        host_input_bytes=524_288,
        table_bytes=0,
        launches=case.launches,
        prefill_launches=0,
    )
    offload = replace(
        resident,
        placement="offload",
        streams=replace(STREAMS, layout="two", names=("main", "link")),
        parked_bytes_per_token=2 * case.facts.hidden_size,
        table_bytes=case.table_bytes,
    )
    laid = {"resident": resident, "offload": offload, "waves": offload}
    workspaces = tuple(
        Workspace(name=name, bytes=size, source="documented", because="a test")
        for name, size in case.workspaces.items()
    )
    return Candidates(
        laid=laid,
        slot_bytes=case.slot_bytes,
        bank_row_bytes=case.slot_bytes,
        workspaces=dict.fromkeys(laid, workspaces),
    )


@lru_cache(maxsize=256)
def profile_of(*overrides: str) -> Profile:
    return load_profile(str(PROFILE), overrides).profile


def refit_of(case: Case) -> Callable[[Profile], Fits]:
    def refit(profile: Profile) -> Fits:
        return Fits(
            profile,
            case.facts,
            bound_batches(profile, case.facts),
            choose_cache(profile, case.facts),
            candidates_of(case),
            describe_machine(profile.hardware),
        )

    return refit


def split_case(case: Case, profile: Profile) -> Split:
    refit = refit_of(case)
    return split_memory(refit(profile), refit)


def fits_of(name: str, *overrides: str) -> Fits:
    profile = profile_of(*(PRO_6000 if name == "minimax" else ()), *overrides)
    return refit_of(CASES[name])(profile)


@pytest.fixture(scope="session")
def split_of() -> Callable[..., Split]:
    """`split_of("qwen", "serving.context=64k")` on a 4090; `split_of("minimax", ...)` on a PRO 6000."""

    def split(name: str, *overrides: str) -> Split:
        machine = PRO_6000 if name == "minimax" else ()
        return split_case(CASES[name], profile_of(*machine, *overrides))

    return split


@pytest.fixture(scope="session")
def split_any() -> Callable[[Case, Profile], Split]:
    return split_case


@pytest.fixture(scope="session")
def make_profile() -> Callable[..., Profile]:
    return profile_of


@pytest.fixture(scope="session")
def qwen_with() -> Callable[..., Case]:
    """The Qwen case with other numbers."""
    return lambda **changes: replace(CASES["qwen"], **changes)


@pytest.fixture(scope="session")
def fits_for() -> Callable[..., Fits]:
    """The weighing bench of a case."""
    return fits_of
