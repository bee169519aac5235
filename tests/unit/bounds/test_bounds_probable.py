"""Proved probabilities in many dimensions: exact cases, broken networks, and what the questions make of them."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import nn

import rarely
from rarely import Box, Gaussian, LinearConstraint, LpBall, Mixture, Problem
from rarely.bounds import ProbabilityBounds, probability_bounds, prove

D = 300


def exceeds(threshold: float) -> LinearConstraint:
    return LinearConstraint([[-1.0]], [-threshold])


def last(problem: Problem, seconds: float = 5.0, **options: float) -> ProbabilityBounds:
    *_, found = probability_bounds(problem, seconds, **options)
    return found


def wide_network(seed: int = 0) -> nn.Module:
    """Of 300 inputs, two hidden layers; most neurons are far from zero, as in trained ones."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(D, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 1)).double().eval()
    with torch.no_grad():
        net[0].bias.copy_(3 * torch.randn(40))
        net[2].bias.copy_(2 * torch.randn(20))
    return net


def linear(weights: torch.Tensor) -> nn.Module:
    net = nn.Linear(len(weights), 1, bias=False).double().eval()
    with torch.no_grad():
        net.weight.copy_(weights)
    return net


@pytest.mark.parametrize("z", [3.0, 8.0, 20.0])
def test_a_linear_score_of_normals_has_the_tail_of_a_normal(z: float) -> None:
    weights = torch.linspace(0.1, 1, D).double()
    found = last(Problem(linear(weights), exceeds(z * float(weights.norm())), Gaussian(torch.zeros(D).double(), 1.0)))
    truth = float(mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2))
    assert found.log_lower <= truth <= found.log_upper
    assert found.gap < 0.3


def test_a_linear_score_of_uniforms_is_known_to_four_digits() -> None:
    problem = Problem(
        linear(torch.ones(60).double()), exceeds(30.0), Box(-torch.ones(60).double(), torch.ones(60).double())
    )
    with mpmath.workdps(60):
        terms = ((-1) ** k * mpmath.binomial(60, k) * (mpmath.mpf(15) - k) ** 60 for k in range(15))
        truth = float(mpmath.log(mpmath.fsum(terms) / mpmath.factorial(60)))
    found = last(problem, gap=1e-6)
    assert found.log_lower <= truth <= found.log_upper
    assert found.gap < 1e-3


def test_what_two_rows_ask_together_is_bounded_by_their_product() -> None:
    """p = P(x_0 > 4) P(x_1 > 4) with ReLUs in the way: rows of one polytope share weights."""
    net = nn.Sequential(nn.Linear(D, 2, bias=False), nn.ReLU()).double().eval()
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].weight[0, 0] = net[0].weight[1, 1] = 1.0
    both = LinearConstraint(-torch.eye(2).double(), torch.tensor([-4.0, -4.0]).double())
    found = last(Problem(net, both, Gaussian(torch.zeros(D).double(), 1.0)))
    truth = 2 * float(mpmath.log(mpmath.erfc(4 / mpmath.sqrt(2)) / 2))
    assert truth <= found.log_upper <= truth + 6  # one half-space holds both: x_0 + x_1 >= 8


def test_attackable_and_provably_improbable() -> None:
    net, box = wide_network(), Box(-torch.ones(D).double(), torch.ones(D).double())
    with torch.no_grad():
        y = net(torch.rand(20_000, D).double() * 2 - 1)
    problem = Problem(net, exceeds(float(y.mean() + 9 * y.std())), box)
    decision = rarely.certify(problem, 1e-6, timeout=30)
    assert decision.ruling.value == "accepted"
    assert "by proof" in decision.sentence
    assert decision.confidence == 1.0
    assert prove(problem, 10).status == "violated"  # an adversary finds what chance does not


def test_estimate_shows_what_is_proved_beside_its_interval() -> None:
    net = wide_network(3)
    with torch.no_grad():
        y = net(torch.randn(20_000, D).double())
    problem = Problem(net, exceeds(float(y.mean() + 6 * y.std())), Gaussian(torch.zeros(D).double(), 1.0))
    found = rarely.estimate(problem, rarely.Auto(proof_boxes=1000))
    low, high = found.proved
    assert low <= found.interval.high
    assert found.log_prob - 4 * found.log_prob_std <= high < 0.5 * found.log_prob
    assert "; proved: p <= " in str(found)
    assert any(label == "proved" for label, _ in found.rows())


def test_a_mixture_is_the_sum_of_its_components() -> None:
    net, middle = linear(torch.ones(50).double()), torch.zeros(50).double()
    parts = [Gaussian(middle, 0.5), Gaussian(middle, 1.0)]
    whole = last(Problem(net, exceeds(45.0), Mixture(parts, [0.999, 0.001])))
    each = [last(Problem(net, exceeds(45.0), part)) for part in parts]
    truth = [
        math.log(w) + float(mpmath.log(mpmath.erfc(45 / s / mpmath.sqrt(100)) / 2))
        for w, s in ((0.999, 0.5), (0.001, 1.0))
    ]
    assert all(
        e.log_lower <= t - math.log(w) <= e.log_upper for e, t, w in zip(each, truth, (0.999, 0.001), strict=True)
    )
    assert whole.log_lower <= max(truth) <= whole.log_upper + 1e-9
    assert whole.gap < 0.3


