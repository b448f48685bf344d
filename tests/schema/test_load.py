"""From an argument to a profile, with the place of every value."""

import subprocess
import sys
from pathlib import Path

import pytest

from firmtoken.schema.diagnostic import ProfileError
from firmtoken.schema.hardware import Cpu
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import HubSource, Model, PathSource, Synthetic, SyntheticSource
from firmtoken.schema.profile import Avoid
from firmtoken.schema.references import shipped_folder, shipped_names

SHIPPED_PROFILES = [name for name in shipped_names() if "/" not in name]


@pytest.mark.parametrize("name", SHIPPED_PROFILES)
def test_every_shipped_profile_loads(name: str) -> None:
    by_name = load_profile(name)
    by_path = load_profile(str(shipped_folder() / f"{name}.yaml"))
    assert by_name.name == f"ft:{name}"
    assert by_name.profile == by_path.profile
    assert by_name.profile.name == name


@pytest.mark.parametrize("name", [name for name in shipped_names() if "/" in name])
def test_every_shipped_part_loads(name: str) -> None:
    part = {"hardware": "hardware", "models": "model"}[name.split("/")[0]]
    assert load_profile("tiny-cpu", [f"{part}=ft:{name}"]).profile


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_file_begins_with_the_line_for_editors(name: str) -> None:
    first = (shipped_folder() / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    schema = (shipped_folder() / name).parent / first.split("=")[1]
    assert schema.resolve().parent == shipped_folder()
    assert schema.is_file()


def test_values_have_their_types() -> None:
    profile = load_profile("4090-qwen").profile
    assert profile.schema_version == "firmtoken/1"
    assert profile.serving.context == 65_536
    assert profile.serving.pool == "auto"
    assert profile.hardware.gpu is not None
    assert profile.hardware.gpu.capability == (8, 9)
    assert profile.hardware.gpu.memory == 25_232_932_864
    assert profile.hardware.gpu.bandwidth == 1.008e12
    assert profile.hardware.gpu.flops["bf16"] == 165e12
    assert profile.hardware.gpu.flops["fp4"] is None
    assert profile.hardware.cpu is None
    assert isinstance(profile.model.source, HubSource)
    assert profile.model.geometry.max_position_embeddings == 262_144


def test_a_profile_is_a_value() -> None:
    one, two = load_profile("4090-qwen").profile, load_profile("4090-qwen").profile
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(ValueError, match="frozen"):
        one.name = "other"


def test_the_embedded_model_lies_in_the_package() -> None:
    source = load_profile("tiny-cpu").profile.model.source
    assert isinstance(source, PathSource)
    assert Path(source.path).resolve() == shipped_folder() / "weights" / "tiny-moe"


def test_overrides_are_obeyed_in_order() -> None:
    loaded = load_profile(
        "tiny-cpu",
        [
            "serving.context=8k",
            "serving.context=4k",
            "schedule.step_deadline=1500ms",
            "kernels.gdn.decode=torch",
            "kernels.attention.avoid=[a, b]",
            "hardware.cpu.memory=64MiB",
        ],
    )
    profile = loaded.profile
    assert profile.serving.context == 4096
    assert profile.schedule.step_deadline == 1.5
    assert profile.kernels["gdn.decode"] == "torch"
    assert profile.kernels["attention"] == Avoid(avoid=("a", "b"))
    assert isinstance(profile.hardware.cpu, Cpu)
    assert (profile.hardware.cpu.memory, profile.hardware.cpu.launch_us) == (64 * 2**20, 5)


def test_null_takes_an_override_back_to_the_default() -> None:
    assert load_profile("tiny-cpu", ["serving.context=null"]).profile.serving.context == "auto"


def test_an_override_may_name_a_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "box.yaml").write_text("extends: ft:hardware/cpu\nname: box\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_profile("tiny-cpu", ["hardware=box.yaml", "model.source.path=weights"])
    assert loaded.profile.hardware.name == "box"
    assert loaded.profile.model.source == PathSource(path=f"{tmp_path}/weights")
    assert loaded.origin("hardware.name") == "box.yaml:2:7"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A profile whose lines are known here."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        "extends: ft:tiny-cpu\nname: mine\nserving:\n  context: 8k\nkernels: {gdn.decode: torch}\n"
    )
    return "mine.yaml"


