"""Networks of one architecture in one batch say what they say alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from rarely import Box, Execution, Gaussian, Misclassification, Problem, Splitting, estimate
from rarely.core import snapshots
from rarely.core.rng import Rng
from rarely.core.snapshots import Snapshots, agree, together
from rarely.core.spend import Spend


def dense(seed: int, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)).eval()


def conv(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).eval()


def around(network: nn.Module, seed: int) -> Problem:
    center = Rng(seed).normal((5,))
    return Problem(network, Misclassification(), Box(center - 0.5, center + 0.5), name=str(seed))


@pytest.fixture(params=["one by one", "together"])
def batch_of(request: pytest.FixtureRequest) -> Callable[[list[Problem]], object]:
    def place(problems: list[Problem]) -> object:
        (batch,) = Execution(device="cpu").place(problems, Spend(len(problems)))
        if request.param == "together":
            modules = list(batch.network.module)  # type: ignore[arg-type]
            for name, chunk in (("forward", 7), ("whole", None)):
                owner = getattr(batch, name).owner
                object.__setattr__(
                    batch, name, Snapshots(owner, partial(together(modules, torch.float32), chunk=chunk))
                )
        return batch

    return place


@pytest.mark.parametrize("make", [dense, conv])
def test_each_row_gets_its_own_network(make: Callable[[int], nn.Module], batch_of: Callable[..., object]) -> None:
    networks = [make(seed) for seed in range(3)]
    problems = [around(networks[k], seed) for seed, k in enumerate([2, 0, 0, 1, 2, 0])]
    batch: object = batch_of(problems)
    for rows in (torch.arange(6), torch.tensor([5, 3]), torch.tensor([4, 4, 0, 1, 2])):
        part = batch.take(rows)  # type: ignore[attr-defined]
        x = part.sample(11, Rng(1))
        wanted = torch.stack([problems[row].score(own) for row, own in zip(rows.tolist(), x, strict=True)])
        torch.testing.assert_close(part.score(x), wanted)
        z = Rng(2).normal((len(rows), 11, 5))
        score, slope = part.gradient_normal(z)
        torch.testing.assert_close(score, part.score_normal(z))
        assert bool(torch.isfinite(slope).all())
        assert bool((slope != 0).any())
    ragged = torch.tensor([0, 5, 5, 2])
    z = Rng(3).normal((4, 5))
    alone = torch.cat([batch.take(r.reshape(1)).score_normal(z[i].reshape(1, 1, 5))[0] for i, r in enumerate(ragged)])  # type: ignore[attr-defined]
    torch.testing.assert_close(batch.score_ragged(z, ragged), alone)  # type: ignore[attr-defined]


def test_one_architecture_is_one_batch_and_another_is_not() -> None:
    problems = [around(dense(0), 0), around(dense(1, 9), 1), around(dense(2), 2), around(conv(0), 3)]
    batches = Execution(device="cpu").place(problems, Spend(len(problems)))
    assert sorted(batch.rows.tolist() for batch in batches) == [[0, 2], [1], [3]]


def test_an_estimate_of_snapshots_has_the_right_number_for_each() -> None:
    """Half-spaces whose distance to the origin is in the weights."""

    def edge(at: float) -> Problem:
        layer = nn.Linear(4, 1).eval()
        with torch.no_grad():
            layer.weight.fill_(0.5)
            layer.bias.fill_(-at)
        return Problem(layer, lambda x, y: y[:, 0], Gaussian(torch.zeros(4), 1.0))

    at = [3.0, 4.5, 4.0]
    found = estimate([edge(a) for a in at], Splitting(500), device="cpu")
    for one, a in zip(found, at, strict=True):
        exact = float(torch.special.log_ndtr(torch.tensor(-a, dtype=torch.float64)))
        assert abs(one.log_prob - exact) < 5 * one.log_prob_std


def test_modules_that_only_look_alike_are_found_out() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(5, 3), factor

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * self.layer(x)

    modules = [Scaled(1.0).eval(), Scaled(2.0).eval()]
    assert not agree(
        together(modules, torch.float32), modules, torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    )
    same = [Scaled(2.0).eval(), Scaled(2.0).eval()]
    assert agree(together(same, torch.float32), same, torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))


def test_a_module_that_cannot_be_batched_is_found_out() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y if bool(y.sum() > 0) else -y

    modules = [Branches().eval(), Branches().eval()]
    assert not agree(together(modules, torch.float32), modules, torch.zeros(4, 5))


def test_a_function_is_only_ever_itself() -> None:
    def net(x: Tensor) -> Tensor:
        return x

    one = Problem(net, lambda x, y: y[:, 0], Gaussian(torch.zeros(4), 1.0)).adapted
    two = Problem(lambda x: x, lambda x, y: y[:, 0], Gaussian(torch.zeros(4), 1.0)).adapted
    assert snapshots.architecture(one) == snapshots.architecture(one)
    assert snapshots.architecture(one) != snapshots.architecture(two)
