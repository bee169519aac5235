"""What every input model promises: samples in the support, the right law from both maps, one code for batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from rarely import Box, Gaussian, LpBall, Mixture, TruncatedGaussian
from rarely.core.each_inputs import stack_inputs
from rarely.core.input_model import kept_normals
from rarely.core.rng import Rng
from rarely.core.stacking import place, take
from rarely.inputs import (
    Choice,
    Corruptions,
    Empirical,
    Fixed,
    GaussianNoise,
    Generator,
    InputModel,
    Normal,
    OneHot,
    PixelDropout,
    PoissonNoise,
    Product,
    Tabular,
    Tokens,
    Uniform,
    adapt_inputs,
)

FIVE_SIGMA = 5.7e-7  # two-sided tail of the normal
N = 20_000
Cdf = Callable[[np.ndarray], np.ndarray]


class Exponentials:
    """A user's own object: two independent exponentials."""

    event_shape = (2,)

    def sample(self, n: int) -> Tensor:
        return torch.distributions.Exponential(1.0).sample((n, 2))

    def log_density(self, x: Tensor) -> Tensor:
        return torch.where((x >= 0).all(-1), -x.sum(-1), -torch.inf)


class Latent:
    """A user's generator: an input is a function of normals, its density unknown."""

    event_shape, normal_dim = (2,), 3

    def sample(self, n: int) -> Tensor:
        return self.from_normal(torch.randn(n, 3))

    def from_normal(self, z: Tensor) -> Tensor:
        return torch.stack([z[..., 0] + z[..., 1], z[..., 2].exp()], -1)


@dataclass(frozen=True)
class Case:
    model: InputModel
    cdfs: dict[int, Cdf]  # exact marginal laws by flat index
    fixed: tuple[int, ...] = ()  # flat indices that never move
    density: bool = True


def _uniform(low: float, high: float) -> Cdf:
    return stats.uniform(low, high - low).cdf


def _l2(center: float, radius: float, d: int) -> Cdf:
    """A coordinate of the uniform law in a d-ball: (1 + x/r)/2 is Beta((d+1)/2, (d+1)/2)."""
    law = stats.beta((d + 1) / 2, (d + 1) / 2)
    return lambda x: law.cdf(0.5 * (1 + (x - center) / radius))


def _l1(center: float, radius: float, d: int) -> Cdf:
    """|x|/r is Beta(1, d), the sign is free."""
    law = stats.beta(1, d)
    return lambda x: 0.5 + 0.5 * np.sign(x - center) * law.cdf(np.abs(x - center) / radius)


def _half(cdf: Cdf) -> Cdf:
    """The law of |x| for a symmetric one."""
    return lambda x: 2 * cdf(x) - 1


def _mix(weights: list[float], cdfs: list[Cdf]) -> Cdf:
    return lambda x: sum(w * f(x) for w, f in zip(weights, cdfs, strict=True))


def _decoder() -> torch.nn.Module:
    """(z0, z1, z2) -> (z0 + z1, z2 + 2)."""
    layer = torch.nn.Linear(3, 2).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        layer.bias.copy_(torch.tensor([0.0, 2.0]))
    return layer


def _interpolated(data: list[float]) -> Cdf:
    return lambda x: np.interp(x, np.sort(data), np.linspace(0, 1, len(data)))


