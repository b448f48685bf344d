"""The wheel holds what is tracked in the four rooms, no more and no less, and runs without the tree."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("schema", "compiler", "runtime", "profiles")


def tracked(*rooms: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", *rooms],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    # A copy of what is tracked: an old `build/` in the tree would end up in the wheel.
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "-w", str(folder), str(tree)], check=True)
    return next(folder.glob("firmtoken-*.whl"))


def test_the_wheel_holds_the_tracked_files_of_the_rooms(wheel: Path) -> None:
    expected = {"firmtoken/__init__.py", "firmtoken/py.typed"} | {
        f"firmtoken/{name}"
        for name in tracked(*ROOMS)
        if not name.endswith(".md") and "training" not in Path(name).parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("firmtoken/")}
    assert found == expected


def test_a_wheel_outside_the_tree_plans_the_shipped_profile(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import sys; sys.argv = ['ft', 'plan', 'tiny-cpu']; from firmtoken.runtime.cli.run import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
    )
    assert done.stdout.startswith("effective context 16,384 of 32,768 (as asked)")
