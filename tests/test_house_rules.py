"""The law of the house: imports point one way, files stay small, two rooms never see torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import LONGEST

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("schema", "compiler", "runtime")
MAY_IMPORT = {
    "schema": {"schema"},
    "compiler": {"schema", "compiler"},
    "runtime": {"schema", "compiler", "runtime"},
}
TORCH = {"torch", "triton", "transformers", "flashinfer", "safetensors", "numpy"}
# Loaded in the parent process, which lives without torch (D11).
TORCH_FREE = ("schema", "compiler", "runtime/server", "runtime/cli", "runtime/dialects")
MAX_LINES = 400


def sources(*rooms: str) -> Iterator[Path]:
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "training" not in path.parts:
                yield path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                if is_module(f"{node.module}.{alias.name}"):
                    yield node.lineno, f"{node.module}.{alias.name}"


def is_module(name: str) -> bool:
    """`from package import submodule` names a module too."""
    package, *parts = name.split(".")
    path = ROOT.joinpath(*parts)
    return package == "firmtoken" and (path.with_suffix(".py").is_file() or path.is_dir())


def test_imports_point_from_runtime_to_compiler_to_schema() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for room in ROOMS
        for path in sources(room)
        for line, name in imports(path)
        if name.startswith("firmtoken.") and name.split(".")[1] in ROOMS
        if name.split(".")[1] not in MAY_IMPORT[room]
    ]
    assert wrong == []


def test_no_room_is_imported_by_its_bare_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(*ROOMS, "tests")
        for line, name in imports(path)
        if name.split(".")[0] in ROOMS
    ]
    assert wrong == []


def test_torch_is_not_written_in_the_rooms_of_the_parent() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(*TORCH_FREE)
        for line, name in imports(path)
        if name.split(".")[0] in TORCH
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module",
    [
        "firmtoken.compiler.pipeline",
        "firmtoken.runtime.kernels",
        "firmtoken.runtime.cli.run",
        "firmtoken.runtime.cli.dump",
        "firmtoken.runtime.cli.launch",
        "firmtoken.runtime.cli.service",
        "firmtoken.runtime.cli.bench",
        "firmtoken.runtime.cli.hub_model",
        "firmtoken.runtime.server.app",
    ],
)
def test_a_fresh_interpreter_stays_without_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({sorted(TORCH)!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_below_400_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources(*ROOMS, "tests")
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_rooms_have_no_import_cycles() -> None:
    edges: dict[str, set[str]] = {}
    for path in sources(*ROOMS):
        name = "firmtoken." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        edges[name] = {target for _, target in imports(path) if target.startswith("firmtoken.")}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name in done or name not in edges:
            return
        for target in sorted(edges[name] - {name}):
            visit(target, (*trail, name))
        done.add(name)

    for name in sorted(edges):
        visit(name, ())


def test_imports_stand_at_module_level_except_in_the_console_entry() -> None:
    below = [
        f"{path.relative_to(ROOT)}:{inner.lineno}"
        for path in sources(*ROOMS)
        if path.relative_to(ROOT) != Path("runtime/cli/run.py")
        for outer in ast.parse(path.read_text()).body
        if not isinstance(outer, ast.Import | ast.ImportFrom)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert below == []


OPEN_BY_THEMSELVES = {
    "schema/regular_file.py": "here it is done",
    "runtime/cli/evidence.py": "source of this package",
    "runtime/cli/standard_output.py": "the null device",
    "runtime/cli/this_machine.py": "the kernel's own files",
    "runtime/server/inspection.py": "the kernel's own files",
    "runtime/weights/synthetic_files.py": "new files in a folder of its own",
}


def opened(path: Path) -> Iterator[int]:
    """Lines that open a file for reading or appending without `open_regular`."""
    for call in ast.walk(ast.parse(path.read_text())):
        match call:
            case ast.Call(func=ast.Attribute(attr="read_bytes" | "read_text"), args=[] | [_]):
                # A function of that name has a room's own meaning; a method is pathlib's.
                yield call.lineno
            case ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(value=str()), *_]):
                yield call.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="open")):
                yield call.lineno
            case ast.Call(func=ast.Name(id="open"), keywords=keywords):
                if "opener" not in {keyword.arg for keyword in keywords}:
                    yield call.lineno


def test_files_of_other_people_are_opened_in_one_place() -> None:
    """A FIFO would keep its reader for ever (schema/regular_file.py)."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources("schema", "runtime")
        if str(path.relative_to(ROOT)) not in OPEN_BY_THEMSELVES
        for line in opened(path)
    ]
    assert wrong == []


def test_the_files_that_are_begun_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []


def test_no_module_is_called_utils() -> None:
    vague = {"utils", "helpers", "common", "misc", "base"}
    assert [str(path) for path in sources(*ROOMS) if path.stem in vague] == []


def test_tests_do_not_read_the_shared_folder() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != "test_house_rules.py" and "../shared" in path.read_text()
    ]
    assert wrong == []