COVARIANCE = [[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]]
CORNER = [0.0] * 20 + [1.0] * 10 + [0.5] * 20  # many coordinates at a bound of [0, 1]
STEP = Gaussian([2.0, 0.0], [1.0, 3.0])  # the same object three times in a product
CASES: dict[str, Case] = {
    "box": Case(Box([-1.0, 2.0], [0.5, 2.5]), {0: _uniform(-1, 0.5), 1: _uniform(2, 2.5)}),
    "box, fixed coordinate": Case(Box([-1.0, 3.0], [1.0, 3.0]), {0: _uniform(-1, 1)}, fixed=(1,)),
    "box, image": Case(
        Box(torch.zeros(3, 4, 4), torch.full((3, 4, 4), 0.1)), {0: _uniform(0, 0.1), 47: _uniform(0, 0.1)}
    ),
    "box, float64": Case(Box(np.zeros(2), np.ones(2)), {1: _uniform(0, 1)}),
    "linf ball": Case(LpBall([0.2, 0.9], 0.3), {0: _uniform(-0.1, 0.5)}),
    "linf ball, clipped": Case(
        LpBall([0.2, 0.9], 0.3, clip=(0.0, 1.0)), {0: _uniform(0.0, 0.5), 1: _uniform(0.6, 1.0)}
    ),
    "linf ball, radius 0": Case(LpBall([0.2, 0.9], 0.0), {}, fixed=(0, 1)),
    "l2 ball, d=1": Case(LpBall([0.2], 0.3, 2), {0: _uniform(-0.1, 0.5)}),
    "l2 ball, d=2": Case(LpBall([0.2, 0.9], 0.3, 2), {0: _l2(0.2, 0.3, 2), 1: _l2(0.9, 0.3, 2)}),
    "l2 ball, d=50": Case(LpBall(torch.zeros(2, 5, 5), 2.0, 2), {0: _l2(0, 2, 50), 49: _l2(0, 2, 50)}),
    "l2 ball, d=784": Case(LpBall(torch.zeros(784), 1.0, 2), {7: _l2(0, 1, 784)}),
    "l2 ball, idle clip": Case(LpBall([0.5, 0.5], 0.3, 2, clip=(0.0, 1.0)), {0: _l2(0.5, 0.3, 2)}),
    "l1 ball, d=1": Case(LpBall([0.2], 0.3, 1), {0: _uniform(-0.1, 0.5)}),
    "l1 ball, d=2": Case(LpBall([0.2, 0.9], 0.3, 1), {0: _l1(0.2, 0.3, 2), 1: _l1(0.9, 0.3, 2)}),
    "l1 ball, d=50": Case(LpBall(torch.zeros(50), 2.0, 1), {0: _l1(0, 2, 50), 49: _l1(0, 2, 50)}),
    # A center on the bound leaves an orthant of the ball, in which |x| has the law that it has in all of it.
    "l2 ball, cut to an orthant": Case(LpBall(torch.zeros(50), 0.5, 2, clip=(0.0, 1.0)), {0: _half(_l2(0, 0.5, 50))}),
    "l1 ball, cut to an orthant": Case(LpBall(torch.zeros(50), 0.5, 1, clip=(0.0, 1.0)), {0: _half(_l1(0, 0.5, 50))}),
    "l2 ball, cut on 30 sides": Case(
        LpBall(CORNER, 0.4, 2, clip=(0.0, 1.0)), {0: _half(_l2(0, 0.4, 50)), 49: _l2(0.5, 0.4, 50)}
    ),
    "l2 ball, cut near its middle": Case(  # in coordinates that have no simple law, and one that has
        LpBall([0.5] * 20 + [0.04] * 5 + [0.98] * 5, 0.3, 2, clip=(0.0, 1.0)), {}
    ),
    "l1 ball, cut on 30 sides": Case(
        LpBall(CORNER, 0.4, 1, clip=(0.0, 1.0)), {0: _half(_l1(0, 0.4, 50)), 49: _l1(0.5, 0.4, 50)}
    ),
    "l2 ball, cut, fixed coordinate": Case(
        LpBall([0.5, 0.5], 0.3, 2, clip=([0.0, 0.5], [1.0, 0.5])), {0: _uniform(0.2, 0.8)}, fixed=(1,)
    ),
    "gaussian": Case(Gaussian([1.0, -2.0], [0.5, 3.0]), {0: stats.norm(1, 0.5).cdf, 1: stats.norm(-2, 3).cdf}),
    "gaussian, fixed coordinate": Case(Gaussian([1.0, -2.0], [0.5, 0.0]), {0: stats.norm(1, 0.5).cdf}, fixed=(1,)),
    "gaussian, covariance": Case(
        Gaussian([0.0, 1.0, 2.0], covariance=COVARIANCE), {0: stats.norm(0, 1).cdf, 1: stats.norm(1, 2**0.5).cdf}
    ),
    "truncated gaussian": Case(
        TruncatedGaussian([0.0, 1.0], [1.0, 0.5], [-1.0, 1.0], [2.0, 9.0]),
        {0: stats.truncnorm(-1, 2).cdf, 1: stats.truncnorm(0, 16, 1, 0.5).cdf},
    ),
    "truncated gaussian, open and far": Case(
        TruncatedGaussian([0.0, 0.0, 0.0], 1.0, [-math.inf, 6.0, -31.0], [0.5, math.inf, -30.0]),
        {0: stats.truncnorm(-np.inf, 0.5).cdf, 1: stats.truncnorm(6, np.inf).cdf, 2: stats.truncnorm(-31, -30).cdf},
    ),
    "truncated gaussian, fixed coordinate": Case(
        TruncatedGaussian([0.0, 0.0], 1.0, [-1.0, 0.5], [1.0, 0.5]), {0: stats.truncnorm(-1, 1).cdf}, fixed=(1,)
    ),
    "mixture of boxes": Case(
        Mixture([Box([0.0], [1.0]), Box([0.5], [3.0])], [0.3, 0.7]),
        {0: _mix([0.3, 0.7], [_uniform(0, 1), _uniform(0.5, 3)])},
    ),
    "mixture of gaussians": Case(
        Mixture([Gaussian([0.0, 0.0], 1.0), Gaussian([4.0, 0.0], 0.5)], [3.0, 1.0]),
        {0: _mix([0.75, 0.25], [stats.norm(0, 1).cdf, stats.norm(4, 0.5).cdf])},
    ),
    "mixture, a weight of zero": Case(Mixture([Box([0.0], [1.0]), Box([5.0], [6.0])], [1.0, 0.0]), {0: _uniform(0, 1)}),
    "torch normal": Case(adapt_inputs(torch.distributions.Normal(torch.zeros(3), 2.0)), {1: stats.norm(0, 2).cdf}),
    "torch uniform": Case(
        adapt_inputs(torch.distributions.Uniform(torch.zeros(2), torch.ones(2))), {0: _uniform(0, 1)}
    ),
    "torch multivariate": Case(
        adapt_inputs(torch.distributions.MultivariateNormal(torch.zeros(3), torch.tensor(COVARIANCE))),
        {1: stats.norm(0, 2**0.5).cdf},
    ),
    "torch beta, independent": Case(
        adapt_inputs(torch.distributions.Independent(torch.distributions.Beta(torch.full((2,), 2.0), 3.0), 1)),
        {0: stats.beta(2, 3).cdf},
    ),
    "user's object": Case(adapt_inputs(Exponentials()), {0: stats.expon.cdf, 1: stats.expon.cdf}),
    "corruptions, brightness": Case(
        Corruptions(torch.full((1, 3, 4), 0.5), brightness=Normal(0.0, 0.03), contrast=Uniform(0.5, 2.0)),
        {0: stats.norm(0.5, 0.03).cdf, 11: stats.norm(0.5, 0.03).cdf}, density=False,
    ),
    "corruptions, all": Case(
        Corruptions(
            torch.linspace(0, 1, 90).reshape(2, 5, 9), rotation=Uniform(-30, 30), shift_x=Normal(0, 1),
            shift_y=Uniform(-1, 1), scale=Normal(1, 0.1), blur=Normal(0, 1), contrast=Normal(1, 0.2),
            brightness=Normal(0, 0.1),
        ),
        {}, density=False,
    ),
    "gaussian noise": Case(
        GaussianNoise([0.5, 0.0, 0.3], [0.05, 0.1, 0.0]), {0: stats.norm(0.5, 0.05).cdf}, fixed=(2,), density=False
    ),
    "poisson noise": Case(PoissonNoise([0.5, 1.0, 0.0], 20.0), {}, fixed=(2,), density=False),
    "pixel dropout": Case(PixelDropout(torch.full((2, 3, 3), 0.5), 0.2), {}, density=False),
    "decoder": Case(
        Generator(_decoder(), 3), {0: stats.norm(0, 2**0.5).cdf, 1: stats.norm(2, 1).cdf}, density=False
    ),
    "table": Case(
        Tabular(
            {
                "age": Empirical([18.0, 20.0, 30.0, 31.0, 70.0]), "kind": OneHot([0.2, 0.0, 0.8]),
                "year": Fixed(1999.0), "doors": Choice([3, 5], [0.4, 0.6]), "load": Uniform(-1, 4),
                "heat": Normal(3, 2),
            },
            correlation=0.5 * np.eye(5) + 0.5,
        ),
        {0: _interpolated([18.0, 20.0, 30.0, 31.0, 70.0]), 6: _uniform(-1, 4), 7: stats.norm(3, 2).cdf},
        fixed=(2, 4), density=False,
    ),
    "product": Case(
        Product([Box([[-1.0, 2.0]], [[0.5, 2.5]]), STEP, STEP, STEP, LpBall([0.2, 0.9], 0.3, 2)]),
        {0: _uniform(-1, 0.5), 2: stats.norm(2, 1).cdf, 7: stats.norm(0, 3).cdf, 8: _l2(0.2, 0.3, 2)},
    ),
    "product with a user's object": Case(
        Product([STEP, Exponentials(), Box([0.0], [1.0])]),
        {1: stats.norm(0, 3).cdf, 2: stats.expon.cdf, 4: _uniform(0, 1)},
    ),
    "product with numbers alone": Case(
        Product([torch.distributions.Gamma(2.0, 1.0), Box(0.0, 1.0)]), {0: stats.gamma(2).cdf, 1: _uniform(0, 1)}
    ),
    "words beside numbers": Case(
        Product([Tokens([0.2, 0.5, 0.0, 0.3], 2), Exponentials(), STEP]),
        {2: stats.expon.cdf, 3: stats.expon.cdf, 5: stats.norm(0, 3).cdf},
    ),
    "words beside words": Case(Product([Tokens([0.2, 0.5, 0.0, 0.3], 2), Tokens([{3: 1.0, 9: 2.0}])]), {}),
    "words beside a table": Case(
        Product([Tokens([0.2, 0.8], 2), Tabular([Choice([1.0, 5.0]), Uniform(0.0, 1.0)])]),
        {3: _uniform(0, 1)},
        density=False,
    ),
    "tokens": Case(Tokens([[0.2, 0.5, 0.0, 0.3], {7: 1.0}, {1: 3.0, 5: 1.0}]), {}, fixed=(1,)),
    "tokens, one law": Case(Tokens([0.2, 0.5, 0.0, 0.3], 6), {}),
    "mixture of tokens": Case(Mixture([Tokens([0.9, 0.1], 3), Tokens([0.0, 1.0], 3)], [0.3, 0.7]), {}),
    "user's generator": Case(
        adapt_inputs(Latent()), {0: stats.norm(0, 2**0.5).cdf, 1: stats.lognorm(1).cdf}, density=False
    ),
}  # fmt: skip

every = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
mapped = pytest.mark.parametrize(
    "case",
    [c for c in CASES.values() if c.model.normal_dim is not None],
    ids=[n for n, c in CASES.items() if c.model.normal_dim is not None],
)


def _normals(model: InputModel, n: int, seed: int) -> Tensor:
    return kept_normals(model, (n,), Rng(seed), torch.float32)


def assert_law(case: Case, x: Tensor) -> None:
    flat = x.double().flatten(1).numpy()
    for index, cdf in case.cdfs.items():
        # Far out, float32 has few values left: what rounding adds to the distance is no fault of the law.
        spacing = np.abs(np.spacing(flat[:, index].astype(np.float32))).max()
        jitter = np.random.default_rng(0).uniform(-0.5, 0.5, len(flat)) * spacing
        result = stats.kstest(flat[:, index] + jitter, cdf)
        assert result.pvalue > FIVE_SIGMA, (index, result)
    for index in case.fixed:
        assert np.ptp(flat[:, index]) == 0


def assert_supported(case: Case, x: Tensor) -> None:
    assert torch.isfinite(x).all()
    if case.density:
        assert torch.isfinite(case.model.log_density(x)).all()
    if case.model.support is not None:
        low, high = case.model.support
        assert ((x >= low) & (x <= high)).all()


