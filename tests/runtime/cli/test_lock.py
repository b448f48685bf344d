"""Locks: a plan that was written down is the plan that runs, or nothing starts and the difference is told."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.cli.console import ft

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_data, plan_to_json
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.lock import lock_path, require_lock
from firmtoken.runtime.cli.output import yaml_text

MINE = "extends: ft:tiny-cpu\nname: mine\n"
Write = Callable[[Plan], Path]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_argument("tiny-cpu", ())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(plan: Plan) -> Path:
        path = tmp_path / "x.lock.json"
        path.write_bytes(plan_to_json(plan, indent=True))
        return path

    return written


def refusal(compiled: Compiled, path: Path) -> Failure:
    with pytest.raises(Failure) as failure:
        require_lock(compiled, path, "tiny-cpu")
    return failure.value


def test_the_plan_that_was_written_is_the_plan_that_runs(tmp_path: Path) -> None:
    for name in ("a.json", "a.yaml"):
        path = tmp_path / name
        assert ft("plan", "tiny-cpu", "--output", str(path)).returncode == 0
        require_lock(compile_argument("tiny-cpu", ()), path, "tiny-cpu")


def test_run_refuses_a_stale_lock_after_the_summary_and_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    assert ft("plan", "./mine.yaml", "--output", "mine.lock.json", cwd=tmp_path).returncode == 0
    done = ft("run", "./mine.yaml", "--locked", "--set", "serving.context=8k", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.startswith("effective context 8,192 ")
    first, *lines = done.stderr.splitlines()
    assert first == f"`{tmp_path}/mine.lock.json` locks another plan than this profile gives now:"
    assert "~ the profile asks for something else" in lines
    assert "~ context.effective: 16384 -> 8192" in lines
    assert lines[-1].startswith(
        "  hint: go back to what was locked, or lock what is now: `ft plan "
    )


def test_the_hint_makes_the_lock_that_is_then_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    missing = ft("run", "./mine.yaml", "--locked", cwd=tmp_path)
    assert missing.returncode == 2
    assert missing.stderr.startswith(f"cannot read the lock `{tmp_path}/mine.lock.json`: No such")
    command = missing.stderr.split("this makes it: `ft ")[1].split("`")[0].split()
    assert ft(*command, cwd=tmp_path).returncode == 0
    path = tmp_path / "mine.lock.json"
    require_lock(compile_argument(str(tmp_path / "mine.yaml"), ()), path, "mine.yaml")


def test_a_lock_lies_beside_the_profile_and_of_a_shipped_one_where_one_works(
    compiled: Compiled, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    mine = compile_argument(str(tmp_path / "mine.yaml"), ())
    assert lock_path(mine, None) == tmp_path / "mine.lock.json"
    assert lock_path(compiled, None) == Path("tiny-cpu.lock.json")
    assert lock_path(compiled, "other.yaml") == Path("other.yaml")


def test_a_lock_of_another_profile_says_whose_it_is(compiled: Compiled, write: Write) -> None:
    path = write(compile_argument("tiny-cpu-resident", ()).plan)
    failure = refusal(compiled, path)
    assert failure.exit_code == 3
    asked = "~ the profile asks for something else, of `tiny-cpu-resident` instead of `tiny-cpu`"
    assert asked in failure.text.splitlines()
    assert "~ experts.placement: resident -> offload" in failure.text.splitlines()


def test_a_renamed_or_moved_profile_keeps_its_lock(compiled: Compiled, write: Write) -> None:
    plan = compiled.plan
    moved = replace(
        plan,
        profile=replace(plan.profile, name="other", description="else"),
        model=replace(plan.model, source={"path": "/elsewhere"}),
    )
    require_lock(compiled, write(moved), "tiny-cpu")


def test_another_version_says_which_part_of_the_fingerprint_changed(
    compiled: Compiled, write: Write
) -> None:
    inputs = compiled.plan.inputs
    told = {
        "~ the kernel cards are those of another version": replace(inputs, cards="0"),
        "~ the hazards are those of another version": replace(inputs, hazards="0"),
    }
    for line, other in told.items():
        failure = refusal(compiled, write(replace(compiled.plan, inputs=other)))
        assert failure.text.splitlines()[1:] == [line]


def test_a_difference_that_no_choice_shows_is_named_by_its_key(
    compiled: Compiled, write: Write
) -> None:
    first, *rest = compiled.plan.buffers
    moved = replace(compiled.plan, buffers=(replace(first, offset=first.offset + 256), *rest))
    assert refusal(compiled, write(moved)).text.endswith(
        "\n~ no choice that `ft diff` shows, but buffers"
    )


def test_a_label_of_evidence_makes_no_lock_stale(compiled: Compiled, write: Write) -> None:
    rows = tuple(replace(row, evidence="compiled") for row in compiled.plan.kernels)
    require_lock(compiled, write(replace(compiled.plan, kernels=rows)), "tiny-cpu")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace("firmtoken.plan/1", "firmtoken.plan/0"),
        lambda text: text.replace('"context"', '"contxt"', 1),
        lambda text: "[" * 100_000,
    ],
    ids=["cut", "empty", "a-list", "another-schema", "a-key-misspelt", "too-deep"],
)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_what_is_no_plan_of_this_version_is_no_lock(
    compiled: Compiled, tmp_path: Path, suffix: str, change: Callable[[str], str]
) -> None:
    path = tmp_path / f"x.{suffix}"
    data = plan_to_data(compiled.plan)
    text = (
        json.dumps(data)
        if suffix == "json"
        else yaml_text(data).replace("context:", '"context":', 1)
    )
    path.write_text(change(text))
    failure = refusal(compiled, path)
    assert failure.exit_code == 3
    assert failure.text.startswith(f"the lock `{path}` is no plan of this version: ")
    assert "\n" not in failure.text


@pytest.mark.parametrize("text", ["2026-01-01: 1\n", "? [a]\n: 1\n", "x: 2026-13-45\n"])
def test_what_only_yaml_can_say_is_no_lock(compiled: Compiled, tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert "is no plan of this version" in refusal(compiled, path).text


@pytest.mark.parametrize("blocks", [[], {"a": 1}, None])
def test_programs_of_another_shape_are_no_lock(
    compiled: Compiled, tmp_path: Path, blocks: object
) -> None:
    data = plan_to_data(compiled.plan)
    data["programs"]["decode"]["blocks"] = blocks
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    assert "not a complete plan" in refusal(compiled, path).text


def test_bytes_that_are_no_text_are_no_lock(compiled: Compiled, tmp_path: Path) -> None:
    for name in ("x.json", "x.yaml"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
        assert "is no plan of this version" in refusal(compiled, tmp_path / name).text


def test_a_lock_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.lock.json"
    path.write_text("old")
    tmp_path.chmod(0o500)
    try:
        done = ft("plan", "tiny-cpu", "--output", str(path))
    finally:
        tmp_path.chmod(0o700)
    if done.returncode:  # root writes everywhere
        assert done.stderr.startswith(f"cannot write `{path}`: ")
        assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.lock.json"]


def test_lock_alone_is_a_wrong_command_line() -> None:
    done = ft("run", "tiny-cpu", "--lock", "x.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "`--lock` goes with `--locked`\n  hint: add `--locked`\n"


def test_an_output_that_is_a_pipe_or_a_link_stays_one(tmp_path: Path) -> None:
    assert ft("plan", "tiny-cpu", "--output", "/dev/stdout").stdout.startswith("{")
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    ft("plan", "tiny-cpu", "--output", str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text().startswith("{")
