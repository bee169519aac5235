"""Mixture fits, the diagnosis of weights, and importance sampling on exact problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from rarely import Box, Gaussian, ImportanceSampling, Outcome, Problem, estimate
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.stats.mixture import NormalMixture, fit_mixture
from rarely.stats.weights import effective_size, pareto_index


def two_clusters(n: int = 400) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    a = torch.tensor([3.0, 0.0]) + 0.3 * torch.randn(n // 2, 2, generator=g)
    b = torch.tensor([-1.0, 3.0]) + torch.tensor([0.2, 0.8]) * torch.randn(n // 2, 2, generator=g)
    return torch.cat([a, b])


def fitted(points: torch.Tensor, log_w: torch.Tensor | None = None) -> NormalMixture:
    return fit_mixture(points.unsqueeze(0), (torch.zeros(len(points)) if log_w is None else log_w).unsqueeze(0), 4)


def test_mixtures_that_are_fitted_together_are_those_fitted_alone() -> None:
    """Rows with other numbers of points, components and weights, padded to one tensor."""
    rows = [two_clusters(), two_clusters(40), two_clusters()[:5]]
    padded = torch.zeros(3, 400, 2)
    log_w = torch.full((3, 400), -torch.inf)
    for i, row in enumerate(rows):
        padded[i, : len(row)], log_w[i, : len(row)] = row, torch.linspace(0, 1, len(row))
    together = fit_mixture(padded, log_w, 4)
    v = two_clusters(100)
    for i, row in enumerate(rows):
        alone = fitted(row, log_w[i, : len(row)])
        torch.testing.assert_close(
            together.rows(torch.tensor([i])).log_density(v.unsqueeze(0)),
            alone.log_density(v.unsqueeze(0)),
            rtol=1e-4,
            atol=1e-4,
        )
    joined = together.joined(torch.ones(3, 2, 2), torch.tensor([[True, True], [True, False], [False, False]]), 0.2)
    torch.testing.assert_close(joined.log_shares.exp().sum(1), torch.ones(3))
    torch.testing.assert_close(joined.log_shares.exp()[:, -2:].sum(1), torch.tensor([0.2, 0.2, 0.0]))


def test_the_density_of_a_mixture_is_normalised() -> None:
    fit = fitted(two_clusters())
    grid = torch.linspace(-10, 12, 441)
    x, y = torch.meshgrid(grid, grid, indexing="ij")
    density = fit.log_density(torch.stack([x.flatten(), y.flatten()], 1).unsqueeze(0)).exp()
    assert float(density.sum()) * (22 / 440) ** 2 == pytest.approx(1, abs=1e-3)


def test_a_mixture_samples_what_its_density_says() -> None:
    """E_q[f / q] is the integral of f: a known normal density integrates to 1."""
    fit = fitted(two_clusters())
    v = fit.sample(20_000, Rng(1))[0]
    log_f = torch.from_numpy(stats.multivariate_normal([3.0, 0.0], 0.2**2).logpdf(v.numpy()))
    w = (log_f - fit.log_density(v.unsqueeze(0))[0]).exp()
    assert abs(float(w.mean()) - 1) < 5 * float(w.std()) / math.sqrt(len(w))


def test_a_mixture_covers_both_clusters_and_a_margin() -> None:
    points = two_clusters()
    fit = fitted(points)
    v = fit.sample(4000, Rng(2))[0]
    assert float((v[:, 0] > 1.5).double().mean()) == pytest.approx(0.5, abs=0.05)
    near = v[v[:, 0] > 1.5]
    assert near.std(0).min() > points[:200].std(0).min(), "wider than the points, so that weights stay bounded"


def test_weighted_points_count_by_their_weight() -> None:
    log_w = torch.zeros(400)
    log_w[:200] = math.log(9.0)
    v = fitted(two_clusters(), log_w).sample(4000, Rng(3))[0]
    assert float((v[:, 0] > 1.5).double().mean()) == pytest.approx(0.9, abs=0.05)


def test_few_points_still_give_a_mixture() -> None:
    fit = fitted(two_clusters()[:5])
    assert torch.isfinite(fit.log_density(fit.sample(100, Rng(4)))).all()


def test_effective_size() -> None:
    rows = {
        50: torch.zeros(50),
        1: torch.tensor([0.0, -torch.inf, -torch.inf]),
        1.6: torch.tensor([math.log(3.0), 0.0]),
    }
    rows[2] = torch.tensor([0.0, 0.0, -torch.inf]) + 700
    for size, log_w in rows.items():
        assert float(effective_size(log_w.unsqueeze(0))) == pytest.approx(size)
    assert float(effective_size(torch.full((1, 3), -torch.inf))) == 0


@pytest.mark.parametrize("freedom", [1, 2, 4])
def test_the_pareto_index_of_student_tails(freedom: int) -> None:
    """Tails of t with v degrees have index 1/v. One fit to 300 values errs by (1 + k)/sqrt(300), twenty by less."""
    k = 1 / freedom
    values = np.abs(stats.t.rvs(freedom, size=(20, 10_000), random_state=freedom))
    found = np.mean([pareto_index(torch.from_numpy(np.log(row))) for row in values])
    assert abs(found - k) < 5 * (1 + k) / math.sqrt(300 * 20) + 0.05  # 0.05: the tail is Pareto only in the limit


def test_the_pareto_index_of_bounded_weights() -> None:
    assert pareto_index(torch.log(torch.rand(10_000, generator=torch.Generator().manual_seed(0)))) < -0.5
    assert pareto_index(torch.zeros(10_000)) == -math.inf
    assert pareto_index(torch.full((100,), -torch.inf)) == math.inf
    assert pareto_index(torch.zeros(3)) == math.inf
    counts, sizes = torch.tensor([5000, 400, 120]), torch.tensor([-6.0, 0.0, 1.0])
    few = torch.repeat_interleave(sizes, counts)  # the 222 largest would be all of the last and some of the second
    assert pareto_index(few) < 0.5, "three inputs, drawn again and again, have no heavy tail"
    some = torch.log(torch.rand(1000, generator=torch.Generator().manual_seed(0)))
    assert pareto_index(some + 300) == pytest.approx(pareto_index(some), abs=1e-3)


def test_importance_sampling_on_a_box_corner() -> None:
    box = Box(torch.zeros(6), torch.ones(6))
    problem = Problem(lambda x: x, lambda x, y: (y - 0.95).amin(1), box)
    results = estimate([problem] * 6, ImportanceSampling(), seed=1)
    for result in results:
        assert result.outcome is Outcome.VIOLATED
        assert abs(result.log_prob - 6 * math.log(0.05)) < 5 * result.log_prob_std
        assert (result.witnesses.inputs >= 0.95).all()


def test_importance_sampling_in_the_subspace_of_gradients() -> None:
    """d = 50, two directions matter: the fit lives in the span of gradients, the rest stays normal."""
    problem = Problem(
        lambda x: x, lambda x, y: torch.maximum(y[:, 0] - 4, y[:, 1] - 4.1), Gaussian(torch.zeros(50), 1.0)
    )
    a, b = stats.norm.sf(4), stats.norm.sf(4.1)
    exact = math.log(a + b - a * b)
    results = estimate([problem] * 6, ImportanceSampling(), seed=2)
    trusted = [result for result in results if result.outcome is Outcome.VIOLATED]
    assert len(trusted) >= 4
    for result in trusted:
        assert abs(result.log_prob - exact) < 5 * result.log_prob_std


def test_unreliable_weights_are_said() -> None:
    """A shell in 50 dimensions has no subspace: whatever is fitted, the weights must say so."""
    problem = Problem(lambda x: x, lambda x, y: y.norm(dim=1) - 10.5, Gaussian(torch.zeros(50), 1.0))
    exact = float(stats.chi2.logsf(10.5**2, 50))
    for result in estimate([problem] * 4, ImportanceSampling(), seed=3):
        assert result.outcome is Outcome.STALLED or exact in result.interval


@pytest.mark.parametrize("limit", [2000, 10_000, 15_000])
def test_importance_sampling_keeps_its_budget(limit: int) -> None:
    problem = Problem(lambda x: x, lambda x, y: y[:, 0] - 4, Gaussian(torch.zeros(3), 1.0))
    result = estimate(problem, ImportanceSampling(), max_evaluations=limit)
    assert result.calls <= limit
    assert (
        result.outcome is not Outcome.VIOLATED or abs(result.log_prob - stats.norm.logsf(4)) < 5 * result.log_prob_std
    )


def test_importance_sampling_refuses_senseless_settings() -> None:
    with pytest.raises(InputError, match="target_error"):
        ImportanceSampling(target_error=0.0)
    with pytest.raises(InputError, match="samples"):
        ImportanceSampling(samples=10)
