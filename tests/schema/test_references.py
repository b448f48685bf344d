"""Which file an argument or a reference means."""

import os
from pathlib import Path

import pytest

from firmtoken.schema.diagnostic import Fault
from firmtoken.schema.references import (
    File,
    argument_file,
    outer_file,
    read_bytes,
    referenced_file,
    shipped_folder,
    shipped_names,
    shipped_profiles,
)

TOP_IS_MEANT = "did you mean `profiles/top.yaml`?"


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path whoever runs the tests: messages cut long ones."""
    return tmp_path_factory.mktemp("r")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    """`profiles/top.yaml` with `hardware/own.yaml` beside it and `secret.yaml` outside."""
    (tmp_path / "profiles" / "hardware").mkdir(parents=True)
    for name in ("profiles/top.yaml", "profiles/hardware/own.yaml", "secret.yaml"):
        (tmp_path / name).write_text("name: x\n")
    monkeypatch.chdir(tmp_path)
    return expect_file(argument_file("profiles/top.yaml"))


def expect_file(found: File | Fault) -> File:
    assert isinstance(found, File), found
    return found


def expect_fault(found: object) -> Fault:
    assert isinstance(found, Fault), found
    return found


def test_a_path_is_relative_to_the_working_directory(base: File, tmp_path: Path) -> None:
    assert base == File(
        path=tmp_path / "profiles" / "top.yaml",
        shown="profiles/top.yaml",
        folder=tmp_path / "profiles",
    )


@pytest.mark.parametrize("argument", ["tiny-cpu", "ft:tiny-cpu", "ft:tiny-cpu.yaml"])
def test_a_bare_name_is_a_shipped_profile(argument: str, base: File) -> None:
    Path("tiny-cpu").write_text("not this one")
    found = expect_file(argument_file(argument))
    assert found.shown == "ft:tiny-cpu"
    assert found.path == shipped_folder() / "tiny-cpu.yaml"


def test_a_wrong_bare_name_suggests_a_shipped_one() -> None:
    found = expect_fault(argument_file("tiny-cpuu"))
    assert found.message == "there is no shipped file `ft:tiny-cpuu`"
    assert found.hint == "did you mean `ft:tiny-cpu`?"
    assert expect_fault(argument_file("zzzzzz")).hint is not None


@pytest.mark.parametrize("argument", ["rtx-4090", "profiles", "ft:hardware/rtx-4091"])
def test_a_wrong_argument_suggests_no_part_of_a_profile(argument: str) -> None:
    hint = expect_fault(argument_file(argument)).hint
    assert hint is not None
    assert "`ft:4090-qwen`" in hint
    assert "/" not in hint


def test_a_bare_name_of_a_file_that_lies_here_suggests_its_path(base: File) -> None:
    Path("mine.yaml").write_text("name: x\n")
    assert expect_fault(argument_file("mine")).hint == "did you mean `./mine.yaml`?"


SHIPPED_ARE = "check the path, or take a shipped profile: " + ", ".join(
    f"`ft:{name}`" for name in shipped_profiles()
)


def test_a_path_on_the_command_line_starts_at_the_working_folder(base: File) -> None:
    assert expect_fault(outer_file(Path("nope.yaml"), "nope.yaml")).hint == (
        "check the path: it starts at this folder"
    )


@pytest.mark.parametrize(
    ("argument", "message", "hint"),
    [
        ("nope.yaml", "there is no file `nope.yaml`", SHIPPED_ARE),
        (".", "`.` is not a regular file", "name a `.yaml` file"),
        ("..", "`..` is not a regular file", "name a `.yaml` file"),
        ("profiles/topp.yaml", "there is no file `profiles/topp.yaml`", TOP_IS_MEANT),
        ("profiles/top.yml", "there is no file `profiles/top.yml`", TOP_IS_MEANT),
        ("profiles/top", "there is no file `profiles/top`", TOP_IS_MEANT),
        ("tiny-cpu.yaml", "there is no file `tiny-cpu.yaml`", "did you mean `ft:tiny-cpu`?"),
        ("./profiles", "`./profiles` is not a regular file", None),
        ("/dev/zero", "`/dev/zero` is not a regular file", None),
        ("a\0/b.yaml", r"there is no file `a\x00/b.yaml`", None),
        ("", "there is no shipped file `ft:`", None),
    ],
)
def test_an_argument_that_is_no_file_is_refused(
    argument: str, message: str, hint: str | None, base: File
) -> None:
    found = expect_fault(argument_file(argument))
    assert found.message == message
    if hint is not None:
        assert found.hint == hint


def test_a_name_longer_than_any_file_is_refused(base: File) -> None:
    assert expect_fault(argument_file("./" + "x" * 5000)).code == "no_file"


def test_a_reference_is_relative_to_the_file_that_holds_it(base: File, tmp_path: Path) -> None:
    found = expect_file(referenced_file("hardware/own.yaml", base))
    assert found.shown == "profiles/hardware/own.yaml"
    back = expect_file(referenced_file("../top.yaml", found))
    assert (back.path, back.shown) == (base.path, "profiles/top.yaml")
    assert back.folder == tmp_path / "profiles"


def test_a_reference_may_name_a_shipped_file(base: File) -> None:
    found = expect_file(referenced_file("ft:hardware/cpu", base))
    assert found.path == shipped_folder() / "hardware" / "cpu.yaml"
    inner = expect_file(referenced_file("../models/tiny-moe.yaml", found))
    assert inner.shown == "ft:models/tiny-moe"


@pytest.mark.parametrize("reference", ["../secret.yaml", "hardware/../../secret.yaml", "link.yaml"])
def test_a_reference_stays_in_the_folder_after_links_are_resolved(
    reference: str, base: File, tmp_path: Path
) -> None:
    (tmp_path / "profiles" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    found = expect_fault(referenced_file(reference, base))
    assert found.code == "outside"
    assert found.message == f"`{reference}` lies outside `{tmp_path}/profiles`"


def test_an_absolute_reference_stays_in_the_folder(base: File, tmp_path: Path) -> None:
    assert expect_fault(referenced_file(f"{tmp_path}/secret.yaml", base)).code == "outside"
    assert expect_file(referenced_file(f"{tmp_path}/profiles/hardware/own.yaml", base))


def test_a_folder_with_the_same_beginning_is_outside(base: File, tmp_path: Path) -> None:
    (tmp_path / "profiles-of-others").mkdir()
    (tmp_path / "profiles-of-others" / "x.yaml").write_text("name: x\n")
    found = referenced_file("../profiles-of-others/x.yaml", base)
    assert expect_fault(found).code == "outside"


def test_a_link_as_the_top_profile_leads_to_its_own_folder(base: File, tmp_path: Path) -> None:
    (tmp_path / "short.yaml").symlink_to(tmp_path / "profiles" / "top.yaml")
    found = expect_file(argument_file("./short.yaml"))
    assert found.folder == tmp_path / "profiles"
    assert expect_file(referenced_file("hardware/own.yaml", found))


def test_a_circle_of_links_is_no_file(base: File, tmp_path: Path) -> None:
    (tmp_path / "profiles" / "loop.yaml").symlink_to(tmp_path / "profiles" / "loop.yaml")
    assert expect_fault(referenced_file("loop.yaml", base)).code == "no_file"


def test_a_reference_without_suffix_suggests_the_file(base: File) -> None:
    found = expect_fault(referenced_file("hardware/own", base))
    assert found.message == "there is no file `profiles/hardware/own`"
    assert found.hint == "did you mean `hardware/own.yaml`?"
    assert expect_file(referenced_file("hardware/own.yaml", base))


def test_a_wrong_shipped_reference_suggests_the_nearest(base: File) -> None:
    found = expect_fault(referenced_file("ft:hardware/rtx4090", base))
    assert found.hint == "did you mean `ft:hardware/rtx-4090`?"
    assert expect_fault(referenced_file("ft:rtx-4090", base)).hint == found.hint
    assert expect_fault(referenced_file("ft:../secret", base)).code == "no_file"


def test_shipped_names_are_profiles_hardware_and_models() -> None:
    names = shipped_names()
    assert {"tiny-cpu", "hardware/cpu", "models/tiny-moe"} <= set(names)
    assert all(name.split("/")[0] in ("hardware", "models") or "/" not in name for name in names)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_a_fault(base: File) -> None:
    base.path.chmod(0)
    assert expect_fault(read_bytes(base)).code == "unreadable"


def test_a_file_that_vanished_is_a_fault(base: File) -> None:
    base.path.unlink()
    found = expect_fault(read_bytes(base))
    assert found.message == "`profiles/top.yaml` cannot be read: No such file or directory"


def test_the_beginning_of_names_is_answered_with_all_of_them() -> None:
    fault = expect_fault(argument_file("5090"))
    assert fault.hint is not None
    assert "5090-qwen" in fault.hint
    assert expect_fault(argument_file("3090-")).hint == "did you mean `ft:3090-qwen`?"
    assert (
        expect_fault(argument_file("pro6000")).hint
        == "shipped are `ft:pro6000-minimax`, `ft:pro6000-qwen`"
    )
