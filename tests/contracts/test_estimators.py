"""What every estimator promises, whatever its method: honest ends, exact counts, the same bits from the same seed."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor, nn

from rarely import (
    Auto,
    Box,
    Execution,
    Gaussian,
    ImportanceSampling,
    LineSampling,
    LpBall,
    Misclassification,
    MonteCarlo,
    Outcome,
    Problem,
    Running,
    Splitting,
    estimate,
    registry,
)
from rarely.core.evidence import Found, Levels, Number, pooled
from rarely.kernels import HMC, PCN, HitAndRun, Langevin, RandomWalk
from rarely.methods import DirectedSplitting, Estimator, Tilting
from rarely.registry import found

ESTIMATORS: dict[str, Estimator] = {
    "monte carlo": MonteCarlo(20_000, chunk=5000),
    "splitting": Splitting(200, islands=4),
    "splitting, fixed steps": Splitting(200, islands=4, steps=7),
    "the paper": Splitting(400, islands=1, rule="paper", kernel=RandomWalk(), steps=20),
    "the paper, islands": Splitting(200, islands=4, rule="paper", steps=10),
    "keep all": Splitting(200, islands=4, keep="all"),
    "keep all, thinned": Splitting(200, islands=4, keep="all", steps=2, kernel=RandomWalk("gaussian")),
    "replace killed": Splitting(200, islands=4, resample="killed", quantile=0.5),
    "last particle": Splitting.last_particle(20, 4, 5),
    "langevin": Splitting(200, islands=4, kernel=Langevin(), steps=5),
    "hmc": Splitting(200, islands=4, kernel=HMC(), steps=5),
    "hit and run": Splitting(200, islands=4, kernel=HitAndRun(), steps=5),
    "auto": Auto(),
    "auto, no proofs": Auto(proof_seconds=0),
    "lines": LineSampling(),
    "directed": DirectedSplitting(),
    "tilting": Tilting(),
    "importance": ImportanceSampling(),
}
every = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
splitting = pytest.mark.parametrize(
    "estimator",
    [e for e in ESTIMATORS.values() if isinstance(e, Splitting)],
    ids=[n for n, e in ESTIMATORS.items() if isinstance(e, Splitting)],
)


def test_every_estimator_that_has_a_name_is_here() -> None:
    assert {found(place) for place in registry.ESTIMATORS.values()} == {type(e) for e in ESTIMATORS.values()}


BOX = Box(torch.zeros(2), torch.ones(2))


class Counting(nn.Module):
    """Adds the coordinates, and counts the rows that it sees, with and without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 1))
        self.plain = self.tracked = 0

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            self.tracked += len(x)
        else:
            self.plain += len(x)
        return x @ self.weight


def above(threshold: float, network: object = None) -> Problem:
    """P(x + y >= threshold) = (2 - threshold)^2 / 2 for thresholds over 1."""
    return Problem(network or Counting().eval(), lambda x, y: y[:, 0] - threshold, BOX, name=f"above {threshold}")


def _noise(estimator: Estimator, std: float) -> float:
    """A line ends nine standard deviations out, and two of them share what is certain, each with an error."""
    return 5 * std if isinstance(estimator, LineSampling) else 1e-6


@every
def test_a_certain_event(estimator: Estimator) -> None:
    result = estimate(above(-1.0), estimator)
    assert result.outcome is Outcome.VIOLATED
    assert -_noise(estimator, result.log_prob_std) <= result.log_prob <= 0.0
    assert result.interval.high == 0.0
    assert -0.15 < result.interval.low < 0.0, "a finite number of draws is no proof of certainty"
    assert result.upper_bound == 0.0


@every
def test_an_impossible_event(estimator: Estimator) -> None:
    result = estimate(above(2.5), estimator)
    assert result.outcome in (Outcome.STALLED, Outcome.OUT_OF_BUDGET, Outcome.BELOW_FLOOR)
    assert result.log_prob == -math.inf
    assert result.prob == 0.0
    assert len(result.witnesses) == 0
    assert result.interval.low == -math.inf
    drawn = pooled(result.evidence).n
    assert -math.inf < result.upper_bound <= 0.0
    assert result.upper_bound < math.log(0.05) or not drawn, "independent draws bound p"
    assert result.interval.high <= min(0.0, result.upper_bound + 1.0)
    assert "p <=" in str(result)
    assert not any(isinstance(e, Found | Number) for e in result.evidence)


