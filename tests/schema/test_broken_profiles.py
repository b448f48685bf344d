"""The page that a person reads for a broken profile, word for word.

`cases/broken/NAME.yaml` gives `NAME.txt`. To renew a page, delete it and run this test twice.
"""

from pathlib import Path

import pytest

from firmtoken.schema.diagnostic import ProfileError
from firmtoken.schema.load import load_profile

CASES = Path(__file__).resolve().parent / "cases" / "broken"


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.yaml")))
def test_a_broken_profile_gives_its_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    with pytest.raises(ProfileError) as caught:
        load_profile(f"{name}.yaml")
    found = str(caught.value).replace(str(CASES), "CASES") + "\n"
    page = CASES / f"{name}.txt"
    if not page.exists():
        page.write_text(found)
        pytest.fail(f"{page.name} was missing and is written now")
    assert found == page.read_text()
