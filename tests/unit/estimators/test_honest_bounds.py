"""A run must not say more than it has seen."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rarely import Box, Estimate, Outcome, Problem, Splitting, estimate
from rarely.questions.estimate import distrust_wide
from rarely.questions.result import Interval
from rarely.questions.strategy import _Case
from rarely.stats.intervals import log_upper_bound

P = 1e-4


def hidden(x: Tensor, y: Tensor) -> Tensor:
    """A hill towards x = 1 that ends below 0, and a violating strip at the other end that nothing leads to."""
    return torch.where(x[:, 0] < P, 1.0, x[:, 0] - 1.1)


def test_the_bound_of_a_stalled_run_is_that_of_its_first_draws() -> None:
    problem = Problem(torch.nn.Identity().eval(), hidden, Box([0.0], [1.0]))
    found = estimate(problem, Splitting(100, islands=4), seed=1, device="cpu")
    assert found.outcome is Outcome.STALLED
    assert found.log_prob == -math.inf
    assert found.upper_bound >= math.log(P)
    assert math.isclose(found.upper_bound, math.log(1 - 0.05 ** (1 / 400)), rel_tol=1e-6)


def test_where_most_islands_lost_the_way_the_first_draws_bound_it() -> None:
    problem = Problem(torch.nn.Identity().eval(), hidden, Box([0.0], [1.0]))
    found = next(
        one
        for one in (estimate(problem, Splitting(100, islands=8), seed=seed, device="cpu") for seed in range(100))
        if len(one.witnesses)
    )
    assert found.outcome is Outcome.STALLED
    assert any("islands found no violation" in note for note in found.notes)
    assert math.isclose(found.interval.high, log_upper_bound(1, 800, 0.95), rel_tol=1e-6)  # it drew one violation


def test_a_number_without_digits_is_not_trusted() -> None:
    interval = Interval(0.95, -60.0, 0.0)
    wide = Estimate(Outcome.VIOLATED, -20.0, 10.0, interval, 0.0, 1, 0, 1.0)
    assert distrust_wide(wide).outcome is Outcome.STALLED
    assert "standard error" in distrust_wide(wide).notes[0]
    for kept in (replace(wide, log_prob_std=2.0), replace(wide, log_prob=-200.0)):
        assert distrust_wide(kept) == kept


def test_two_splitting_runs_far_apart_are_not_believed() -> None:
    """Seen on a small network: -24.84 ± 0.46, then -21.94 ± 0.26 at 32 times the size, where -20.44 is right."""

    def said(log_prob: float, std: float) -> Estimate:
        return Estimate(Outcome.VIOLATED, log_prob, std, Interval(0.95, -60.0, 0.0), 0.0, 1, 0, 1.0)

    for larger, believed in ((said(-21.94, 0.26), False), (said(-24.0, 0.26), True), (said(-27.9, 0.26), False)):
        case = _Case(0, [], 1, said(-24.84, 0.46))
        case.add(larger, 1000)
        assert case.split is not None
        assert case.split.log_prob == larger.log_prob
        assert case.split.outcome.trusted is believed
        assert any("disagree" in note for note in case.split.notes) is not believed
