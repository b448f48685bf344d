"""Whatever is wrong with a checkpoint: refused by the right name before anything is allocated, or harmless."""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.runtime.weights.breakages import (
    HARMLESS,
    IN_THE_FOLDER,
    IN_THE_OTHER_FILES,
    IN_THE_TENSORS,
    IN_THE_VALUES,
    Breakage,
    Copy,
)

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.loading import load_weights
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.server.folder import ModelFolderFault
from firmtoken.runtime.server.served_model import load_served_model
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.preflight import Inventory, preflight
from firmtoken.schema.load import load_profile
from firmtoken.schema.references import shipped_folder

CASES = Path(__file__).parent / "cases" / "broken"
TINY = shipped_folder() / "weights" / "tiny-moe"
TABLES = {
    "folder": IN_THE_FOLDER,
    "tensors": IN_THE_TENSORS,
    "other-files": IN_THE_OTHER_FILES,
}
Break = Callable[[Breakage], Path]


@cache
def tiny_plan() -> Plan:
    return compile_profile(load_profile("tiny-cpu", ()).profile, CARDS)


@pytest.fixture
def broken(tmp_path_factory: pytest.TempPathFactory) -> Break:
    def make(breakage: Breakage) -> Path:
        folder = tmp_path_factory.mktemp("weights")
        breakage(Copy(TINY, folder))
        return folder

    return make


def look(folder: Path) -> Inventory:
    """What `ft run` does before it allocates anything, in its order."""
    load_served_model(folder, dialect="qwen3_5", vocab_size=4096, now=datetime.now)
    return preflight(tiny_plan(), folder)


def told(name: str, error: ModelFolderFault | LoadError, folder: Path) -> str:
    text = str(error).replace(str(folder), "FOLDER").replace(folder.name, "FOLDER")
    return f"{name}\n  {text}\n  hint: {error.hint}\n"


@pytest.mark.report(47, 55, 56, 66)
@pytest.mark.parametrize("table", TABLES)
def test_what_is_broken_is_named_before_anything_is_allocated(
    table: str, broken: Break, golden: Callable[[Path, str], None]
) -> None:
    lines = []
    for name, breakage in TABLES[table].items():
        folder = broken(breakage)
        with pytest.raises((ModelFolderFault, LoadError)) as caught:
            look(folder)
        lines.append(told(name, caught.value, folder))
    golden(CASES / f"{table}.txt", "\n".join(lines))


def test_numbers_that_are_none_are_named_while_they_are_read(
    broken: Break, golden: Callable[[Path, str], None]
) -> None:
    plan = tiny_plan()
    interpreter = Interpreter(plan, Arena(plan.spaces, {}))
    lines = []
    for name, breakage in IN_THE_VALUES.items():
        folder = broken(breakage)
        inventory = look(folder)
        with pytest.raises(LoadError) as caught:
            load_weights(plan, interpreter, inventory, lambda *_: None)
        lines.append(told(name, caught.value, folder))
    interpreter.close()
    golden(CASES / "values.txt", "\n".join(lines))


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_fills_memory_with_the_same_bytes(name: str, broken: Break) -> None:
    found, wanted = filled(broken(HARMLESS[name])), whole()
    assert torch.equal(found.device, wanted.device)
    assert torch.equal(found.host["bank"], wanted.host["bank"])


@cache
def whole() -> Arena:
    return filled(TINY)


def filled(folder: Path) -> Arena:
    plan = tiny_plan()
    arena = Arena(plan.spaces, {})
    interpreter = Interpreter(plan, arena)
    load_weights(plan, interpreter, look(folder), lambda *_: None)
    interpreter.close()
    return arena
