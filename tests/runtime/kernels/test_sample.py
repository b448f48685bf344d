"""Sampling: Philox as Triton has it, filters by their definitions, draws independent of the batch."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firmtoken.runtime.kernels.batch import Batch, Draw
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN
from firmtoken.runtime.kernels.sample.philox import philox, uniform
from firmtoken.runtime.kernels.sample.reference import draw_token

TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def fill(out, seeds, positions):
    i = tl.program_id(0)
    tl.store(out + i, tl.rand(tl.load(seeds + i), tl.load(positions + i)))
cases = {cases}
out = torch.empty(len(cases))
seeds, positions = (torch.tensor(column) for column in zip(*cases))
fill[(len(cases),)](out, seeds, positions)
print(out.tolist())
"""


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox(counter, key) == words


def test_uniform_equals_triton(tmp_path: Path) -> None:
    cases = [(0, 0), (1, 0), (0, 1), (2**62 + 12345, 77), (-1, 32_767), (42, 3 * 2**32 + 5)]
    cases += [(seed * 7919, seed % 100) for seed in range(60)]
    script = tmp_path / "triton_rand.py"
    script.write_text(TRITON.replace("{cases}", repr(cases)))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    wanted = [float(word) for word in done.stdout.strip()[1:-1].split(",")]
    assert [uniform(seed, position) for seed, position in cases] == wanted


def test_uniform_is_uniform() -> None:
    numbers = torch.tensor([uniform(5, position) for position in range(20_000)])
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert (numbers.histc(20, 0, 1) - 1000).abs().max() < 150


def draw(**changes: Any) -> Draw:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 1, "position": 0}
    return Draw(**(values | changes))


def drawn(logits: torch.Tensor, count: int = 3000, **changes: Any) -> Counter[int]:
    return Counter(draw_token(logits, draw(position=i, **changes)) for i in range(count))


def test_temperature_zero_takes_the_lowest_id_of_equals(
    launch: Callable[..., Any], make_batch: Callable[..., Batch]
) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 0.0, 5.0]])
    tokens = torch.full((2,), 99)
    batch = make_batch([], draws=(draw(temperature=0.0), draw(temperature=0.0)))
    launch("sample", batch, logits=logits, tokens=tokens)
    assert tokens.tolist() == [1, 0]


def test_draws_follow_the_softmax_of_logits_over_temperature() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    for temperature in (0.5, 1.0, 3.0):
        counts = drawn(logits, temperature=temperature)
        wanted = torch.softmax(logits / temperature, 0)
        got = torch.tensor([counts[i] / 3000 for i in range(4)])
        assert (got - wanted).abs().max() < 0.03


def test_top_k_keeps_the_largest_and_the_lowest_ids_of_equals() -> None:
    logits = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0])
    assert drawn(logits, top_k=3).keys() == {0, 1, 3}
    assert drawn(logits, top_k=1).keys() == {3}
    assert drawn(logits, top_k=99).keys() == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_shortest_run_that_reaches_p() -> None:
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    assert drawn(logits, top_p=0.4).keys() == {0}
    assert drawn(logits, top_p=0.6).keys() == {0, 1}
    assert drawn(logits, top_p=0.8).keys() == {0, 1, 2}
    assert drawn(logits, top_p=1e-9).keys() == {0}
    assert drawn(torch.zeros(4), top_p=0.5).keys() == {0, 1}


def test_top_p_counts_what_top_k_has_left() -> None:
    logits = torch.tensor([0.3, 0.3, 0.2, 0.2]).log()
    assert drawn(logits, top_k=2, top_p=0.45).keys() == {0}
    assert drawn(logits, top_p=0.45).keys() == {0, 1}


def test_min_p_drops_what_is_far_below_the_largest() -> None:
    logits = torch.tensor([0.6, 0.29, 0.11]).log()
    assert drawn(logits, min_p=0.2).keys() == {0, 1}
    assert drawn(logits, min_p=1.0).keys() == {0}


