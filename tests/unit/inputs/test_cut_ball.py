"""The uniform law in an l2 ball that a box cuts: exact probabilities, by every method that works on normals."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from rarely import Auto, ImportanceSampling, LineSampling, LpBall, Problem, Splitting, estimate
from rarely.core.each_inputs import EachInputs, stack_inputs
from rarely.core.errors import InputError
from rarely.core.input_model import kept_normals
from rarely.core.rng import Rng
from rarely.inputs.cut_ball import cut_ball

FREE, RADIUS = 25, 0.5
NEAR = [0.02, 0.03, 0.05, 0.97, 0.99]  # these are cut close to their middle
BALL = LpBall([0.5] * FREE + NEAR, RADIUS, 2, clip=(0.0, 1.0))


def _log_tail(t: float, draws: int = 400_000, width: float = 0.07) -> tuple[float, float]:
    """log P(x_0 > 0.5 + t), and its error: the free coordinates by an integral, those that are cut by weighted draws.

    Given the cut ones, of square sum Q, a free one is that of a ball of radius sqrt(r^2 - Q) in as many dimensions as
    there are free ones, and (1 + y / radius) / 2 has a beta law. They weigh by the volume of that ball.
    """
    middle = np.array(NEAR)
    low, high = -np.minimum(middle, RADIUS), np.minimum(1 - middle, RADIUS)
    law = stats.truncnorm(low / width, high / width, scale=width)
    square = np.square(law.rvs((draws, len(NEAR)), random_state=np.random.default_rng(0))).sum(1)
    left = np.maximum(RADIUS**2 - square, 1e-30)
    volume = np.exp(0.5 * FREE * np.log(left) + square / (2 * width**2)) * (square < RADIUS**2)
    beyond = np.clip((1 - t / np.sqrt(left)) / 2, 0, 1)
    value = volume * special.betainc((FREE + 1) / 2, (FREE + 1) / 2, beyond)
    error = np.std(value / value.mean() - volume / volume.mean()) / math.sqrt(draws)
    return math.log(value.mean() / volume.mean()), float(error)


def _problem(t: float, ball: LpBall = BALL) -> Problem:
    return Problem(torch.nn.Identity().eval(), lambda x, y: x[:, 0] - (0.5 + t), ball)


@lru_cache
def _exact(t: float) -> float:
    value, error = _log_tail(t)
    assert error < 0.01
    return value


def test_nearly_all_normals_are_kept() -> None:
    assert BALL.normal_dim == FREE + len(NEAR)
    assert BALL.map is not None
    assert 0.7 < math.exp(float(BALL.log_share)) < 1
    assert int(BALL.map.count) == FREE


def test_the_share_of_normals_kept_is_known() -> None:
    z = Rng(5).normal((40_000, FREE + len(NEAR)))
    chances = BALL.log_kept(z).exp()  # type: ignore[union-attr]
    assert float(chances.max()) <= 1
    # The share was measured, too, to a hundredth at most.
    assert abs(float(chances.mean().log() - BALL.log_share)) < 5 * 0.011


def test_splitting_is_right() -> None:
    exact, repeats = _exact(0.3), 16
    found = estimate([_problem(0.3)] * repeats, Splitting(300, islands=1, steps=10), seed=1)
    p = np.exp([e.log_prob - exact for e in found])
    assert abs(p.mean() - 1) < 5 * math.hypot(p.std(ddof=1) / math.sqrt(repeats), 0.01)


@pytest.mark.parametrize(
    ("estimator", "t"), [(LineSampling(), 0.3), (LineSampling(), 0.4), (ImportanceSampling(), 0.3), (Auto(), 0.4)]
)
def test_fast_methods_are_right(estimator: LineSampling | ImportanceSampling | Auto, t: float) -> None:
    found = estimate(_problem(t), estimator, seed=2)
    assert found.outcome.trusted
    assert abs(found.log_prob - _exact(t)) < 5 * math.hypot(found.log_prob_std, 0.01)


@pytest.mark.parametrize(
    "center", [[0.0] * 6, [0.03] * 3 + [0.5] * 5, [0.1, 0.2, 0.9, 0.95], [0.02, 0.99, 0.0, 1.0, 0.4]]
)
def test_the_law_is_that_of_plain_rejection(center: list[float]) -> None:
    """Means, squares and products of coordinates, against draws from the whole ball that lie in the box."""
    radius, d = 0.35, len(center)
    ball = LpBall(center, radius, 2, clip=(0.0, 1.0))
    assert ball.normal_dim == d
    x = ball.sample(30_000, Rng(3)).double()
    g = torch.randn(300_000, d, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    u = torch.rand(len(g), 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64) ** (1 / d)
    plain = torch.tensor(center, dtype=torch.float64) + radius * u * g / g.norm(dim=1, keepdim=True)
    plain = plain[((plain >= 0) & (plain <= 1)).all(1)]
    looks = [*(lambda x, k=k: x[:, k] for k in range(d)), *(lambda x, k=k: x[:, k] ** 2 for k in range(d)),
             lambda x: x[:, 0] * x[:, -1], lambda x: (x - torch.tensor(center)).norm(dim=1)]  # fmt: skip
    for look in looks:
        a, b = look(x), look(plain)
        assert abs(float(a.mean() - b.mean())) < 5 * math.sqrt(float(a.var()) / len(a) + float(b.var()) / len(b))


def test_a_ball_that_is_cut_near_its_middle_everywhere_has_no_map() -> None:
    assert cut_ball(torch.full((200,), -0.01), torch.full((200,), 1.0), 1.0) is None
    ball = LpBall([0.01] * 200, 1.0, 2, clip=(0.0, 1.0))
    assert ball.normal_dim is None
    assert torch.isfinite(ball.log_density(ball.sample(50, Rng(6)))).all()


def test_balls_with_and_without_a_map_stand_side_by_side() -> None:
    """The one keeps some of its normals, the other all."""
    whole = LpBall([0.5] * (FREE + len(NEAR)), 0.2, 2)
    both = stack_inputs([BALL, whole])
    assert isinstance(both, EachInputs)
    z = kept_normals(both, (2, 5_000), Rng(7), torch.float32)
    chances = both.log_kept(z)
    assert chances is not None
    assert bool((chances[1] == 0).all())
    assert bool((chances[0] > -torch.inf).all())
    # The second keeps the law that it has on its own: a coordinate of a ball, by its beta law.
    size = (FREE + len(NEAR) + 1) / 2
    exact = [_exact(0.3), math.log(special.betainc(size, size, (1 - 0.1 / 0.2) / 2))]
    found = estimate([_problem(0.3), _problem(0.1, whole)], Splitting(150, islands=12, steps=8), seed=8)
    for one, log_prob in zip(found, exact, strict=True):
        assert abs(one.log_prob - log_prob) < 5 * math.hypot(one.log_prob_std, 0.01)


def test_inputs_of_normals_that_are_not_kept_lie_in_ball_and_box_too() -> None:
    """Searches look there: far out, and where they please."""
    z: Tensor = 6 * Rng(10).normal((2_000, FREE + len(NEAR)))
    assert torch.isfinite(BALL.log_density(BALL.from_normal(z))).all()


class Positive:
    """A user's own: normals of which the positive ones are kept."""

    event_shape, normal_dim, log_share = (2,), 2, math.log(0.5)

    def sample(self, n: int) -> Tensor:
        z = torch.randn(n, 2)
        return torch.stack([z[:, 0].abs(), z[:, 1]], 1)

    def from_normal(self, z: Tensor) -> Tensor:
        return z

    def log_kept(self, z: Tensor) -> Tensor:
        return torch.where(z[..., 0] > 0, 0.0, -torch.inf)


@pytest.mark.parametrize(
    "estimator", [Splitting(400, islands=8, steps=8), ImportanceSampling()], ids=["split", "weigh"]
)
def test_a_users_own_model_may_keep_some_normals(estimator: Splitting | ImportanceSampling) -> None:
    problem = Problem(lambda x: x, lambda x, y: x[:, 0] - 4.0, Positive())
    found = estimate(problem, estimator, seed=11)
    assert abs(found.log_prob - math.log(2 * stats.norm.sf(4))) < 5 * found.log_prob_std


def test_a_model_that_keeps_some_says_how_many() -> None:
    class Silent(Positive):
        def __getattribute__(self, name: str) -> object:
            if name == "log_share":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(InputError, match="has log_kept and no log_share"):
        Problem(lambda x: x, lambda x, y: x[:, 0], Silent())
