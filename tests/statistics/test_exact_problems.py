"""Problems with exact answers. Tolerances are five standard errors, from theory or from the spread of the repeats.

`estimate([problem] * k)` runs k repeats as one batch. Where a repeat is one population (islands=1), the k estimates are
independent and unbiased in p, so their mean is off by at most five of its standard errors; the spread itself is held
against `ideal_variance`, the variance of splitting with perfect sampling, times what correlated moves may add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from rarely import Box, Estimate, Gaussian, Misclassification, MonteCarlo, Outcome, Problem, Splitting, estimate
from rarely.kernels import HMC, PCN, HitAndRun, Langevin, RandomWalk
from rarely.stats.levels import ideal_variance

# Variance of correlated moves over that of perfect ones: 1 + (clones - 1) r^2 with ten clones of each survivor and a
# correlation r of at most 0.58 left between the scores of a clone and its parent.
_INFLATION = 4.0


@dataclass(frozen=True)
class Exact:
    problem: Problem
    log_prob: float


def _identity(x: Tensor) -> Tensor:
    return x


def half_space(d: int, log_prob: float) -> Exact:
    """P(<w, x> >= c) for a standard normal x and a unit vector w."""
    threshold = float(-stats.norm.ppf(math.exp(log_prob)))
    w = torch.linspace(1, 2, d)
    w = w / w.norm()
    inputs = Gaussian(torch.zeros(d), 1.0)
    return Exact(Problem(lambda x: x @ w, lambda x, y: y - threshold, inputs), log_prob)


def box_corner(side: float) -> Exact:
    """P(all three uniforms over 1 - side) = side^3."""
    box = Box(torch.zeros(3), torch.ones(3))
    return Exact(Problem(_identity, lambda x, y: y.amin(1) - (1 - side), box), 3 * math.log(side))


def irwin_hall(n: int, rest: float) -> Exact:
    """P(U_1 + ... + U_n >= n - rest) = rest^n / n! for rest <= 1."""
    box = Box(torch.zeros(n), torch.ones(n))
    problem = Problem(lambda x: x.sum(1), lambda x, y: y - (n - rest), box)
    return Exact(problem, n * math.log(rest) - math.lgamma(n + 1))


def two_modes(a: float, b: float) -> Exact:
    """P(z > a or z < -b): modes of unequal weight on opposite sides."""
    problem = Problem(_identity, lambda x, y: torch.maximum(y[:, 0] - a, -b - y[:, 0]), Gaussian(torch.zeros(2), 1.0))
    return Exact(problem, float(np.logaddexp(stats.norm.logsf(a), stats.norm.logsf(b))))


def plateau(flat: float, log_prob: float) -> Exact:
    """The score is constant but for a share of the inputs, where it rises."""
    top = math.exp(log_prob)

    def score(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(y[:, 0] < flat, -1.0, y[:, 0] - (1 - top))

    return Exact(Problem(_identity, score, Box(torch.zeros(2), torch.ones(2))), log_prob)


def quantised(step: float, log_prob: float) -> Exact:
    """A normal score rounded down to a grid that contains zero: ties at every level."""
    threshold = float(-stats.norm.ppf(math.exp(log_prob)))

    def score(x: Tensor, y: Tensor) -> Tensor:
        return torch.floor((y[:, 0] - threshold) / step) * step

    return Exact(Problem(_identity, score, Gaussian(torch.zeros(2), 1.0)), log_prob)


COMMON = {
    "half-space, d=2": half_space(2, math.log(0.03)),
    "half-space, d=200": half_space(200, math.log(0.2)),
    "box corner": box_corner(0.3),
    "sum of uniforms": irwin_hall(3, 0.8),
    "two modes": two_modes(1.5, 2.0),
    "plateau": plateau(0.95, math.log(0.02)),
    "quantised": quantised(0.5, math.log(0.01)),
    "certain": Exact(Problem(_identity, lambda x, y: y[:, 0] + 1, Box([0.0], [1.0])), 0.0),
}
RARE = {
    "half-space, d=2": half_space(2, math.log(1e-8)),
    "half-space, d=20": half_space(20, math.log(1e-8)),
    "half-space, d=200": half_space(200, math.log(1e-8)),
    "box corner": box_corner(2e-3),
    "sum of uniforms": irwin_hall(6, 0.3),
    "plateau": plateau(0.95, math.log(1e-5)),
    "quantised": quantised(0.5, math.log(1e-6)),
}
VARIANTS = {
    "pcn": Splitting(500, islands=1, steps=15),
    "keep all": Splitting(500, islands=1, keep="all", steps=3),
}


def log_probs(results: list[Estimate]) -> np.ndarray:
    return np.array([result.log_prob for result in results])


def assert_unbiased(
    results: list[Estimate], exact: Exact, ideal: float | None = None, inflation: float = _INFLATION
) -> None:
    """Mean of p within five standard errors; spread of p not over the theory's."""
    ratio = np.exp(log_probs(results) - exact.log_prob)
    k = len(ratio)
    assert abs(ratio.mean() - 1) <= 5 * ratio.std(ddof=1) / math.sqrt(k), (
        ratio.mean(),
        ratio.std(ddof=1) / math.sqrt(k),
    )
    if ideal is not None:
        # Relative variance of a product: exp(v) - 1. A sample variance of k values errs by about sqrt(2/k) of itself.
        assert ratio.var(ddof=1) <= math.expm1(inflation * ideal) * (1 + 5 * math.sqrt(2 / k)), ratio.var(ddof=1)


