"""What every test may use: golden files, which `pytest --update-cases` rewrites, and a state folder of no person."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-cases", action="store_true", help="rewrite the golden files")


LONGEST = (
    "tests/runtime/embedded/test_soak.py",
    "tests/runtime/embedded/test_equal_texts.py",
    "tests/runtime/embedded/test_length_sweep.py",
    "tests/runtime/embedded/test_disconnects.py",
    "tests/runtime/kernels/test_triton_nvfp4.py",
    "tests/proofs/test_orders.py",
)
"""Half a minute and more each. A file is one worker's: begun last, it would leave the others without work."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {config.rootpath / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))  # others keep their order


Golden = Callable[[Path, str], None]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(path, text)`: the text equals the file, or becomes it with `--update-cases`."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-cases"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path.name} is missing: run `pytest --update-cases`"
        assert text == path.read_text()

    return check


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers under test keep their logs and reports away from those of the person who tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