@every
def test_samples_have_the_law_and_lie_in_the_support(case: Case) -> None:
    x = case.model.sample(N, Rng(11))
    assert x.shape == (N, *case.model.event_shape)
    assert_supported(case, x)
    assert_law(case, x)


@mapped
def test_the_map_from_normals_has_the_law(case: Case) -> None:
    x = case.model.from_normal(_normals(case.model, N, 12))
    assert x.shape == (N, *case.model.event_shape)
    assert_supported(case, x)
    assert_law(case, x)


@mapped
def test_gradients_of_the_map_are_finite_far_out_too(case: Case) -> None:
    z = torch.cat([_normals(case.model, 50, 13), 8 * _normals(case.model, 50, 14)]).requires_grad_()
    x = case.model.from_normal(z)
    assert torch.isfinite(x).all()
    (gradient,) = torch.autograd.grad(x.sum(), z)
    assert torch.isfinite(gradient).all()


@every
def test_outside_the_support_the_density_is_zero(case: Case) -> None:
    if case.model.support is None or not case.density:
        pytest.skip("no bounds")
    low, high = case.model.support
    x = case.model.sample(8, Rng(15))
    x[:4] = torch.where(torch.isfinite(high), high + 1, low - 1).to(x.dtype)
    assert (case.model.log_density(x)[:4] == -torch.inf).all()
    assert torch.isfinite(case.model.log_density(x)[4:]).all()


