"""Checkpoints of the hub on the command line: planned without weights, refused before the first byte, then fetched."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hub_server import COMMIT, HubServer, folder_files, serving
from tests.runtime.cli.console import ft, python

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli import hub as hub_command
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.hub import fetch_checkpoint, source_of
from firmtoken.runtime.cli.hub_model import hub_model, make_hub_model_profile
from firmtoken.runtime.cli.plan import show_plan
from firmtoken.runtime.cli.timeline import show_timeline
from firmtoken.runtime.weights.hub import Hub
from firmtoken.schema.load import load_profile
from firmtoken.schema.references import shipped_folder

TINY = shipped_folder() / "weights" / "tiny-moe"
ON_HUB = ("model.source={hub: tiny/moe}", f"model.source.revision={COMMIT}")
NAMED = "hub:tiny/moe"
SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture(scope="module")
def tiny_files() -> dict[str, bytes]:
    return folder_files(TINY)


@pytest.fixture
def server(
    tiny_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """The hub of all commands in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(tiny_files) as server:
        hub = Hub(
            endpoint=server.url, cache=tmp_path / "hub", token=None, wait=lambda _seconds: None
        )
        monkeypatch.setattr(hub_command, "usual_hub", lambda: hub)
        yield server


@pytest.fixture
def plan() -> Plan:
    """`tiny-cpu`, its checkpoint on the hub."""
    return compile_argument("tiny-cpu", ("model.source={hub: tiny/moe}",)).plan


def planned(profile: str = "tiny-cpu", *overrides: str) -> int:
    """`ft plan PROFILE --model hub:tiny/moe --format json`."""
    found = hub_model(NAMED)
    return show_plan(
        profile,
        (found.override, *overrides),
        form="json",
        output=None,
        program=None,
        inspect=found.inspect,
    )


def refused(call: Callable[[], object]) -> Failure:
    with pytest.raises(Failure) as caught:
        call()
    return caught.value


