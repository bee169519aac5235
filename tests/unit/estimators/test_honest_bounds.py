"""A run that stalls must not bound what it has not seen."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely import Box, Outcome, Problem, Splitting, estimate

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
