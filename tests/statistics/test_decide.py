"""`rarely.test` decides p < p_max: error rates at most what it states, budgets kept, witnesses in hand.

A wrong verdict of either kind has probability at most 1 - confidence = 0.05. Among n seeds its share may exceed that by
five binomial standard errors, 5 sqrt(0.05 * 0.95 / n).
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from exact import half_space
from torch import Tensor

import rarely
from rarely import Box, Execution, Gaussian, Problem
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.methods.base import Budget
from rarely.methods.islands import Island
from rarely.questions.decide import _ISLANDS, _POPULATION, Decision, Verdict, _count_levels, _plan

RARE = 9e-5  # a threshold that the last-particle test decides


def allowed(n: int, error: float = 0.05) -> float:
    return error + 5 * math.sqrt(error * (1 - error) / n)


def coin(p: float) -> Problem:
    return Problem(lambda x: x, lambda x, y: p - y[:, 0], Box([0.0], [1.0]))


def shares(decisions: list[Decision]) -> dict[Verdict, float]:
    counts = Counter(decision.verdict for decision in decisions)
    return {verdict: counts[verdict] / len(decisions) for verdict in Verdict}


def test_error_rates_of_the_binomial_test() -> None:
    p_max = 0.05
    at = [rarely.test(coin(p_max), p_max, seed=s) for s in range(200)]
    for verdict in (Verdict.ACCEPTED, Verdict.REJECTED):
        assert shares(at)[verdict] <= allowed(200)
    assert shares(at)[Verdict.UNDECIDED] >= 0.8
    over = [rarely.test(coin(1.1 * p_max), p_max, seed=s) for s in range(200)]
    assert shares(over)[Verdict.ACCEPTED] <= allowed(200)
    under = [rarely.test(coin(0.9 * p_max), p_max, seed=s) for s in range(200)]
    assert shares(under)[Verdict.REJECTED] <= allowed(200)
    for decision in (*at, *over, *under):
        assert decision.evaluations <= decision.budget
        if decision.verdict is Verdict.REJECTED:
            assert len(decision.witnesses) > 0
            assert (decision.witnesses.scores >= 0).all()


@pytest.mark.parametrize(
    ("factor", "verdict"), [(0.5, Verdict.ACCEPTED), (0.0, Verdict.ACCEPTED), (2.0, Verdict.REJECTED)]
)
def test_the_binomial_test_has_power(factor: float, verdict: Verdict) -> None:
    problem = coin(0.05 * factor) if factor else coin(-1.0)
    decisions = [rarely.test(problem, 0.05, seed=s) for s in range(50)]
    assert shares(decisions)[verdict] >= 0.9
    if factor == 0.0:
        assert {decision.evaluations for decision in decisions} == {72}, "log(0.025) / log(0.95) inputs, none violating"


@pytest.mark.parametrize("p_max", [0.01, 0.5, 0.9])
def test_a_certain_event_is_rejected(p_max: float) -> None:
    decision = rarely.test(coin(2.0), p_max)
    assert decision.verdict is Verdict.REJECTED
    assert len(decision.witnesses) > 0
    assert "rejected" in str(decision)


@pytest.mark.parametrize("limit", [1, 10, 100, 1000])
@pytest.mark.parametrize("p_max", [0.05, RARE])
def test_a_limit_of_evaluations_is_kept(limit: int, p_max: float) -> None:
    for p in (p_max / 100, p_max):
        decision = rarely.test(coin(p), p_max, max_evaluations=limit)
        assert decision.evaluations <= decision.budget <= limit


def poisson_islands(p: float, rng: np.random.Generator, floor: float) -> list[Island]:
    """Islands of perfect sampling, ended at the floor like those of the run."""
    factor = math.log1p(-1 / _POPULATION)
    passed = rng.poisson(-_POPULATION * math.log(p), _ISLANDS)
    most = math.floor(floor / factor) + 1
    return [Island(log_prob=min(m, most) * factor, ended="floor" if m >= most else "violated") for m in passed]


@pytest.mark.parametrize("p_max", [RARE, 1e-9, 1e-30])
def test_counting_levels_of_perfect_islands(p_max: float) -> None:
    rng = np.random.default_rng(1)
    walk, budget = _plan(p_max)

    def decide(p: float, n: int = 600) -> dict[Verdict, float]:
        return shares(
            [
                _count_levels(poisson_islands(p, rng, walk.log_p_min), p_max, 0.95, 0, budget)
                for _ in range(n)
            ]
        )  # fmt: skip

    at = decide(p_max)
    assert at[Verdict.ACCEPTED] <= allowed(600)
    assert at[Verdict.REJECTED] <= allowed(600)
    assert at[Verdict.UNDECIDED] >= 0.85
    # The standard deviation of log p is sqrt(-log p_max / 1000): six of them away the verdict is clear.
    away = 6 * math.sqrt(-math.log(p_max) / 1000)
    assert decide(p_max * math.exp(-away))[Verdict.ACCEPTED] >= 0.99
    assert decide(p_max * math.exp(away))[Verdict.REJECTED] >= 0.99
    assert decide(p_max * 1e-6)[Verdict.ACCEPTED] == 1.0  # every island ends at its floor


def test_an_island_that_did_not_finish_decides_nothing() -> None:
    islands = poisson_islands(1e-9, np.random.default_rng(0), -1e9)
    for ended in ("budget", "stalled"):
        islands[3].ended = ended  # type: ignore[assignment]
        assert _count_levels(islands, RARE, 0.95, 0, 1).verdict is Verdict.UNDECIDED


def last_particle_repeats(problem: Problem, p_max: float, n: int, seed: int) -> list[Decision]:
    """n runs of the last-particle test as one batch."""
    walk, budget = _plan(p_max)
    (batch,), _ = Execution(device="cpu").place([problem] * n)
    run = walk.populations(batch, Rng(seed), Budget())
    while True:
        try:
            next(run)
        except StopIteration as stop:
            return [_count_levels(group, p_max, 0.95, 0, budget) for group in stop.value]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_error_rates_of_the_last_particle_test(factor: float) -> None:
    problem = half_space(2, math.log(RARE * factor)).problem
    found = shares([d for s in range(4) for d in last_particle_repeats(problem, RARE, 50, s)])
    if factor >= 1:
        assert found[Verdict.ACCEPTED] <= allowed(200)
    if factor <= 1:
        assert found[Verdict.REJECTED] <= allowed(200)
    if factor == 1:
        assert found[Verdict.UNDECIDED] >= 0.8


@pytest.mark.parametrize(
    ("factor", "verdict"), [pytest.param(0.3, Verdict.ACCEPTED, marks=pytest.mark.slow), (3.0, Verdict.REJECTED)]
)
def test_the_last_particle_test_decides(factor: float, verdict: Verdict) -> None:
    decision = rarely.test(half_space(2, math.log(RARE * factor)).problem, RARE, seed=1)
    assert decision.verdict is verdict
    assert decision.evaluations <= decision.budget
    if verdict is Verdict.REJECTED:
        assert len(decision.witnesses) > 0
        assert (decision.witnesses.scores >= 0).all()


def test_ties_do_not_break_the_budget() -> None:
    """A quantised score kills many particles at once, whose clones all move."""

    def stairs(x: Tensor, y: Tensor) -> Tensor:
        return torch.floor(8 * (y[:, 0] - 4.5)) / 8

    decision = rarely.test(Problem(lambda x: x, stairs, Gaussian(torch.zeros(2), 1.0)), RARE)
    assert decision.evaluations <= decision.budget
    assert decision.verdict in (Verdict.ACCEPTED, Verdict.UNDECIDED)


@pytest.mark.parametrize(("p_max", "confidence"), [(0.0, 0.95), (1.0, 0.95), (0.1, 0.0), (0.1, 1.0)])
def test_senseless_questions_are_refused(p_max: float, confidence: float) -> None:
    with pytest.raises(InputError):
        rarely.test(coin(0.1), p_max, confidence)
