"""A shorter precision is said to be one, and a verdict that turns on it is not trusted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rarely
from rarely import Box, Execution, Outcome, Problem, Splitting, estimate

SHORT = Execution(device="cpu", dtype=torch.bfloat16)
SETTINGS = Splitting(200, islands=4, log_p_min=-12.0)


class Sum(nn.Module):
    """Weights that bfloat16 rounds up or down: 0.1 becomes 0.10009765625."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        with torch.no_grad():
            self.layer.weight.fill_(weight)
            self.layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def problem(edge: float, weight: float = 0.1) -> Problem:
    return Problem(Sum(weight).eval(), lambda x, y: y[:, 0] - edge, Box([0.0, 0.0], [1.0, 1.0]))


def test_a_run_in_bfloat16_says_so_and_keeps_a_clear_verdict() -> None:
    found = estimate(problem(0.15), SETTINGS, execution=SHORT)
    assert found.outcome is Outcome.VIOLATED
    assert any("shorter precision" in record.sentence for record in found.evidence)
    assert bool((found.witnesses.scores >= 0).all())


def test_a_violation_that_is_none_in_float32_is_not_trusted() -> None:
    found = estimate(problem(0.2, 0.0999), SETTINGS, execution=SHORT)  # rounds to 0.1001: out of reach by 0.0002
    assert found.outcome is Outcome.STALLED
    assert any("hangs on" in note for note in found.notes)


def test_an_absence_that_is_nearer_than_rounding_is_not_trusted() -> None:
    found = estimate(problem(0.1994, 0.0998), SETTINGS, execution=SHORT)  # rounds to 0.0996; its own maximum is 0.1996
    assert len(found.witnesses) == 0
    assert found.outcome is Outcome.STALLED
    assert any("hangs on precision" in note for note in found.notes)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_no_word_where_nothing_is_shorter(dtype: torch.dtype | None) -> None:
    found = estimate(problem(0.15), SETTINGS, execution=Execution(device="cpu", dtype=dtype))
    assert not any("shorter" in record.sentence for record in found.evidence)


@pytest.mark.parametrize("most", [1.0, 2.0])
def test_linear_constraints_that_score_0_or_1_are_meant_so(most: float) -> None:
    """At a single input x = 1 the score of x <= most is 0 or 1, and both are violations."""
    problem = rarely.Problem(nn.Identity().eval(), rarely.LinearConstraint([[1.0]], [most]), rarely.Box([1.0], [1.0]))
    assert rarely.verify(problem, 5.0).status == "sat"
    assert rarely.estimate(problem).log_prob == 0.0
