"""The embedded checkpoint into the rows of a plan for a GPU: codes as they are, and the same numbers as on the CPU."""

from collections.abc import Mapping

import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.weight_sections import weight_sections
from firmtoken.runtime.engine.views import DTYPES
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.expert_slots import make_arena
from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.weights.load import load
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.schema.load import load_profile
from firmtoken.schema.references import shipped_folder

FOLDER = shipped_folder() / "weights" / "tiny-moe"


class Memory:
    """Every row and every slot of a plan in ordinary memory."""

    def __init__(self, plan: Plan) -> None:
        self.rows: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
        experts = plan.experts
        size = (sum(experts.slots_per_layer), experts.slot_bytes)
        self.arena = torch.zeros(size, dtype=torch.uint8)
        self.per_layer = experts.per_layer

    def sections(self, weight: Weight, ordinal: int) -> Mapping[str, torch.Tensor]:
        raw = torch.zeros(weight.bytes, dtype=torch.uint8)
        sections = weight_sections(weight.shape, weight.parts).values()
        found = self.rows[weight.name, ordinal] = {
            s.name: raw[s.offset : s.offset + s.bytes].view(DTYPES[s.dtype]).view(s.shape)
            for s in sections
        }
        return found

    def experts(self, layer: int) -> torch.Tensor:
        return self.arena[layer * self.per_layer :][: self.per_layer]

    def filled(self, layer: int) -> None:
        """Nothing waits for it."""

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


def loaded(profile: str) -> tuple[Plan, Memory]:
    overrides = ["model=ft:models/tiny-moe", "serving.context=1k"]
    plan = compile_profile(load_profile(profile, overrides).profile, CARDS)
    memory = Memory(plan)
    load(plan, preflight(plan, FOLDER), memory, lambda *_: None)
    return plan, memory


@pytest.fixture(scope="module")
def on_a_gpu() -> tuple[Plan, Memory]:
    return loaded("h200-qwen")


@pytest.fixture(scope="module")
def on_the_cpu() -> tuple[Plan, Memory]:
    return loaded("tiny-cpu-resident")


def rows_of(sections: Mapping[str, torch.Tensor], weight: Weight) -> torch.Tensor:
    """fp32 numbers of a row, each matrix times its own scale."""
    rows, first = [], 0
    for index, part in enumerate(weight.parts):
        at = slice(first, first + part.rows)
        match part.format:
            case "fp8":
                rows.append(sections["codes"][at].float() * sections["scales"][index])
            case "nvfp4":
                factor = float(sections["globals"][index])
                rows.append(dequantise(sections["packed"][at], sections["scale"][at], factor))
            case _:
                coded = len(sections["codes"]) if "codes" in sections else 0
                at = slice(first - coded, first - coded + part.rows)
                rows.append(sections["rows"][at].float())
        first += part.rows
    return torch.cat(rows)


def test_the_numbers_of_every_row_are_those_on_the_cpu(
    on_a_gpu: tuple[Plan, Memory], on_the_cpu: tuple[Plan, Memory]
) -> None:
    (plan, memory), (_, wanted) = on_a_gpu, on_the_cpu
    by_name = {weight.name: weight for weight in plan.weights}
    assert memory.rows.keys() == wanted.rows.keys()
    for (name, ordinal), sections in memory.rows.items():
        numbers = rows_of(sections, by_name[name])
        assert torch.equal(numbers, wanted.rows[name, ordinal]["rows"]), name


def test_joined_matrices_keep_different_scales(on_a_gpu: tuple[Plan, Memory]) -> None:
    _, memory = on_a_gpu
    for name, part, count in (("in_proj", "scales", 2), ("qkv_proj", "scales", 3)):
        scales = memory.rows[name, 0][part]
        assert len(set(scales.tolist())) == count
    assert len(memory.rows["shared_gate_up", 0]["globals"]) == 2
    assert memory.rows["in_proj", 0]["rows"].dtype == torch.bfloat16


def test_packed_experts_are_the_numbers_on_the_cpu(
    on_a_gpu: tuple[Plan, Memory], on_the_cpu: tuple[Plan, Memory]
) -> None:
    (plan, memory), (cpu_plan, wanted) = on_a_gpu, on_the_cpu
    assert (plan.experts.format, plan.experts.placement) == ("nvfp4", "resident")
    packed = make_arena(memory.arena, plan.experts.slot_parts).matrices
    plain = make_arena(wanted.arena, cpu_plan.experts.slot_parts).matrices
    for slot in range(0, len(memory.arena), 7):
        for index, name in enumerate(("gate", "up", "down")):
            factor = float(packed["globals"][slot][index])
            numbers = dequantise(packed[name][slot], packed[f"{name}_scale"][slot], factor)
            assert torch.equal(numbers, plain[name][slot])
