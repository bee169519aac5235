"""`Auto` and `Splitting` on exact problems and traps: the interval covers the truth, or the outcome says do not trust.

Bounds on the share of right answers among n repeats. Where the share is 0.95 (the nominal coverage), its binomial
standard error is sqrt(0.95 * 0.05 / n): 0.015 at n = 200 and 0.040 at n = 30. The slow suite asks for 0.93 of 200
repeats as the requirement states it, 1.3 standard errors under nominal: a method at exactly 0.95 misses that one time
in ten. Such a miss is looked at again with 400 more, where 0.93 of all 600 lies 2.2 standard errors under 0.95: right
methods then fail one time in a hundred, and one that covers 0.90 still fails nine times in ten. The quick suite
asks for 0.95 less five standard errors, and fails only what is far from it.
"""

from __future__ import annotations

import math

import pytest
from exact import ALL, PLAIN, TRAPS, Exact
from scipy import stats

from rarely import Auto, Estimate, Outcome, Splitting, estimate
from rarely.methods import Estimator

QUICK = {
    name: ALL[name]
    for name in (
        "half-space d=2",
        "half-space d=100",
        "parabola around d=30",
        "two opposite modes d=10",
        "two orthogonal modes d=50",
        "four modes d=20",
        "staircase d=5",
        "channel d=5",
    )
}
SPLITTING: dict[str, Splitting] = {"splitting": Splitting(), "keep all": Splitting(keep="all")}


def right(result: Estimate, exact: Exact) -> bool:
    """Covered, a valid bound, or openly unsure."""
    if result.outcome is Outcome.STALLED:
        return True
    if result.outcome is Outcome.VIOLATED:
        return exact.log_prob in result.interval
    return exact.log_prob <= result.upper_bound


def share_right(results: list[Estimate], exact: Exact) -> float:
    return sum(right(result, exact) for result in results) / len(results)


def five_sigma(n: int) -> float:
    return 0.95 - 5 * math.sqrt(0.95 * 0.05 / n)


def repeats(exact: Exact, estimator: Estimator, n: int, at_once: int, seed: int) -> list[Estimate]:
    """n repeats in batches: every copy in a batch has random numbers of its own."""
    found: list[Estimate] = []
    while len(found) < n:
        copies = [exact.problem] * min(at_once, n - len(found))
        found += estimate(copies, estimator, seed=seed + len(found))
    return found


def assert_calibrated(exact: Exact, estimator: Estimator, at_once: int) -> None:
    results = repeats(exact, estimator, 200, at_once, seed=1000)
    if share_right(results, exact) < 0.93:
        results += repeats(exact, estimator, 400, at_once, seed=2000)
    assert share_right(results, exact) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("exact", ALL.values(), ids=ALL.keys())
def test_auto_is_calibrated(exact: Exact) -> None:
    assert_calibrated(exact, Auto(), 50)


@pytest.mark.slow
@pytest.mark.parametrize("splitting", SPLITTING.values(), ids=SPLITTING.keys())
@pytest.mark.parametrize("exact", ALL.values(), ids=ALL.keys())
def test_splitting_is_calibrated(exact: Exact, splitting: Splitting) -> None:
    assert_calibrated(exact, splitting, 25)


@pytest.mark.parametrize("exact", QUICK.values(), ids=QUICK.keys())
def test_auto_is_right_or_openly_unsure(exact: Exact) -> None:
    repeats = 30 if (exact.problem.inputs.normal_dim or 0) > 8 else 12  # importance sampling does not batch
    results = estimate([exact.problem] * repeats, Auto(), seed=21)
    assert share_right(results, exact) >= five_sigma(repeats)
    trusted = [result for result in results if result.outcome is Outcome.VIOLATED]
    assert len(trusted) >= 0.8 * repeats, "an answer that says nothing is always right, and of no use"
    errors = [result.log_prob - exact.log_prob for result in trusted]
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.15  # the target error is 0.1


@pytest.mark.parametrize("name", ["shell d=20", "plateau d=3", "away, cliff d=3", "box corner d=6"])
def test_auto_on_what_only_splitting_or_chance_can_do(name: str) -> None:
    """Ten repeats of the dear ones. Nine right of ten: P(two or more wrong at 0.95) is 0.09, so the bound is lower."""
    exact = ALL[name]
    results = estimate([exact.problem] * 10, Auto(), seed=22)
    allowed = int(stats.binom.isf(2.9e-7, 10, 0.05))  # five sigma, one-sided
    assert sum(not right(result, exact) for result in results) <= allowed


@pytest.mark.parametrize("name", ["half-space d=2", "two opposite modes d=10", "staircase d=5", "away d=5"])
def test_splitting_keeping_all_states_is_right_or_openly_unsure(name: str) -> None:
    exact = ALL[name]
    results = estimate([exact.problem] * 30, Splitting(300, keep="all"), seed=23)
    assert share_right(results, exact) >= five_sigma(30)


def test_the_problems_are_what_they_say() -> None:
    """Probabilities that plain sampling can see, against shifted copies of the rare ones."""
    assert math.log(1e-6) == pytest.approx(TRAPS["shell d=20"].log_prob)
    assert PLAIN["box corner d=6"].log_prob == pytest.approx(6 * math.log(0.05))
    z = stats.norm.rvs(size=(400_000, 20), random_state=1)
    away = float(stats.norm.sf(5 + 0.05 * (z[:, 1:] ** 2).sum(1)).mean())
    around = float(stats.norm.sf(5 - 0.05 * (z[:, 1:] ** 2).sum(1)).mean())
    assert math.log(away) == pytest.approx(PLAIN["parabola away d=30"].log_prob, abs=0.05)
    assert math.log(around) == pytest.approx(PLAIN["parabola around d=30"].log_prob, abs=0.15)
