"""The nearest violation: exact for planes in every norm, another solver elsewhere, and nothing else is changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor, nn

import rarely
from rarely.core.evidence import Nearest
from rarely.core.execution import Execution
from rarely.core.input_model import InputModel
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.core.witnesses import NEAREST
from rarely.inputs import Constrained
from rarely.methods.nearest import NearestViolation
from rarely.methods.rulers import Ruler, rulers
from rarely.questions.estimate import finish
from rarely.questions.strategy import Precision

Score = Callable[[Tensor, Tensor], Tensor]
_MOST, _STUCK = 260, 420  # calls of a search, and where slopes lead nowhere
_EDGE = 1e-3  # by which a search stops short of the edge of the region, of the distance: the width of its last step


def plane(weight: Tensor, threshold: float) -> nn.Module:
    """A network that violates where weight . x >= threshold."""
    layer = nn.Linear(weight.numel(), 1)
    with torch.no_grad():
        layer.weight.copy_(weight.flatten().unsqueeze(0))
        layer.bias.fill_(-threshold)
    return nn.Sequential(nn.Flatten(), layer).eval()


def first(x: Tensor, y: Tensor) -> Tensor:
    return y[..., 0]


def searched(
    problem: rarely.Problem, inputs: Tensor, normals: Tensor | None = None, most: int = _MOST
) -> tuple[Nearest, int]:
    """The nearest violation that is found from some, and the calls that were charged for it."""
    spend = Spend(1)
    (batch,) = Execution(device="cpu").place([problem], spend, at_once=100)
    ((found,),) = finish(NearestViolation().search(batch, [inputs], [normals]))
    assert isinstance(found, Nearest)
    assert found.calls == int(spend.calls()) <= most
    x = found.witnesses.inputs
    assert float(problem.score(x)) >= 0
    assert float(found.witnesses.scores) == pytest.approx(float(problem.score(x)), abs=1e-4)
    if problem.inputs.support is not None:
        assert all(((x >= problem.inputs.support[0]) & (x <= problem.inputs.support[1])).flatten())
    return found, int(spend.calls())


def violating(problem: rarely.Problem, towards: Tensor, count: int = 40) -> Tensor:
    """Draws of the law pushed along a direction until they violate, as a method without any aim would end."""
    x = problem.inputs.sample(count, Rng(3))
    law = problem.inputs
    for _ in range(400):
        short = problem.score(x) < 0
        if not bool(short.any()):
            break
        x[short] = x[short] + 0.02 * towards
        x = law.project(x) if hasattr(law, "project") else x
        x = x if law.support is None else x.clamp(*law.support)
    return x[problem.score(x) >= 0]


WEIGHT = torch.randn(30, generator=torch.Generator().manual_seed(0))
BALLS = {norm: rarely.LpBall(torch.full((30,), 0.5), 0.4, norm) for norm in (1, 2, math.inf)}
DUAL = {1: math.inf, 2: 2.0, math.inf: 1.0}


def ball_problem(norm: float, share: float) -> rarely.Problem:
    """A plane that touches the ball of this share of the radius."""
    reach = 0.4 * float(torch.linalg.vector_norm(WEIGHT, DUAL[norm]))
    return rarely.Problem(plane(WEIGHT, float(WEIGHT.sum()) / 2 + share * reach), first, BALLS[norm])


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_a_plane_through_a_ball(norm: float, share: float) -> None:
    problem = ball_problem(norm, share)
    steepest = WEIGHT * (WEIGHT.abs() == WEIGHT.abs().max()) if norm == 1 else WEIGHT
    found, _ = searched(problem, violating(problem, steepest))
    assert found.unit == "radius"
    assert share * (1 - 1e-5) <= found.distance <= share * (1 + _EDGE)
    assert found.beyond >= found.distance
    offset = found.witnesses.inputs[0] - 0.5
    assert float(torch.linalg.vector_norm(offset, norm)) == pytest.approx(0.4 * found.distance, rel=1e-4)


def test_a_search_in_another_norm_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: along the slope itself, the corner of an l-infinity ball is missed."""
    straight = replace
    pieces = Ruler._pieces
    monkeypatch.setattr(Ruler, "_pieces", lambda self, direction: pieces(straight(self, norm=2.0), direction))
    found, _ = searched(ball_problem(math.inf, 0.2), violating(ball_problem(math.inf, 0.2), WEIGHT))
    assert found.distance > 0.2 * (1 + 20 * _EDGE)


