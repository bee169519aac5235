"""Sensor noise against the laws of scipy, and events whose probability is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from rarely import Auto, LineSampling, Problem, Splitting, estimate
from rarely.core.each_inputs import stack_inputs
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.inputs import GaussianNoise, PixelDropout, PoissonNoise
from rarely.inputs.noise import poisson_quantile
from rarely.kernels import HMC, Langevin

FIVE_SIGMA = 5.7e-7
N = 20_000


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.01, 0.1, 0.3, 1.0, 2.5, 4.0, 7.3, 10.0, 30.0, 99.5, 1e3, 1e5])
def test_the_poisson_quantile_is_exact_in_both_tails(rate: float) -> None:
    """k is the quantile when P(X <= k) >= P(Z < z) and P(X <= k - 1) < P(Z < z), each asked in the smaller tail."""
    z = torch.cat([torch.linspace(-8, 8, 3001), torch.linspace(-20, 20, 201)]).double()
    k, w = poisson_quantile(z, torch.full_like(z, rate)).numpy(), z.numpy()
    law, slack = stats.poisson(rate), 1e-9  # of two implementations of the same function
    above = np.where(w > 0, law.sf(k) <= stats.norm.sf(w) * (1 + slack), law.cdf(k) >= stats.norm.cdf(w) * (1 - slack))
    below = np.where(
        w > 0, law.sf(k - 1) > stats.norm.sf(w) * (1 - slack), law.cdf(k - 1) < stats.norm.cdf(w) * (1 + slack)
    )
    assert above.all()
    assert (below | (k == 0)).all()


def _fits_poisson(counts: np.ndarray, rate: float) -> bool:
    law = stats.poisson(rate)
    low, high = (int(law.ppf(q)) for q in (0.001, 0.999))
    seen = np.bincount(np.clip(np.round(counts), low, high).astype(int) - low, minlength=high - low + 1)
    share = law.pmf(np.arange(low, high + 1))
    share[0], share[-1] = law.cdf(low), law.sf(high - 1)
    return bool(stats.chisquare(seen, N * share / share.sum()).pvalue > FIVE_SIGMA)


@pytest.mark.parametrize("photons", [3.0, 40.0])
def test_counts_have_the_poisson_law(photons: float) -> None:
    image = torch.tensor([0.0, 0.2, 1.0])
    counts = (PoissonNoise(image, photons).sample(N, Rng(0)) * photons).double().numpy()
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)
    assert (counts[:, 0] == 0).all()
    rounded = np.round(photons * image.numpy() + np.sqrt(photons * image.numpy()) * Rng(0).normal((N, 3)).numpy())
    for pixel in (1, 2):
        rate = float(image[pixel]) * photons
        assert _fits_poisson(counts[:, pixel], rate)
        assert not _fits_poisson(rounded[:, pixel], rate)  # a rounded normal is told apart


def test_gaussian_noise_piles_up_at_the_ends_of_the_range() -> None:
    x = GaussianNoise([0.05, 0.5, 1.0], 0.1).sample(N, Rng(1)).numpy()
    for pixel, end, p in ((0, 0.0, stats.norm.cdf(-0.5)), (2, 1.0, 0.5)):
        hits = (x[:, pixel] == end).sum()
        assert abs(hits - N * p) < 5 * math.sqrt(N * p * (1 - p))
    assert stats.kstest(x[:, 1], stats.norm(0.5, 0.1).cdf).pvalue > FIVE_SIGMA


def test_a_dead_pixel_is_dead_in_all_channels() -> None:
    image = torch.full((3, 4, 5), 0.7)
    model = PixelDropout(image, 0.1, value=0.2)
    assert model.normal_dim == 20
    x = model.sample(N // 10, Rng(2))
    dead = x[:, 0] == 0.2
    for channel in range(3):
        assert torch.equal(x[:, channel] == 0.2, dead)
    torch.testing.assert_close(x[:, 0][~dead], torch.full((int((~dead).sum()),), 0.7))
    n, hits = dead.numel(), int(dead.sum())
    assert abs(hits - 0.1 * n) < 5 * math.sqrt(n * 0.09)
    assert PixelDropout(image[0], 0.1).normal_dim == 20
    assert PixelDropout(image.flatten(), 0.1).normal_dim == 60


@pytest.mark.parametrize(
    "models",
    [
        [GaussianNoise(torch.full((2, 3), v), 0.1 * v) for v in (0.3, 0.9)],
        [PoissonNoise(torch.full((2, 3), v), 9.0 / v) for v in (0.3, 0.9)],
        [PixelDropout(torch.full((1, 2, 3), v), v / 2) for v in (0.3, 0.9)],
    ],
    ids=["gaussian", "poisson", "dropout"],
)
def test_models_with_different_numbers_stack(models: list[GaussianNoise | PoissonNoise | PixelDropout]) -> None:
    stacked = stack_inputs(models)
    assert type(stacked) is type(models[0])
    z = Rng(3).normal((2, 50, models[0].normal_dim))
    for row, model in enumerate(models):
        torch.testing.assert_close(stacked.from_normal(z)[row], model.from_normal(z[row]))


def test_steps_have_the_slope_of_a_curve_through_them_and_keep_their_values() -> None:
    z = Rng(4).normal((10, 6)).requires_grad_()
    for model, slope in (
        (PoissonNoise(torch.full((6,), 0.5), 32.0), 4.0 / 32.0),
        (PixelDropout(torch.full((6,), 0.5), 0.5, value=0.0), None),
    ):
        x = model.from_normal(z)
        assert torch.equal(x.detach(), model.from_normal(z.detach()))
        (gradient,) = torch.autograd.grad(x.sum(), z)
        if slope is not None:
            torch.testing.assert_close(gradient, torch.full_like(z, slope))
        else:  # the pixel fades by the density of the normal around its edge, here 0
            torch.testing.assert_close(gradient, -0.5 * torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))


def _counting(limit: float) -> tuple[Problem, float]:
    """The sum of independent counts is a count: 16 pixels of different brightness."""
    image = torch.linspace(0.1, 1.0, 16)
    total, photons = float(image.sum()), 5.0
    model = PoissonNoise(image, photons)
    problem = Problem(lambda x: photons * x.sum(1), lambda x, y: y - limit + 0.01, model)
    return problem, float(stats.poisson(total * photons).logsf(limit - 1))


def _weighted() -> tuple[Problem, float]:
    """Three pixels with weights that are no whole numbers: p by adding up the table of all counts."""
    rates, weights, limit = np.array([2.0, 5.0, 9.0]), np.array([1.0, 0.73, -0.41]), 10.0
    counts = [np.arange(60) for _ in rates]
    grid = np.meshgrid(*counts, indexing="ij")
    mass = np.prod([stats.poisson(r).pmf(g) for r, g in zip(rates, grid, strict=True)], axis=0)
    value = sum(w * g for w, g in zip(weights, grid, strict=True))
    w = torch.tensor(weights, dtype=torch.float32)
    problem = Problem(lambda x: x @ w, lambda x, y: y - limit, PoissonNoise(torch.from_numpy(rates).float(), 1.0))
    return problem, float(np.log(mass[value >= limit].sum()))


def _dead(least: int) -> tuple[Problem, float]:
    """At least so many of 30 pixels are dead."""
    problem = Problem(lambda x: x.sum(1), lambda x, y: 30 - y - least + 0.5, PixelDropout(torch.ones(30), 0.05))
    return problem, float(stats.binom(30, 0.05).logsf(least - 1))


def _bright() -> tuple[Problem, float]:
    """The mean of 20 pixels in the middle of their range: a normal tail."""
    problem = Problem(lambda x: x.mean(1), lambda x, y: y - 0.62, GaussianNoise(torch.full((20,), 0.5), 0.1))
    return problem, float(stats.norm.logsf(0.12 / 0.1 * math.sqrt(20)))


EXACT = {"counts": _counting(75), "weighted": _weighted(), "dead": _dead(9), "bright": _bright()}
every = pytest.mark.parametrize(("problem", "exact"), EXACT.values(), ids=EXACT.keys())


@every
def test_auto_is_right(problem: Problem, exact: float) -> None:
    found = estimate(problem, Auto(proof_seconds=0), seed=7)
    assert found.outcome.trusted
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std


@every
def test_splitting_is_right(problem: Problem, exact: float) -> None:
    repeats = 16
    found = estimate([problem] * repeats, Splitting(300, islands=1, steps=10), seed=8)
    p = np.exp([e.log_prob - exact for e in found])
    assert abs(p.mean() - 1) < 5 * p.std(ddof=1) / math.sqrt(repeats)


class Steps:
    """A user's model that is all steps."""

    normal_dim, event_shape, smooth = 12, (12,), False

    def from_normal(self, z: torch.Tensor) -> torch.Tensor:
        return z.floor()

    def sample(self, n: int) -> torch.Tensor:
        return self.from_normal(torch.randn(n, 12))


