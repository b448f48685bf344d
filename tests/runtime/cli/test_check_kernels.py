"""`ft check --kernels`: what is compiled, what is not, what does not fit, and what is written down of it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.runtime.cli.console import ft

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli import check_kernels as checking
from firmtoken.runtime.cli import compiled as compiling
from firmtoken.runtime.cli import evidence
from firmtoken.runtime.cli.check import check_profiles
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.evidence import compiled_kernels, read_records, source_hash
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.cross_compile import Built, NotCompiled, Request, Result

BUILT = Built(
    name="1 row",
    registers=94,
    local_bytes=0,
    shared_bytes=16,
    threads=128,
    grid=(15_520, 1024),
    seconds=1.0,
)
Check = Callable[..., int]
GPU_KERNELS = [
    ("add_norm", "triton"),
    ("attention", "triton_prefill_fp8"),
    ("attention", "triton_split_kv"),
    ("combine", "triton"),
    ("combine", "triton_blocks"),
    ("copy", "triton"),
    ("embed", "triton"),
    ("gdn", "triton_chunk"),
    ("gdn", "triton_step"),
    ("head", "triton_nvfp4"),
    ("linear", "triton_fp8"),
    ("linear", "triton_fp8_tiles"),
    ("moe_down", "triton_grouped_nvfp4"),
    ("moe_down", "triton_nvfp4"),
    ("moe_gate_up", "triton_grouped_nvfp4"),
    ("moe_gate_up", "triton_nvfp4"),
    ("qk_norm_rope_kv", "triton"),
    ("restore", "triton"),
    ("route", "triton"),
    ("route", "triton_tiles"),
    ("sample", "triton"),
    ("shared_expert", "triton_nvfp4_tiles"),
]
"""Of 4090-qwen, those with source."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Evidence of this test alone."""
    for module in (checking, compiling):
        monkeypatch.setattr(module, "evidence_folder", lambda: tmp_path / "evidence")
    return tmp_path / "evidence"


@pytest.fixture
def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`check(result)`: `ft check --kernels 4090-qwen` with what the compiler answers; requests are kept."""

    def checked(
        answer: Result | NotCompiled,
        *profiles: str,
        record: bool = False,
        kept: list[Request] | None = None,
    ) -> int:
        def compile_kernel(
            request: Request, *, limit_s: float, environ: Mapping[str, str]
        ) -> Result:
            if kept is not None:
                kept.append(request)
            if isinstance(answer, NotCompiled):
                raise answer
            return answer

        monkeypatch.setattr(checking, "compile_kernel", compile_kernel)
        return check_profiles(
            profiles or ("4090-qwen",), (), kernels=True, record=record, environ={"PATH": ""}
        )

    return checked


def result(triton: str = "3.7.1", **change: object) -> Result:
    values = {name: getattr(BUILT, name) for name in BUILT.__struct_fields__}
    return Result(triton=triton, builds=(Built(**{**values, **change}),))


def heads(plan: Plan) -> list[str]:
    return [row.evidence for row in plan.kernels if row.op == "head"]


def test_the_plans_constants_capability_and_largest_launch_are_asked_for(check: Check) -> None:
    kept: list[Request] = []
    assert check(result(), kept=kept) == 0
    by_builds = {request.builds.rpartition(":")[2]: request for request in kept}
    head = by_builds["head_builds"]
    assert head.builds == "firmtoken.runtime.kernels.linear.nvfp4_builds:head_builds"
    [card] = [card for card in CARDS if (card.op, card.name) == ("head", "triton_nvfp4")]
    assert head.constants == {"eps": 1e-6, **dict(card.constants), "early": 0}
    assert (head.capability, head.format, head.num_rows) == ((8, 9), "nvfp4", 4)
    assert [form.operands["w"].shape for form in head.forms] == [(248_320, 2048)]
    linear = by_builds["product_builds"]
    widths = {form.operands["w"].shape for form in linear.forms}
    assert widths == {(9216, 2048), (12_352, 2048), (2048, 4096)}
    assert by_builds["add_norm_builds"].num_rows == 8192  # reads prompts too


def test_each_build_is_a_row_and_what_was_not_compiled_is_named(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(result()) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    heading = (
        "kernels for capability 8.9, compiled with Triton 3.7.1, not run (registers of a thread, "
    )
    assert heading + "shared memory of a block, programs of the largest launch):" in lines
    assert lines[lines.index("head triton_nvfp4") + 1] == "1 row 94 16 B 15,520 x 1,024"
    told = " ".join(lines)
    assert "not compiled, having no Triton source: mark none_cuda, snapshot copy_engine" in told


def test_no_number_is_cut_where_a_name_is_long_and_no_row_is_there_twice(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    long = result(name="tiles of 128 rows with shares", grid=(248_320, 65_535, 65_535)).builds[0]
    other = result(name=long.name, grid=(16, 512)).builds[0]
    assert check(Result(triton="3.7.1", builds=(long, other, long))) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    start = lines.index("moe_gate_up triton_grouped_nvfp4")
    assert lines[start + 1 : start + 3] == [
        "tiles of 128 rows with shares 94 16 B 248,320 x 65,535 x 65,535",
        "tiles of 128 rows with shares 94 16 B 16 x 512",
    ]
    assert not lines[start + 3].startswith("tiles")
    assert "..." not in out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"shared_bytes": 204_800},
            "it wants 204,800 B of shared memory a block, the card has 101,376 B",
        ),
        ({"local_bytes": 64}, "it spills 64 B a thread to device memory, beside 94 registers"),
        ({"grid": (1, 65_536)}, "it wants 65,536 programs along y, 65,535 is the most"),
    ],
    ids=["shared", "spills", "grid"],
)
def test_what_does_not_fit_is_3_with_its_numbers(
    check: Check, capsys: pytest.CaptureFixture[str], change: dict[str, object], told: str
) -> None:
    assert check(result(**change), record=True) == 3
    *_, first, hint = capsys.readouterr().err.splitlines()
    assert first == (f"`triton` of `embed`, built for 1 row, does not fit capability 8.9: {told}")
    assert hint.startswith("  hint: ")


def test_each_kernel_is_named_on_stderr_before_it_is_compiled(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes without a word look like a program that hangs."""
    assert check(result()) == 0
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert lines[0] == f"compiling kernel 1 of {len(lines)}: embed triton"
    assert {line.partition(": ")[2] for line in lines} == {" ".join(k) for k in GPU_KERNELS}
    assert "compiling" not in told.out