@pytest.mark.parametrize("dimension", [2, 200])
@pytest.mark.parametrize("law", ["independent", "correlated"])
def test_a_plane_and_normal_inputs(dimension: int, law: str) -> None:
    weight = torch.linspace(1, 2, dimension)
    factor = torch.eye(dimension) + 0.3 * torch.tril(torch.ones(dimension, dimension), -1) / dimension**0.5
    inputs: InputModel = rarely.Gaussian(torch.zeros(dimension), 1.0)
    if law == "correlated":
        inputs = rarely.Gaussian(torch.zeros(dimension), covariance=factor @ factor.T)
    scale = float((factor.T @ weight if law == "correlated" else weight).norm())
    problem = rarely.Problem(plane(weight, 4.5 * scale), first, inputs)
    z = torch.randn(60, dimension, generator=torch.Generator().manual_seed(1))
    way = factor.T @ weight if law == "correlated" else weight
    z = z + (4.7 - z @ way / way.norm()).clamp_min(0).unsqueeze(1) * way / way.norm()
    found, _ = searched(problem, inputs.from_normal(z), z)
    assert found.unit == "sigma"
    assert 4.5 * (1 - 1e-4) <= found.distance <= 4.5 * (1 + _EDGE)


@pytest.mark.parametrize("black", [False, True])
def test_of_two_planes_the_nearer_one(black: bool) -> None:
    def score(x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(y[..., 0] - 4.2, -4.0 - y[..., 0])

    problem = rarely.Problem(np.asarray if black else torch.as_tensor, score, rarely.Gaussian(torch.zeros(3), 1.0))
    z = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
    z[:, 0] = torch.where(torch.arange(40) % 4 > 0, 4.3, -4.3)  # most of what is known lies on the other side
    assert problem.adapted.differentiable != black
    found, _ = searched(problem, z)
    assert 4.0 <= found.distance <= 4.0 * (1 + 5 * _EDGE)


def test_a_plane_through_a_box_and_inputs_that_are_fixed() -> None:
    low, high = torch.tensor([-1.0, 0.0, 2.0, -3.0]), torch.tensor([1.0, 4.0, 2.0, -1.0])
    weight = torch.tensor([1.0, -2.0, 5.0, 3.0])
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    reach = float((weight.abs() * half).sum())
    problem = rarely.Problem(plane(weight, float(weight @ middle) + 0.8 * reach), first, rarely.Box(low, high))
    found, _ = searched(problem, violating(problem, weight * half))
    assert 0.8 * (1 - 1e-5) <= found.distance <= 0.8 * (1 + _EDGE)
    torch.testing.assert_close(found.witnesses.inputs[0], middle + 0.8 * half * weight.sign(), rtol=0, atol=5e-3)
    assert "of the way from the centre of the box to its sides" in found.sentence


def test_a_ball_that_is_cut() -> None:
    """Some coordinates end at the cut, and the others must go farther: scipy says how far."""
    centre = torch.linspace(0.05, 0.95, 12)
    weight = torch.linspace(-2, 3, 12)
    ball = rarely.LpBall(centre, 1.0, norm=2, clip=(0, 1))
    threshold = float(weight @ centre) + 2.6
    problem = rarely.Problem(plane(weight, threshold), first, ball)
    corner = torch.where(weight > 0, 1.0, 0.0)
    start = torch.lerp(centre, corner, 0.9 / float((corner - centre).norm()))
    found, _ = searched(problem, start.unsqueeze(0))
    exact = optimize.minimize(
        lambda x: float(((x - centre.numpy()) ** 2).sum()), start.numpy(), method="SLSQP", bounds=[(0, 1)] * 12,
        constraints={"type": "ineq", "fun": lambda x: float(weight.numpy() @ x - threshold)}, options={"ftol": 1e-12},
    )  # fmt: skip
    assert math.sqrt(exact.fun) * (1 - 1e-5) <= found.distance <= math.sqrt(exact.fun) * (1 + _EDGE)


CURVED: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "concave": (2, lambda u: (u[..., 0] + u[..., 1]) / 2**0.5 - 2.5 - 0.1 * (u[..., 0] - u[..., 1]) ** 2),
    "saddle": (2, lambda u: u[..., 0] * u[..., 1] - 6),
    "sphere": (10, lambda u: 2.0 - (u - 2.0).norm(dim=-1)),
}


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("black", [False, True])
def test_curved_limit_states_and_another_solver(name: str, black: bool) -> None:
    dimension, limit = CURVED[name]

    def network(x: Tensor) -> Tensor:
        return limit(torch.from_numpy(np.asarray(x)) if black else x).unsqueeze(-1)

    law = rarely.Gaussian(torch.zeros(dimension, dtype=torch.float64), 1.0)
    problem = rarely.Problem(network, first, law)
    z = torch.randn(200_000, dimension, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 1.6 + 1.0
    points = z[limit(z) >= 0][:60]
    found, _ = searched(problem, points)
    solved = optimize.minimize(
        lambda u: float((u**2).sum()), points[0].numpy(), method="SLSQP",
        constraints={"type": "ineq", "fun": lambda u: float(limit(torch.from_numpy(u)))}, options={"ftol": 1e-12},
    )  # fmt: skip
    assert abs(found.distance / math.sqrt(solved.fun) - 1) < (0.01 if black and dimension > 2 else 2 * _EDGE)


def test_the_centre_itself_violates() -> None:
    problem = rarely.Problem(plane(torch.ones(2), -1.0), first, rarely.Gaussian(torch.zeros(2), 1.0))
    found, _ = searched(problem, torch.ones(5, 2))
    assert found.distance == 0
    assert found.witnesses.inputs.eq(0).all()


def test_laws_without_normals_are_measured_by_their_density() -> None:
    law = rarely.Mixture([rarely.Gaussian(torch.zeros(2), 1.0), rarely.Gaussian(torch.tensor([9.0, 0.0]), 1.0)])
    problem = rarely.Problem(plane(torch.tensor([0.0, 1.0]), 3.0), first, law)
    x = law.sample(200_000, Rng(0))
    found, _ = searched(problem, x[problem.score(x) >= 0])
    assert found.unit == "log-density"
    assert 4.5 * (1 - 1e-4) <= found.distance <= 4.5 * 1.02  # 3 ** 2 / 2 above either mean


def test_inputs_under_constraints_stay_possible() -> None:
    law = Constrained.to(rarely.Box(-torch.ones(2), torch.ones(2)), [[1.0, -1.0]], [-0.5])  # x1 <= x2 - 0.5
    problem = rarely.Problem(plane(torch.tensor([1.0, 1.0]), 0.8), first, law)
    x = law.sample(20_000, Rng(0))
    found, _ = searched(problem, x[problem.score(x) >= 0], most=_STUCK)
    a, b = found.witnesses.inputs[0].tolist()
    assert a <= b - 0.5
    assert 0.65 * (1 - 1e-4) <= found.distance <= 0.65 * 1.05  # b = 0.65, a = 0.15


def test_a_law_that_knows_no_inverse_starts_from_normals_of_its_own() -> None:
    laplace = torch.distributions.Independent(torch.distributions.Laplace(torch.zeros(2), 1.0), 1)
    problem = rarely.Problem(plane(torch.ones(2), 2.0), first, laplace)
    found, _ = searched(problem, torch.full((5, 2), 3.0))
    assert found.unit == "normal"
    assert math.isnan(found.beyond)
    assert found.distance == pytest.approx(_laplace_distance(2.0), rel=5e-3)


def _laplace_distance(threshold: float) -> float:
    """Both normals are mapped alike, and the tail is convex: the nearest point has equal coordinates."""
    tail = 0.5 * math.exp(-threshold / 2)
    return float(np.sqrt(2) * -torch.special.ndtri(torch.tensor(tail, dtype=torch.float64)))


def test_slopes_that_lead_nowhere_are_left() -> None:
    """A score of two values has no slope, and a law that moves in steps wants none: the points are moved at random."""
    flat = rarely.Problem(
        lambda x: x, lambda x, y: (y[:, 0] > 3.0).double() - 0.5, rarely.Gaussian(torch.zeros(2), 1.0)
    )
    z = torch.randn(20, 2, generator=torch.Generator().manual_seed(5)).abs() + torch.tensor([3.0, 0.5])
    found, _ = searched(flat, z, most=_STUCK)
    assert 3.0 <= found.distance <= 3.0 * 1.01
    assert found.distance < found.beyond


_OUTSIDE = rarely.TruncatedGaussian(torch.full((30,), 0.2), 0.5, torch.full((30,), 0.3), torch.full((30,), 2.0))
_CUT = rarely.LpBall(torch.linspace(0.02, 0.98, 30), 0.4, 2, clip=(0, 1))
HALF_SPACES = {**{f"l{n:g}": ball for n, ball in BALLS.items()}, "cut": _CUT, "mean outside": _OUTSIDE}


@pytest.mark.parametrize("law", HALF_SPACES.values(), ids=HALF_SPACES)
def test_a_half_space_is_met_at_the_first_size_that_reaches_it(law: InputModel) -> None:
    problem = rarely.Problem(plane(WEIGHT, 3.0), first, law)
    (batch,) = Execution(device="cpu").place([problem] * 4, Spend(4), at_once=100)
    ((_, ruler),) = rulers(batch)
    g = torch.Generator().manual_seed(7)
    slope = torch.randn(4, 1, 30, generator=g)
    direction = torch.lerp(slope, torch.randn(4, 1, 30, generator=g), 0.3)
    sizes = torch.linspace(0, 6, 6001)
    reached = (slope * ruler.along(direction, sizes.expand(4, -1))).sum(2)
    low, high = reached[:, :1], reached.amax(1, keepdim=True)
    for share in (0.1, 0.5, 0.9):
        level = torch.lerp(low, high, share)
        point = ruler.nearest(direction, slope, level)
        torch.testing.assert_close((slope * point).sum(2), level, rtol=1e-4, atol=1e-4)
        least = sizes[(reached >= level).int().argmax(1)]
        torch.testing.assert_close(point, ruler.along(direction, least.unsqueeze(1)), rtol=0, atol=4e-3)


# In `estimate` --------------------------------------------------------------------------------------------------------


def rare_plane() -> rarely.Problem:
    return rarely.Problem(plane(torch.linspace(1, 2, 20), 30.0), first, rarely.Gaussian(torch.zeros(20), 1.0))


def test_it_is_the_first_witness_and_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = rare_plane()
    found = rarely.estimate(problem)
    (nearest,) = [e for e in found.evidence if isinstance(e, Nearest)]
    assert nearest.replayed
    assert found.witnesses.kinds[0] == NEAREST
    assert found.witnesses.kinds.count(NEAREST) == 1
    assert torch.equal(found.witnesses.inputs[0], nearest.witnesses.inputs[0])
    assert nearest.distance == pytest.approx(30 / float(torch.linspace(1, 2, 20).norm()), rel=_EDGE)
    assert (found.witnesses.inputs[1:].norm(dim=1) > nearest.distance).all()
    monkeypatch.setattr(Precision, "__init__", _without)
    without = rarely.estimate(problem)
    assert not [e for e in without.evidence if isinstance(e, Nearest)]
    same = ("outcome", "log_prob", "log_prob_std", "interval", "upper_bound", "method", "notes")
    assert all(getattr(found, name) == getattr(without, name) for name in same)
    assert found.calls - without.calls == nearest.calls


def _without(self: Precision, target_error: float, **given: object) -> None:
    given = {"order": Precision.order, "draws": 0, "patience": 0.4, "last": (), **given}
    for name, value in {"target_error": target_error, **given}.items():
        object.__setattr__(self, name, value)


def test_nothing_is_searched_where_nothing_was_found() -> None:
    found = rarely.estimate(rarely.Problem(plane(torch.ones(2), 9.0), first, rarely.Box([0.0, 0.0], [1.0, 1.0])))
    assert not [e for e in found.evidence if isinstance(e, Nearest)]
    assert found.witnesses.kinds == ()


@pytest.mark.parametrize("budget", [1_020, 1_100, 1_200])
def test_a_budget_is_kept(budget: int) -> None:
    problem = rarely.Problem(plane(torch.ones(2), 1.0), first, rarely.Gaussian(torch.zeros(2), 1.0))
    found = rarely.estimate(problem, max_evaluations=budget)
    assert found.calls <= budget
    assert found.outcome is rarely.Outcome.VIOLATED


def test_problems_of_many_kinds_at_once() -> None:
    laws = [
        rarely.Gaussian(torch.zeros(2), 1.0),
        rarely.Box([-3.0, -3.0], [3.0, 3.0]),
        rarely.LpBall([0.0, 0.0], 3.0, 2),
    ]
    network = plane(torch.tensor([1.0, 1.0]), 3.0)
    found = rarely.estimate([rarely.Problem(network, first, law) for law in laws])
    distances = [next(e for e in one.evidence if isinstance(e, Nearest)) for one in found]
    assert [e.unit for e in distances] == ["sigma", "box", "radius"]
    exact = [3 / 2**0.5, 0.5, 3 / 2**0.5 / 3]
    assert [e.distance for e in distances] == [pytest.approx(d, rel=_EDGE) for d in exact]