@pytest.mark.parametrize("model", [PixelDropout(torch.zeros(12), 0.2, value=1.0), Steps()], ids=["dead", "user's"])
@pytest.mark.parametrize("count", [1, 2])
def test_auto_spends_no_lines_on_steps(model: PixelDropout | Steps, count: int) -> None:
    problem = Problem(lambda x: x.sum(1), lambda x, y: y - 8.5, model)
    for found in estimate([problem] * count, Auto(target_error=0.5, proof_seconds=0), seed=11):
        assert "splitting" in [record.method for record in found.evidence]
        assert "line sampling" not in [record.method for record in found.evidence]


@pytest.mark.parametrize("name", ["counts", "bright"])
def test_lines_are_right(name: str) -> None:
    problem, exact = EXACT[name]
    found = estimate(problem, LineSampling(), seed=9)
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std


@pytest.mark.parametrize("kernel", [Langevin(), HMC()], ids=["langevin", "hmc"])
def test_moves_along_a_made_up_slope_are_right(kernel: Langevin | HMC) -> None:
    problem, exact = EXACT["counts"]
    repeats = 12
    found = estimate([problem] * repeats, Splitting(150, islands=1, steps=5, kernel=kernel), seed=10)
    p = np.exp([e.log_prob - exact for e in found])
    assert abs(p.mean() - 1) < 5 * p.std(ddof=1) / math.sqrt(repeats)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: GaussianNoise([0.5, 1.5], 0.1), "outside clip"),
        (lambda: GaussianNoise([0.5], -0.1), "not be negative"),
        (lambda: GaussianNoise([0.5, 0.5], [0.1, 0.1, 0.1]), "std has shape"),
        (lambda: GaussianNoise([0.5], 0.1, clip=(1, 1)), "low < high"),
        (lambda: PoissonNoise([0.5], 0), "count of a pixel of value 1"),
        (lambda: PoissonNoise([-0.5], 10), "negative values"),
        (lambda: PixelDropout([0.5], 1.0), "strictly between 0 and 1"),
        (lambda: PixelDropout(0.5, 0.1), "a picture must be"),
        (lambda: PixelDropout([0.5], 0.1).log_density(torch.zeros(1)), "no density"),
    ],
)
def test_errors_say_what_to_do(build, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        build()
