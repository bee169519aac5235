"""Networks that say the same on nearly all inputs, where a rounding decides who is above a level.

Programs add up in another order than torch does. A plateau that a step scores one rounding higher than the first draws
would lie above itself: a level is paid for and nobody has risen, by which p comes out some ten times too small.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from rarely import Gaussian, LinearConstraint, Problem, Splitting, estimate
from rarely.kernels import PCN


class Wrapped(nn.Module):
    """No chain of layers, so that only its steps are programs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(x)], 1)


def flat(seed: int) -> tuple[nn.Module, Tensor]:
    """Forty outputs of six normals, the last of which rises beyond two deviations, and weights (1, 40) of a sum."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 31), nn.ReLU(), nn.Linear(31, 40)).eval()
    with torch.no_grad():
        network[0].weight.zero_()
        network[0].weight[3], network[0].bias[3] = 6**-0.5, -2.0
        for layer in (network[2], network[4]):
            layer.weight[:, 3] = 0.0
        network[2].weight[3], network[2].bias[3] = 0.0, 0.0
        network[2].weight[3, 3] = network[4].weight[-1, 3] = 1.0
    A = torch.randn(1, 40)
    A[0, -1] = -1.0
    return network, A


@pytest.mark.parametrize("wrapped", [False, True], ids=["chip", "moves"])
def test_a_plateau_does_not_lie_above_itself(wrapped: bool, device: str) -> None:
    exact = float(torch.special.log_ndtr(torch.tensor(-4.0, dtype=torch.float64)))
    wrong = []
    for seed in range(30):
        network, A = flat(seed)
        with torch.no_grad():
            level = float(A[0] @ network(torch.zeros(1, 6))[0])
        problem = Problem(
            Wrapped(network).eval() if wrapped else network, LinearConstraint(A, [level - 2.0]),
            Gaussian(torch.zeros(6), 1.0),
        )  # fmt: skip
        found = estimate(problem, Splitting(300, 0.1, 10, PCN(), islands=4), device=device, seed=seed)
        error = (found.log_prob - exact) / math.hypot(found.log_prob_std, 0.2)  # four islands know their own roughly
        wrong += [(seed, error)] if abs(error) > 5 else []
    assert not wrong