def test_a_checkpoint_that_is_not_here_is_planned_from_its_small_files_and_headers(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned() == 0
    said = capsys.readouterr()
    source = json.loads(said.out)["model"]["source"]
    assert source == {"hub": "tiny/moe", "revision": COMMIT}
    assert said.err == (
        f"`main` of `tiny/moe` is commit {COMMIT} now\n"
        f"  hint: `--model hub:tiny/moe@{COMMIT}` keeps it\n"
        "`tiny/moe` fits the plan by its headers: 3,324 tensors in 3 files\n"
        "`ft run` downloads 20.7 MB in 10 files, 375 kB of them here\n"
    )
    assert server.bytes_sent(SHARD) < 200_000


@pytest.mark.parametrize(
    "override",
    [
        "model.source.revision=other",
        "model.source.hub=other/moe",
        "model.source={hub: tiny/moe, revision: other}",
        "model.source={synthetic: {seed: 0}}",
        "model=ft:models/tiny-moe",
    ],
)
def test_a_set_of_another_source_than_the_model_asked_for_is_refused(
    server: HubServer, override: str
) -> None:
    failure = refused(lambda: planned("tiny-cpu", override))
    assert failure.exit_code == 2
    assert failure.text.startswith(f"`--model` is commit {COMMIT} of `tiny/moe`, and `--set` makes")
    assert failure.hint == "leave out that `--set`: `--model hub:ORG/NAME@REVISION` names both"


def test_a_set_of_the_very_source_is_obeyed(server: HubServer) -> None:
    assert planned("tiny-cpu", f"model.source.revision={COMMIT}") == 0


def test_the_plan_is_that_of_the_same_files_in_a_folder(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    planned()
    on_hub = json.loads(capsys.readouterr().out)
    show_plan("tiny-cpu", (), form="json", output=None, program=None)
    here = json.loads(capsys.readouterr().out)
    for section in ("memory", "experts", "kv_cache", "kernels", "programs"):
        assert on_hub[section] == here[section]


def test_a_second_plan_reads_nothing_but_the_commit_and_none_at_all_of_a_commit(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    planned()
    asked = len(server.paths())
    planned()
    assert len(server.paths()) == asked + 1
    server.close()
    capsys.readouterr()
    found = hub_model(f"{NAMED}@{COMMIT}")
    show_plan("tiny-cpu", (found.override,), form="json", output=None, program=None)
    assert capsys.readouterr().err == ""


def test_a_hub_that_is_away_is_said_and_what_was_last_seen_is_planned(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    planned()
    server.close()
    capsys.readouterr()
    assert planned() == 0
    assert f"; `main` is taken as it was last seen, commit {COMMIT}\n" in capsys.readouterr().err


def test_a_header_that_contradicts_the_config_is_told_and_no_plan_is_printed(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(server.files["config.json"])
    config["text_config"]["moe_intermediate_size"] = 64
    server.files["config.json"] = json.dumps(config).encode()
    failure = refused(planned)
    assert failure.exit_code == 1
    assert "mlp.experts.0.gate_proj" in failure.text
    assert capsys.readouterr().out == ""


def test_a_config_of_another_family_is_refused_as_that_of_a_folder(server: HubServer) -> None:
    server.files["config.json"] = b'{"model_type": "llama"}'
    failure = refused(planned)
    assert failure.exit_code == 2
    assert failure.text.startswith("hub:tiny/moe: `config.json`: expected `model_type` one of")


def test_a_fault_of_the_model_is_told_with_its_line(server: HubServer, tmp_path: Path) -> None:
    failure = refused(lambda: planned("tiny-cpu", "serving.context=64k"))
    assert failure.exit_code in (2, 3)
    folder = tmp_path / "cache/firmtoken/hub/models--tiny--moe" / COMMIT
    assert load_profile("tiny-cpu", [f"model={folder}/model.yaml"]).profile.model.name == "moe"


def test_the_timeline_is_of_the_same_checkpoint(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    found = hub_model(NAMED)
    assert show_timeline("tiny-cpu", (found.override,), "-", found.inspect) == 0
    assert "fits the plan by its headers" in capsys.readouterr().err


def test_a_model_profile_is_written_for_a_checkpoint_that_is_not_here(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.yaml"
    assert make_hub_model_profile(NAMED, output=str(file)) == 0
    assert capsys.readouterr().err == f"`main` of `tiny/moe` is commit {COMMIT} now\n"
    model = load_profile("tiny-cpu", [f"model={file}"]).profile.model
    shipped = load_profile("tiny-cpu").profile.model
    assert model.source.model_dump() == {"hub": "tiny/moe", "revision": COMMIT}
    assert (model.geometry, model.quantization) == (shipped.geometry, shipped.quantization)


@pytest.mark.parametrize("argument", ["hub:", "hub:tiny", "hub:a/b/c", "hub:a/b@", "hub:a/b@../x"])
def test_a_name_that_is_none_is_2(argument: str) -> None:
    failure = refused(lambda: source_of(argument))
    assert (failure.exit_code, failure.text) == (
        2,
        f"`{argument}` names no repository of the hub",
    )


def test_a_model_that_is_not_on_the_hub_is_2_with_what_names_a_file() -> None:
    failure = refused(lambda: hub_model("models/x.yaml"))
    assert failure.exit_code == 2
    assert "`--set model=FILE`" in str(failure.hint)


def test_nobody_to_ask_is_2_and_no_weights_are_fetched(
    server: HubServer, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = refused(lambda: fetch_checkpoint(plan, yes=False))
    assert (failure.exit_code, failure.text) == (
        2,
        "20.3 MB would be downloaded, and nobody is here to be asked",
    )
    assert failure.hint == "`--yes` downloads without a question"
    assert "20.3 MB of 20.7 MB to download from http://127.0.0.1:" in capsys.readouterr().err
    assert server.bytes_sent(SHARD) < 200_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "agrees"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked_first(
    server: HubServer, plan: Plan, answer: str, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", told)
    if agrees:
        fetch_checkpoint(plan, yes=False)
    else:
        failure = refused(lambda: fetch_checkpoint(plan, yes=False))
        assert (failure.exit_code, failure.text) == (1, "nothing was downloaded")
    assert "download it? [y/N] " in told.getvalue()
    assert (server.bytes_sent(SHARD) > 9_000_000) == agrees


def test_a_disk_without_room_is_1_with_both_numbers_and_nothing_is_asked(
    server: HubServer, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_command, "free_bytes", lambda _hub: 20_000_000)
    failure = refused(lambda: fetch_checkpoint(plan, yes=True))
    assert failure.exit_code == 1
    assert failure.text.startswith("20.3 MB of 20.7 MB to download from ")
    assert ", 20.0 MB free in `" in failure.text
    assert "HF_HOME" in str(failure.hint)
    assert server.bytes_sent(SHARD) < 200_000


def test_a_checkpoint_of_another_model_is_refused_before_its_weights_are_fetched(
    server: HubServer, plan: Plan
) -> None:
    geometry = dict(plan.model.geometry) | {"rms_norm_eps": 1e-5}
    other = replace(plan, model=replace(plan.model, geometry=geometry))
    failure = refused(lambda: fetch_checkpoint(other, yes=True))
    assert failure.exit_code == 1
    assert "`config.json`: expected `rms_norm_eps: 1e-05`" in failure.text
    assert server.bytes_sent(SHARD) < 200_000


def test_what_is_fetched_is_a_folder_named_like_its_commit_and_asked_for_once(
    server: HubServer, plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hub/models--tiny--moe/snapshots" / COMMIT
    assert fetch_checkpoint(plan, yes=True).model.source == {"path": str(folder)}
    assert "downloaded 20.3 MB in " in capsys.readouterr().err
    asked = len(server.paths())
    fetch_checkpoint(plan, yes=False)
    assert len(server.paths()) == asked + 1


def test_what_had_arrived_is_told_when_a_download_fails(
    server: HubServer, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = "model-00003-of-00003.safetensors"
    server.faults.damaged = {"model-00002-of-00003.safetensors"}
    server.faults.drops = {SHARD: [9_000_000]}
    failure = refused(lambda: fetch_checkpoint(plan, yes=True))
    assert failure.exit_code == 1
    assert "arrived damaged" in failure.text
    assert " of 20.7 MB are kept: the same command goes on there\n" in capsys.readouterr().err
    server.faults.damaged = set()
    fetch_checkpoint(plan, yes=True)
    assert server.bytes_sent(fetched) < 2 * len(server.files[fetched])


def test_a_profile_with_a_folder_loads_no_hub_library() -> None:
    script = (
        "import sys\nfrom firmtoken.runtime.cli.run import main\n"
        "try:\n    main()\nfinally:\n    assert 'huggingface_hub' not in sys.modules\n"
    )
    done = python("-c", script, "plan", "tiny-cpu")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_library_the_remedy_is_named(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['huggingface_hub'] = None\n"
        "from firmtoken.runtime.cli.run import main\nmain()\n"
    )
    done = python("-c", script, "profile", "model", NAMED)
    assert done.returncode == 3
    assert done.stderr.startswith(
        "`ft profile model` needs the packages of `hub`, `huggingface_hub` is missing\n"
        '  hint: `pip install "firmtoken[hub]"`'
    )


def test_the_commands_go_by_the_librarys_variables(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    done: subprocess.CompletedProcess[str] = ft("profile", "model", NAMED)
    assert done.returncode == 0
    assert f"revision: {COMMIT}\n" in done.stdout
    assert (tmp_path / "home/hub/models--tiny--moe/refs/main").read_text() == COMMIT
    assert {sent.token for sent in server.sent} == {"Bearer secret"}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = ft("profile", "model", NAMED)
    assert (offline.returncode, offline.stdout) == (0, done.stdout)
    assert "`HF_HUB_OFFLINE` is set; `main` is taken as it was last seen" in offline.stderr
    unknown = ft("profile", "model", "hub:tiny/other")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("`tiny/other` cannot be asked for: `HF_HUB_OFFLINE` is set\n")
