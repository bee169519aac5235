"""Proofs limited by work: the same answer on a slow machine and on a fast one."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import rarely
from rarely.bounds import problems
from rarely.core.errors import InputError


def hard_to_prove() -> rarely.Problem:
    """An output that stays just below a bound: true by 0.005, which takes some halvings to see."""
    layers = [nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)]
    network = nn.Sequential(*layers).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    inputs = rarely.Box([-1.0, -1.0], [1.0, 1.0])
    worst = float(network(torch.cartesian_prod(*[torch.linspace(-1, 1, 401)] * 2)).max())
    return rarely.Problem(network, rarely.LinearConstraint([[-1.0]], [-(worst + 0.005)]), inputs)


def test_boxes_end_a_proof_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hard_to_prove()
    (proof,) = problems.prove_all([problem], 60.0)
    assert proof.status == "proved"
    assert proof.boxes > 1
    assert problems.prove_all([problem], float("inf"), boxes=1)[0].status == "unknown"
    (again,) = problems.prove_all([problem], float("inf"), boxes=proof.boxes + 1)
    assert again == proof
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e9)  # a machine that is endlessly slow
    (late,) = problems.prove_all([problem], float("inf"), boxes=proof.boxes + 1)
    assert late == proof


def test_auto_with_boxes_asks_no_clock() -> None:
    problem = hard_to_prove()
    estimate = rarely.estimate(problem, rarely.Auto(proof_boxes=5000))
    assert estimate.outcome is rarely.Outcome.PROVED_SAFE
    estimate = rarely.estimate(problem, rarely.Auto(proof_boxes=0, target_error=0.5, log_p_min=-10.0))
    assert estimate.outcome is not rarely.Outcome.PROVED_SAFE
    with pytest.raises(InputError, match="proof_boxes must not be negative"):
        rarely.Auto(proof_boxes=-1)
