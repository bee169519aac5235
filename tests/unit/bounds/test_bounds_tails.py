"""Half-spaces under every law against exact rationals, quadrature and interval arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from torch import Tensor

from rarely import Box, Gaussian, LpBall, TruncatedGaussian
from rarely.bounds.fourier import log_share_above, uniform_cumulant
from rarely.bounds.laws import tails_of
from rarely.bounds.tails import Tails, UniformTails
from rarely.core.rng import Rng
from rarely.inputs import Choice, Empirical, Fixed, GaussianNoise, Normal, OneHot, PixelDropout, Tabular, Uniform

N, EPS = 12, torch.finfo(torch.float64).eps
IMAGE = torch.linspace(0, 1, N, dtype=torch.float64)
SPREAD = torch.linspace(0.1, 0.6, N, dtype=torch.float64)


def correlated() -> Gaussian:
    mix = torch.randn(N, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Gaussian(IMAGE, covariance=mix @ mix.T + 0.1 * torch.eye(N, dtype=torch.float64))


COLUMNS = (
    Normal(0, 1), Uniform(-1, 2), Fixed(3.0), Choice([1, 2, 5], [0.2, 0.5, 0.3]), OneHot([0.1, 0.2, 0.7]),
    Empirical(IMAGE), Normal(1, 0.2),
)  # fmt: skip
MODELS = {
    "box": Box(IMAGE - SPREAD, IMAGE + 2 * SPREAD),
    "fixed coordinate": Box(IMAGE, torch.where(IMAGE > 0.5, IMAGE + 1, IMAGE)),
    "gaussian": Gaussian(IMAGE, SPREAD),
    "correlated": correlated(),
    "ball": LpBall(IMAGE, 0.7, norm=2),
    "truncated": TruncatedGaussian(IMAGE, SPREAD, IMAGE - 0.3, IMAGE + SPREAD),
    "truncated far out": TruncatedGaussian(IMAGE, SPREAD, IMAGE + 4 * SPREAD, IMAGE + 9 * SPREAD),
    "truncated to little": TruncatedGaussian(IMAGE, SPREAD, IMAGE - 1e-5, IMAGE + 1e-5),
    "noise": GaussianNoise(IMAGE, 0.2),
    "noise at the ends": GaussianNoise(IMAGE.round(), 0.1),
    "dropout": PixelDropout(IMAGE, 0.1),
    "table": Tabular(COLUMNS),
}


@pytest.fixture(params=MODELS, ids=list(MODELS))
def law(request: pytest.FixtureRequest) -> tuple[Tails, Tensor]:
    """A law, and draws of it."""
    model = MODELS[request.param]
    return tails_of(model), model.sample(300_000, Rng(0)).double().flatten(1)


def directions(n: int, seed: int = 0) -> Tensor:
    return torch.randn(6, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_cumulants_are_those_of_the_draws(law: tuple[Tails, Tensor]) -> None:
    tails, x = law
    A = directions(x.shape[1])
    T = A / (x @ A.T).std(0).unsqueeze(1)
    each = torch.exp((x - tails.centre) @ T.T)
    error = 5 * each.std(0) / math.sqrt(len(x)) / each.mean(0)
    off = tails.cumulant(T) - each.mean(0).log()
    assert bool((off > -error).all())
    if getattr(tails, "exact", True):  # G is K but for the ball
        assert bool((off < error + 1e-6).all())


def test_means_are_slopes_of_cumulants_and_deviations_bound_their_curvature(law: tuple[Tails, Tensor]) -> None:
    tails, x = law
    A, spread = directions(x.shape[1], 1), x.std(0).clamp(min=1e-9)
    for size in (0.0, 0.5, 2.0, 6.0, 20.0):
        T = size * directions(x.shape[1], 2) / spread / math.sqrt(x.shape[1])
        step = 1e-3 / tails.deviation(A)
        ahead, here, behind = (tails.cumulant(T + k * step.unsqueeze(1) * A) for k in (1, 0, -1))
        mean, error = tails.mean(T)
        slope = (A * (mean - tails.centre)).sum(1)
        margin = tails.cumulant(torch.zeros_like(T))  # K is 0 there: this is what is charged for rounding
        noise = (8 * margin + 1e-12 * (1 + here.abs())) / step
        allowed = (A.abs() * error).sum(1) + 1e-3 * tails.deviation(A) + noise
        assert bool(((ahead - behind) / (2 * step) - slope).abs().le(allowed).all())
        if float(margin.max()) < 1e-10:  # narrow truncations are known to fewer digits than a second difference takes
            curvature = (ahead - 2 * here + behind) / step**2
            assert bool((curvature <= tails.deviation(A) ** 2 * (1 + 1e-5) + noise / step).all())


def test_half_spaces_hold_what_the_draws_say(law: tuple[Tails, Tensor]) -> None:
    tails, x = law
    A = directions(x.shape[1], 3)
    score = x @ A.T
    for far in (-1.0, 0.5, 2.0, 3.0):
        b = -(score.mean(0) + far * score.std(0))
        share = (score + b >= 0).double().mean(0)
        error = 5 * (share / len(x)).sqrt() + 1e-5
        assert bool((tails.most_above(A, b).exp() >= share - error).all())
        assert bool((tails.least_above(A, b).exp() <= share + error).all())


@pytest.mark.parametrize(
    ("n", "t"), [(2, 1), (3, 2), (5, 3), (10, 6), (10, 9), (30, 15), (100, 30), (100, 70), (100, 97)]
)
def test_a_sum_of_uniforms_is_that_of_irwin_and_hall(n: int, t: int) -> None:
    below = Fraction(n - t, 2)  # P(sum of U(-1, 1) >= t) as that of U(0, 1) below this
    terms = ((-1) ** k * math.comb(n, k) * (below - k) ** n for k in range(math.floor(below) + 1))
    exact = sum(terms, Fraction()) / math.factorial(n)
    truth = float(mpmath.log(mpmath.mpf(exact.numerator) / exact.denominator))
    tails = UniformTails(-torch.ones(n).double(), torch.ones(n).double())
    A, b = torch.ones(1, n).double(), torch.tensor([-float(t)]).double()
    low, high = float(tails.least_above(A, b)), float(tails.most_above(A, b))
    assert low <= truth <= high
    assert high - low < 0.01


def test_any_tilt_gives_a_bound() -> None:
    a, t = torch.rand(50, 40, generator=torch.Generator().manual_seed(0)).double(), torch.full((50,), 6.0).double()
    best = log_share_above(a, t, torch.full((50,), 1.4).double(), upper=True)
    for tilt in (0.1, 0.7, 3.0, 10.0):
        off = torch.full((50,), tilt).double()
        assert bool((log_share_above(a, t, off, upper=False) <= best + 1e-9).all())
        assert bool((log_share_above(a, t, off, upper=True) >= log_share_above(a, t, off * 0 + 1.4, upper=False)).all())


def test_gaussian_tails_hold_the_truth_far_beyond_doubles() -> None:
    tails = tails_of(Gaussian(torch.zeros(3), torch.ones(3)))
    for z in (0.01, 1.0, 5.0, 30.0, 60.0):
        A, b = torch.tensor([[1.0, 0, 0]]).double(), torch.tensor([-z], dtype=torch.float64)
        truth = float(mpmath.log(mpmath.erfc(mpmath.mpf(z) / mpmath.sqrt(2)) / 2))
        assert float(tails.least_above(A, b)) <= truth <= float(tails.most_above(A, b))
        assert float(tails.most_above(A, b) - tails.least_above(A, b)) < 0.35


def interval_exponent(tails: UniformTails, T: Tensor, c: float) -> tuple[float, float]:
    """Bound (1) in interval arithmetic with 200 bits."""
    iv = mpmath.iv
    iv.prec = 200
    total = iv.mpf(c)
    for t, low, high in zip(T.tolist(), tails.low.tolist(), tails.high.tolist(), strict=True):
        z = iv.mpf(t) * (iv.mpf(high) - iv.mpf(low)) / 2
        total += iv.mpf(t) * (iv.mpf(low) + iv.mpf(high)) / 2
        if t != 0 and low < high:
            total += iv.log((iv.exp(z) - iv.exp(-z)) / (2 * z))
    return float(total.a), float(total.b)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_exponents_are_above_those_of_interval_arithmetic(scale: float, offset: float) -> None:
    generator = torch.Generator().manual_seed(3)
    middle = offset + torch.randn(20, generator=generator).double()
    half = torch.rand(20, generator=generator).double() * scale
    tails = UniformTails(middle - half, middle + half)
    for k in range(10):
        T = torch.randn(20, generator=generator).double() * 10.0 ** (k - 5)
        c = float(-(T * middle).sum())
        found = float(tails.exponent(T.unsqueeze(0), torch.tensor([c], dtype=torch.float64)))
        low, high = interval_exponent(tails, T, c)
        assert found >= low
        assert found <= high + 1e-10 * (1 + abs(high) + float((T * middle).abs().sum()))


def test_the_cumulant_of_a_uniform_law_never_dips_below() -> None:
    for z in [0.0, 1e-8, 1e-3, 0.05, 0.4999, 0.5, 0.5001, 1.0, 3.0, 50.0, 1e4]:
        with mpmath.workprec(300):
            truth = mpmath.log(mpmath.sinh(mpmath.mpf(z)) / z) if z > 0 else mpmath.mpf(0)
        found = float(uniform_cumulant(torch.tensor(z, dtype=torch.float64)))
        assert found >= float(truth) * (1 - 64 * EPS)
        assert found <= float(truth) * (1 + 64 * EPS)