@pytest.mark.parametrize("exact", COMMON.values(), ids=COMMON.keys())
def test_monte_carlo(exact: Exact) -> None:
    n, p = 100_000, math.exp(exact.log_prob)
    result = estimate(exact.problem, MonteCarlo(n))
    assert abs(result.prob - p) <= 5 * math.sqrt(p * (1 - p) / n)
    assert exact.log_prob in estimate(exact.problem, MonteCarlo(n), confidence=1 - 5.7e-7).interval


@pytest.mark.parametrize("splitting", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("exact", RARE.values(), ids=RARE.keys())
def test_splitting_on_rare_events(exact: Exact, splitting: Splitting) -> None:
    results = estimate([exact.problem] * 40, splitting, seed=1)
    ideal = ideal_variance(exact.log_prob, splitting.quantile, splitting.particles)
    assert_unbiased(results, exact, ideal)
    for result in results:  # a population whose ties reach its top dies out and says so; no other outcome is right
        assert result.outcome is (Outcome.VIOLATED if result.log_prob > -math.inf else Outcome.STALLED)
    if exact is not RARE["quantised"]:
        assert all(result.outcome is Outcome.VIOLATED for result in results)


@pytest.mark.parametrize("exact", COMMON.values(), ids=COMMON.keys())
def test_splitting_on_common_events(exact: Exact) -> None:
    assert_unbiased(estimate([exact.problem] * 40, Splitting(300, islands=1, steps=10), seed=2), exact)


KERNELS: dict[str, Splitting] = {
    "the paper's walk, strict": Splitting(500, islands=1, kernel=RandomWalk(), steps=40),
    "gaussian walk": Splitting(500, islands=1, kernel=RandomWalk("gaussian"), steps=40),
    "langevin": Splitting(500, islands=1, kernel=Langevin(), steps=15),
    "hmc": Splitting(500, islands=1, kernel=HMC(), steps=10),
    "hit and run": Splitting(500, islands=1, kernel=HitAndRun(), steps=8),
    "replace killed": Splitting(500, islands=1, resample="killed", quantile=0.5, steps=15),
    "last particle": Splitting.last_particle(30, 1, 10),
    "auto steps": Splitting(500, islands=1),
    "quantile 0.3": Splitting(500, islands=1, quantile=0.3, steps=15),
}


@pytest.mark.parametrize("splitting", KERNELS.values(), ids=KERNELS.keys())
def test_every_variant_on_the_box_corner(splitting: Splitting) -> None:
    exact = box_corner(0.02)
    results = estimate([exact.problem] * 40, splitting, seed=3)
    ideal = ideal_variance(exact.log_prob, splitting.quantile, splitting.particles)
    assert_unbiased(results, exact, ideal)


def test_the_last_particle_has_the_variance_of_the_theory() -> None:
    """-log p / N, times the correlation of clones with their parents."""
    exact = half_space(2, math.log(1e-3))
    results = estimate([exact.problem] * 60, Splitting.last_particle(40, 1, 20), seed=4)
    assert_unbiased(results, exact, -exact.log_prob / 40, inflation=2.0)


def test_two_hundred_repeats_of_a_small_problem_are_unbiased() -> None:
    exact = half_space(2, math.log(1e-4))
    results = estimate([exact.problem] * 200, Splitting(200, islands=1, steps=15), seed=5)
    assert_unbiased(results, exact, ideal_variance(exact.log_prob, 0.1, 200))


def test_the_rule_of_the_paper_is_biased_as_known() -> None:
    """E[p] / p is (K / (K - 1))^4 = 1.23 at K = 20: seen as a bias by the test that the strict rule passes."""
    exact = half_space(2, math.log(1e-4))
    results = estimate([exact.problem] * 200, Splitting(200, islands=1, steps=15, rule="paper"), seed=5)
    ratio = np.exp(log_probs(results) - exact.log_prob)
    error = ratio.std(ddof=1) / math.sqrt(200)
    assert abs(ratio.mean() - (20 / 19) ** 4) <= 5 * error


@pytest.mark.parametrize("variant", ["default", "keep all"])
def test_intervals_cover(variant: str) -> None:
    """Nominal 95 % over 200 repeats, less a little more than four binomial standard errors (0.015)."""
    exact = half_space(4, math.log(1e-5))
    splitting = Splitting(200) if variant == "default" else Splitting(200, keep="all", steps=3)
    results = estimate([exact.problem] * 200, splitting, seed=6)
    covered = np.mean([exact.log_prob in result.interval for result in results])
    assert covered >= 0.89, covered
    bounded = np.mean([exact.log_prob <= result.upper_bound for result in results])
    assert bounded >= 0.89, bounded


def test_intervals_of_certain_and_common_events_cover() -> None:
    exact = Exact(Problem(_identity, lambda x, y: y[:, 0] - 0.002, Box([0.0], [1.0])), math.log(0.998))
    results = estimate([exact.problem] * 200, Splitting(100, islands=4), seed=7)
    assert np.mean([exact.log_prob in result.interval for result in results]) >= 0.89


def test_intervals_of_a_single_population_cover() -> None:
    """islands=1 has only the theory of one run for its standard deviation."""
    exact = half_space(4, math.log(1e-5))
    results = estimate([exact.problem] * 200, Splitting(1000, islands=1, steps=15), seed=8)
    assert np.mean([exact.log_prob in result.interval for result in results]) >= 0.89


def test_two_unequal_modes() -> None:
    """One mode is 100 times the other; both must be found, and islands that miss one show in the interval."""
    exact = two_modes(4.0, 4.93)
    assert_unbiased(
        estimate([exact.problem] * 40, Splitting(500, islands=1, steps=15), seed=9), exact,
        ideal_variance(exact.log_prob, 0.1, 500),
    )  # fmt: skip
    big = float(stats.norm.logsf(4.0) - exact.log_prob)
    results = estimate([exact.problem] * 20, Splitting(2000, islands=1, steps=15), seed=10)
    sides = torch.cat([result.witnesses.inputs[:, 0] for result in results]).sign()
    assert float((sides > 0).double().mean()) == pytest.approx(math.exp(big), abs=0.03)


def _steep(flat: float, p: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: torch.where(y[:, 0] < flat, -1.0, y[:, 0] - (1 - p))


@pytest.mark.parametrize("rare", [3e-3, 1e-3, 1e-4])
def test_a_plateau_that_few_leave_is_right_or_stalled(rare: float) -> None:
    """With N draws and N * rare of them off the plateau, some populations see nothing else: they count as zero."""
    problem = Problem(_identity, _steep(1 - rare, rare / 10), Box(torch.zeros(2), torch.ones(2)))
    exact = Exact(problem, math.log(rare / 10))
    ones = estimate([problem] * 200, Splitting(500, islands=1, steps=10), seed=11)
    assert_unbiased(ones, exact)
    results = estimate([problem] * 30, Splitting(500, islands=8, steps=10), seed=12)
    for result in results:
        assert result.outcome in (Outcome.VIOLATED, Outcome.STALLED)
    trusted = [result for result in results if result.outcome is Outcome.VIOLATED]
    covered = [exact.log_prob in result.interval for result in trusted]
    assert sum(covered) >= 0.95 * len(covered) - 5 * math.sqrt(0.95 * 0.05 * len(covered)) - 1


@pytest.mark.parametrize("rule", ["strict", "paper"])
def test_a_flat_score_never_gives_a_number(rule: str) -> None:
    problem = Problem(_identity, lambda x, y: -1 - 0 * y[:, 0], Box([0.0], [1.0]))
    result = estimate(problem, Splitting(100, rule=rule))  # type: ignore[arg-type]
    assert result.outcome is Outcome.STALLED
    assert result.log_prob == -math.inf
    assert result.upper_bound == pytest.approx(math.log(3 / 800), abs=0.01)  # the rule of three


def test_islands_average_without_bias() -> None:
    exact = irwin_hall(4, 0.2)
    results = estimate([exact.problem] * 60, Splitting(200, islands=4, steps=15), seed=13)
    assert_unbiased(results, exact, ideal_variance(exact.log_prob, 0.1, 800))


def test_classes_of_a_linear_network() -> None:
    """Three classes, the label wins by a margin: P(another wins) by Monte Carlo on a common event, and by splitting."""
    torch.manual_seed(0)
    network = torch.nn.Linear(5, 3).eval()
    problem = Problem(network, Misclassification(), Gaussian(torch.full((5,), 1.5), 0.9))
    reference = estimate(problem, MonteCarlo(400_000))
    assert reference.outcome is Outcome.VIOLATED
    result = estimate(problem, Splitting(1000, islands=8))
    difference = abs(result.log_prob - reference.log_prob)
    assert difference <= 5 * math.hypot(result.log_prob_std, reference.log_prob_std)


def test_pcn_does_not_care_about_dimension() -> None:
    """Half-spaces of one probability in 2 and in 200 dimensions: the spread is the same within its own error."""
    spread = {}
    for d in (2, 200):
        exact = half_space(d, math.log(1e-6))
        results = estimate([exact.problem] * 40, Splitting(300, islands=1, steps=12, kernel=PCN()), seed=14)
        spread[d] = log_probs(results).var(ddof=1)
    assert abs(math.log(spread[200] / spread[2])) < 5 * 2 / math.sqrt(39)
