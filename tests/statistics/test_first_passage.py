"""First passages of walks and queues, whose probability is known to 1e-12: rollouts of `rarely.systems` against it.

A walk of equal steps up and down by the reflection principle, a queue by the powers of its transition matrix, a walk of
normal steps by Gauss and Legendre over the density of those that have not passed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import rarely
from rarely import Gaussian, Outcome, Problem
from rarely.core.rng import Rng
from rarely.inputs import Choice, Tabular
from rarely.systems import always, closed_loop, eventually, signal, until

FIVE_SIGMA = 2 * NormalDist().cdf(-5)
ARRIVALS = {0: Fraction(5, 10), 1: Fraction(3, 10), 2: Fraction(2, 10)}  # customers in a step, of which one is served


def reflected(steps: int, barrier: int) -> Fraction:
    """P(a walk of equal +-1 steps reaches the barrier): twice the ends above it, and once those at it."""

    def ends(height: int) -> int:
        up = steps + height
        return math.comb(steps, up // 2) if up % 2 == 0 and 0 <= up // 2 <= steps else 0

    return Fraction(ends(barrier) + 2 * sum(ends(h) for h in range(barrier + 1, steps + 1)), 2**steps)


def overflown(steps: int, room: int) -> Fraction:
    """P(a queue that begins empty reaches `room` customers), by following the law of those that have not."""
    law, passed = {0: Fraction(1)}, Fraction(0)
    for _ in range(steps):
        after: dict[int, Fraction] = {}
        for length, weight in law.items():
            for arrived, share in ARRIVALS.items():
                now = max(length + arrived - 1, 0)
                if now >= room:
                    passed += weight * share
                else:
                    after[now] = after.get(now, Fraction(0)) + weight * share
        law = after
    return passed


def passed(steps: int, barrier: float, nodes: int = 400) -> float:
    """P(a walk of standard normal steps exceeds the barrier), by quadrature over what has stayed below."""
    depth = 12 * math.sqrt(steps)
    at, weights = np.polynomial.legendre.leggauss(nodes)
    x = barrier - depth * (1 - at) / 2
    weights = weights * depth / 2
    density, total = stats.norm.pdf(x), stats.norm.sf(barrier)
    for _ in range(steps - 1):
        total += float(weights @ (density * stats.norm.sf(barrier - x)))
        density = (weights * density) @ stats.norm.pdf(x[None, :] - x[:, None])
    return float(total)


def walk(steps: int, barrier: float, step: object) -> Problem:
    system = closed_loop(lambda s, w: s + w, initial=[0.0], disturbance=step, steps=steps, states=["height"])
    return system.problem(always(signal("height") < barrier))


def queue(steps: int, room: int) -> Problem:
    def serve(length: Tensor, arrived: Tensor) -> Tensor:
        return (length + arrived - 1).clamp(min=0)

    arrivals = Tabular({"arrived": Choice(list(ARRIVALS), [float(share) for share in ARRIVALS.values()])})
    system = closed_loop(serve, initial=[0.0], disturbance=arrivals, steps=steps, states=["length"])
    return system.problem(~eventually(signal("length") >= room - 0.5))


COIN = Tabular({"step": Choice([-1.0, 1.0])})
NORMAL = Gaussian([0.0], 1.0)
CASES: dict[str, tuple[Problem, float]] = {
    "coin walk of 20 steps to 10": (walk(20, 9.5, COIN), float(reflected(20, 10))),
    "coin walk of 40 steps to 26": (walk(40, 25.5, COIN), float(reflected(40, 26))),
    "queue of 30 steps to 12": (queue(30, 12), float(overflown(30, 12))),
    "normal walk of 10 steps to 12": (walk(10, 12.0, NORMAL), passed(10, 12.0)),
    "normal walk of 40 steps to 36": (walk(40, 36.0, NORMAL), passed(40, 36.0)),
}


def test_the_exact_answers_agree_with_one_another() -> None:
    """Small cases by hand, by listing every path, and by more nodes."""
    assert reflected(3, 2) == Fraction(2, 8)  # of the 8 paths: up up up, up up down
    paths = torch.cartesian_prod(*[torch.tensor([-1, 1])] * 12).cumsum(1).amax(1)
    assert reflected(12, 6) == Fraction(int((paths >= 6).sum()), 2**12)
    assert overflown(2, 2) == Fraction(2, 10) ** 2
    assert passed(1, 2.0) == pytest.approx(stats.norm.sf(2.0), rel=1e-12)
    two = stats.multivariate_normal([0, 0], [[1, 1], [1, 2]])
    assert passed(2, 2.0) == pytest.approx(1 - two.cdf([2.0, 2.0]), rel=1e-6)
    for steps, barrier in ((10, 12.0), (40, 36.0)):
        assert passed(steps, barrier) == pytest.approx(passed(steps, barrier, 700), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_of_the_exact_probability(name: str) -> None:
    problem, p = CASES[name]
    found = rarely.estimate(problem, seed=1, confidence=1 - FIVE_SIGMA, max_evaluations=60_000)
    assert found.outcome is Outcome.VIOLATED, found
    assert math.log(p) in found.interval, (math.log(p), found)


@pytest.mark.parametrize("name", ["coin walk of 20 steps to 10", "queue of 30 steps to 12"])
def test_plain_draws_of_rollouts_have_the_exact_share(name: str) -> None:
    """The law of the rollouts without any method, on an event that is common enough to count."""
    problem, p = CASES[name]
    n = 200_000
    failed = int((problem.score(problem.inputs.sample(n, Rng(5))) >= 0).sum())
    assert abs(failed - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + 1


def test_a_walk_that_looks_one_step_too_far_is_seen() -> None:
    """An off-by-one in the interval of a formula is what these tests must catch."""
    problem, p = walk(11, 12.0, NORMAL), passed(10, 12.0)
    found = rarely.estimate(problem, seed=1, confidence=1 - FIVE_SIGMA, max_evaluations=60_000)
    assert math.log(p) not in found.interval


def test_until_has_the_probability_of_what_it_says() -> None:
    """A coin walk keeps below 3 until it has been at -2, within ten steps: every path of 2^10 counted."""
    height = signal("height")
    system = closed_loop(lambda s, w: s + w, initial=[0.0], disturbance=COIN, steps=10, states=["height"])
    problem = system.problem(until(height < 2.5, height < -1.5, 0, 10))
    steps = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 10)
    failed = 0
    for path in steps.cumsum(1).tolist():
        low = next((k for k, h in enumerate(path) if h <= -2), None)
        failed += low is None or max(path[:low], default=0) >= 3
    p = failed / len(steps)
    assert int((problem.score(steps) >= 0).sum()) == failed
    found = rarely.estimate(problem, seed=2, confidence=1 - FIVE_SIGMA, max_evaluations=20_000)
    assert math.log(p) in found.interval
