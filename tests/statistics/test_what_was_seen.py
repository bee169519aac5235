"""What reviewers saw on version 0.1, each as a test that failed there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import rarely
from rarely import (
    Auto,
    Gaussian,
    LineSampling,
    Misclassification,
    MonteCarlo,
    Outcome,
    Problem,
    Splitting,
    estimate,
)
from rarely.core.errors import InputError
from rarely.core.evidence import Levels, pooled
from rarely.questions.threshold import Ruling


def black_box(score: Callable[[Tensor], Tensor], d: int) -> Problem:
    return Problem(lambda x: np.asarray(x), lambda x, y: score(y), Gaussian(torch.zeros(d), 1.0))


@pytest.mark.parametrize("budget", [1500, 1800, 2000, 2200])
def test_the_pilot_is_kept(budget: int) -> None:
    """Said "p <= 1" and "p <= 0.1"; a thousand clean draws say 0.003."""
    result = estimate(black_box(lambda y: y.sum(1) / 10 - 6.5, 100), max_evaluations=budget)
    assert result.upper_bound <= math.log(0.003)
    assert result.calls <= budget
    some = estimate(black_box(lambda y: y[:, 0] - 2.6, 100), max_evaluations=budget)
    assert len(some.witnesses) > 0, "hits among the pilot are witnesses"
    assert stats.norm.logsf(2.6) in some.interval


def hidden_cliff(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y[:, 1] > 4, torch.ones_like(y[:, 0]), -0.1 - torch.exp(-y[:, 0]))


def test_a_cliff_beside_a_hill_is_bounded_by_what_was_drawn() -> None:
    """Said "p <= 4.7e-18 at 95 %", trusted, and certified 1e-6; p is 3.2e-5."""
    problem, p = Problem(lambda x: x, hidden_cliff, Gaussian(torch.zeros(10), 1.0)), stats.norm.sf(4)
    short = estimate(problem, max_evaluations=20_000)
    assert short.upper_bound >= math.log(p) or short.outcome is Outcome.STALLED
    assert any("if the populations lost no region" in e.sentence for e in short.evidence if isinstance(e, Levels))
    assert rarely.certify(problem, 1e-6, max_evaluations=20_000).ruling is not Ruling.ACCEPTED
    assert rarely.certify(problem, 1e-6).ruling is not Ruling.ACCEPTED
    whole = estimate(problem)
    assert whole.outcome is Outcome.STALLED or math.log(p) in whole.interval


@pytest.mark.parametrize("seed", range(4))
def test_a_witness_forbids_below_the_floor(seed: int) -> None:
    """Lines were right at -20.7 with violating points; the answer was a trusted "below 1e-100"."""
    problem = Problem(
        lambda x: x, lambda x, y: torch.maximum(y[:, 0] - 37, 30 * (y[:, 1] - 6)), Gaussian(torch.zeros(3), 1.0)
    )
    result = estimate(problem, seed=seed)
    truth = stats.norm.logsf(6)
    if len(result.witnesses):
        assert result.outcome in (Outcome.STALLED, Outcome.VIOLATED)
    if result.outcome is Outcome.VIOLATED:
        assert truth in result.interval
    assert result.upper_bound >= truth or result.outcome is Outcome.BELOW_FLOOR


def test_probabilities_are_at_most_one() -> None:
    """`LineSampling` returned p = 1.051, outside its own interval."""
    for threshold in (-1.0, -2.0, -3.0):
        problem = Problem(lambda x: x, lambda x, y, t=threshold: y.amax(1) - t, Gaussian(torch.zeros(4), 1.0))
        for result in estimate([problem] * 5, LineSampling(), seed=1):
            assert result.log_prob <= 0
            assert result.outcome is Outcome.STALLED or result.log_prob in result.interval


def classifier(d: int = 4) -> torch.nn.Module:
    layer = torch.nn.Linear(d, 3, bias=False).eval().requires_grad_(False)
    layer.weight.zero_()
    layer.weight[0, 0], layer.weight[2, 1] = 1.0, 0.0
    layer.weight[2] = torch.tensor([0.0] * d)
    return layer


@pytest.mark.parametrize(
    "method", [Auto(), MonteCarlo(50_000), Splitting(500)], ids=["auto", "monte carlo", "splitting"]
)
def test_scores_that_only_say_yes_or_no(method: object) -> None:
    """`y.argmax(1) != 2` gave p = 1 without a word; the truth is 0.023."""
    inputs, truth = Gaussian(torch.zeros(4), 1.0), stats.norm.logsf(2)
    problem = Problem(lambda x: x, lambda x, y: y[:, 0] > 2, inputs)
    result = estimate(problem, method)  # type: ignore[call-overload]
    if result.outcome is Outcome.VIOLATED:
        assert abs(result.log_prob - truth) < 5 * result.log_prob_std
    assert not isinstance(method, Auto | MonteCarlo) or result.outcome is Outcome.VIOLATED
    assert any("return a margin" in note for note in result.notes)
    for wrong in (lambda x, y: (y[:, 0] > 2).long(), lambda x, y: (y[:, 0] > 2).float()):
        with pytest.raises(InputError, match="Return a margin"):
            estimate(Problem(lambda x: x, wrong, inputs), method)  # type: ignore[call-overload]
    network = torch.nn.Linear(4, 3).eval()
    mistake = Problem(network, lambda x, y: y.argmax(1) != 0, inputs)
    said = estimate([mistake, Problem(network, Misclassification(0), inputs)], Auto())
    assert said[0].log_prob == pytest.approx(said[1].log_prob, abs=0.5)


def test_a_rare_event_that_cannot_be_climbed() -> None:
    problem = Problem(lambda x: x, lambda x, y: y[:, 0] > 3.5, Gaussian(torch.zeros(4), 1.0))
    result = estimate(problem)
    assert stats.norm.logsf(3.5) in result.interval
    assert result.method == "Monte Carlo"
    never = estimate(Problem(lambda x: x, lambda x, y: y[:, 0] > 30, Gaussian(torch.zeros(4), 1.0)))
    assert never.outcome is not Outcome.VIOLATED
    assert never.upper_bound == pooled(never.evidence).statistic.upper(0.95)


class Clock:
    """A clock that only the network moves: `seconds` a call and `each` a row."""

    def __init__(self, seconds: float, each: float) -> None:
        self.now, self.seconds, self.each, self.longest = 1000.0, seconds, each, 0.0

    def __call__(self) -> float:
        return self.now

    def network(self, x: Tensor) -> Tensor:
        took = self.seconds + self.each * len(x)
        self.now, self.longest = self.now + took, max(self.longest, took if len(x) == 1 else self.seconds + self.each)
        return x.sum(1, keepdim=True)


@pytest.mark.parametrize(("seconds", "each"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.01), (0.2, 0.001)])
@pytest.mark.parametrize("timeout", [5.0, 60.0])
@pytest.mark.parametrize("question", ["estimate", "test", "certify", "verify", "splitting", "lines"])
def test_seconds_are_kept(
    question: str, timeout: float, seconds: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`estimate` 10 s took 22 s; with a second a call the pilot alone took 17 minutes."""
    clock = Clock(seconds, each)
    problem = Problem(clock.network, lambda x, y: y[:, 0] - 14.0, Gaussian(torch.zeros(6), 1.0))
    object.__setattr__(problem, "adapted", rarely.core.network.replace(problem.adapted, seconds=seconds / 4 + each))
    monkeypatch.setattr(time, "monotonic", clock)
    begun = clock.now
    if question in ("estimate", "splitting", "lines"):
        method = {"estimate": Auto(), "splitting": Splitting(100), "lines": LineSampling()}[question]
        estimate(problem, method, timeout=timeout)
    elif question == "verify":
        rarely.verify(problem, timeout)
    else:
        getattr(rarely, question)(problem, 1e-6, timeout=timeout)
    assert clock.now - begun <= timeout + max(0.1 * timeout, seconds + each) + 1e-6
