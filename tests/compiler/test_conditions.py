"""Conditions of hazards: what they demand, how they read, which texts are none."""

import pytest

from firmtoken.compiler.conditions import BadCondition, parse_condition, version


@pytest.mark.parametrize(
    ("subject", "text", "found", "expected"),
    [
        ("torch", "<2.12", (2, 11, 0), True),
        ("torch", "<2.12", (2, 9), True),
        ("torch", "<2.12", (2, 12, 0), False),
        ("torch", "<2.12.0", (2, 12), False),
        ("triton", ">=3.8,<3.8.1", (3, 8), True),
        ("triton", ">=3.8,<3.8.1", (3, 8, 1), False),
        ("triton", "3.8.0", (3, 8), True),
        ("triton", "3.8", (3, 8, 2), True),
        ("triton", "3.8", (3, 9), False),
        ("capability", "8.9", (8, 9), True),
        ("capability", ">=12.0", (9, 0), False),
        ("capability", "<10.0", (8, 6), True),
        ("expert_width", "%64", (512,), False),
        ("expert_width", "%64", (96,), True),
        ("memory", "<17GiB", (16 * 2**30,), True),
        ("memory", "<17GiB", (24 * 2**30,), False),
        ("os", "wsl|windows", "wsl", True),
        ("os", "wsl|windows", "linux", False),
    ],
)
def test_a_condition_holds_or_not(
    subject: str, text: str, found: tuple[int, ...] | str, expected: bool
) -> None:
    terms = parse_condition({subject: text})
    assert all(term.meets(found) for term in terms) is expected


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"capability": "8.9", "torch": "<2.12"}, "compute capability 8.9, torch before 2.12"),
        ({"capability": "<10.0"}, "compute capability below 10.0"),
        ({"triton": ">=3.8,<3.8.1"}, "triton from 3.8, triton before 3.8.1"),
        ({"cuda": "<13.0"}, "CUDA before 13.0"),
        ({"memory": "<17GiB"}, "below 17.00 GiB of device memory"),
        ({"expert_slots": ">=993"}, "993 or more expert slots"),
        ({"expert_width": "%64"}, "no multiple of 64 elements an expert is wide"),
        ({"os": "wsl|windows"}, "wsl or windows"),
        ({"graphs": "auto"}, "captured graphs"),
    ],
)
def test_a_condition_reads_as_words(condition: dict[str, str], words: str) -> None:
    assert ", ".join(map(str, parse_condition(condition))) == words


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"tourch": "<2.12"}, "there is no subject `tourch`"),
        ({"torch": "2.12<"}, "`torch: 2.12<` is no comparison"),
        ({"torch": "=2.12"}, "`torch: =2.12` is no comparison"),
        ({"torch": ""}, "`torch: ` is no comparison"),
        ({"torch": ">=2.11,"}, "`torch: ` is no comparison"),
        ({"torch": "%2"}, "`torch: %2` mixes a size and a version"),
        ({"torch": "<2GiB"}, "`torch: <2GiB` mixes a size and a version"),
        ({"head_dim": "<2.5"}, "`head_dim: <2.5` mixes a size and a version"),
        ({"head_dim": "%0"}, "`head_dim: %0` divides by nothing"),
        ({"os": "macos"}, "`os` is never `macos`"),
        ({"os": "wsl|"}, "`os` is never ``"),
    ],
)
def test_a_text_that_says_nothing_is_refused(condition: dict[str, str], message: str) -> None:
    with pytest.raises(BadCondition) as caught:
        parse_condition(condition)
    assert str(caught.value) == message


def test_versions_are_read_by_their_numbers() -> None:
    assert version("2.12.1+cu130") == (2, 12, 1)
    assert version("2.9") < version("2.12")
    assert version("0.6.18.post1") == (0, 6, 18)
    assert version("3.8.0rc1") == (3, 8, 0)
    assert version("nightly") == ()