@every
def test_one_problem_and_a_batch_agree(case: Case) -> None:
    model = case.model
    stacked = place(stack_inputs([model, model, model]), torch.device("cpu"), torch.float32)
    stacked = take(stacked, torch.tensor([0, 2]))
    x = stacked.sample((2, 64), Rng(16)).float()
    assert x.shape == (2, 64, *model.event_shape)
    if case.density:
        for row in range(2):
            torch.testing.assert_close(
                stacked.log_density(x)[row], model.log_density(x[row]), check_dtype=False, rtol=1e-4, atol=1e-4
            )
    if model.normal_dim is not None:
        z = Rng(17).normal((2, 64, model.normal_dim))
        for row in range(2):
            torch.testing.assert_close(stacked.from_normal(z)[row], model.from_normal(z[row]), check_dtype=False)


@every
def test_the_same_seed_draws_the_same_inputs(case: Case) -> None:
    assert torch.equal(case.model.sample(5, Rng(3)), case.model.sample(5, Rng(3)))


def test_parts_of_a_product_are_independent() -> None:
    """Also those of the same object, which are drawn at once: no correlation of any two of its eight numbers."""
    product = Product([STEP, STEP, STEP, Box([0.0, 0.0], [1.0, 1.0])])
    for x in (product.sample(N, Rng(7)), product.from_normal(_normals(product, N, 8))):
        correlation = np.corrcoef(x.double().numpy().T) - np.eye(8)
        assert np.abs(correlation).max() < 5.5 / math.sqrt(N)  # the largest of 28, each at five sigma
    assert product.event_shape == (8,)


def test_models_with_different_numbers_stack() -> None:
    balls = [LpBall([0.0, 0.0], 1.0, 2), LpBall([5.0, 5.0], 0.1, 2)]
    stacked = stack_inputs(balls)
    x = stacked.sample((2, 1000), Rng(0))
    for row, ball in enumerate(balls):
        assert torch.isfinite(ball.log_density(x[row])).all()
    assert (stacked.log_density(x.flip(0)) == -torch.inf).all()


