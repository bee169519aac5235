"""A run must not say more than it has seen."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely import Box, Outcome, Problem, Splitting, estimate
from rarely.core.evidence import Draws
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
    drawn = next(record for record in found.evidence if isinstance(record, Draws))
    assert math.isclose(found.upper_bound, log_upper_bound(drawn.hits, 800, 0.95), rel_tol=1e-6)
    assert drawn.hits >= 1
