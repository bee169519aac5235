"""`Auto` on random networks that nobody tuned on: p is known from proved brackets."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

from rarely import Auto, Box, LinearConstraint, Problem, Splitting, estimate
from rarely.bounds import ProbabilityBounds, probability_bounds

NETWORKS = 60


def rare(i: int) -> Problem:
    """A ReLU network of 2 to 6 inputs with an event of p between about 1e-3 and 1e-10, chosen by a splitting run."""
    torch.manual_seed(i)
    d, width = 2 + i % 5, 8 + 7 * i % 17
    net = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).eval()
    with torch.no_grad():
        for layer in (net[0], net[2], net[4]):
            layer.weight *= 1.7
    box = Box(-torch.ones(d), torch.ones(d))
    log_p = -math.log(10) * (2.5 + 0.37 * i % 7)
    out_of_reach = Problem(net, LinearConstraint([[-1.0]], [-1e3]), box)
    levels = estimate(out_of_reach, Splitting(2000, 0.1, 10, islands=1, log_p_min=log_p), seed=i, device="cpu").levels
    return Problem(net, LinearConstraint([[-1.0]], [-(levels[-1] + 1e3)]), box)


def bracket(problem: Problem) -> ProbabilityBounds:
    *_, last = probability_bounds(problem, timeout=20.0, gap=0.03)
    return last


@pytest.mark.slow
@pytest.mark.parametrize("proof_boxes", [0, 2000], ids=["sampling alone", "with bounds"])
def test_intervals_meet_the_proved_brackets(proof_boxes: int) -> None:
    missed, checked = [], 0
    for i in range(30_000, 30_000 + NETWORKS):
        problem = rare(i)
        known = bracket(problem)
        if not known.gap < 0.15:
            continue
        checked += 1
        found = estimate(problem, Auto(proof_boxes=proof_boxes), seed=i, device="cpu")
        meets = found.interval.low <= known.log_upper and found.interval.high >= known.log_lower
        if found.outcome.trusted and not meets:
            missed.append((i, known, str(found)))
    assert checked >= 0.8 * NETWORKS
    # Intervals of 95 %: more misses than this have a chance of 1e-3.
    assert len(missed) <= stats.binom.isf(1e-3, checked, 0.05), missed
