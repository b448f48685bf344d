"""Predicted speed against the figures it was fitted to, and what must hold of it anywhere."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmtoken.compiler.costs import Residency
from firmtoken.compiler.fits import Fit, Fits
from firmtoken.compiler.frontier import fit_speed
from firmtoken.compiler.hit_rates import hit_rate, miss_rate
from firmtoken.compiler.speed import (
    bank_stream_s,
    compute_s,
    hiding_tokens,
    prefill_s,
    speed,
)

Bench = Callable[..., Fits]


def weighed(fits: Fits, context: int) -> Fit:
    found = fits.best(context)
    assert isinstance(found, Fit)
    return found


def test_a_4090_decodes_qwen_as_published(fits_for: Bench) -> None:
    fits = fits_for("qwen")
    found = fit_speed(fits, weighed(fits, 65_536))
    assert found.decode_tokens_per_s == pytest.approx(205, rel=0.03)
    assert found.decode_tokens_per_s_full == pytest.approx(472, rel=0.05)
    assert found.hit_rate == 1.0


def test_a_pro_6000_decodes_minimax_as_published(fits_for: Bench) -> None:
    fits = fits_for("minimax")
    found = fit_speed(fits, weighed(fits, 65_536))
    assert found.decode_tokens_per_s == pytest.approx(58, rel=0.08)
    assert found.ttft_s == pytest.approx(0.861, rel=0.05)
    assert found.hit_rate == pytest.approx(0.955, abs=0.005)


def test_a_span_hides_the_bank_at_5k_on_a_pro_6000(fits_for: Bench) -> None:
    fits = fits_for("minimax")
    fit = weighed(fits, 65_536)
    costs = fits.costs["offload"]
    hiding = hiding_tokens(costs, fits.residency(fit), 65_536)
    assert 4_500 < hiding < 5_500
    assert compute_s(costs, hiding, 0) >= bank_stream_s(costs, fits.residency(fit))
    assert compute_s(costs, hiding - 1, 0) < bank_stream_s(costs, fits.residency(fit))


def test_a_longer_span_is_never_slower(fits_for: Bench) -> None:
    fits = fits_for("minimax")
    residency = fits.residency(weighed(fits, 65_536))
    costs = fits.costs["offload"]
    spans = [replace(residency, span=span) for span in (4_096, 8_192, 16_384)]
    times = [prefill_s(costs, longer, 32_768) for longer in spans]
    assert times == sorted(times, reverse=True)


def test_more_residency_is_never_slower(fits_for: Bench) -> None:
    costs = fits_for("qwen").costs["offload"]
    found = [
        speed(costs, Residency(offloaded=True, slots=slots, total=10_240, span=8_192), 4)
        for slots in range(0, 10_241, 512)
    ]
    for name in ("decode_tokens_per_s", "decode_tokens_per_s_full", "prefill_tokens_per_s"):
        values = [getattr(one, name) for one in found]
        assert values == sorted(values)


def test_hit_rates_are_the_table_and_rise() -> None:
    assert hit_rate(0.37) == pytest.approx(0.84)
    assert hit_rate(0.80) == pytest.approx(0.989)
    assert hit_rate(0.0) == 0.0
    assert hit_rate(1.0) == 1.0
    for sequences in (1, 2, 4, 8, 16, 64):
        rates = [miss_rate(step / 100, sequences) for step in range(101)]
        assert rates == sorted(rates, reverse=True)


def test_batches_miss_more_than_one_stream() -> None:
    for step in range(20, 91, 5):
        rates = [miss_rate(step / 100, sequences) for sequences in (1, 2, 4, 8, 16)]
        assert rates == sorted(rates)
