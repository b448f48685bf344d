"""What may be written for a quantity, and what it becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmtoken.schema.diagnostic import Fault
from firmtoken.schema.units import BYTES, COUNT, FLOPS, RATE, SECONDS, TOKENS, Unit, measure, show


@pytest.mark.parametrize(
    ("written", "unit", "value"),
    [
        ("64k", TOKENS, 65_536),
        ("1M", TOKENS, 1_048_576),
        ("1.5k", TOKENS, 1_536),
        (8209, TOKENS, 8_209),
        ("8209", TOKENS, 8_209),
        ("1KiB", BYTES, 1_024),
        ("1KB", BYTES, 1_000),
        ("23.5GiB", BYTES, 25_232_932_864),
        ("24 GB", BYTES, 24_000_000_000),
        ("0.1KiB", BYTES, 102),
        ("2TiB", BYTES, 2 * 2**40),
        ("512B", BYTES, 512),
        (0, BYTES, 0),
        (4096, BYTES, 4096),
        ("25GB/s", RATE, 25e9),
        ("1.008TB/s", RATE, 1.008e12),
        (1e9, RATE, 1e9),
        ("165 TFLOPS", FLOPS, 165e12),
        ("1.5PFLOPS", FLOPS, 1.5e15),
        ("30s", SECONDS, 30.0),
        ("500ms", SECONDS, 0.5),
        ("5m", SECONDS, 300.0),
        (30, SECONDS, 30.0),
        (8, COUNT, 8),
    ],
)
def test_a_quantity_becomes_a_number(written: object, unit: Unit, value: float) -> None:
    found = measure(written, unit)
    assert found == value
    assert isinstance(found, int if unit.whole else float)


@pytest.mark.parametrize(
    ("written", "unit", "message", "hint"),
    [
        ("64K", TOKENS, "`64K` is not a number of tokens", "did you mean `64k`?"),
        ("64kb", TOKENS, "`64kb` is not a number of tokens", "did you mean `64k`?"),
        ("1.3k", TOKENS, "`1.3k` is not a whole number of tokens", "did you mean `1331`?"),
        (1.5, TOKENS, "`1.5` is not a whole number of tokens", "did you mean `2`?"),
        ("1_000", TOKENS, "`1_000` is not a number of tokens", None),
        ("many", TOKENS, "`many` is not a number of tokens", None),
        ("-4k", TOKENS, "`-4k` is not a number of tokens", None),
        (True, TOKENS, "expected a number of tokens, found `true`", "for example `64k`"),
        (None, TOKENS, "expected a number of tokens, found nothing", "for example `64k`"),
        ([1], TOKENS, "expected a number of tokens, found a list", "for example `64k`"),
        ("24", BYTES, "`24` is not a number of bytes", None),
        (24, BYTES, "`24` is not a number of bytes", None),
        (0.25, BYTES, "`0.25` is not a number of bytes", None),
        ("24G", BYTES, "`24G` is not a number of bytes", "did you mean `24GB`?"),
        ("24gib", BYTES, "`24gib` is not a number of bytes", "did you mean `24GiB`?"),
        ("24Gi", BYTES, "`24Gi` is not a number of bytes", "did you mean `24GiB`?"),
        (
            "25GiB/s",
            RATE,
            "`25GiB/s` is not a number of bytes per second",
            "did you mean `25GB/s`?",
        ),
        ("25GB", RATE, "`25GB` is not a number of bytes per second", "did you mean `25GB/s`?"),
        (
            "165TF",
            FLOPS,
            "`165TF` is not a number of operations per second",
            "did you mean `165TFLOPS`?",
        ),
        (float("nan"), RATE, "`nan` is not a number of bytes per second", None),
        ("9" * 40, COUNT, f"`{'9' * 40}` is not a whole number", None),
        ("30sec", SECONDS, "`30sec` is not a duration", "did you mean `30s`?"),
    ],
)
def test_a_wrong_quantity_is_refused(
    written: object, unit: Unit, message: str, hint: str | None
) -> None:
    found = measure(written, unit)
    assert isinstance(found, Fault)
    assert found.message == message
    if hint is not None:
        assert found.hint == hint


@given(st.integers(min_value=1, max_value=2**60))
def test_bytes_survive_being_shown(amount: int) -> None:
    assert measure(show(amount, BYTES), BYTES) == amount


def test_an_amount_is_shown_in_its_largest_whole_unit() -> None:
    assert show(2**20, BYTES) == "1MiB"
    assert show(65_536, TOKENS) == "64k"
    assert show(8_209, TOKENS) == "8209"
    assert show(0.001, SECONDS) == "1ms"
    assert show(0, BYTES) == "0"


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.booleans()))
def test_measuring_never_raises(written: object) -> None:
    for unit in (BYTES, COUNT, FLOPS, RATE, SECONDS, TOKENS):
        assert isinstance(measure(written, unit), int | float | Fault)