@every
def test_a_flat_impossible_event_ends(estimator: Estimator) -> None:
    result = estimate(Problem(Counting().eval(), lambda x, y: 0 * y[:, 0] - 1.0, BOX), estimator)
    assert result.log_prob == -math.inf
    assert -math.inf < result.upper_bound <= (0.0 if isinstance(estimator, LineSampling) else -1e-9)
    assert isinstance(estimator, LineSampling) or any("nothing can be climbed" in note for note in result.notes)


@every
def test_every_row_that_the_network_sees_is_counted(estimator: Estimator) -> None:
    network = Counting().eval()
    problems = [above(t, network) for t in (1.5, 1.8, -1.0)]
    network.plain = network.tracked = 0
    run = Running(problems, estimator, execution=Execution(device="cpu", rows=128))
    for _ in run:
        pass
    results = [r for r in run.results if r is not None]
    assert sum(r.evaluations for r in results) == network.plain
    assert sum(r.gradients for r in results) == network.tracked
    for result in results:
        assert result.calls == result.evaluations + 3 * result.gradients > 0
        assert result.calls == sum(record.calls for record in result.evidence), "every call is some evidence's"


@every
def test_the_same_seed_gives_the_same_bits(estimator: Estimator) -> None:
    problems = [above(1.6), above(1.7)]
    first, second = estimate(problems, estimator, seed=4), estimate(problems, estimator, seed=4)
    other = estimate(problems, estimator, seed=5)
    for a, b in zip(first, second, strict=True):
        assert a.log_prob == b.log_prob
        assert a.interval == b.interval
        assert a.evaluations == b.evaluations
        assert torch.equal(a.witnesses.inputs, b.witnesses.inputs)
    assert first[0].log_prob != other[0].log_prob or first[0].witnesses.inputs[0, 0] != other[0].witnesses.inputs[0, 0]


@every
def test_witnesses_violate_the_property_and_lie_in_the_support(estimator: Estimator) -> None:
    problem = above(1.7)
    result = estimate(problem, estimator)
    assert result.outcome is Outcome.VIOLATED
    assert 0 < len(result.witnesses) <= 1000
    assert (problem.score(result.witnesses.inputs) >= 0).all()
    torch.testing.assert_close(problem.score(result.witnesses.inputs), result.witnesses.scores)
    assert ((result.witnesses.inputs >= 0) & (result.witnesses.inputs <= 1)).all()


@every
def test_results_come_in_the_order_of_the_problems(estimator: Estimator) -> None:
    one, two = Counting().eval(), Counting().eval()
    problems = [above(1.5, one), above(1.9, two), above(-1.0, one), above(1.2, two), above(1.9, one)]
    results = estimate(problems, estimator)
    assert [r.name for r in results] == [p.name for p in problems]
    logs = [r.log_prob for r in results]
    assert -_noise(estimator, results[2].log_prob_std) <= logs[2] <= 0.0
    assert logs[2] > logs[3] > logs[0] > max(logs[1], logs[4])


@every
def test_estimates_are_close_and_intervals_contain_them(estimator: Estimator) -> None:
    truth = math.log(0.3**2 / 2)
    result = estimate(above(1.7), estimator, seed=1)
    assert result.interval.low <= result.log_prob <= result.interval.high <= 0
    assert result.log_prob <= result.upper_bound
    # Five of its own standard errors, and no less than perfect sampling of 800 particles would leave.
    assert abs(result.log_prob - truth) <= 5 * max(result.log_prob_std, 0.1)


@every
def test_double_precision(estimator: Estimator) -> None:
    result = estimate(above(1.7), estimator, dtype=torch.float64)
    assert result.witnesses.inputs.dtype == torch.float64
    assert result.provenance["dtype"] == "float64"
    assert result.log_prob == pytest.approx(math.log(0.045), abs=0.6)


@every
@pytest.mark.parametrize("limit", [1, 500, 3000, 20_000])
def test_a_budget_of_evaluations_is_kept(estimator: Estimator, limit: int) -> None:
    results = estimate([above(1.99), above(1.999), above(2.5)], estimator, max_evaluations=limit)
    for result in results:
        assert result.calls <= limit
        assert result.upper_bound <= 0.0
        if pooled(result.evidence).n and result.outcome is not Outcome.PROVED_SAFE:
            assert result.upper_bound < 0.0 or result.log_prob > -math.inf


