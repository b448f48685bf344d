"""The commands that serve nothing: what they print and the exit codes they leave."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.cli.console import ft, python

from firmtoken.compiler.plan_json import plan_from_json
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.diff import differences

WRONG = (
    "schema: firmtoken/1\nname: x\nhardware: ft:hardware/cpu\nmodel: ft:models/tiny-moe\n"
    "serving: {contxt: 5}\ncache: {type: none, pge: 1}\n"
)
MINE = "extends: ft:tiny-cpu\nname: mine\n"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    return path


def test_plan_prints_the_effective_context_first() -> None:
    done = ft("plan", "tiny-cpu")
    assert done.returncode == 0
    assert done.stdout.startswith("effective context 16,384 of 32,768 (as asked) | ")
    assert done.stderr == ""


def test_plan_as_json_is_the_plan(tmp_path: Path) -> None:
    done = ft("plan", "tiny-cpu", "--format", "json")
    plan = plan_from_json(done.stdout.encode())
    assert plan.context.effective == 16_384
    file = tmp_path / "plan.json"
    assert ft("plan", "tiny-cpu", "--output", str(file)).stdout == ""
    assert plan_from_json(file.read_bytes()) == plan
    assert "effective: 16384" in ft("plan", "tiny-cpu", "--format", "yaml").stdout


def test_plan_unrolls_a_program() -> None:
    done = ft("plan", "tiny-cpu", "--unroll", "decode")
    assert re.match(r"\s+0\s+embed=torch \| on main \| writes \S+\n\s+1\s+l=0\s", done.stdout)
    refused = ft("plan", "tiny-cpu", "--unroll", "nothing")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "it has `decode`, `prefill`, `extend`, `park`" in refused.stderr


def test_set_overrides_and_its_faults_are_told() -> None:
    assert ft("plan", "tiny-cpu", "--set", "serving.context=8k").stdout.startswith(
        "effective context 8,192 "
    )
    done = ft("plan", "tiny-cpu", "--set", "serving.context=plenty")
    assert done.returncode == 2
    assert done.stderr.startswith("--set: `serving.context`: ")


@pytest.mark.report(13)
def test_what_does_not_fit_is_3_with_its_field() -> None:
    done = ft("plan", "tiny-cpu", "--set", "serving.requests=256", "--set", "serving.context=32k")
    assert done.returncode == 3
    assert done.stdout == ""
    assert re.match(r"--set: `serving.requests`: .* are needed", done.stderr)
    assert "  hint: set `serving.requests` to at most " in done.stderr


def test_check_tells_good_and_bad_profiles_apart(wrong: Path) -> None:
    done = ft("check", "tiny-cpu", str(wrong), "tiny-cpu-resident")
    assert done.returncode == 2
    good = done.stdout.splitlines()
    assert [line.split(",")[0] for line in good] == ["ft:tiny-cpu: ok", "ft:tiny-cpu-resident: ok"]
    faults = [line for line in done.stderr.splitlines() if not line.startswith("  hint: ")]
    assert re.search(r"wrong.yaml:5:11: `serving.contxt`: ", faults[0])
    assert re.search(r"wrong.yaml:6:21: `cache.pge`: ", faults[1])


def test_explain_answers_one_path_or_all() -> None:
    one = ft("explain", "tiny-cpu", "context")
    assert "limited_by = asked" in one.stdout
    assert len(ft("explain", "tiny-cpu").stdout) > len(one.stdout)
    unknown = ft("explain", "tiny-cpu", "contxt")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("the plan has no `contxt`")


def test_diff_shows_figures_and_choices() -> None:
    done = ft("diff", "tiny-cpu", "tiny-cpu-resident")
    assert done.returncode == 0
    assert "~ experts.placement: offload -> resident" in done.stdout
    assert re.search(r"  effective context +16,384 +16,384\n~ pool, tokens ", done.stdout)
    same = ft("diff", "tiny-cpu", "tiny-cpu")
    assert same.stdout.rstrip().endswith("0 differences in the choices")


def test_diff_tells_kernel_rows_of_one_op_apart() -> None:
    plan = compile_argument("tiny-cpu", ()).plan
    [row] = [row for row in plan.kernels if (row.op, row.phase) == ("linear", "decode")]
    rows = (
        replace(row, sizes=(1, 8), kernel="few"),
        replace(row, sizes=(9, 2**31), kernel="many"),
        replace(row, format="fp8", kernel="other"),
    )
    changed = replace(plan, kernels=rows)
    then = replace(plan, kernels=(replace(rows[0], kernel="new"), *rows[1:]))
    assert list(differences(changed, then)) == ["~ kernels.linear.decode[fp32, 1 to 8]: few -> new"]


def test_schema_is_json_schema() -> None:
    assert json.loads(ft("schema").stdout)["title"] == "FirmToken profile"
    assert json.loads(ft("schema", "model").stdout)["title"] == "FirmToken model"


def test_a_wrong_command_line_is_2_and_help_is_grouped() -> None:
    assert ft("plan", "tiny-cpu", "--nope").returncode == 2
    assert ft("nope").returncode == 2
    assert ft("plan").returncode == 2
    done = ft("--help")
    assert done.returncode == 0
    assert done.stdout.index("Serve") < done.stdout.index("Before serving")
    assert ft("version").stdout.strip()


@pytest.mark.parametrize("argument", ["nowhere", "nowhere/x.yaml", "/", "../..", ""])
def test_a_profile_that_is_not_there_is_2(argument: str) -> None:
    done = ft("plan", argument)
    assert done.returncode == 2
    assert done.stderr.strip()


def test_a_file_that_cannot_be_written_is_1() -> None:
    done = ft("plan", "tiny-cpu", "--output", "/nowhere/plan.json")
    assert done.returncode == 1
    assert done.stderr.startswith("cannot write `/nowhere/plan.json`: ")


def test_what_a_command_cannot_obey_is_refused() -> None:
    done = ft("plan", "tiny-cpu", "--unroll", "decode", "--format", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("`--unroll` goes not with `--format`")
    assert ft("plan", "tiny-cpu", "--unroll", "").returncode == 2


@pytest.mark.parametrize("name", ["mine.yaml", "link.yaml"])
def test_a_plan_never_replaces_its_profile(tmp_path: Path, name: str) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(MINE)
    (tmp_path / "link.yaml").symlink_to(profile)
    done = ft("plan", "./mine.yaml", "--output", name, cwd=tmp_path)
    assert (done.returncode, profile.read_text()) == (2, MINE)
    assert done.stderr.startswith(f"`--output {name}` is the profile itself\n")
    assert ft("plan", "./mine.yaml", "--output", "mine.lock.json", cwd=tmp_path).returncode == 0


def test_a_link_that_leads_to_itself_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "x.json"
    link.symlink_to(link)
    assert ft("plan", "tiny-cpu", "--output", str(link)).returncode == 0
    assert link.read_text().startswith("{")


def test_plan_loads_no_server() -> None:
    code = (
        "import sys; from firmtoken.runtime.cli import run\n"
        "sys.argv = ['ft', 'plan', 'tiny-cpu', '--format', 'json']\n"
        "try: run.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'asyncio', 'litestar', 'uvicorn', 'tokenizers', 'torch', 'rich.console'}"
        " & sys.modules.keys()), file=sys.stderr)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize("missing", ["uvicorn", "litestar", "torch", "numpy"])
@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_base_install_says_what_serving_needs(command: str, missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from firmtoken.runtime.cli.run import main\n"
        f"sys.argv = ['ft', {command!r}, 'tiny-cpu']; main()"
    )
    done = python("-c", code)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"`ft {command}` needs the serving packages, `{missing}` is missing",
        '  hint: `pip install "firmtoken[run]"`, or `pip install -e ".[run]"` in a clone',
    ]


def test_bench_takes_one_run_or_more() -> None:
    done = ft("bench", "tiny-cpu", "--runs", "0")
    assert done.returncode == 2
    assert "--runs" in done.stderr


@pytest.mark.parametrize(
    ("signum", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_before_a_command_listens_is_one_word(signum: int, code: int, word: str) -> None:
    program = (
        "import os, sys; from firmtoken.runtime.cli import check, run\n"
        f"check.check_profiles = lambda *_, **__: os.kill(os.getpid(), {int(signum)})\n"
        "sys.argv = ['ft', 'check', 'tiny-cpu']; run.main()"
    )
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (code, f"{word}\n")


def test_ctrl_c_while_modules_load_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "rich_click.py").write_text(
        "print('loading', flush=True)\nimport time; time.sleep(60)"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import firmtoken.runtime.cli.run"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (-signal.SIGINT, "")


def test_ft_check_shows_warnings() -> None:
    done = ft("check", "3090-qwen", "--set", "schedule.prefill_chunk=8192")
    assert done.returncode == 0
    assert "3090-qwen: ok" in done.stdout
    assert "  warning: " in done.stdout and "  hint: " in done.stdout


def test_check_says_which_waits_order_nothing() -> None:
    chunks = ("--set", "schedule.prefill_chunk=128", "--set", "schedule.prefill_span=512")
    first, *rest = ft("check", "tiny-cpu", *chunks).stdout.splitlines()
    assert first.startswith("ft:tiny-cpu: ok, ")
    waits = "  `prefill.moe_gate_up` waits for `prefill.fetched`, "
    assert rest[0] == waits + "which the first chunk needs and later ones do not"
    assert "waits for" not in ft("check", "tiny-cpu").stdout


def test_a_variable_that_the_hubs_library_cannot_read_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
    done = ft("profile", "model", "hub:tiny/moe")
    assert done.returncode == 3
    assert "a variable of `huggingface_hub` has a value that it cannot read" in done.stderr