def test_every_value_can_be_located(mine: str) -> None:
    loaded = load_profile(mine, ["serving.queue=8", "kernels.attention.decode=torch"])
    assert loaded.locate("serving.context") == ("mine.yaml", 4, 12)
    assert loaded.locate("kernels.gdn.decode") == ("mine.yaml", 5, 23)
    assert loaded.locate("hardware.cpu.bandwidth")[0] == "ft:hardware/cpu"
    assert loaded.locate("hardware.cpu.memory")[0] == "ft:tiny-cpu"
    assert loaded.origin("serving.context") == "mine.yaml:4:12"
    assert loaded.origin("serving.queue") == "--set"
    assert loaded.origin("kernels.attention.decode") == "--set"
    assert loaded.origin("serving.pool") == "default"
    assert loaded.locate("serving.pool") == ("mine.yaml", 3, 1)
    assert loaded.locate("experts.slots") == ("mine.yaml", 1, 1)


def test_a_later_refusal_stands_at_the_value(mine: str) -> None:
    found = load_profile(mine).refuse("serving.context", "does not fit", "use `4k`", code="too_big")
    assert str(found) == "mine.yaml:4:12: `serving.context`: does not fit\n  hint: use `4k`"
    assert found.code == "too_big"


def test_a_source_made_in_code_is_taken(mine: str) -> None:
    profile = load_profile(mine).profile
    for source in (
        PathSource(path="x"),
        HubSource(hub="a/b"),
        SyntheticSource(synthetic=Synthetic(seed=1)),
    ):
        model = Model(**{**dict(profile.model), "source": source})
        assert model.source == source


@pytest.mark.parametrize("revision", ["../../refs/heads/main", "a//b", ".hidden", "a b", ""])
def test_a_revision_that_is_no_name_of_git_is_refused(revision: str) -> None:
    with pytest.raises(ProfileError, match=r"`model\.source\.revision`: "):
        load_profile("tiny-cpu", ["model.source={hub: a/b}", f"model.source.revision='{revision}'"])


@pytest.mark.parametrize("revision", ["main", "refs/pr/4", "v1.0+nvfp4", "0123456789abcdef" * 2])
def test_a_branch_a_tag_or_a_commit_is_a_revision(revision: str) -> None:
    overrides = ["model.source={hub: a/b}", f"model.source.revision='{revision}'"]
    source = load_profile("tiny-cpu", overrides).profile.model.source
    assert source == HubSource(hub="a/b", revision=revision)


def test_a_missing_profile_is_refused() -> None:
    with pytest.raises(
        ProfileError, match=r"^there is no file `nope\.yaml`\n  hint: check the path"
    ):
        load_profile("nope.yaml")


def test_wrong_overrides_are_told_beside_the_faults_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("extends: ft:tiny-cpu\nname: 3\n")
    with pytest.raises(ProfileError) as caught:
        load_profile("x.yaml", ["serving", "serving.contxt=4k", "context=4k", "graphs=on"])
    assert str(caught.value) == (
        'x.yaml:2:7: `name`: expected text, found `3`\n  hint: write `"3"`, in quotes\n'
        "--set: expected `field=value`, found `serving`\n"
        "  hint: for example `--set serving.context=64k`\n"
        "--set: `serving.contxt`: unknown field `contxt`\n  hint: did you mean `context`?\n"
        "--set: `context`: unknown field `context`\n  hint: did you mean `serving.context`?\n"
        "--set: `graphs`: expected one of `auto`, `off`, found `on`\n  hint: write one of them"
    )


def test_schema_and_load_need_nothing_heavy() -> None:
    code = (
        "import sys; from firmtoken.schema.load import load_profile; load_profile('4090-qwen');"
        "print(sorted({'torch', 'numpy', 'rich', 'msgspec', 'asyncio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
