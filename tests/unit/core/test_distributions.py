"""torch's distributions in z-space: quantiles against scipy far into the tails, and laws that get no map."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributions as laws
from scipy import stats
from torch import Tensor

from rarely import Auto, Outcome, Problem, estimate
from rarely.core.distributions import Marginals, from_torch
from rarely.core.input_model import Custom, adapt_inputs
from rarely.core.rng import Rng


def real(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


# A law and the same of scipy; where they differ from one near an end that is not zero, numbers have no more digits.
LAWS = {
    "normal": (laws.Normal(real(1.0), real(2.0)), stats.norm(1, 2), (-20, 20)),
    "uniform": (laws.Uniform(real(0.0), real(3.0)), stats.uniform(0, 3), (-20, 5)),
    "student": (laws.StudentT(real(3.0), real(1.0), real(2.0)), stats.t(3, 1, 2), (-20, 20)),
    "student, light": (laws.StudentT(real(30.0)), stats.t(30), (-20, 20)),
    "student, very heavy": (laws.StudentT(real(0.5)), stats.t(0.5), (-14, 14)),
    "cauchy": (laws.Cauchy(real(0.0), real(1.0)), stats.cauchy(), (-20, 20)),
    "laplace": (laws.Laplace(real(-1.0), real(0.1)), stats.laplace(-1, 0.1), (-20, 20)),
    "gamma": (laws.Gamma(real(2.0), real(3.0)), stats.gamma(2, scale=1 / 3), (-20, 20)),
    "gamma, peaked": (laws.Gamma(real(0.1), real(1.0)), stats.gamma(0.1), (-4.5, 20)),
    "gamma, narrow": (laws.Gamma(real(1e4), real(1.0)), stats.gamma(1e4), (-20, 20)),
    "chi-squared": (laws.Chi2(real(5.0)), stats.chi2(5), (-20, 20)),
    "exponential": (laws.Exponential(real(2.0)), stats.expon(scale=0.5), (-20, 20)),
    "beta": (laws.Beta(real(2.0), real(5.0)), stats.beta(2, 5), (-20, 12)),
    "beta, narrow": (laws.Beta(real(3e4), real(7e4)), stats.beta(3e4, 7e4), (-20, 20)),
    "beta, infinite at its ends": (laws.Beta(real(0.5), real(0.5)), stats.beta(0.5, 0.5), (-14, 4)),
    "half-normal": (laws.HalfNormal(real(2.0)), stats.halfnorm(scale=2), (-20, 20)),
    "half-cauchy": (laws.HalfCauchy(real(1.0)), stats.halfcauchy(), (-20, 20)),
    "fisher": (laws.FisherSnedecor(real(4.0), real(6.0)), stats.f(4, 6), (-20, 20)),
    "inverse gamma": (laws.InverseGamma(real(3.0), real(2.0)), stats.invgamma(3, scale=2), (-20, 20)),
    "gumbel": (laws.Gumbel(real(1.0), real(2.0)), stats.gumbel_r(1, 2), (-20, 20)),
    "log-normal": (laws.LogNormal(real(0.5), real(1.5)), stats.lognorm(1.5, scale=math.exp(0.5)), (-20, 20)),
    "weibull": (laws.Weibull(real(2.0), real(1.5)), stats.weibull_min(1.5, scale=2), (-20, 20)),
    "pareto": (laws.Pareto(real(1.0), real(2.0)), stats.pareto(2), (-5, 20)),
}
every = pytest.mark.parametrize(("law", "exact", "reach"), LAWS.values(), ids=LAWS.keys())


@every
def test_quantiles_to_a_thousandth_of_p(law: laws.Distribution, exact: object, reach: tuple[float, float]) -> None:
    model = from_torch(law)
    assert isinstance(model, Marginals)
    z = np.concatenate([np.linspace(*reach, 401), np.linspace(-3, 3, 200)])
    x = model.from_normal(torch.from_numpy(z).unsqueeze(1)).squeeze(1).numpy()
    off = np.where(
        z < 0,
        exact.logcdf(x) - stats.norm.logcdf(z),
        exact.logsf(x) - stats.norm.logsf(z),  # type: ignore[attr-defined]
    )
    assert np.abs(off).max() < 1e-3
    assert np.abs(off[np.abs(z) < 3]).max() < 1e-5, "where most inputs are it is exact for all that counts"
    order = np.argsort(z)
    assert (np.diff(x[order]) >= 0).all()


@every
def test_gradients_flow_through_the_quantiles(
    law: laws.Distribution, exact: object, reach: tuple[float, float]
) -> None:
    """dx / dz is the ratio of the densities."""
    z = torch.linspace(max(-3.0, reach[0]), min(3.0, reach[1]), 21, dtype=torch.float64).unsqueeze(1).requires_grad_()
    model = from_torch(law)
    x = model.from_normal(z)
    (slope,) = torch.autograd.grad(x.sum(), z)
    wanted = stats.norm.pdf(z.detach().numpy()) / exact.pdf(x.detach().numpy())  # type: ignore[attr-defined]
    np.testing.assert_allclose(slope.numpy(), wanted, rtol=0.02)


@every
def test_single_precision_stays_finite_and_close(
    law: laws.Distribution, exact: object, reach: tuple[float, float]
) -> None:
    model = from_torch(law)
    z = torch.linspace(-9, 9, 181).unsqueeze(1)
    single, double = model.from_normal(z), model.from_normal(z.double())
    assert single.dtype == torch.float32
    assert torch.isfinite(single).all()
    torch.testing.assert_close(single, double.clamp(-3.4e38, 3.4e38).float(), rtol=1e-6, atol=1e-37)


@every
def test_samples_have_a_density_and_lie_in_the_support(
    law: laws.Distribution, exact: object, reach: tuple[float, float]
) -> None:
    model = from_torch(law)
    x = model.sample(2000, Rng(0))
    assert x.shape == (2000, 1)
    assert float((model.log_density(x.double()) > -math.inf).double().mean()) > 0.999
    if model.support is not None:
        low, high = model.support
        assert bool(((x >= low) & (x <= high)).all())
    assert stats.kstest(x.squeeze(1).double().numpy(), exact.cdf).pvalue > 1e-4  # type: ignore[attr-defined]


def test_coordinates_have_laws_of_their_own() -> None:
    df = torch.tensor([[1.0, 3.0, 30.0], [2.0, 5.0, 8.0]])
    model = from_torch(laws.Independent(laws.StudentT(df, torch.arange(6.0).reshape(2, 3)), 2))
    assert isinstance(model, Marginals)
    assert (model.event_shape, model.normal_dim) == ((2, 3), 6)
    z = torch.full((4, 6), 2.5, dtype=torch.float64)
    x = model.from_normal(z)
    assert x.shape == (4, 2, 3)
    wanted = stats.t.isf(stats.norm.sf(2.5), df.numpy(), np.arange(6).reshape(2, 3))
    np.testing.assert_allclose(x[1].numpy(), wanted, rtol=1e-6)


def test_many_coordinates_of_one_law_share_a_table() -> None:
    """A table for each of 100,000 coordinates would not fit."""
    model = from_torch(laws.StudentT(torch.full((100_000,), 3.0)))
    assert isinstance(model, Marginals)
    x = model.from_normal(torch.full((1, 100_000), 4.0, dtype=torch.float64))
    assert x[0, 7] == pytest.approx(stats.t.isf(stats.norm.sf(4), 3), rel=1e-6)
    assert isinstance(from_torch(laws.StudentT(torch.linspace(1, 9, 100_000))), Custom)


def test_a_number_without_dimensions() -> None:
    model = from_torch(laws.Exponential(torch.tensor(1.0)))
    assert model.event_shape == ()
    assert model.from_normal(torch.zeros(5, 1)).shape == (5,)


@pytest.mark.parametrize(
    "law",
    [
        laws.Poisson(torch.ones(3)),
        laws.Bernoulli(torch.full((3,), 0.5)),
        laws.Dirichlet(torch.ones(3)),
        laws.MixtureSameFamily(laws.Categorical(torch.ones(3, 2)), laws.Normal(torch.zeros(3, 2), torch.ones(3, 2))),
        laws.TransformedDistribution(laws.Normal(torch.zeros(3), 1.0), [laws.SigmoidTransform()]),
        laws.VonMises(torch.zeros(3), torch.ones(3)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_laws_without_a_quantile_stay_as_they_are(law: laws.Distribution) -> None:
    model = from_torch(law)
    assert isinstance(model, Custom)
    assert model.normal_dim is None
    assert model.sample(10, Rng(0)).shape == (10, 3)
    assert model.log_density(model.sample(10, Rng(0))).shape == (10,)


def test_a_falling_transform_is_the_law_that_it_makes() -> None:
    law = laws.TransformedDistribution(laws.Exponential(real(1.0)), [laws.AffineTransform(1.0, -2.0)])
    x = from_torch(law).sample(4000, Rng(1)).squeeze(1).double().numpy()
    assert stats.kstest(1 - x, stats.expon(scale=2).cdf).pvalue > 1e-4


def test_the_centre_of_a_law_without_a_mean_is_its_median() -> None:
    model = adapt_inputs(laws.Cauchy(torch.tensor([1.0, 2.0]), 1.0))
    torch.testing.assert_close(model.center, torch.tensor([1.0, 2.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(adapt_inputs(laws.Gamma(torch.ones(2), 2.0)).center, torch.full((2,), 0.5))


@pytest.mark.parametrize("black_box", [False, True])
def test_heavy_tails_are_ordinary(black_box: bool) -> None:
    """Student-t (3) at p = 1e-6 in five dimensions: of trusted answers 5 to 27 % covered without a map."""
    far = float(stats.t.isf(1e-6, 3))
    law = laws.StudentT(torch.full((5,), 3.0))
    problem = Problem((lambda x: x.detach()) if black_box else (lambda x: x), lambda x, y: y[:, 0] - far, law)
    found = estimate(problem, Auto(proof_seconds=0), seed=1)
    assert found.outcome is Outcome.VIOLATED
    assert abs(found.log_prob - math.log(1e-6)) < 5 * found.log_prob_std


@pytest.mark.parametrize("low_rank", [False, True])
def test_normal_laws_with_correlations_map_from_normals(low_rank: bool) -> None:
    factor, diagonal, mean = torch.tensor([[2.0], [1.0], [-1.0]]), torch.tensor([0.5, 1.0, 2.0]), torch.arange(3.0)
    covariance = factor @ factor.mT + diagonal.diag()
    law = (
        laws.LowRankMultivariateNormal(mean, factor, diagonal)
        if low_rank
        else laws.MultivariateNormal(mean, covariance)
    )
    model = from_torch(law)
    assert model.normal_dim == 3
    columns = model.from_normal(torch.eye(3).double()) - mean
    assert torch.allclose(columns.mT @ columns, covariance.double(), atol=1e-5)
    assert torch.allclose(model.from_normal(torch.zeros(1, 3)), mean)
