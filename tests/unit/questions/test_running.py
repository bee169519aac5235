"""A run on its way: who is told when, what it will cost, where it stops."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from rarely import Auto, Estimate, Gaussian, Mixture, MonteCarlo, Outcome, Problem, Running, Splitting, estimate
from rarely.core.errors import InputError
from rarely.core.evidence import Number
from rarely.core.execution import Execution
from rarely.core.spend import Spend
from rarely.core.thresholds import STAGE
from rarely.methods.base import forecast
from rarely.questions.case import Case
from rarely.questions.climbing import Climbing
from rarely.questions.strategy import Precision
from rarely.stats.statistic import Replicates


class Mean(nn.Module):
    """One output, a standard normal of standard normal inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True) / math.sqrt(x.shape[1])


NET = Mean().eval()


def plane(threshold: float, d: int = 20) -> Problem:
    return Problem(NET, lambda x, y: y[..., 0] - threshold, Gaussian(torch.zeros(d), 1.0), f"beyond {threshold:g}")


def test_what_is_answered_does_not_wait_for_what_is_rarer() -> None:
    run = Running([plane(6.0), plane(0.5), plane(0.0)])
    first = next(event for event in run if event.settled)
    assert set(first.settled) == {1, 2}
    early = run.results[1]
    assert run.results[0] is None
    assert early is not None
    assert early.outcome is Outcome.VIOLATED
    assert math.log(0.3085) in early.interval


def test_those_who_waited_are_finished_once() -> None:
    run = Running([plane(6.0), plane(0.5)])
    settled = [dict(event.settled) for event in run]
    assert sum(map(len, settled)) == 1
    together = estimate([plane(6.0), plane(0.5)])
    assert [r.log_prob for r in run.results if r is not None] == [r.log_prob for r in together]
    assert [r.calls for r in run.results if r is not None] == [r.calls for r in together]


def test_components_of_a_mixture_are_not_taken_for_the_whole() -> None:
    parts = Mixture([Gaussian(torch.zeros(20), 1.0), Gaussian(torch.zeros(20), 2.0)], [0.5, 0.5])
    mixed = Problem(NET, lambda x, y: y[..., 0] - 7.0, parts)
    run = Running([mixed, plane(6.0)])
    for event in run:
        assert not event.settled or set(event.settled) <= {0, 1}
    (found, _) = run.results
    assert found is not None
    truth = math.log(0.5 * stats.norm.sf(7.0) + 0.5 * stats.norm.sf(3.5))
    assert abs(found.log_prob - truth) < 5 * found.log_prob_std


@pytest.mark.parametrize("estimator", [Auto(), MonteCarlo(10**9), Splitting(2000, steps=50)])
def test_a_stopped_run_says_what_is_known(estimator: object) -> None:
    run = Running([plane(2.0), plane(6.0)], estimator)
    for number, _ in enumerate(run):
        if number == 1:
            run.stop()
        assert number < 30
    for result in run.results:
        assert isinstance(result, Estimate)
        assert result.provenance["interrupted"]
        assert "interrupted" in result.notes[-1]


# The floor -----------------------------------------------------------------------------------------------------------


def test_below_a_floor_less_is_spent_and_said() -> None:
    near, far, deep = estimate([plane(4.0), plane(11.0), plane(11.5)], p_min=1e-12)
    assert near.outcome is Outcome.VIOLATED
    assert far.outcome is deep.outcome is Outcome.BELOW_FLOOR
    assert far.upper_bound < math.log(3e-12)
    assert far.sentence.startswith(
        "The violations that were found and replayed are rarer than that: p is below the floor"
    )
    assert "of 1.00e-12 if no region was missed. This is not a proof." in far.sentence
    assert any("line sampling says log p = -6" in note for note in far.notes)
    whole = estimate(plane(11.0))
    assert whole.outcome is Outcome.VIOLATED
    assert far.calls < 0.6 * whole.calls


def test_a_floor_hides_nothing_above_it() -> None:
    floored = estimate(plane(6.0), p_min=1e-12)  # 1e-9
    assert floored.outcome is Outcome.VIOLATED
    assert stats.norm.logsf(6.0) in floored.interval


def test_a_black_box_below_the_floor_has_no_witness_and_says_so() -> None:
    blind = Problem(
        lambda x: x.detach().numpy(), lambda x, y: y.sum(-1) / math.sqrt(20) - 11.0, Gaussian(torch.zeros(20), 1.0)
    )
    result = estimate(blind, p_min=1e-6)
    assert result.outcome is Outcome.BELOW_FLOOR
    assert result.sentence.startswith("No violation was found; p is below the floor of 1.00e-06")


@pytest.mark.parametrize(
    ("estimator", "p_min", "message"),
    [
        (None, -27.0, "strictly between 0 and 1.*log_p_min"),
        (None, 1.0, "strictly between 0 and 1"),
        (None, math.nan, "strictly between 0 and 1"),
        (MonteCarlo(), 1e-6, "MonteCarlo has no floor"),
    ],
)
def test_floors_that_are_none(estimator: object, p_min: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate(plane(2.0), estimator, p_min=p_min)  # type: ignore[call-overload]


# What it will cost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "pace", "told"),
    [
        (3.1e6, 0.01, "about 3.1 million calls, 9 hours at 10 ms a call"),
        (24_000, 0.25, "about 24 thousand calls, 100 minutes at 250 ms a call"),
        (40, 1.5, "about 40 calls, 60 seconds at 1.5 s a call"),
        (1e9, 1e-5, "about 1.0 billion calls, 3 hours at 10 µs a call"),
        (1000, 0.01, ""),
        (1e9, 0.0, ""),
    ],
)
def test_a_forecast_in_words(calls: float, pace: float, told: str) -> None:
    assert forecast(calls, pace) == told


def test_a_pace_is_the_mean_of_passes_and_not_of_the_first_call() -> None:
    spend = Spend(1)
    spend.expect(1, 5.0)
    assert spend.pace == 0.0
    spend.took(100, 1.0)
    spend.took(300, 1.0)
    assert spend.pace == pytest.approx(0.005)


def test_long_work_is_told_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spend, "pace", property(lambda self: 0.01))
    told = [event for event in Running([plane(4.0)]) if event.forecast]
    assert told[0].forecast.startswith("about 24 thousand calls in all where every p is near 2e-09, 4 minutes at 10 ms")
    assert len(told) == 1


# Stages --------------------------------------------------------------------------------------------------------------


def _split(std: float, scale: int) -> Case:
    spread = tuple(-10.0 + std * math.sqrt(8) * (-1) ** k for k in range(8))
    case = Case(0, [Number("splitting", "splitting", Replicates(spread), 0)], scale=scale, cost=1000)
    return case


def test_populations_grow_in_stages_and_end_when_the_target_is_met() -> None:
    case = _split(3.0, 1)
    (batch,) = Execution(device="cpu").place([plane(4.0)], Spend(1))
    assert case.split is not None
    assert Climbing._factor(batch, [case], case, 0.075, 128) == STAGE
    goal = Precision(0.1)
    assert Climbing._lacks(_split(0.3, 16), 0.075, goal, 16, 128)
    assert not Climbing._lacks(_split(0.02, 16), 0.075, goal, 16, 128)
    assert not Climbing._lacks(_split(0.3, 128), 0.075, goal, 128, 128)
