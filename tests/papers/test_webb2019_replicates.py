"""Runs as islands of one batch: the same numbers as from `rarely.estimate`, and right where the answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import rarely
from papers.webb2019.common import log_mean
from papers.webb2019.replicates import Single, independent_runs
from rarely.kernels import RandomWalk
from rarely.questions.result import Outcome

RUNS, PARTICLES = 100, 200


def summed() -> nn.Sequential:
    """The sum of three inputs."""
    layer = nn.Linear(3, 1, bias=False)
    layer.weight.data.fill_(1.0)
    return nn.Sequential(layer).eval().requires_grad_(False)


NETWORK, CUBE = summed(), rarely.Box(torch.zeros(3), torch.ones(3))


def corner(size: float) -> rarely.Problem:
    """The event that three uniform numbers sum to more than 3 - size: p = size ** 3 / 6."""
    return rarely.Problem(NETWORK, rarely.LinearConstraint([[-1.0]], [size - 3]), CUBE)


def walk(rule: str, particles: int = PARTICLES) -> rarely.Splitting:
    return rarely.Splitting(
        particles, 0.25, 30, RandomWalk(), log_p_min=-40.0, islands=1, rule="paper" if rule == "paper" else "strict"
    )


@pytest.mark.parametrize("rule", ["paper", "strict"])
def test_one_run_of_each_problem_is_what_an_estimate_says(rule: str) -> None:
    problems = [corner(size) for size in (0.5, 1.0, 0.1, -1.0)]  # the last one is never violated
    found = independent_runs(problems, walk(rule), 1, seed=3, device="cpu")
    for (single,), estimate in zip(found, rarely.estimate(problems, walk(rule), seed=3, device="cpu"), strict=True):
        assert (single.outcome, single.log_prob) == (estimate.outcome, estimate.log_prob)
        assert single.std == pytest.approx(estimate.log_prob_std, rel=1e-3)
        assert single.witnesses == len(estimate.witnesses)
        assert single.calls == estimate.calls - single.witnesses  # replayed, one by one
    assert [single.outcome for (single,) in found[2:]] == [Outcome.VIOLATED, Outcome.BELOW_FLOOR]
    assert found[3][0].log_prob == -math.inf


def off(runs: list[Single], exact: float) -> float:
    """Distance of the mean of runs from the answer, in standard errors."""
    mean, error = log_mean([run.log_prob for run in runs])
    return abs(mean - exact) / error


def test_many_runs_are_right_on_average() -> None:
    sizes = (0.5, 0.1)
    found = independent_runs([corner(size) for size in sizes], walk("strict"), RUNS, seed=1, device="cpu")
    for size, runs in zip(sizes, found, strict=True):
        assert off(runs, math.log(size**3 / 6)) < 5
        assert off(runs, math.log((1.2 * size) ** 3 / 6)) > 5, "the comparison must be able to fail"


def test_problems_that_do_not_fit_into_one_batch_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rarely.core.execution._NUMBERS_AT_ONCE", 3 * 10 * PARTICLES)
    sizes = (0.1, 1.5, 0.3)
    found = independent_runs([corner(size) for size in sizes], walk("strict"), 10, seed=1, device="cpu")
    logs = [log_mean([run.log_prob for run in runs])[0] for runs in found]
    # Their mean is off by 0.15 (one standard deviation), the answers differ by 3 and more.
    assert logs == pytest.approx([math.log(size**3 / 6) for size in sizes], abs=0.75)
