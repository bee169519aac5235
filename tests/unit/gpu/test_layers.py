"""What is read of a network: it is refused wherever a program could say something else than the network does.

Each of these agrees with a plain chain of layers on all that is likely, and is another function where p is decided.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rarely import Box, Gaussian, LinearConstraint, Problem, Splitting, estimate
from rarely.core.execution import Execution
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.gpu import moves
from rarely.gpu.layers import text_of
from rarely.kernels import PCN, State
from rarely.methods.walk import Walk


class Written(nn.Module):
    """A function of a few layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


class Capped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=50)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2)).eval()


def changed(change: Callable[[nn.Sequential], object]) -> nn.Module:
    network = small()
    change(network)
    return network


def cap(*told: object) -> Tensor:
    """A hook after a module."""
    out = told[-1]
    assert isinstance(out, Tensor)
    return out.clamp(max=50)


def replaced(network: nn.Sequential) -> None:
    forward = network[2].forward
    network[2].forward = lambda x: forward(x).clamp(max=50)  # type: ignore[method-assign]


LIKE_A_CHAIN: dict[str, nn.Module] = {
    "subclass": nn.Sequential(Capped(6, 9), nn.ReLU(), nn.Linear(9, 2)),
    "hook of a part": changed(lambda network: network[2].register_forward_hook(cap)),
    "hook of the whole": changed(lambda network: network.register_forward_hook(cap)),
    "hook before": changed(lambda network: network[0].register_forward_pre_hook(lambda _, x: (x[0].clamp(max=50),))),
    "forward of an object": changed(replaced),
    "fewer outputs": Written(lambda x, a: a(x)[:, :2], nn.Linear(6, 5)),
    "other outputs": Written(lambda x, a: a(x)[..., [1, 0]], nn.Linear(6, 2)),
    "other inputs": Written(lambda x, a: a(x[:, [1, 0, 2, 3, 4, 5]]), nn.Linear(6, 2)),
    "pooled apart": Written(
        lambda x, a, pool, b: b(pool(a(x).view(-1, 2, 5)).flatten(1)), nn.Linear(6, 10), nn.MaxPool1d(3, 2),
        nn.Linear(4, 2),
    ),
    "across inputs": Written(lambda x, a: a(x.view(2, -1).view(6, -1)).view(-1, 6), nn.Linear(3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE_A_CHAIN)
def test_what_does_more_than_a_chain_of_layers_is_refused(name: str) -> None:
    assert text_of(LIKE_A_CHAIN[name].eval(), (6,)) is None


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (Written(lambda x, a: a(x.flatten(1))[:, None], nn.Linear(6, 2)), (1, 2, 3)),
        (Written(lambda x, a: a(x.view(-1, 6)).squeeze(1), nn.Linear(6, 1)), (3, 2)),
        (Written(lambda x, a, pool: pool(a(x)), nn.Linear(6, 6), nn.MaxPool1d(3)), (1, 6)),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), nn.Dropout()), (6,)),
    ],
)
def test_what_only_writes_values_in_another_shape_is_read(network: nn.Module, shape: tuple[int, ...]) -> None:
    assert text_of(network.eval(), shape) is not None


def test_a_network_that_ends_before_the_violation_has_none(device: str) -> None:
    """A hook ends at 4 deviations what its layers alone take to 4.5."""
    network = nn.Sequential(nn.Linear(6, 1, bias=False), nn.Linear(1, 1, bias=False)).eval()
    with torch.no_grad():
        network[0].weight.fill_(6**-0.5)
        network[1].weight.fill_(1.0)
    network.register_forward_hook(lambda _, x, out: out.clamp(max=4.0))
    problem = Problem(network, LinearConstraint([[-1.0]], [-4.5]), Gaussian(torch.zeros(6), 1.0))
    found = estimate(problem, Splitting(500, 0.1, 10, PCN(), islands=4), device=device, seed=1)
    assert found.log_prob < -20 or not found.levels


class Rounded(Box):
    """Inputs of a camera: whole numbers."""

    def from_normal(self, z: Tensor) -> Tensor:
        return super().from_normal(z).round()


class Gaussians(Gaussian):
    """Another law, of which it says how likely its inputs are."""

    def log_density(self, x: Tensor) -> Tensor:
        return -x.abs().sum(-1)


class Lazy(PCN):
    """A kernel that never moves."""

    def step(self, batch: object, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        return state, torch.zeros_like(state.score, dtype=torch.bool)


@pytest.mark.parametrize("law", [Rounded(torch.zeros(6), torch.ones(6) * 9), Gaussians(torch.zeros(6), 1.0)])
def test_a_law_that_has_been_changed_is_not_taken_for_what_it_was(law: Box | Gaussian, device: str) -> None:
    (batch,) = Execution(device=device).place([Problem(small(), LinearConstraint(torch.eye(2), [0.0, 0.0]), law)],
                                             Spend(1))  # fmt: skip
    assert Walk(PCN(), batch, True, Rng(0, batch.device), evaluations=1e9)._chip is None
    position = torch.zeros(1, 4, 6, device=device)
    assert moves.moves_of(batch, position, position[:, 0, :1], None, Rng(0, batch.device)) is None


def test_a_kernel_that_has_been_changed_takes_its_own_steps(device: str) -> None:
    problem = Problem(small(), LinearConstraint(torch.eye(2), [0.0, 0.0]), Gaussian(torch.zeros(6), 1.0))
    (batch,) = Execution(device=device).place([problem], Spend(1))
    assert Walk(PCN(), batch, True, Rng(0, batch.device), evaluations=1e9)._chip is not None
    assert Walk(Lazy(), batch, True, Rng(0, batch.device), evaluations=1e9)._chip is None