def test_cut_balls_with_different_numbers_stack() -> None:
    balls = [LpBall([0.0, 0.5], 0.4, 2, clip=(0.0, 1.0)), LpBall([1.0, 0.9], 0.2, 2, clip=(0.0, 1.0))]
    x = stack_inputs(balls).sample((2, 5000), Rng(0))
    for row, ball in enumerate(balls):
        assert torch.isfinite(ball.log_density(x[row])).all()
        alone = ball.sample(5000, Rng(1))
        assert stats.ks_2samp(x[row, :, 0].numpy(), alone[:, 0].numpy()).pvalue > FIVE_SIGMA


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("d", [2, 50])
def test_the_volume_of_a_ball_grows_with_the_power_of_its_radius(norm: int, d: int) -> None:
    """P(|x| < t r) = t^d: then (|x|/r)^d is uniform."""
    for clip in (None, (0.0, 10.0)):
        model = LpBall(torch.zeros(d), 3.0, norm, clip=clip)
        x = model.sample(N, Rng(18)).double()
        length = torch.linalg.vector_norm(x, norm, dim=1)
        # Rounded to float32, lengths next to the sphere move by d roundings of their coordinates at most.
        share = np.clip((length.numpy() / 3.0) ** d, 0, 1)
        assert stats.kstest(share, "uniform").pvalue > FIVE_SIGMA


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("center", [(0.1, 0.5), (0.0, 0.0), (0.05, 0.97)])
def test_a_cut_ball_is_uniform(norm: int, center: tuple[float, float]) -> None:
    """Against plain rejection from the square around it: shares of a 4 x 4 grid, and both marginals."""
    radius, generator = 0.3, np.random.default_rng(0)
    model = LpBall(list(center), radius, norm, clip=(0.0, 1.0))
    assert (model.normal_dim is None) == (norm == 1)
    square = generator.uniform(-radius, radius, (400_000, 2))
    inside = square[np.linalg.norm(square, norm, axis=1) <= radius] + center
    reference = inside[((inside >= 0) & (inside <= 1)).all(1)]
    x = model.sample(50_000, Rng(19)).numpy()
    for k in range(2):
        assert stats.ks_2samp(x[:, k], reference[:, k]).pvalue > FIVE_SIGMA
    edges = [np.linspace(center[k] - radius, center[k] + radius, 5) for k in range(2)]
    seen, expected = (np.histogram2d(v[:, 0], v[:, 1], bins=edges)[0].ravel() for v in (x, reference))
    table = np.stack([seen, expected])[:, expected + seen > 20]
    assert stats.chi2_contingency(table).pvalue > FIVE_SIGMA


def test_covariances_of_samples() -> None:
    x = Gaussian([0.0, 1.0, 2.0], covariance=COVARIANCE).sample(N, Rng(20)).double().numpy()
    expected = np.array(COVARIANCE)
    # Var of a sample covariance: (S_ii S_jj + S_ij^2) / n.
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / N)
    assert np.all(np.abs(np.cov(x.T) - expected) < 5 * error)


@pytest.mark.parametrize("name", ["gaussian", "gaussian, covariance", "torch multivariate", "torch normal"])
def test_log_densities_are_those_of_the_normal_law(name: str) -> None:
    model = CASES[name].model
    laws = {
        "gaussian": stats.multivariate_normal([1, -2], np.diag([0.25, 9.0])),
        "gaussian, covariance": stats.multivariate_normal([0, 1, 2], COVARIANCE),
        "torch multivariate": stats.multivariate_normal([0, 0, 0], COVARIANCE),
        "torch normal": stats.multivariate_normal([0, 0, 0], 4 * np.eye(3)),
    }
    x = model.sample(100, Rng(21))
    difference = model.log_density(x).double().numpy() - laws[name].logpdf(x.double().numpy())
    assert np.ptp(difference) < 1e-4  # up to a constant


def test_the_density_of_a_mixture_is_normalised_across_kinds() -> None:
    model = Mixture([Box([-1.0], [1.0]), Gaussian([2.0], 0.5)], [0.25, 0.75])
    x = torch.linspace(-2, 5, 701).unsqueeze(1)
    truth = 0.25 * stats.uniform(-1, 2).pdf(x[:, 0].numpy()) + 0.75 * stats.norm(2, 0.5).pdf(x[:, 0].numpy())
    inner = (x[:, 0].abs() - 1).abs() > 1e-3
    np.testing.assert_allclose(model.log_density(x).exp()[inner].numpy(), truth[inner.numpy()], rtol=1e-4, atol=1e-7)


def test_a_torch_distribution_rejects_points_outside_in_silence() -> None:
    model = adapt_inputs(torch.distributions.Uniform(torch.zeros(2), torch.ones(2)))
    assert model.log_density(torch.full((1, 2), 3.0)).tolist() == [-math.inf]
    assert model.log_density(torch.tensor([[3.0, 0.5], [0.5, 0.5]])).tolist() == [-math.inf, 0.0]
