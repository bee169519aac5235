"""No bound may ever be violated: thousands of random networks and regions against sampling and attack."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rarely.bounds import BallRegion, BoxRegion, build, interval_bounds, linear_bounds
from rarely.bounds.graph import intervals

BOXES = 8


def examples(count):
    """So many examples, the same ones every time, however slow the machine."""
    checks = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=checks)


def _points(low, high, seed, count=96):
    """Uniform points and corners of each box, (B, count, *event)."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(low.shape[0], count, *low.shape[1:], generator=g, dtype=torch.float64)
    u[:, : count // 2] = u[:, : count // 2].round()
    return torch.lerp(low.unsqueeze(1), high.unsqueeze(1), u).clamp(low.unsqueeze(1), high.unsqueeze(1))


def _attacked(graph, C, low, high, x, steps=4):
    """Points pushed towards small values of each row of C in turn."""
    goal = torch.arange(x.shape[1]) % C.shape[1]
    for step in range(steps):
        here = x.detach().requires_grad_()
        y = graph(here.flatten(0, 1)).reshape(*x.shape[:2], -1)
        value = (y @ C.mT).gather(2, goal.expand(x.shape[0], -1).unsqueeze(2)).sum()
        (slope,) = torch.autograd.grad(value, here)
        size = 0.5 ** (step + 1) * (high - low).unsqueeze(1)
        x = (x - size * slope.sign()).clamp(low.unsqueeze(1), high.unsqueeze(1))
    return x.detach()


def _check(module, shape, low, high, seed, steps):
    graph = build(module, shape)
    g = torch.Generator().manual_seed(seed + 1)
    C = torch.randn(BOXES, 4, graph.classes, generator=g, dtype=torch.float64)
    d = torch.randn(BOXES, 4, generator=g, dtype=torch.float64)
    x = _points(low, high, seed)
    x = torch.cat([x, _attacked(graph, C, low, high, x)], 1)
    with torch.no_grad():
        values = graph.values(x.flatten(0, 1))
    rows = values[graph.output].reshape(*x.shape[:2], -1) @ C.mT + d.unsqueeze(1)
    tolerance = 1e-12 * (1 + rows.abs().amax(1))
    least = rows.amin(1)
    box = BoxRegion(low, high)
    assert (interval_bounds(graph, box, C, d) <= least + tolerance).all()
    for value, (lo, hi) in zip(values, intervals(graph, low, high), strict=True):
        per = value.reshape(*x.shape[:2], *value.shape[1:])
        assert (per.amin(1) >= lo - 1e-12 * (1 + lo.abs())).all()
        assert (per.amax(1) <= hi + 1e-12 * (1 + hi.abs())).all()
    for effort in (0, steps) if steps else (0,):
        bound = linear_bounds(graph, box, C, d, steps=effort)
        assert (bound.lower <= least + tolerance).all()
        line = x.flatten(2) @ bound.A.mT + bound.b.unsqueeze(1)
        assert (line <= rows + 1e-12 * (1 + rows.abs() + line.abs())).all()
    return graph, C, d


@examples(250)
@given(seed=st.integers(0, 10**6))
def test_two_thousand_networks_and_boxes_are_bounded_from_below(random_network, random_boxes, seed):
    module, shape = random_network(seed)
    low, high = random_boxes(shape, BOXES, seed)
    _check(module, shape, low, high, seed, steps=3 if seed % 4 == 0 else 0)


@pytest.mark.slow
@examples(2000)
@given(seed=st.integers(0, 10**9))
def test_sixteen_thousand_networks_and_boxes_are_bounded_from_below(random_network, random_boxes, seed):
    module, shape = random_network(seed)
    low, high = random_boxes(shape, BOXES, seed)
    _check(module, shape, low, high, seed, steps=4)


def test_networks_of_curves_and_products_are_bounded_from_below(curved_network, random_boxes):
    """As their graph says in float64, and as they run in float32 themselves."""
    for seed in range(4):
        module, shape = curved_network(seed)
        low, high = random_boxes(shape, BOXES, seed)
        graph, C, d = _check(module, shape, low, high, seed, steps=2)
        x = _points(low, high, seed)
        with torch.no_grad():
            outputs = module(x.flatten(0, 1).float()).double().flatten(1)
        rows = outputs.reshape(*x.shape[:2], -1) @ C.mT + d.unsqueeze(1)
        bound = linear_bounds(graph, BoxRegion(low, high), C, d).lower
        assert bound.isfinite().all()
        assert (bound <= rows.amin(1) + 1e-12 * (1 + rows.abs().amax(1))).all()


@examples(40)
@given(seed=st.integers(0, 10**6))
def test_balls_are_bounded_and_no_looser_than_their_boxes(random_network, seed):
    module, shape = random_network(seed)
    graph = build(module, shape)
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(BOXES, *shape, generator=g, dtype=torch.float64)
    radius = torch.rand(BOXES, generator=g, dtype=torch.float64)
    C = torch.randn(1, 3, graph.classes, generator=g, dtype=torch.float64)
    step = torch.randn(BOXES, 256, *shape, generator=g, dtype=torch.float64).flatten(2)
    step = step / step.norm(dim=-1, keepdim=True) * radius.reshape(-1, 1, 1)
    x = centre.unsqueeze(1) + step.reshape(BOXES, 256, *shape)
    with torch.no_grad():
        rows = graph(x.flatten(0, 1)).reshape(BOXES, 256, -1) @ C.mT
    ball = BallRegion(centre, radius)
    found = linear_bounds(graph, ball, C)
    assert (found.lower <= rows.amin(1) + 1e-12 * (1 + rows.abs().amax(1))).all()
    # Rows: |a|_2 r <= |a|_1 r, with the same or tighter relaxations.
    if seed % 4 == 0 and (seed // 4) % 5 == 0:
        assert (
            found.lower >= linear_bounds(graph, BoxRegion(ball.low, ball.high), C).lower - 1e-9
        ).float().mean() > 0.9


def test_crown_beats_intervals_and_optimised_slopes_beat_crown(random_boxes):
    gains, more = [], []
    for seed in range(20):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
        graph = build(module, (4,))
        low, high = random_boxes((4,), BOXES, seed)
        C = torch.eye(3, dtype=torch.float64).unsqueeze(0)
        loose = interval_bounds(graph, BoxRegion(low, high), C)
        plain = linear_bounds(graph, BoxRegion(low, high), C).lower
        tight = linear_bounds(graph, BoxRegion(low, high), C, steps=12).lower
        gains.append((plain - loose).mean())
        more.append((tight - plain).mean())
    assert min(gains) > 0
    assert min(more) >= 0
    assert torch.stack(more).mean() > 1e-3


def test_the_margin_covers_cancellation_against_exact_arithmetic():
    """An affine network whose terms cancel: the exact minimum, in rationals, must not lie below the bound."""
    torch.manual_seed(0)
    big = nn.Linear(6, 6)
    back = nn.Linear(6, 1)
    with torch.no_grad():
        big.weight.mul_(1e7)
        back.weight.copy_(torch.tensor([[1e7, -1e7, 1e7, -1e7, 1e7, -1e7]]))
    module = nn.Sequential(big, back)
    low = torch.randn(50, 6, dtype=torch.float64)
    high = low + 1e-3 * torch.rand(50, 6, dtype=torch.float64)
    found = linear_bounds(build(module, (6,)), BoxRegion(low, high), torch.ones(1, 1, 1))
    run, real = found.lower.squeeze(1).tolist(), found.real.squeeze(1).tolist()

    def exact(t):
        return [[Fraction(v) for v in row] for row in t.double().tolist()]

    W, V = exact(big.weight), exact(back.weight)[0]
    slope = [sum(V[j] * W[j][i] for j in range(6)) for i in range(6)]
    shift = sum(V[j] * Fraction(b) for j, b in enumerate(big.bias.double().tolist()))
    shift += Fraction(back.bias.double().tolist()[0])
    for k in range(50):
        ends = zip(low[k].tolist(), high[k].tolist(), strict=True)
        least = shift + sum(min(s * Fraction(l), s * Fraction(h)) for s, (l, h) in zip(slope, ends, strict=True))
        assert Fraction(run[k]) < Fraction(real[k]) <= least
        assert float(least - Fraction(real[k])) < 1e-9 * 1e14
        assert float(least - Fraction(run[k])) < 1e-4 * 1e14  # 14 eps of float32 on each of two sums


class _Repeated(nn.Module):
    """Both entries again and again: in one move, or in many that all read the input."""

    def __init__(self, count, apart):
        super().__init__()
        self.count, self.apart = count, apart

    def forward(self, x):
        if self.apart:
            return torch.cat([x.flip(1) for _ in range(self.count)], 1)
        return x[:, [0, 1] * self.count]


@pytest.mark.parametrize("apart", [False, True], ids=["an entry read often", "many readers"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("large", [0, -1])
def test_coefficients_that_add_up_are_charged_for_it(apart, sign, large):
    """A thousand coefficients of a quarter of the unit roundoff vanish beside one, whichever is added first."""
    count = 1025
    C = torch.full((count, 2), 2.0**-54, dtype=torch.float64)
    C[large] = 1.0
    graph = build(_Repeated(count, apart), (2,))
    point = torch.ones(1, 2, dtype=torch.float64)
    found = linear_bounds(graph, BoxRegion(point, point), sign * C.reshape(1, 1, -1)).real
    exact = Fraction(sign) * 2 * (1 + (count - 1) * Fraction(2) ** -54)
    assert Fraction(float(found)) <= exact
    assert float(exact - Fraction(float(found))) < 1e-10


def test_a_nan_never_turns_into_a_proof():
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    graph = build(module, (2,))
    low = torch.tensor([[float("nan"), 0.0], [-float("inf"), 0.0]], dtype=torch.float64)
    found = linear_bounds(graph, BoxRegion(low, torch.ones(2, 2, dtype=torch.float64)), torch.ones(1, 1, 1))
    assert not (found.lower > -1e30).any()
