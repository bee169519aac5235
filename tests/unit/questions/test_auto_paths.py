"""What `Auto` does with black boxes, missing maps, budgets, batches and several ways to fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn

from rarely import (
    Auto,
    Box,
    Estimate,
    Execution,
    Gaussian,
    LinearConstraint,
    LineSampling,
    Misclassification,
    Outcome,
    Problem,
    estimate,
)
from rarely.core.errors import InputError
from rarely.core.evidence import SPLITTING, Draws, Number
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.core.thresholds import PILOT
from rarely.methods.lined import LinedRegion
from rarely.methods.proofs import Brackets, Proofs
from rarely.questions.case import Case
from rarely.questions.climbing import dear
from rarely.questions.faster import Faster
from rarely.questions.strategy import Precision
from rarely.stats.statistic import Replicates


def numbers(result: Estimate) -> list[str]:
    """Who has a number, but for plain counting."""
    return [record.method for record in result.evidence if isinstance(record, Number)]


def plane(d: int, threshold: float) -> Problem:
    return Problem(lambda x: x, lambda x, y: y[:, 0] - threshold, Gaussian(torch.zeros(d), 1.0))


def test_a_common_event_is_finished_by_monte_carlo() -> None:
    result = estimate(plane(3, 2.0), Auto())
    assert result.method == "Monte Carlo"
    assert numbers(result) == []
    assert stats.norm.logsf(2.0) in result.interval
    assert result.log_prob_std < 0.1


def test_a_black_box_is_done_without_gradients() -> None:
    def network(x: np.ndarray) -> np.ndarray:
        assert isinstance(x, np.ndarray)
        return x[:, :1]

    problem = Problem(network, lambda x, y: y[:, 0] - 4.5, Gaussian(torch.zeros(20), 1.0))
    results = estimate([problem] * 3, Auto(), seed=1)
    for result in results:
        assert result.gradients == 0
        assert result.outcome is Outcome.VIOLATED
        assert abs(result.log_prob - stats.norm.logsf(4.5)) < 5 * result.log_prob_std
        assert result.log_prob_std < 0.2
        assert set(numbers(result)) <= {"splitting", "directed splitting", "larger splitting"}


class Uniform:
    """An input model that maps from nothing."""

    def sample(self, n: int) -> Tensor:
        return torch.rand(n, 2)

    def log_density(self, x: Tensor) -> Tensor:
        return torch.where(((x >= 0) & (x <= 1)).all(1), 0.0, -torch.inf)


def test_without_a_map_the_random_walk_is_left() -> None:
    problem = Problem(lambda x: x.sum(1, keepdim=True), lambda x, y: y[:, 0] - 1.99, Uniform())
    result = estimate(problem, Auto())
    assert numbers(result) == ["splitting"]
    assert abs(result.log_prob - math.log(5e-5)) < 5 * result.log_prob_std
    with pytest.raises(InputError, match="Splitting"):
        estimate(problem, LineSampling())


BUDGET_PROBLEMS = {
    "half-space d=2": plane(2, 4.3),
    "half-space d=100": plane(100, 4.8),
    "four modes": Problem(lambda x: x, lambda x, y: y[:, :4].amax(1) - 4.2, Gaussian(torch.zeros(20), 1.0)),
    "shell": Problem(lambda x: x, lambda x, y: y.norm(dim=1) - 8.1, Gaussian(torch.zeros(20), 1.0)),
    "step": Problem(lambda x: x, lambda x, y: torch.where(y[:, 0] > 3.7, 1.0, -1.0), Gaussian(torch.zeros(3), 1.0)),
    "impossible": Problem(lambda x: x, lambda x, y: -1 - y[:, 0].square(), Gaussian(torch.zeros(12), 1.0)),
}


@pytest.mark.parametrize("problem", BUDGET_PROBLEMS.values(), ids=BUDGET_PROBLEMS.keys())
@pytest.mark.parametrize("limit", [1, 50, 500, 3000, 10_000, 20_000, 40_000])
def test_the_budget_holds_for_all_methods_together(problem: Problem, limit: int) -> None:
    result = estimate(problem, Auto(), max_evaluations=limit)
    assert result.calls <= limit
    assert result.calls == sum(record.calls for record in result.evidence)
    drawn = next(record for record in result.evidence if isinstance(record, Draws))
    assert drawn.n >= min(PILOT, 0.9 * limit), "what cannot pay for more is drawn"
    assert result.upper_bound <= drawn.statistic.upper(0.95) + 1e-9


def test_a_budget_that_suffices_is_used_well() -> None:
    result = estimate(plane(100, 4.8), Auto(), max_evaluations=30_000)
    assert result.outcome is Outcome.VIOLATED
    assert result.log_prob == pytest.approx(stats.norm.logsf(4.8), abs=0.05)


def test_reports_say_what_each_method_cost_and_said() -> None:
    result = estimate(plane(30, 5.0), Auto())
    assert numbers(result) == ["splitting", "line sampling"]
    assert sum(record.calls for record in result.evidence) == result.calls
    split, lines = (record for record in result.evidence if isinstance(record, Number))
    assert abs(split.log_prob - lines.log_prob) < 5 * split.std
    assert lines.log_prob == pytest.approx(result.log_prob)
    assert len(result.levels) > 3
    assert len(result.witnesses) > 0


def test_different_problems_in_a_batch_are_answered_like_single_ones() -> None:
    network = nn.Linear(30, 2, bias=False)
    with torch.no_grad():
        network.weight.zero_()
        network.weight[0, 0] = network.weight[1, 1] = 1.0
    network.eval()

    def make(threshold: float, curvature: float) -> Problem:
        def score(x: Tensor, y: Tensor) -> Tensor:
            return y[:, 0] - threshold - curvature * x[:, 1:20].square().sum(1)

        return Problem(network, score, Gaussian(torch.zeros(30), 1.0))

    curved, rarer, common = make(4.0, 0.02), make(6.0, 0.0), make(1.0, 0.0)
    alone = estimate([curved] * 8, Auto(), seed=3)
    mixed = estimate([rarer, *[curved] * 8, common], Auto(), seed=4)
    a, b = (np.array([r.log_prob for r in results]) for results in (alone, mixed[1:-1]))
    error = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 8)
    assert abs(a.mean() - b.mean()) < 5 * error
    assert mixed[0].log_prob == pytest.approx(stats.norm.logsf(6.0), abs=0.05)
    assert mixed[-1].method == "Monte Carlo"
    assert {r.method for r in alone} == {r.method for r in mixed[1:-1]}


def test_double_precision_goes_through_every_method() -> None:
    for problem, method in ((plane(40, 5.0), "line sampling"), (plane(3, 5.0), "importance sampling")):
        result = estimate(problem, Auto(), dtype=torch.float64)
        assert result.provenance["dtype"] == "float64"
        assert result.witnesses.inputs.dtype == torch.float64
        assert result.method == method
        assert result.log_prob == pytest.approx(stats.norm.logsf(5.0), abs=0.1)


def two_rivals(d: int, rho: float, b1: float, b2: float) -> tuple[Problem, float, float, float]:
    """Class 0 scores 0, classes 1 and 2 score a.x - b1 and c.x - b2 with a.c = rho: P, P(class 1), P(class 2).

    P(another class wins) = P(u > b1 or v > b2) for normals u, v of correlation rho, by quadrature over u.
    """
    network = nn.Linear(d, 3)
    with torch.no_grad():
        network.weight.zero_()
        network.weight[1, 0] = 1.0
        network.weight[2, 0], network.weight[2, 1] = rho, math.sqrt(1 - rho * rho)
        network.bias.copy_(torch.tensor([0.0, -b1, -b2]))

    def joint(u: float) -> float:
        return float(stats.norm.pdf(u) * stats.norm.sf((b2 - rho * u) / math.sqrt(1 - rho * rho)))

    both = integrate.quad(joint, b1, b1 + 10, epsabs=1e-18)[0]
    one, two = float(stats.norm.sf(b1)), float(stats.norm.sf(b2))
    problem = Problem(network.eval(), Misclassification(0), Gaussian(torch.zeros(d), 1.0))
    return problem, math.log(one + two - both), math.log(one), math.log(two)


@pytest.mark.parametrize("rho", [-0.5, 0.3, 0.9])
def test_two_competitive_classes(rho: float) -> None:
    problem, exact, first, _ = two_rivals(50, rho, 4.0, 4.05)
    assert exact - first > 0.25, "one class alone is far from the sum"
    results = estimate([problem] * 5, Auto(), seed=5)
    for result in results:
        assert result.outcome is Outcome.VIOLATED
        assert result.method == "line sampling"
        assert result.log_prob == pytest.approx(exact, abs=5 * result.log_prob_std)
    mean = math.log(np.mean([result.prob for result in results]))
    assert mean == pytest.approx(exact, abs=0.1)
    classes = problem.adapted.call(results[0].witnesses.inputs).argmax(1)
    assert {1, 2} <= set(classes.tolist())


def test_auto_refuses_senseless_settings() -> None:
    with pytest.raises(InputError, match="target_error"):
        Auto(target_error=-1.0)


@pytest.mark.parametrize(("log_prob", "counted"), [(-5.7, True), (-6.1, False), (-200.0, False)])
def test_independent_inputs_are_counted_where_populations_would_be_dearer(log_prob: float, counted: bool) -> None:
    (batch,) = Execution(device="cpu").place([plane(20, 3.0)], Spend(1))
    split = Number("splitting", SPLITTING, Replicates((log_prob,) * 8), 3_000)
    case = Case(0, [split], lined=LinedRegion())
    assert Faster(0.1, -230.0, 8).countable(batch, case, Precision(0.1)) == counted
    assert not Faster(0.1, -230.0, 8).countable(batch, Case(0, [split]), Precision(0.1)), "no line was tried yet"


def test_what_all_islands_miss_is_no_forecast() -> None:
    """Eight islands that agree to 0.01 at log p = -40: even independent moves would need half a million calls."""
    lucky = Number("splitting", SPLITTING, Replicates(tuple(-40 + 0.02 * (k % 2) for k in range(8))), 20_000)
    case = Case(0, [lucky], cost=20_000)
    assert dear(case, 0.1) == pytest.approx(9 * (lucky.log_prob / math.log(10)) ** 2 / 0.075**2)
    wide = Number("splitting", SPLITTING, Replicates(tuple(-40 + 4.0 * (k % 2) for k in range(8))), 20_000)
    assert dear(Case(0, [wide], cost=20_000), 0.1) == pytest.approx(20_000 * (wide.std / 0.075) ** 2)


def test_bounds_beside_the_numbers_end_when_their_seconds_do() -> None:
    problem = Problem(nn.Linear(20, 1).eval(), lambda x, y: y[:, 0] - 9.0, Gaussian(torch.zeros(20), 1.0))
    (batch,) = Execution(device="cpu").place([problem] * 3, Spend(3))
    run, told = Brackets(0.0).run(batch, Rng(0)), []
    while not told:
        try:
            next(run)
        except StopIteration as done:
            told = done.value
    assert [one.sentence for (one,) in told[1:]] == ["no seconds were left for rigorous bounds on p"] * 2


def test_a_method_that_is_used_again_knows_nothing_of_its_last_problem() -> None:
    """What was left of a problem that is never violated is no proof about one that always is."""
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    never, always = (
        Problem(net, LinearConstraint([[-1.0]], [bound]), Box(torch.zeros(2), torch.ones(2))) for bound in (-50.0, 50.0)
    )
    method = Proofs(boxes=8)
    assert estimate(never, method).outcome is Outcome.PROVED_SAFE
    assert estimate(always, method).outcome is not Outcome.PROVED_SAFE
