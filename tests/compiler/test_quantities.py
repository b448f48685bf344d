"""Numbers as people read them."""

import pytest

from firmtoken.compiler.quantities import count, percent, rate, seconds, shorthand, size


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1_023, "1,023 B"), (1_536, "1.50 KiB"), (25_232_932_864, "23.50 GiB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.004, "0.4 %"), (0.4, "40 %"), (0.9999, "99.9 %"), (1.0, "100 %")],
)
def test_a_share_close_to_an_end_is_never_rounded_onto_it(share: float, text: str) -> None:
    assert percent(share) == text


def test_rates_seconds_and_tokens() -> None:
    assert (rate(9.31), rate(204.7), rate(11_293.4)) == ("9.3", "205", "11,293")
    assert (seconds(3.14), seconds(0.1504)) == ("3.1 s", "150 ms")
    assert (shorthand(65_536), shorthand(8_209)) == ("64k", "8209")


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "launch", "1 launch"), (7_275, "launch", "7,275 launches"), (4, "page", "4 pages")],
)
def test_a_noun_has_its_plural(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text
