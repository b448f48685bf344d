"""Numbers of every format to the bit, both exporters' conventions, rows that keep codes and a scale for each part."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.runtime.weights.conftest import VALUES, quantise_fp8, quantise_nvfp4, weight
from tests.runtime.weights.exports import spelled_nvfp4

from firmtoken.compiler.places import WeightPart
from firmtoken.compiler.weight_sections import weight_sections
from firmtoken.runtime.engine.views import DTYPES
from firmtoken.runtime.weights.checkpoint import open_checkpoint
from firmtoken.runtime.weights.conventions import COMPRESSED_TENSORS, CONVENTIONS, MODELOPT
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.fill import dense_jobs
from firmtoken.runtime.weights.kv_scales import kv_scale_jobs
from firmtoken.runtime.weights.preflight import DenseItem
from firmtoken.runtime.weights.reader import Reader, factor_of
from firmtoken.runtime.weights.reading import Job, read_batch
from firmtoken.runtime.weights.stored import Stored, find_expert, find_stored

MODULE = "model.layers.0.proj"
GLOBALS = (2.0**-15, 3.1e-5, 5.7030999e-05, 0.9999, 1.1e-8, 0.0123)


def written(folder: Path, parts: Mapping[str, torch.Tensor], module: str = MODULE) -> Stored:
    """One module of a checkpoint that has nothing else."""
    tensors = {module + suffix: tensor.contiguous() for suffix, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    stored = find_stored(open_checkpoint(folder), module)
    assert stored is not None
    return stored


def do(folder: Path, *jobs: Job) -> None:
    memory = torch.empty(2**20, dtype=torch.uint8)
    bytes_of = read_batch(folder, (), jobs, memory)
    for job in jobs:
        job.do(bytes_of)


def decoded(folder: Path, stored: Stored) -> torch.Tensor:
    found: list[torch.Tensor] = []
    job = Job(
        tensors=stored.tensors, do=lambda bytes_of: found.append(Reader(bytes_of).decode(stored))
    )
    do(folder, job)
    return found[0]


def all_codes(global_scale: float) -> dict[str, torch.Tensor]:
    """A row for each scale that is a number, with all sixteen codes in it."""
    codes = torch.arange(0, 16, 2, dtype=torch.uint8)
    scales = torch.tensor([*range(0x7F), 0x80], dtype=torch.uint8)
    return {
        ".weight": (codes | (codes + 1) << 4).expand(len(scales), 8).clone(),
        ".weight_scale": scales.view(-1, 1).view(torch.float8_e4m3fn),
        ".weight_scale_2": torch.tensor(global_scale),
    }


def value_of(code: int) -> float:
    return VALUES[code & 7] * (-1.0 if code & 8 else 1.0)


@pytest.mark.parametrize("global_scale", GLOBALS)
def test_every_code_with_every_scale_is_the_product_rounded_once(
    tmp_path: Path, global_scale: float
) -> None:
    parts = all_codes(global_scale)
    scales = parts[".weight_scale"].double().view(-1, 1)
    values = torch.tensor([value_of(code) for code in range(16)], dtype=torch.float64)
    # 2 + 4 + 24 significant bits: exact in fp64.
    wanted = (values * scales * parts[".weight_scale_2"].double()).float()
    found = decoded(tmp_path, written(tmp_path, parts))
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def test_every_code_of_fp8_is_the_product_rounded_once(tmp_path: Path) -> None:
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    matrix = codes.view(torch.float8_e4m3fn).view(2, -1)
    scale = torch.tensor(0.00123)
    stored = written(tmp_path, {".weight": matrix, ".weight_scale": scale})
    wanted = (matrix.double() * scale.double()).float()
    assert torch.equal(decoded(tmp_path, stored), wanted)


@pytest.mark.parametrize("seed", range(8))
def test_both_exporters_files_of_the_same_weights_give_identical_tensors(
    tmp_path: Path, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn((24, 64), generator=generator).mul(0.02 * (1 + seed)).bfloat16().float()
    parts = quantise_nvfp4(matrix)
    found = []
    for index, convention in enumerate(CONVENTIONS):
        folder = tmp_path / str(index)
        folder.mkdir()
        stored = written(folder, spelled_nvfp4(parts, matrix, convention))
        assert stored.global_scale is not None and stored.global_scale.shape == convention.scalar
        found.append(decoded(folder, stored))
    assert torch.equal(*found)


def test_a_divisor_of_bf16_weights_becomes_the_factor_that_modelopt_writes() -> None:
    bits = torch.arange(0x3000, 0x4500, dtype=torch.int32).to(torch.int16)
    amax = bits.view(torch.bfloat16).float()  # 5e-10 to 2040
    factors = [factor_of(divisor) for divisor in 2688 / amax]
    assert torch.equal(torch.tensor(factors), amax / 2688)


@pytest.mark.parametrize("divisor", [7.0, 12345.678, 3.3e7])
def test_any_other_divisor_becomes_its_reciprocal(divisor: float) -> None:
    exact = np.float32(1) / np.float32(divisor)
    assert factor_of(torch.tensor(divisor)) == float(exact)


@pytest.mark.parametrize(
    ("convention", "wrong", "sentence"),
    [
        (MODELOPT, 2688 / 0.2, "expected a scale between 1e-08 and 1, found 13440"),
        (COMPRESSED_TENSORS, 0.2 / 2688, "expected a divisor between 1 and 1e+08, found 7.4"),
    ],
    ids=["ModelOpt", "compressed-tensors"],
)
def test_a_global_of_the_other_convention_is_refused(
    tmp_path: Path, convention: Any, wrong: float, sentence: str
) -> None:
    matrix = torch.randn(8, 32)
    parts = spelled_nvfp4(quantise_nvfp4(matrix), matrix, convention)
    parts[convention.global_scale] = torch.full(convention.scalar, wrong)
    stored = written(tmp_path, parts)
    with pytest.raises(LoadError) as caught:
        decoded(tmp_path, stored)
    assert sentence in str(caught.value)
    assert caught.value.tensor == MODULE + convention.global_scale


def test_a_module_in_two_conventions_at_once_is_refused(tmp_path: Path) -> None:
    matrix = torch.randn(8, 32)
    parts = quantise_nvfp4(matrix)
    both = parts | spelled_nvfp4(parts, matrix, COMPRESSED_TENSORS)
    both[".weight_packed"] = parts[".weight"].clone()
    with pytest.raises(LoadError, match=r"proj\.weight_packed` in .*expected no .*, found both"):
        written(tmp_path, both)


def test_plain_numbers_beside_a_scale_are_refused(tmp_path: Path) -> None:
    parts = {".weight": torch.zeros(8, 32), ".weight_scale": torch.tensor(0.1)}
    with pytest.raises(LoadError, match=r"expected codes, since .*weight_scale` is beside it"):
        written(tmp_path, parts)


def row(shape: tuple[int, ...], *parts: tuple[int, str]) -> Any:
    names = tuple(f"model.part{index}" for index in range(len(parts)))
    found = weight("row", "", shape, *names)
    kept = tuple(WeightPart(rows=count, format=name) for count, name in parts)
    return SimpleNamespace(name="row", shape=shape, parts=kept, sources=names, add=found.add)


def sections_of(kept: Any) -> dict[str, torch.Tensor]:
    sections = weight_sections(kept.shape, kept.parts).values()
    raw = torch.full((max(s.offset + s.bytes for s in sections),), 0xFF, dtype=torch.uint8)
    return {
        s.name: raw[s.offset : s.offset + s.bytes].view(DTYPES[s.dtype]).view(s.shape)
        for s in sections
    }


def filled(
    folder: Path, kept: Any, modules: list[dict[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    tensors = {
        name + suffix: tensor.contiguous()
        for name, parts in zip(kept.sources, modules, strict=True)
        for suffix, tensor in parts.items()
    }
    save_file(tensors, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    found = tuple(find_stored(checkpoint, name) for name in kept.sources)
    assert None not in found
    sections = sections_of(kept)
    item: Any = DenseItem(weight=kept, ordinal=0, parts=found)  # type: ignore[arg-type]  # checked
    do(folder, *dense_jobs(item, sections))
    return sections


def test_fp8_parts_of_one_row_keep_their_codes_and_a_scale_each(tmp_path: Path) -> None:
    large, small = (quantise_fp8(torch.randn(rows, 32) * size) for rows, size in ((6, 1), (4, 0.1)))
    tail = torch.randn(3, 32).bfloat16()
    kept = row((13, 32), (6, "fp8"), (4, "fp8"), (3, "bf16"))
    found = filled(tmp_path, kept, [large, small, {".weight": tail}])
    codes = torch.cat((large[".weight"].view(torch.uint8), small[".weight"].view(torch.uint8)))
    assert torch.equal(found["codes"].view(torch.uint8), codes)
    scales = torch.stack((large[".weight_scale"], small[".weight_scale"]))
    assert scales[0] != scales[1] and torch.equal(found["scales"], scales)
    assert torch.equal(found["rows"], tail)


@pytest.mark.parametrize("convention", CONVENTIONS, ids=["ModelOpt", "compressed-tensors"])
def test_nvfp4_parts_of_one_row_keep_their_codes_and_a_global_each(
    tmp_path: Path, convention: Any
) -> None:
    matrices = [
        torch.randn(rows, 64).mul(size).bfloat16().float() for rows, size in ((6, 1), (4, 0.1))
    ]
    quantised = [quantise_nvfp4(matrix) for matrix in matrices]
    kept = row((10, 64), (6, "nvfp4"), (4, "nvfp4"))
    exported = [
        spelled_nvfp4(parts, matrix, convention)
        for parts, matrix in zip(quantised, matrices, strict=True)
    ]
    found = filled(tmp_path, kept, exported)
    for name, suffix in (("packed", ".weight"), ("scale", ".weight_scale")):
        wanted = torch.cat([parts[suffix].view(torch.uint8) for parts in quantised])
        assert torch.equal(found[name].view(torch.uint8), wanted)
    globals_ = torch.stack([parts[".weight_scale_2"] for parts in quantised])
    assert torch.equal(found["globals"], globals_) and globals_[0] > 5 * globals_[1]


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_an_fp8_code_that_is_no_number_is_refused(tmp_path: Path, code: int) -> None:
    parts = quantise_fp8(torch.randn(6, 32))
    parts[".weight"].view(torch.uint8)[5, 31] = code
    with pytest.raises(LoadError, match="expected only finite numbers, found nan"):
        filled(tmp_path, row((6, 32), (6, "fp8")), [parts])


def test_experts_stacked_by_layer_are_cut_to_each_experts_three_matrices(tmp_path: Path) -> None:
    gate_up, down = torch.randn(3, 8, 16), torch.randn(3, 16, 4)
    stem = "model.layers.{l}.mlp.experts."
    sources = tuple(f"{stem}{{e}}.{part}_proj" for part in ("gate", "up", "down"))
    named = {f"{stem.format(l=5)}gate_up_proj": gate_up, f"{stem.format(l=5)}down_proj": down}
    save_file(named, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    for expert in range(3):
        parts = find_expert(checkpoint, sources, 5, expert, per_layer=3)
        assert parts is not None
        numbers = [decoded(tmp_path, part) for part in parts]
        assert torch.equal(torch.cat(numbers[:2]), gate_up[expert])
        assert torch.equal(numbers[2], down[expert])
    assert find_expert(checkpoint, sources, 4, 0, per_layer=3) is None


@pytest.mark.parametrize("shape", [(4, 8, 16), (2, 8, 16), (3, 7, 16), (3, 128)])
def test_a_stack_of_other_experts_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    names = ("model.mlp.experts.gate_up_proj", "model.mlp.experts.down_proj")
    stacks = (torch.zeros(shape), torch.zeros(3, 16, 4))
    save_file(dict(zip(names, stacks, strict=True)), tmp_path / "model.safetensors")
    sources = tuple(f"model.mlp.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down"))
    with pytest.raises(LoadError) as caught:
        find_expert(open_checkpoint(tmp_path), sources, 0, 0, per_layer=3)
    assert caught.value.tensor == names[0]
    assert caught.value.expected == "[3, 2 x rows, columns] of 3 experts in BF16, F16 or F32"


def test_fp32_in_a_row_that_is_kept_in_bf16_is_rounded(tmp_path: Path) -> None:
    matrix = torch.randn(6, 32)
    found = filled(tmp_path, row((6, 32), (6, "bf16")), [{".weight": matrix}])
    assert torch.equal(found["rows"], matrix.bfloat16())


def kv_plan(dtype: str) -> Any:
    return SimpleNamespace(kv_cache=SimpleNamespace(dtype=dtype))


@pytest.mark.parametrize("scale", [1.0, 0.031, 0.9999])
def test_kv_scales_that_scale_1_is_no_narrower_than_are_accepted(
    tmp_path: Path, scale: float
) -> None:
    named = {"model.layers.0.self_attn.k_proj.k_scale": torch.tensor(scale)}
    save_file(named, tmp_path / "model.safetensors")
    [job] = kv_scale_jobs(kv_plan("fp8"), open_checkpoint(tmp_path))
    do(tmp_path, job)


@pytest.mark.parametrize("scale", [1.01, 0.0, -1.0, float("nan")])
def test_a_kv_scale_under_which_keys_would_be_clipped_is_refused(
    tmp_path: Path, scale: float
) -> None:
    name = "model.layers.0.self_attn.v_proj.v_scale"
    save_file({name: torch.tensor(scale)}, tmp_path / "model.safetensors")
    [job] = kv_scale_jobs(kv_plan("fp8"), open_checkpoint(tmp_path))
    with pytest.raises(LoadError) as caught:
        do(tmp_path, job)
    assert (caught.value.tensor, caught.value.found) == (name, f"{scale:g}")
    assert caught.value.hint == "set `cache.kv_dtype` to `bf16`"


def test_kv_scales_are_not_read_for_keys_in_another_format(tmp_path: Path) -> None:
    named = {"model.layers.0.self_attn.k_proj.k_scale": torch.tensor(7.0)}
    save_file(named, tmp_path / "model.safetensors")
    assert not list(kv_scale_jobs(kv_plan("bf16"), open_checkpoint(tmp_path)))