def test_a_draw_does_not_depend_on_the_batch(
    launch: Callable[..., Any], make_batch: Callable[..., Batch]
) -> None:
    logits = torch.randn(5, 100)
    draws = tuple(
        draw(temperature=0.8, top_k=20, top_p=0.9, seed=seed, position=seed * 3)
        for seed in range(5)
    )
    together = torch.zeros(5, dtype=torch.int64)
    launch("sample", make_batch([], draws=draws), logits=logits, tokens=together)
    for row in (4, 2, 0):
        alone = torch.zeros(1, dtype=torch.int64)
        batch = make_batch([], draws=draws[row : row + 1])
        launch("sample", batch, logits=logits[row : row + 1], tokens=alone)
        assert alone[0] == together[row]


def test_a_tiny_change_of_logits_moves_a_draw_only_at_a_boundary() -> None:
    logits = torch.zeros(50)
    swapped = logits + torch.linspace(-1e-6, 1e-6, 50)
    changed = [
        position
        for position in range(500)
        if draw_token(logits, draw(position=position))
        != draw_token(swapped, draw(position=position))
    ]
    assert len(changed) <= 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-307, 9.9e-6])
def test_a_temperature_next_to_zero_takes_the_lowest_id_of_equals(
    launch: Callable[..., Any], make_batch: Callable[..., Batch], temperature: float
) -> None:
    logits = torch.tensor([[1.0, 300.0, 300.0], [-5e4, 0.0, -7.0]])
    tokens = torch.full((2,), 99)
    draws = (draw(temperature=temperature), draw(temperature=temperature, top_k=2, top_p=0.5))
    launch("sample", make_batch([], draws=draws), logits=logits, tokens=tokens)
    assert tokens.tolist() == [1, 1]


def test_the_lowest_temperature_that_draws_finds_the_largest() -> None:
    assert drawn(torch.tensor([3e4, -3e4, 3e4]), 100, temperature=1e-5).keys() == {0, 2}
    assert drawn(torch.tensor([0.0, 0.01]), 100, temperature=1e-5).keys() == {1}


@pytest.mark.parametrize("temperature", [1e300, 1.7e308])
def test_a_huge_temperature_draws_evenly_from_what_top_k_keeps(temperature: float) -> None:
    logits = torch.tensor([0.0, 40.0, 20.0, -40.0])
    counts = drawn(logits, 1000, temperature=temperature)
    assert all(counts[token] > 200 for token in range(4))
    assert drawn(logits, 100, temperature=temperature, top_k=2).keys() == {1, 2}


@pytest.mark.parametrize(
    "filters", [{"top_p": 0.0}, {"top_p": 1e-300}, {"min_p": 1.0}, {"top_k": 1}]
)
def test_the_narrowest_filter_keeps_the_largest(filters: dict[str, Any]) -> None:
    logits = torch.tensor([1.0, 2.5, 2.4])
    for temperature in (1e-5, 1.0, 50.0):
        assert drawn(logits, 50, temperature=temperature, **filters).keys() == {1}


def test_a_huge_top_k_keeps_all() -> None:
    assert drawn(torch.zeros(3), 100, top_k=2**31).keys() == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([1.0, torch.nan, 3.0], NO_TOKEN),
        ([torch.nan] * 3, NO_TOKEN),
        ([1.0, torch.inf, 3.0], NO_TOKEN),
        ([-torch.inf] * 3, NO_TOKEN),
        ([-torch.inf, 2.0, -torch.inf], 1),
    ],
)
def test_nothing_is_drawn_from_what_is_no_number(
    launch: Callable[..., Any],
    make_batch: Callable[..., Batch],
    temperature: float,
    row: list[float],
    token: int,
) -> None:
    logits = torch.tensor([[0.0, 0.0, 90.0], row, [90.0, 0.0, 0.0]])
    tokens = torch.full((3,), 99)
    draws = (draw(temperature=temperature),) * 3
    launch("sample", make_batch([], draws=draws), logits=logits, tokens=tokens)
    assert tokens.tolist() == [2, token, 0]
