"""Files that extend and refer to each other."""

from pathlib import Path

import pytest

from firmtoken.schema.assembly import Assembly
from firmtoken.schema.references import File, argument_file
from firmtoken.schema.tree import MapNode, plain, value_place


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**files: str) -> None:
    """`hw="..."` becomes the file `hw.yaml`."""
    for name, text in files.items():
        Path(f"{name}.yaml").write_text(text)


def assemble(top: str = "top.yaml") -> tuple[MapNode, Assembly]:
    file = argument_file(top)
    assert isinstance(file, File)
    assembly = Assembly()
    return assembly.document(file, "", ()), assembly


def values() -> object:
    root, assembly = assemble()
    assert assembly.faults == []
    return plain(root)


def faults() -> str:
    _, assembly = assemble()
    return "\n".join(str(fault) for fault in assembly.faults)


def test_a_part_is_read_from_its_file() -> None:
    write(top="name: x\nhardware: hw.yaml\nmodel: {name: m}", hw="name: h")
    assert values() == {"name": "x", "hardware": {"name": "h"}, "model": {"name": "m"}}


def test_extends_merges_over_another_profile() -> None:
    write(top="extends: base.yaml\nserving: {pool: 2}", base="serving: {context: 1, pool: 1}")
    assert values() == {"serving": {"context": 1, "pool": 2}}


def test_a_description_is_not_taken_from_the_extended_profile() -> None:
    write(
        top="extends: base.yaml\nname: mine", base="name: theirs\ndescription: on a 4090\nqueue: 1"
    )
    assert values() == {"name": "mine", "queue": 1}
    write(top="extends: base.yaml\ndescription: on a 3060", base="description: on a 4090")
    assert values() == {"description": "on a 3060"}


def test_extends_works_inside_a_part() -> None:
    write(
        top="hardware: {extends: hw.yaml, cpu: {memory: 2}}", hw="name: h\ncpu: {memory: 1, x: 3}"
    )
    assert values() == {"hardware": {"name": "h", "cpu": {"memory": 2, "x": 3}}}


def test_a_mapping_lies_over_the_part_of_the_extended_profile() -> None:
    write(
        top="extends: base.yaml\nhardware: {cpu: {memory: 2}}",
        base="hardware: hw.yaml",
        hw="name: h\ncpu: {memory: 1}",
    )
    assert values() == {"hardware": {"name": "h", "cpu": {"memory": 2}}}


@pytest.mark.parametrize("part", ["gpu.yaml", "{extends: gpu.yaml}"])
def test_a_part_that_names_its_file_replaces_that_of_the_extended_profile(part: str) -> None:
    write(
        top=f"extends: base.yaml\nhardware: {part}",
        base="hardware: hw.yaml",
        hw="name: h\ncpu: {memory: 1}",
        gpu="name: g",
    )
    assert values() == {"hardware": {"name": "g"}}


def test_a_replaced_part_is_what_a_third_profile_lies_over() -> None:
    write(
        top="extends: middle.yaml\nhardware: {cpu: {memory: 9}}",
        middle="extends: base.yaml\nhardware: b.yaml",
        base="hardware: a.yaml",
        a="name: a\ncpu: {memory: 1}\nlink: 1",
        b="name: b\ncpu: {memory: 2}",
    )
    assert values() == {"hardware": {"name": "b", "cpu": {"memory": 9}}}


def test_paths_are_relative_to_the_file_in_which_they_stand(folder: Path) -> None:
    Path("inner").mkdir()
    Path("inner/model.yaml").write_text("source: {path: ../weights}")
    Path("inner/base.yaml").write_text(
        "model: model.yaml\nserver: {api_keys: {file: keys}, log_file: ../ft.log}"
    )
    write(top="extends: inner/base.yaml")
    assert values() == {
        "model": {"source": {"path": f"{folder}/weights"}},
        "server": {"api_keys": {"file": f"{folder}/inner/keys"}, "log_file": f"{folder}/ft.log"},
    }


@pytest.mark.parametrize("word", ["auto", "off"])
def test_a_word_in_the_place_of_a_path_stays_a_word(folder: Path, word: str) -> None:
    write(top=f"server: {{log_file: {word}}}")
    assert values() == {"server": {"log_file": word}}
    write(top=f"server: {{log_file: ./{word}}}")
    assert values() == {"server": {"log_file": f"{folder}/{word}"}}


def test_places_name_the_file_in_which_a_value_stands() -> None:
    write(top="hardware: {extends: hw.yaml, link: 1}", hw="name: h\ncpu: {memory: 1}")
    root, _ = assemble()
    assert str(value_place(root, ("hardware", "cpu", "memory"))) == "hw.yaml:2:15"
    assert str(value_place(root, ("hardware", "link"))) == "top.yaml:1:36"


def test_files_that_extend_each_other_are_refused() -> None:
    write(top="extends: a.yaml", a="extends: b.yaml", b="extends: a.yaml")
    assert faults() == (
        "b.yaml:1:10: `extends`: files refer to each other in a circle: a.yaml -> b.yaml -> a.yaml\n"
        "  hint: name a shipped file (`ft:...`) here, or one that does not lead back to this one"
    )


def test_a_file_that_extends_itself_is_refused() -> None:
    write(top="extends: top.yaml")
    assert "in a circle: top.yaml -> top.yaml\n  hint: name a shipped file" in faults()


def test_a_part_that_extends_itself_is_refused() -> None:
    write(top="hardware: hw.yaml", hw="extends: hw.yaml")
    assert faults().startswith("hw.yaml:1:10: `hardware.extends`: files refer to each other")


def test_a_profile_as_its_own_hardware_is_refused() -> None:
    write(top="hardware: top.yaml")
    assert faults().startswith("top.yaml:1:11: `hardware`: files refer to each other")


def test_a_chain_of_eight_files_is_read_and_of_nine_refused() -> None:
    write(**{f"f{n}": f"extends: f{n + 1}.yaml" for n in range(1, 8)}, f8="name: x")
    write(top="extends: f2.yaml")
    assert values() == {"name": "x"}
    write(top="extends: f1.yaml")
    assert faults() == (
        "f7.yaml:1:10: `extends`: more than 8 files in one chain\n"
        "  hint: put the fields of some of them into one file"
    )


def test_a_missing_file_is_told_with_a_suggestion() -> None:
    write(top="name: x\nhardware: ft:hardware/cpuu\nmodel: nope.yaml")
    assert faults() == (
        "top.yaml:2:11: `hardware`: there is no shipped file `ft:hardware/cpuu`\n"
        "  hint: did you mean `ft:hardware/cpu`?\n"
        "top.yaml:3:8: `model`: there is no file `nope.yaml`\n"
        "  hint: check the path: one that is written in a file starts at that file"
    )


@pytest.mark.parametrize("value", ["[a.yaml]", "{a: b}", "3", "null"])
def test_extends_takes_one_path(value: str) -> None:
    write(top=f"extends: {value}")
    assert "`extends`: expected one path" in faults()


def test_the_faults_of_all_files_are_told_at_once() -> None:
    write(top="hardware: hw.yaml\nmodel: m.yaml", hw="a: 1\na: 2", m="- 1")
    assert faults() == (
        "hw.yaml:2:1: `a` is written twice\n  hint: the first is on line 1\n"
        "m.yaml:1:1: expected a mapping of fields\n"
        "  hint: write `field: value` lines; `ft schema` prints every field that there is"
    )
