"""Tilting on problems with exact answers, and what it says where it has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from exact import ALL, Exact, half_space, orthogonal_modes, parabola, shell, tail
from torch import Tensor

from rarely import Gaussian, Outcome, Problem, estimate
from rarely.core.evidence import Levels, Number
from rarely.methods import Tilting

SEEN = {
    "half-space d=200": half_space(200, math.log(1e-9)),
    "shell d=100": shell(100, math.log(1e-8)),
    "parabola away d=30": parabola(30, 5.0, 0.05),
    "parabola around d=30": parabola(30, 5.0, -0.05),
    "two modes of ten d=50": orthogonal_modes(50, [4.5, 4.6]),
}


@pytest.mark.parametrize("exact", SEEN.values(), ids=SEEN.keys())
def test_exact_problems(exact: Exact) -> None:
    """The mean over 12 runs within five standard errors; intervals cover, less five binomial standard errors."""
    results = estimate([exact.problem] * 12, Tilting(), seed=3)
    errors = np.array([result.log_prob - exact.log_prob for result in results])
    assert abs(errors.mean()) <= 5 * errors.std(ddof=1) / math.sqrt(12)
    assert all(result.log_prob_std <= 0.15 for result in results)
    covered = sum(exact.log_prob in result.interval for result in results)
    assert covered >= 12 * 0.95 - 5 * math.sqrt(12 * 0.95 * 0.05)


@pytest.mark.parametrize("name", ["plateau d=3", "staircase d=5", "channel d=5"])
def test_scores_without_slopes_give_no_trusted_wrong_number(name: str) -> None:
    exact = ALL[name]
    for result in estimate([exact.problem] * 3, Tilting(), seed=4):
        assert result.outcome is not Outcome.VIOLATED or exact.log_prob in result.interval


def test_a_forgotten_mode_is_seen_by_nobody_alone_but_said() -> None:
    """Alone it says what it assumes; `Auto` asks others."""
    result = estimate(half_space(20, math.log(1e-6)).problem, Tilting())
    assert any("no independent method has confirmed" in note for note in result.notes)
    (number,) = [e for e in result.evidence if isinstance(e, Number)]
    assert number.assumes


@pytest.mark.parametrize("late", [False, True])
def test_a_floor_that_is_reached_says_nothing(late: bool) -> None:
    """A score that rises late looks the same on the way: exp(2 x) - exp(10) is seen nowhere near its violations."""

    def score(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(2 * y[:, 0]) - math.exp(10) if late else y[:, 0] - 12

    problem = Problem(lambda x: x, score, Gaussian(torch.zeros(20), 1.0))
    for result in estimate([problem] * 3, Tilting(log_p_min=-30.0)):
        assert result.outcome is Outcome.STALLED
        assert result.upper_bound > -10, "independent inputs alone bound it"


def test_a_score_that_is_nearly_flat_is_stalled() -> None:
    problem = Problem(lambda x: x, lambda x, y: torch.relu(y[:, 0] - 6) - 1, Gaussian(torch.zeros(20), 1.0))
    assert estimate(problem, Tilting()).outcome is Outcome.STALLED


def test_a_small_budget_is_kept_and_said() -> None:
    result = estimate(half_space(50, math.log(1e-12)).problem, Tilting(), max_evaluations=3000)
    assert result.calls <= 3000
    assert result.outcome is Outcome.OUT_OF_BUDGET
    assert any("cut off" in e.sentence for e in result.evidence if isinstance(e, Levels))


def test_a_budget_that_ends_later_leaves_a_number() -> None:
    exact = half_space(50, math.log(1e-6))
    result = estimate(exact.problem, Tilting(target_error=0.01), max_evaluations=60_000)
    assert result.calls <= 60_000
    assert abs(result.log_prob - exact.log_prob) < 5 * result.log_prob_std


def test_witnesses_lie_where_violations_do() -> None:
    exact = half_space(20, tail(5.0))
    witnesses = estimate(exact.problem, Tilting()).witnesses
    beyond = witnesses.scores.double()
    expected = math.exp(-12.5) / math.sqrt(2 * math.pi) / math.exp(tail(5.0)) - 5.0  # E[Z - 5 | Z > 5]
    assert len(witnesses) >= 5
    assert abs(float(beyond.mean()) - expected) <= 5 * float(beyond.std()) / math.sqrt(len(witnesses))