@every
@pytest.mark.parametrize("limit", [None, 40, 1000, 6000, 25_000])
@pytest.mark.parametrize("threshold", [-1.0, 1.5, 1.97, 1.9999, 2.5])
def test_laws_of_evidence(estimator: Estimator, limit: int | None, threshold: float) -> None:
    """Whatever the method, the event and the budget, what is said follows from what was seen."""
    result = estimate(above(threshold), estimator, max_evaluations=limit, seed=2)
    draws = pooled(result.evidence)
    found = any(isinstance(e, Found) and len(e.witnesses) for e in result.evidence)
    assert result.log_prob <= 0
    assert result.outcome is Outcome.PROVED_SAFE or result.log_prob == -math.inf or result.log_prob in result.interval
    assert result.interval.high <= 0
    said = [record.statistic.upper(0.95) for record in result.evidence if isinstance(record, Number)]
    assert result.upper_bound <= max([draws.statistic.upper(0.95), *said]), "no bound but what some evidence says"
    assert not (found and result.outcome in (Outcome.BELOW_FLOOR, Outcome.PROVED_SAFE))
    assert not (found and result.outcome is Outcome.OUT_OF_BUDGET and limit is None)
    assert found == (len(result.witnesses) > 0)
    for record in result.evidence:
        assert record.sentence
        if isinstance(record, Number):
            assert record.log_prob <= 0
            assert record.log_prob in record.statistic.interval(0.95)
        if isinstance(record, Levels):
            assert "if the populations lost no region" in record.sentence
    if result.outcome is Outcome.STALLED:
        assert "do not trust" in str(result)
        assert result.upper_bound == draws.statistic.upper(0.95), "no bound rests on a run that is not trusted"
    if result.outcome is Outcome.OUT_OF_BUDGET:
        assert result.upper_bound == draws.statistic.upper(0.95)
    if result.outcome is Outcome.BELOW_FLOOR:
        assert "if no region was missed" in str(result)
    if result.outcome is Outcome.VIOLATED and threshold > 1:
        truth = math.log((2 - threshold) ** 2 / 2)
        assert abs(result.log_prob - truth) <= 5 * max(result.log_prob_std, 0.1)
    back = type(result).from_json(result.to_json())
    assert [record.sentence for record in back.evidence] == [record.sentence for record in result.evidence]


def test_a_timeout_ends_the_run() -> None:
    def slow(x: Tensor) -> Tensor:
        time.sleep(0.01)
        return x.sum(1, keepdim=True)

    for estimator in (MonteCarlo(10**9), Splitting(100, islands=2, steps=5, log_p_min=-1e6)):
        started = time.monotonic()
        result = estimate(above(2.5, slow), estimator, timeout=0.3)
        assert time.monotonic() - started < 5
        assert result.outcome in (Outcome.OUT_OF_BUDGET, Outcome.STALLED)


@every
def test_a_run_is_an_iterator_over_its_progress(estimator: Estimator) -> None:
    problems = [above(1.9), above(1.5), above(-1.0)]
    run = Running(problems, estimator)
    events = list(run)
    assert all(result is not None for result in run.results)
    assert events
    assert events[-1].active == 0
    for event in events:
        assert event.rows.shape == event.level.shape == event.log_prob.shape
        assert set(event.rows.tolist()) <= {0, 1, 2}
        assert (event.log_prob <= 0).all()
        assert (event.level <= 0).all()
    seen: list[object] = []
    estimate(problems, estimator, progress=seen.append)
    assert len(seen) == len(events)


@splitting
def test_levels_rise_to_zero(estimator: Splitting) -> None:
    result = estimate(above(1.95), estimator)
    assert list(result.levels) == sorted(result.levels)
    assert result.levels[-1] == 0.0
    assert len(result.acceptance) == len(result.levels) - 1
    assert all(0 <= a <= 1 for a in result.acceptance)


