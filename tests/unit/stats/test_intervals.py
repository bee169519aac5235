from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from rarely.stats.intervals import (
    clopper_pearson,
    incomplete_beta,
    log_mean_exp,
    log_upper_bound,
    normal_quantile,
    student_quantile,
)
from rarely.stats.statistic import Binomial, Exceeded, LogNormal, Replicates


@pytest.mark.parametrize("a", [0.5, 1.0, 3.0, 40.0, 1e4])
@pytest.mark.parametrize("b", [0.5, 2.0, 77.0, 1e6])
def test_incomplete_beta(a: float, b: float) -> None:
    for q in (1e-12, 1e-3, 0.2, 0.5, 0.9, 0.999):
        x = float(special.betaincinv(a, b, q))
        if 0 < x < 1:
            assert incomplete_beta(a, b, x) == pytest.approx(float(special.betainc(a, b, x)), rel=1e-8)


def test_incomplete_beta_at_the_ends() -> None:
    assert incomplete_beta(2, 3, 0.0) == 0.0
    assert incomplete_beta(2, 3, 1.0) == 1.0


@pytest.mark.parametrize(
    ("hits", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (3, 10**6), (700, 10**6), (2, 10**10), (10**6 - 1, 10**6)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_clopper_pearson(hits: int, trials: int, confidence: float) -> None:
    low, high = clopper_pearson(hits, trials, confidence)
    tail = 0.5 * (1 - confidence)
    expected_low = stats.beta.ppf(tail, hits, trials - hits + 1) if hits else 0.0
    expected_high = stats.beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    assert math.exp(low) == pytest.approx(expected_low, rel=1e-7)
    assert math.exp(high) == pytest.approx(expected_high, rel=1e-7)


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (0, 10**12), (4, 1000)])
def test_upper_bound(hits: int, trials: int) -> None:
    expected = stats.beta.ppf(0.95, hits + 1, trials - hits)
    assert math.exp(log_upper_bound(hits, trials, 0.95)) == pytest.approx(expected, rel=1e-7)


def test_upper_bound_of_a_certain_event_is_one() -> None:
    assert log_upper_bound(7, 7, 0.95) == 0.0


@pytest.mark.parametrize("degrees", [1, 2, 7, 31, 1000])
@pytest.mark.parametrize("probability", [0.5, 0.8, 0.975, 0.9995])
def test_student_quantile(degrees: int, probability: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(
        stats.t.ppf(probability, degrees), rel=1e-6, abs=1e-6
    )


def test_normal_quantile() -> None:
    assert normal_quantile(0.975) == pytest.approx(stats.norm.ppf(0.975))


def test_log_mean_exp_does_not_underflow() -> None:
    assert log_mean_exp([-2000.0, -2000.0 + math.log(3)]) == pytest.approx(-2000 + math.log(2))
    assert log_mean_exp([-math.inf, -math.inf]) == -math.inf
    assert log_mean_exp([-math.inf, 0.0]) == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("n", [4, 8, 32])
def test_replicate_interval_covers(sigma: float, n: int) -> None:
    """Lognormal replicates with mean 1e-9: at least nominal coverage, less the 5 sigma of the repeats."""
    repeats, truth = 1000, math.log(1e-9)
    generator = np.random.default_rng(1)
    draws = truth - 0.5 * sigma**2 + sigma * generator.standard_normal((repeats, n))
    covered = 0
    for row in draws:
        known = Replicates(tuple(row.tolist()))
        interval = known.interval(0.95)
        assert known.log_prob in interval
        assert known.std > 0
        covered += truth in interval
    assert covered / repeats >= 0.95 - 5 * math.sqrt(0.95 * 0.05 / repeats)


def test_replicate_interval_with_some_zeros_reaches_down_to_zero() -> None:
    known = Replicates((-5.0, -math.inf, -math.inf, -5.0))
    assert known.log_prob == pytest.approx(-5 + math.log(0.5))
    assert known.interval(0.95).low == -math.inf
    assert known.log_prob < known.interval(0.95).high <= 0
    assert known.std == pytest.approx(math.sqrt(4 / 3 / 4))


def test_replicate_interval_knows_nothing_from_one_or_from_zeros() -> None:
    for values in ((-5.0,), (-math.inf,) * 3):
        known = Replicates(values)
        assert known.log_prob == values[0]
        assert known.std == math.inf
        assert (known.interval(0.95).low, known.interval(0.95).high) == (-math.inf, 0.0)


STATISTICS = {
    "count": Binomial(3, 1000),
    "no hit": Binomial(0, 1000),
    "all hits": Binomial(7, 7),
    "no trial": Binomial(0, 0),
    "count in a part": Binomial(40, 100, -12.0),
    "count in a part that is rounding": Binomial(40, 100, -30.0, 1e-13),
    "replicates": Replicates((-9.0, -9.3, -8.8, -9.9)),
    "replicates over one": Replicates((0.2, -0.1, 0.3)),
    "replicates with a model": Replicates((-9.0, -9.0, -9.0), 0.05),
    "some zeros": Replicates((-9.0, -math.inf, -8.0)),
    "one run": LogNormal(-0.01, 0.5),
}


@pytest.mark.parametrize("known", STATISTICS.values(), ids=STATISTICS.keys())
def test_a_number_lies_in_its_interval_and_at_most_at_one(known: Binomial | Replicates | LogNormal) -> None:
    """Laws of evidence: whatever the sample, at any confidence."""
    for confidence in (0.5, 0.9, 0.95, 0.999):
        interval = known.interval(confidence)
        assert interval.confidence == confidence
        assert known.log_prob in interval
        assert interval.high <= 0
        assert known.lower(confidence) <= known.log_prob <= known.upper(confidence) <= 0
        # One side at a time is sharper, and more confidence is wider.
        assert known.upper(confidence) <= interval.high + 1e-12
        assert known.lower(confidence) >= interval.low - 1e-12
        wider = known.interval(0.5 + 0.5 * confidence)
        assert wider.low <= interval.low
        assert wider.high >= interval.high


def test_what_levels_leave() -> None:
    assert Exceeded((-40.0, -40.0, -40.0)).upper(0.95) == pytest.approx(-40.0)
    assert -40 < Exceeded((-40.0, -45.0, -60.0)).upper(0.95) < -36
    assert Exceeded((-40.0,), 0.5).upper(0.95) == pytest.approx(-40 + 0.5 * stats.norm.ppf(0.95))
    assert Exceeded((0.0, 0.0)).upper(0.95) == 0.0
