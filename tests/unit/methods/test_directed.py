"""Directed splitting: black boxes whose slope is learnt from moves, and rounds that enter nowhere."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rarely import Execution, Gaussian, Problem, estimate
from rarely.core.evidence import Number
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.methods import DirectedSplitting, beside, directed
from rarely.methods.beside import Climbed
from rarely.methods.compass import Compass
from rarely.questions.estimate import finish

D = 60


def beyond(bound: float) -> Problem:
    """A plane seen by a network without gradients: log p = log Phi(-bound)."""

    def network(x: np.ndarray) -> np.ndarray:
        return x[:, :1] + x[:, 1:2]

    plane = bound * math.sqrt(2)
    return Problem(network, lambda x, y: y[:, 0] - plane, Gaussian(torch.zeros(D), 1.0))


@pytest.mark.parametrize("bound", [3.0, 6.0])
def test_a_plane(bound: float) -> None:
    results = estimate([beyond(bound)] * 6, DirectedSplitting(), device="cpu")
    truth = float(stats.norm.logsf(bound))
    for found in results:
        (number,) = [e for e in found.evidence if isinstance(e, Number) and e.method == "directed splitting"]
        assert abs(number.log_prob - truth) < 5 * max(number.std, 0.05)


@pytest.mark.parametrize("empty", [1, 9])
def test_rounds_that_enter_nowhere_leave_the_points_that_were_known(
    monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    """Scores that end in ties can leave a whole round without an entry; the next one has to begin somewhere."""
    rounds: list[int] = []

    def climb(*arguments: Any) -> Climbed:
        climbed = beside.climb(*arguments)
        rounds.append(len(rounds))
        if len(rounds) > empty:
            return climbed
        t = climbed.tempered
        nowhere = replace(t.last, t=torch.full_like(t.last.t, torch.inf), h=torch.full_like(t.last.h, -torch.inf))
        return replace(climbed, tempered=replace(t, last=nowhere, truth=torch.full_like(t.truth, torch.inf)))

    monkeypatch.setattr(directed, "climb", climb)
    (batch,) = Execution(device="cpu").place([beyond(4.0)], Spend(1))
    points = torch.zeros(20, D)
    points[:, :2] = 3.0
    alpha = torch.zeros(D)
    alpha[:2] = math.sqrt(0.5)
    run = DirectedSplitting().beside(batch, [points], [Compass(alpha)], Rng(0))
    (region,) = finish(run)
    assert len(rounds) > 1
    assert all(len(line.points) > 0 for line in region.lines if line.points is not None)


def test_a_region_all_around_has_no_direction() -> None:
    """Outside of a ball most lines lie in the region from end to end: their numbers are right or doubted."""
    inside = float(stats.chi2.isf(1e-6, 20))

    def network(x: np.ndarray) -> np.ndarray:
        return (x * x).sum(1, keepdims=True)

    problem = Problem(network, lambda x, y: y[:, 0] - inside, Gaussian(torch.zeros(20), 1.0))
    numbers = [
        next(e for e in found.evidence if isinstance(e, Number) and e.method == "directed splitting")
        for found in estimate([problem] * 8, DirectedSplitting(), device="cpu")
    ]
    for number in numbers:
        assert number.doubt or abs(number.log_prob - math.log(1e-6)) < 5 * number.std
    assert any("altogether" in number.doubt for number in numbers)