@every
def test_provenance_says_how(estimator: Estimator) -> None:
    result = estimate(above(1.5), estimator, seed=9)
    assert result.provenance["seed"] == 9
    assert result.provenance["estimator"]["name"] == type(estimator).__name__
    assert result.provenance["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert type(result).from_json(result.to_json()).provenance == result.provenance


@pytest.mark.parametrize("name", ["monte carlo", "splitting, fixed steps", "keep all", "replace killed"])
def test_company_in_a_batch_changes_no_law(name: str) -> None:
    """Thirty copies alone, and thirty beside problems that end sooner and later: the same mean and spread."""
    estimator, copies, network = ESTIMATORS[name], 30, Counting().eval()
    alone = estimate([above(1.8, network)] * copies, estimator, seed=1)
    company = [above(-1.0, network), above(1.99, network)] * 5
    mixed = estimate([*company, *[above(1.8, network)] * copies], estimator, seed=2)[len(company) :]
    a, b = (torch.tensor([r.log_prob for r in results], dtype=torch.float64) for results in (alone, mixed))
    error = math.sqrt(float(a.var() + b.var()) / copies)
    assert abs(float(a.mean() - b.mean())) < 5 * error
    # log of a ratio of variances: standard error 2/sqrt(copies - 1) for nearly normal values.
    assert abs(math.log(float(a.var() / b.var()))) < 5 * 2 / math.sqrt(copies - 1)
    truth = math.log(0.02)
    for values in (a, b):
        assert abs(math.log(float(values.exp().mean())) - truth) < 5 * float(values.std()) / math.sqrt(copies)


def test_monte_carlo_stops_at_hits_and_at_a_target_error() -> None:
    hits = estimate(above(1.5), MonteCarlo(10**6, hits=50, chunk=100))
    assert hits.evaluations < 2000
    target = estimate(above(1.5), MonteCarlo(10**6, target_error=0.05, chunk=1000))
    assert target.log_prob_std <= 0.05
    assert target.evaluations < 10_000


def test_monte_carlo_witnesses_are_kept_while_few() -> None:
    result = estimate(above(1.9), MonteCarlo(5000, chunk=50))
    assert len(result.witnesses) >= 10


def test_the_floor_is_not_a_proof() -> None:
    """A score without a maximum below zero: levels rise for ever, and the run ends at the floor."""
    problem = Problem(lambda x: x, lambda x, y: -torch.exp(-y[:, 0]), Gaussian(torch.zeros(2), 1.0))
    result = estimate(problem, Splitting(200, islands=4, log_p_min=math.log(1e-12)))
    assert result.outcome is Outcome.BELOW_FLOOR
    assert result.log_prob == -math.inf
    assert math.log(1e-14) < result.upper_bound < math.log(1e-11)


def test_the_default_estimator_runs_on_any_model() -> None:
    class Model:
        def sample(self, n: int) -> Tensor:
            return torch.rand(n, 2)

        def log_density(self, x: Tensor) -> Tensor:
            return torch.where(((x >= 0) & (x <= 1)).all(1), 0.0, -torch.inf)

    problem = Problem(Counting().eval(), lambda x, y: y[:, 0] - 1.9, Model())
    result = estimate(problem, Splitting(400, islands=4))
    assert result.log_prob == pytest.approx(math.log(0.005), abs=5 * max(0.05, result.log_prob_std))


def test_kernels_with_settings_are_described() -> None:
    result = estimate(above(1.5), Splitting(100, islands=2, kernel=PCN(scale=0.3)))
    assert result.provenance["estimator"]["kernel"]["scale"] == 0.3


class _Linear(nn.Module):
    def __init__(self, size: int, lead: float) -> None:
        super().__init__()
        weight = torch.randn(size, 2, generator=torch.Generator().manual_seed(1))
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.lead = nn.Parameter(torch.tensor([lead, 0.0]), requires_grad=False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.lead


@pytest.mark.parametrize("calls", [1, 10, 100, 1000])
@pytest.mark.parametrize("name", registry.ESTIMATORS)
def test_a_budget_that_is_the_reason_is_said_to_be(name: str, calls: int) -> None:
    """Also where violations were found, and only the number is missing."""
    for size, lead in ((4, 0.5), (4, 2.0), (10, 6.0), (50, 3.0)):
        for norm in ("inf", "2"):
            problem = Problem(_Linear(size, lead), Misclassification(0), LpBall(torch.zeros(size), 1.0, norm))
            result = estimate(problem, registry.make_estimator(name, None, {}), seed=0, max_evaluations=calls)
            assert result.outcome is not Outcome.STALLED, result.notes


def test_without_a_limit_what_stalls_is_not_called_a_budget() -> None:
    result = estimate(above(2.5), LineSampling(), seed=0)
    assert result.outcome is not Outcome.OUT_OF_BUDGET
