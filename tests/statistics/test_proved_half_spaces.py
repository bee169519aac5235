"""Proved bounds by half-spaces on random networks, laws and properties: never on the wrong side of brute force."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn

from rarely import Box, Gaussian, LinearConstraint, LpBall, Mixture, Problem, TruncatedGaussian
from rarely.bounds import ProbabilityBounds, build
from rarely.bounds.laws import tails_of
from rarely.bounds.probable import half_space_bounds
from rarely.bounds.problems import probability_bounds
from rarely.bounds.spec import polytopes
from rarely.core.input_model import InputModel
from rarely.core.properties import Property
from rarely.core.rng import Rng
from rarely.inputs import Choice, Empirical, Fixed, GaussianNoise, Law, Normal, OneHot, PixelDropout, Tabular, Uniform

DRAWS = 100_000
WRONG = 1e-8  # chance that a right bound is called wrong, for one network
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid)


class Residual(nn.Module):
    """x + f(x), with a maximum over pairs before it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x + self.inner(x), x.abs())


def pick(g: Generator, n: int) -> int:
    return int(torch.randint(n, (1,), generator=g))


def network(g: Generator, inputs: int, outputs: int) -> nn.Module:
    act, layers, width = ACTIVATIONS[pick(g, len(ACTIVATIONS))], list[nn.Module](), inputs
    for _ in range(pick(g, 4)):
        wide = 2 + pick(g, 7)
        layers += [nn.Linear(width, wide), act()]
        if pick(g, 4) == 0:
            layers.append(Residual(nn.Sequential(nn.Linear(wide, wide), nn.ReLU())))
        width = wide
    net = nn.Sequential(*layers, nn.Linear(width, outputs)).double().eval()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * (1.5 / math.sqrt(p.shape[-1]) if p.ndim == 2 else 0.5))
    return net


def model(g: Generator) -> InputModel:
    d = 1 + pick(g, 8)
    c, s = torch.randn(d, generator=g).double(), torch.rand(d, generator=g).double() + 0.1
    kind = pick(g, 9)
    if kind == 8:
        laws: tuple[Law, ...] = (
            Normal(0, 1), Uniform(-1, 2), Choice([1, 2, 5], [0.2, 0.5, 0.3]), OneHot([0.1, 0.2, 0.7]), Fixed(0.5),
            Empirical(torch.randn(50, generator=g)),
        )  # fmt: skip
        return Tabular([*(laws[pick(g, len(laws))] for _ in range(d)), Uniform(-1, 1)])
    mix = torch.randn(d, d, generator=g).double()
    makers: tuple[Callable[[], InputModel], ...] = (
        lambda: Box(c - s, c + s),
        lambda: Gaussian(c, s),
        lambda: Gaussian(c, covariance=mix @ mix.T + 0.1 * torch.eye(d).double()),
        lambda: TruncatedGaussian(c, s, c - 2 * s, c + 0.5 * s),
        lambda: GaussianNoise(c.sigmoid(), s),
        lambda: LpBall(c, 1.0, norm=2),
        lambda: PixelDropout(c, 0.2),
        lambda: Mixture([Box(c - s, c + s), Gaussian(c, s)], [0.3, 0.7]),
    )
    return makers[kind]()


def rule(g: Generator, y: Tensor) -> tuple[Property, Tensor]:
    """A property that a share of these outputs violate, and which do: a row, two rows at once, or either of two."""
    A, share = torch.randn(2, y.shape[1], generator=g).double(), 10 ** (-3 * float(torch.rand(1, generator=g)))
    value, kind = y @ A.T, pick(g, 3)
    b = torch.stack([torch.quantile(value[:20_000, k], share) for k in (0, 1)])
    if kind == 0:
        return LinearConstraint(A[:1], b[:1]), value[:, 0] <= b[0]
    if kind == 1:
        b[1] = value[:, 1].median()
        return LinearConstraint(A, b), (value <= b).all(1)
    either = LinearConstraint(A[:1], b[:1]) | LinearConstraint(A[1:], b[1:])
    return either, (value <= b).any(1)


def bounds(problem: Problem, seconds: float) -> ProbabilityBounds:
    """By half-spaces alone, without the boxes that few dimensions allow."""
    if isinstance(problem.inputs, Mixture):
        *_, last = probability_bounds(problem, seconds, 0.01)
    else:
        graph = build(problem.network, problem.inputs.event_shape)
        outputs = polytopes(problem.property, problem.outputs)
        *_, last = half_space_bounds(graph, tails_of(problem.inputs), outputs, seconds, gap=0.01)
    return last


def check(seed: int, seconds: float) -> float:
    """Compare with brute force; gives by how much the upper bound is above it."""
    g = torch.Generator().manual_seed(seed)
    inputs = model(g)
    net = network(g, math.prod(inputs.event_shape), 1 + pick(g, 3))
    with torch.no_grad():
        y = net(inputs.sample(DRAWS, Rng(seed)).double().flatten(1))
    prop, hits = rule(g, y)
    n = int(hits.sum())
    found = bounds(Problem(net, prop, inputs), seconds)
    least = stats.beta.ppf(WRONG, n, DRAWS - n + 1) if n else 0.0
    most = stats.beta.ppf(1 - WRONG, n + 1, DRAWS - n) if n < DRAWS else 1.0
    assert math.exp(found.log_upper) >= least, f"network {seed}: {found} for {n} of {DRAWS}"
    assert math.exp(found.log_lower) <= most, f"network {seed}: {found} for {n} of {DRAWS}"
    return found.log_upper - math.log(n / DRAWS) if n else math.inf


@pytest.mark.parametrize("block", range(4))
def test_no_bound_is_on_the_wrong_side(block: int) -> None:
    gaps = [check(seed, 0.3) for seed in range(20 * block, 20 * block + 20)]
    assert min(gaps) < 0.5  # they say something


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_no_bound_of_two_thousand_is_on_the_wrong_side(block: int) -> None:
    for seed in range(10_000 + 50 * block, 10_000 + 50 * block + 50):
        check(seed, 0.5)