def test_a_ball_is_bounded_in_any_dimension() -> None:
    weights = torch.ones(D).double()
    found = last(Problem(linear(weights), exceeds(0.4 * math.sqrt(D)), LpBall(torch.zeros(D).double(), 1.0, norm=2)))
    # One coordinate u of the ball in n dimensions: u^2 is Beta(1/2, (n + 1) / 2).
    truth = float(mpmath.log(mpmath.betainc(0.5, (D + 1) / 2, 0.16, 1, regularized=True) / 2))
    assert truth <= found.log_upper <= truth + 5


@pytest.mark.parametrize("bad", [1e300, 1e200, 1e38])
@pytest.mark.parametrize("layer", [0, 2, 4])
def test_weights_that_overflow_prove_nothing(bad: float, layer: int) -> None:
    net = wide_network(1)
    with torch.no_grad():
        net[layer].weight[0, 0] = bad
    for inputs in (Box(-torch.ones(D).double(), torch.ones(D).double()), Gaussian(torch.zeros(D).double(), 1.0)):
        with torch.no_grad():
            score = net(inputs.sample(2000, rarely.core.rng.Rng(0)).double())
        share = float((score >= 1.0).double().mean())
        *_, found = probability_bounds(Problem(net, exceeds(1.0), inputs), 2.0)
        assert not math.isnan(found.log_upper)
        assert not share or math.exp(found.log_upper) >= share / 2


@pytest.mark.parametrize("tiny", [1e-320, 1e-200, 1e-40])
def test_underflow_proves_nothing_false(tiny: float) -> None:
    """y = tiny relu(x) / tiny exceeds 1/2 a quarter of the time, however small the first factor."""
    net = nn.Sequential(nn.Linear(D, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double().eval()
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].weight[0, 0] = tiny
        net[2].weight[0, 0] = min(1 / tiny, 1e308)
    box = Box(-torch.ones(D).double(), torch.ones(D).double())
    value = tiny * min(1 / tiny, 1e308)
    found = last(Problem(net, exceeds(0.5 * value), box), 2.0)
    assert found.log_upper >= math.log(0.25)
    assert found.log_lower <= math.log(0.25)


def test_boxes_instead_of_seconds_make_it_reproducible() -> None:
    net = wide_network(5)
    problem = Problem(net, exceeds(1.0), Gaussian(torch.zeros(D).double(), 1.0))
    runs = [list(probability_bounds(problem, math.inf, boxes=200))[-1] for _ in range(2)]
    assert runs[0].log_upper == runs[1].log_upper
    assert runs[0].boxes == runs[1].boxes < 400


def test_other_laws_are_refused_by_a_trivial_bound() -> None:
    noise = rarely.inputs.PoissonNoise(torch.rand(D), 100.0)
    (found,) = probability_bounds(Problem(wide_network().float(), exceeds(1.0), noise), 1.0)
    assert (found.log_lower, found.log_upper) == (-math.inf, 0.0)


def tail(z: float) -> float:
    return float(mpmath.log(mpmath.erfc(mpmath.mpf(z) / mpmath.sqrt(2)) / 2))


def test_bounds_hold_at_the_end_of_doubles() -> None:
    """exp(log p) is subnormal there."""
    normal = Gaussian(torch.zeros(25).double(), 1.0)
    first = torch.zeros(25).double()
    first[0] = 1.0
    z = 38.455
    found = last(
        Problem(linear(first), LinearConstraint([[-1.0]], torch.tensor([-z], dtype=torch.float64)), normal),
        target=744.0,
    )
    assert found.log_lower <= tail(z) <= found.log_upper


@pytest.mark.parametrize(("low", "high", "n"), [(11.0, 11.9, 12), (8.5, 9.5, 20), (-0.5, -0.4999999999999995, 20)])
def test_a_truncation_to_next_to_nothing_proves_nothing_false(low: float, high: float, n: int) -> None:
    ends = torch.full((n,), low).double(), torch.full((n,), high).double()
    inputs = rarely.TruncatedGaussian(torch.zeros(n).double(), 1.0, *ends)
    first = torch.zeros(n).double()
    first[0] = 1.0
    threshold = low + 0.05 * (high - low)  # exceeded most of the time
    found = last(
        Problem(linear(first), LinearConstraint([[-1.0]], torch.tensor([-threshold], dtype=torch.float64)), inputs), 2.0
    )
    assert found.log_upper > -1.0


def test_a_rare_choice_keeps_its_weight() -> None:
    rare = torch.tensor([0.3, 8e-17, 0.7 - 8e-17], dtype=torch.float64)
    inputs = rarely.inputs.Tabular([rarely.inputs.Choice([0.0, 100.0, 1.0], rare)] * 3)
    first = torch.tensor([1.0, 0.0, 0.0]).double()
    found = last(Problem(linear(first).float(), exceeds(50.0), inputs), 2.0)
    assert found.log_upper >= math.log(8e-17)


def test_a_fixed_coordinate_and_one_end_are_no_obstacle() -> None:
    n = 30
    low, high = torch.full((n,), -2.0).double(), torch.full((n,), math.inf).double()
    low[0] = high[0] = 0.5
    inputs = rarely.TruncatedGaussian(torch.zeros(n).double(), 1.0, low, high)
    found = last(Problem(linear(torch.ones(n).double()), exceeds(45.0), inputs))
    drawn = inputs.sample(200_000, rarely.core.rng.Rng(0)).double().sum(1)
    assert float((drawn >= 45.0).double().mean()) < 1e-4
    assert tail(45.0 / math.sqrt(n)) - 1 < found.log_upper < -15