def test_what_does_not_fit_is_not_recorded(check: Check, folder: Path) -> None:
    check(result(local_bytes=64), record=True)
    assert not folder.exists()


def test_a_compiler_that_fails_or_hangs_is_3_and_the_next_profile_is_checked(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        check(NotCompiled("did not end within 180 s and was ended"), "4090-qwen", "tiny-cpu") == 3
    )
    told = capsys.readouterr()
    assert told.err.splitlines()[:2] == [
        f"compiling kernel 1 of {len(GPU_KERNELS)}: embed triton",
        "`triton` of `embed`: compiling it for capability 8.9 did not end within 180 s and was ended",
    ]
    assert "ft:tiny-cpu: ok" in told.out
    assert "kernels: nothing to compile" in told.out


def test_a_record_labels_the_plans_of_its_versions_only(check: Check, folder: Path) -> None:
    assert heads(compile_argument("4090-qwen", ()).plan) == ["documented", "documented"]
    assert check(result(), record=True) == 0
    assert [path.name for path in folder.iterdir()] == ["kernels-sm89-triton-3.7.1.yaml"]
    assert heads(compile_argument("4090-qwen", ()).plan) == ["compiled", "compiled"]
    for other in (
        ("4090-qwen", "hardware.software.triton=3.6.0"),
        ("h200-qwen", "hardware.software.triton=3.7.1"),
    ):
        assert heads(compile_argument(other[0], other[1:]).plan) == ["documented", "documented"]


def test_another_triton_than_the_targets_is_said(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(result("3.6.0"), record=True) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "the target has Triton 3.7.1, so this shows nothing certain about it" in told
    assert heads(compile_argument("4090-qwen", ()).plan) == ["documented", "documented"]


def test_a_record_counts_until_its_source_changes(
    check: Check, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(result(), record=True)
    assert len(compiled_kernels("8.9", folder)) == len(GPU_KERNELS)
    monkeypatch.setattr(evidence, "source_hash", lambda builds: "another")
    assert compiled_kernels("8.9", folder) == ()


def test_a_second_record_takes_the_place_of_the_first(check: Check, folder: Path) -> None:
    check(result(registers=90), record=True)
    check(result(registers=94), record=True)
    records = read_records(folder / "kernels-sm89-triton-3.7.1.yaml")
    assert [(record.op, record.kernel) for record in records] == GPU_KERNELS
    assert {build.registers for record in records for build in record.builds} == {94}
    [record] = [record for record in records if record.op == "head"]
    assert record.source == source_hash("firmtoken.runtime.kernels.linear.nvfp4_builds:head_builds")


@pytest.mark.parametrize("text", ["- {op: head}", "a: [", "text", "- {op: 1, kernel: 2}"])
def test_a_broken_record_is_named(folder: Path, text: str) -> None:
    folder.mkdir()
    path = folder / "kernels-sm89-triton-3.7.1.yaml"
    path.write_text(text)
    with pytest.raises(Failure, match="is not evidence that can be read") as failure:
        compile_argument("4090-qwen", ())
    assert (failure.value.exit_code, str(path) in failure.value.text) == (1, True)


def test_a_folder_that_cannot_be_made_is_1(
    check: Check, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write_text("a file")
    assert check(result(), record=True) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"cannot make `{folder}`: ")


def test_without_triton_nothing_is_called_ok(
    check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checking, "find_spec", lambda name: None)
    assert check(result()) == 3
    told = capsys.readouterr().err
    assert "Triton, which is not installed here: nothing was compiled" in told
    assert 'pip install "firmtoken[kernels]"' in told


def test_record_alone_is_a_wrong_command_line() -> None:
    done = ft("check", "tiny-cpu", "--record")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "`--record` goes with `--kernels`\n  hint: add `--kernels`\n"


def test_the_shipped_records_can_be_read_and_count() -> None:
    paths = sorted(evidence.evidence_folder().glob("kernels-*.yaml"))
    assert paths
    for path in paths:
        for record in read_records(path):
            assert record.counts_as() in compiled_kernels(record.capability, path.parent), (
                f"{path.name}: {record.op} {record.kernel} has changed: run `ft check --kernels --record` again"
            )


@pytest.mark.slow
def test_a_real_compiler_is_started(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = check_profiles(("4090-qwen",), (), kernels=True, record=False, environ=os.environ)
    told = capsys.readouterr()
    assert code == 0
    assert all(line.startswith("compiling kernel ") for line in told.err.splitlines())
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    assert lines[lines.index("head triton_nvfp4") + 1].startswith("1 row ")
    assert lines[lines.index("gdn triton_step") + 2].startswith("finish ")
