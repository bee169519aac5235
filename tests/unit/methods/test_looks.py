"""How often a method looks at the device: for all of its problems at once, since each look waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rarely
from rarely.core.batch import Batch
from rarely.core.evidence import Draws
from rarely.core.execution import Execution
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.methods.attack import Attack
from rarely.methods.base import Estimator, Run, progress
from rarely.methods.counting import Counting
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.nearest import NearestViolation
from rarely.methods.splitting import Splitting
from rarely.questions.estimate import finish

_LOOKS = "_local_scalar_dense", "nonzero", "_to_copy"  # numbers of a tensor, how many are true, other devices and types


class Looks(TorchDispatchMode):
    """Counts operations for which a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in _LOOKS
        return func(*args, **(kwargs or {}))


def looks(method: Callable[[Batch], Run], problems: int) -> int:
    """At the results of so many problems: one, of which one input of 100 violates, again and again."""
    torch.manual_seed(1)
    last = nn.Linear(8, 1)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), last).eval()
    with torch.no_grad():
        last.bias -= network(torch.rand(20_000, 3)).topk(200, 0).values[-1]
    above = rarely.LinearConstraint([[-1.0]], [0.0])
    problem = rarely.Problem(network, above, rarely.Box(torch.zeros(3), torch.ones(3)))
    (batch,) = Execution(device="cpu").place([problem] * problems, Spend(problems), at_once=100)
    run = method(batch)
    with Looks() as counted:
        assert all(finish(run))
    return counted.count


def by(method: Estimator) -> Callable[[Batch], Run]:
    return lambda batch: method.run(batch, Rng(0))


def nearest(batch: Batch) -> Run:
    x = batch.sample(2000, Rng(0))
    known = [row[own >= 0] for row, own in zip(x, batch.score(x), strict=True)]
    return NearestViolation().search(batch, known, [None] * len(batch))


def one_by_one(batch: Batch) -> Run:
    yield progress("looks", batch, [0.0] * len(batch), 0)
    return [[Draws(1, int(score >= 0))] for score in batch.score(batch.sample(1, Rng(0)))]


METHODS = {
    "attack": by(Attack()),
    "draws": by(MonteCarlo(2000)),
    "splitting": by(Splitting(100, islands=2, steps=2, keep="all")),
    "counting": by(Counting(boxes=200)),
    "nearest": nearest,
}


@pytest.mark.parametrize("name", METHODS)
def test_four_times_the_problems_take_hardly_more_looks(name: str) -> None:
    """Of counting the most: it reads each problem's own tensors, which are on the host."""
    assert looks(METHODS[name], 32) < 2 * looks(METHODS[name], 8)


def test_a_method_that_looks_at_each_takes_four_times_as_many() -> None:
    assert looks(one_by_one, 32) > 3.5 * looks(one_by_one, 8)
