"""Witnesses as a sample of what violates: the right law where they are called fair, the right shares elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import rarely
from rarely.core.witnesses import (
    FAIR,
    MAX_WITNESSES,
    SOUGHT,
    WEIGHED,
    Witnesses,
    gather_each,
    gather_witnesses,
    join_witnesses,
    share_witnesses,
)
from rarely.methods import Estimator

SURE = 2 * stats.norm.sf(5)  # five sigma


def corner(rest: float) -> rarely.Problem:
    """Three uniforms that add up to 3 - rest or more."""
    above = rarely.LinearConstraint([[-1.0]], [rest - 3.0])
    network = nn.Sequential(nn.Linear(3, 1)).eval()
    with torch.no_grad():
        network[0].weight.fill_(1.0)
        network[0].bias.fill_(0.0)
    return rarely.Problem(network, above, rarely.Box(torch.zeros(3), torch.ones(3)))


def uniforms(inputs: Tensor, rest: float) -> np.ndarray:
    """What is uniform where inputs are uniform in the corner: its volume below each, and the share of one side."""
    short = 1 - inputs.double()
    depth = (short.sum(1) / rest) ** 3
    side = 1 - (1 - short[:, 0] / short.sum(1)) ** 2  # of two uniforms that cut a length in three
    return np.stack([depth.numpy(), side.numpy()])


def fair_inputs(estimator: Estimator, rest: float, runs: int) -> Tensor:
    found = [rarely.estimate(corner(rest), estimator, seed=seed) for seed in range(runs)]
    return torch.cat([one.witnesses.of_kind(FAIR).inputs for one in found])


@pytest.mark.parametrize(
    ("estimator", "rest", "runs"),
    [(rarely.MonteCarlo(20_000), 0.6, 6), (rarely.MonteCarlo(hits=150, chunk=500), 0.6, 6), (rarely.Auto(), 0.05, 2)],
    ids=["plain draws", "until enough hits", "between bounds"],
)
def test_independent_draws_are_a_fair_sample(estimator: Estimator, rest: float, runs: int) -> None:
    inputs = fair_inputs(estimator, rest, runs)
    assert len(inputs) >= 100 * runs
    for values in uniforms(inputs, rest):
        assert stats.kstest(values, "uniform").pvalue > SURE


def test_the_best_of_all_draws_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they were kept before: the highest scores, which lie deep inside."""

    def best(x: Tensor, scores: Tensor, owner: Tensor, count: int) -> list[Witnesses]:
        order = scores.argsort(descending=True)
        return gather_each(x[order], scores[order], owner, count)

    monkeypatch.setattr("rarely.methods.monte_carlo.gather_each", best)
    assert stats.kstest(uniforms(fair_inputs(rarely.MonteCarlo(20_000), 0.6, 6), 0.6)[0], "uniform").pvalue < SURE


def test_what_a_search_finds_is_not_called_fair() -> None:
    found = rarely.estimate(corner(0.05)).witnesses
    assert set(found.kinds[1:]) <= {FAIR, WEIGHED, SOUGHT}
    assert list(found.kinds) == sorted(found.kinds, key=["nearest found", FAIR, WEIGHED, SOUGHT].index)
    assert len(found.of_kind(FAIR)) + len(found.of_kind(WEIGHED)) + len(found.of_kind(SOUGHT)) == len(found) - 1


WEIGHING: dict[str, Estimator] = {
    "splitting": rarely.Splitting(400, 0.1, 1, keep="all"),
    "the last states": rarely.Splitting(400, islands=4, steps=10),
    "lines": rarely.LineSampling(),
    "importance": rarely.ImportanceSampling(),
}


NEAR, FAR, RUNS = 3.2, 3.5, 12
SHARE = stats.norm.sf(FAR) / (stats.norm.sf(FAR) + stats.norm.sf(NEAR))  # of the region on the other side


def two_regions(estimator: Estimator) -> list[Tensor]:
    """The coordinate that matters, of the weighed draws of each run."""

    def network(x: Tensor) -> Tensor:
        return torch.stack([x[..., 0] - NEAR, -FAR - x[..., 0]], -1)

    problem = rarely.Problem(network, lambda x, y: y.amax(-1), rarely.Gaussian(torch.zeros(3), 1.0))
    found = [one.witnesses.of_kind(WEIGHED) for one in rarely.estimate([problem] * RUNS, estimator)]
    assert all(len(one) >= 20 for one in found)
    return [one.inputs[:, 0] for one in found]


def off(values: list[Tensor], exact: float) -> float:
    """By how many of its standard errors the mean over runs is off, but for what a few draws must round."""
    each = np.array([float(value.double().mean()) for value in values])
    excess = float(abs(each.mean() - exact)) - 0.5 / min(map(len, values))
    if excess <= 0:  # shares that are exact have no spread either
        return 0.0
    spread = float(each.std(ddof=1)) / math.sqrt(RUNS)
    return excess / spread if spread else math.inf


@pytest.mark.parametrize("name", WEIGHING)
def test_weighed_draws_have_the_shares_of_two_regions(name: str) -> None:
    found = two_regions(WEIGHING[name])
    assert off([x < 0 for x in found], SHARE) < 5
    depths = stats.norm.pdf([NEAR, FAR]) / stats.norm.sf([NEAR, FAR]) - [NEAR, FAR]
    depth = (1 - SHARE) * depths[0] + SHARE * depths[1]
    assert off([torch.maximum(x - NEAR, -FAR - x) for x in found], depth) < 5


def test_as_many_of_each_region_are_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lines kept them before."""
    monkeypatch.setattr("rarely.methods.lined.share_witnesses", lambda found, shares: join_witnesses(found))
    assert off([x < 0 for x in two_regions(rarely.LineSampling())], SHARE) > 5


def test_parts_are_shared_by_what_they_hold() -> None:
    def some(count: int, value: float) -> Witnesses:
        return Witnesses(torch.full((count, 1), value), torch.zeros(count))

    shared = share_witnesses([some(250, 0.0), some(250, 1.0), some(250, 2.0)], [0.0, math.log(0.25), -30.0])
    assert [int((shared.inputs == value).sum()) for value in (0.0, 1.0, 2.0)] == [200, 50, 0]
    few = share_witnesses([some(8, 0.0), some(250, 1.0)], [0.0, math.log(0.25)])
    assert [int((few.inputs == value).sum()) for value in (0.0, 1.0)] == [8, 2]
    assert len(share_witnesses([], [])) == 0
    assert len(share_witnesses([some(0, 0.0)], [-1.0])) == 0


def test_weights_choose_who_is_kept() -> None:
    """One in three is ten times as heavy: kept in the shares of the weights, not of the draws."""
    x = torch.arange(30_000.0).unsqueeze(1)
    heavy = torch.arange(30_000) % 3 == 0
    kept = gather_witnesses(x, torch.zeros(30_000), torch.where(heavy, math.log(10.0), 0.0))
    share = float((kept.inputs[:, 0] % 3 == 0).double().mean())
    exact = 10 / 12
    assert len(kept) == MAX_WITNESSES
    assert abs(share - exact) < 5 * math.sqrt(exact * (1 - exact) / MAX_WITNESSES)
