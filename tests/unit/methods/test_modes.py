"""Where violations may be: gradients near and far find steep modes and every way to fail, far draws the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from rarely import Execution, Gaussian, Misclassification, Problem
from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted, Spend
from rarely.methods.lines import find_lines
from rarely.methods.modes import FarDraws, lost_share, search_calls, search_modes, unseen_points


def make(d: int, score: Callable[[Tensor], Tensor], calls: int | None = None) -> Batch:
    problem = Problem(lambda x: x, lambda x, y: score(y), Gaussian(torch.zeros(d), 1.0))
    (batch,) = Execution(device="cpu").place([problem], Spend(1, calls))
    return batch


def black(d: int, score: Callable[[Tensor], Tensor], calls: int | None = None) -> Batch:
    """The same without gradients."""
    problem = Problem(lambda x: np.asarray(x), lambda x, y: score(y), Gaussian(torch.zeros(d), 1.0))
    (batch,) = Execution(device="cpu").place([problem], Spend(1, calls))
    assert not batch.network.differentiable
    return batch


def steep(x: Tensor) -> Tensor:
    """The origin slopes towards the farther mode; the nearer one shows only where its score has overtaken."""
    return torch.maximum(x[:, 0] - 6, 4 * (x[:, 1] - 5))


@pytest.mark.parametrize("d", [2, 20, 300])
def test_a_steeper_second_mode_is_found(d: int) -> None:
    for seed in range(10):
        batch = make(d, steep)
        modes = search_modes(batch, [None], Rng(seed))
        for axis, distance in ((0, 6.0), (1, 5.0)):
            near = [mode for mode in modes if float(mode.alpha[axis]) > 0.99]
            assert near, "a direction towards it"
            assert min(mode.distance for mode in near) == pytest.approx(distance, abs=0.03 + 0.01 * distance)
        assert int(batch.calls()[0]) <= search_calls(None, 1)


@pytest.mark.parametrize("modes", [3, 8])
def test_modes_whose_slopes_differ_by_a_hundred(modes: int) -> None:
    """Each steeper and nearer than the one before: gradients at the origin know the first alone."""
    slopes, distances = torch.logspace(0, 2, modes), torch.linspace(6, 5, modes)
    for seed in range(5):
        batch = make(50, lambda x: (slopes * (x[:, :modes] - distances)).amax(1))
        found = search_modes(batch, [None], Rng(seed))
        best = max(float(mode.alpha[modes - 1]) for mode in found)
        assert best > 0.99, "the steepest, which holds most of p"


def many_ways(d: int, ways: int, seed: int) -> tuple[Problem, Tensor]:
    """One class that is right and others that fail behind planes at distances 4 to 5, with slopes 0.1 to 10."""
    g = torch.Generator().manual_seed(seed)
    w = nn.functional.normalize(torch.randn(ways, d, generator=g), dim=1)
    slopes, distances = 10 ** (2 * torch.rand(ways, generator=g) - 1), 4 + torch.rand(ways, generator=g)
    network = nn.Linear(d, ways + 1)
    with torch.no_grad():
        network.weight.copy_(torch.cat([torch.zeros(1, d), slopes.unsqueeze(1) * w]))
        network.bias.copy_(torch.cat([torch.zeros(1), -slopes * distances]))
    return Problem(network.eval(), Misclassification(0), Gaussian(torch.zeros(d), 1.0)), distances


@pytest.mark.parametrize(("d", "ways"), [(20, 13), (100, 30), (300, 100)])
def test_every_way_to_fail_is_searched(d: int, ways: int) -> None:
    problem, distances = many_ways(d, ways, ways)
    (batch,) = Execution(device="cpu").place([problem], Spend(1))
    lines, _ = find_lines(batch, [None], Rng(0))
    found = {way: min(line.distance for line in lines if line.way == way) for way in {line.way for line in lines}}
    assert len(found) == ways
    # Ways are numbered as the classes are, without the one that is right.
    assert [found[way] for way in sorted(found)] == pytest.approx(distances.tolist(), abs=0.03)
    assert int(batch.calls()[0]) <= search_calls(None, ways)


def test_problems_of_a_batch_are_searched_apart() -> None:
    network = nn.Linear(20, 2).eval()
    with torch.no_grad():
        network.weight.copy_(torch.eye(20)[:2])
        network.bias.fill_(0.0)
    problems = [
        Problem(network, lambda x, y, k=k, t=t: y[:, k] - t, Gaussian(torch.zeros(20), 1.0))  # type: ignore[misc]
        for k, t in ((0, 4.0), (1, 5.0))
    ]
    batches = Execution(device="cpu").place(problems, Spend(2))
    for batch in batches:
        for mode in search_modes(batch, [None] * len(batch), Rng(0)):
            row = int(batch.rows[mode.owner])
            assert mode.distance == pytest.approx((4.0, 5.0)[row], abs=0.05)
            assert float(mode.alpha[row]) > 0.99


def test_violating_points_begin_searches_of_their_own() -> None:
    """A mode that stands alone behind flat land: no gradient leads to it, a point in it does."""

    def bump(x: Tensor) -> Tensor:
        return torch.maximum(x[:, 0] - 5, torch.where(x[:, 1] > 4, x[:, 1] - 4.5, -10.0))

    batch = make(20, bump)
    point = torch.zeros(3, 20)
    point[:, 1] = 5.0
    with_points = search_modes(batch, [point], Rng(0))
    assert any(float(mode.alpha[1]) > 0.9 and abs(mode.distance - 4.5) < 0.1 for mode in with_points)


def test_a_flat_score_has_no_modes() -> None:
    assert not [m for m in search_modes(make(5, lambda x: 0 * x[:, 0] - 1), [None], Rng(0)) if m.distance < math.inf]


# Draws from far out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 5, 8, 40])
def test_far_draws_meet_the_second_mode_of_a_black_box_and_bring_it_back(d: int) -> None:
    """At three times the width a plane at distance 5 is met with probability Phi(-5 / 3) = 0.048: 96 of 2,000."""
    for seed in range(5):
        batch = black(d, steep)
        (points,) = FarDraws().points(batch, Rng(seed))
        (raw,) = FarDraws(steps=0).points(batch, Rng(seed))
        assert points is not None
        assert raw is not None
        assert points.shape == (64, d)
        assert (steep(points) >= 0).all(), "moves never leave the violations"
        for axis, distance in ((0, 6.0), (1, 5.0)):
            own, before = points[points[:, axis] >= distance], raw[raw[:, axis] >= distance]
            assert len(own) >= 3, "neither mode crowds the other out"
            # What exceeds a plane at t is about 1 / t in p, and sigma ** 2 / t where it was met.
            excess, was = (p[:, axis] - distance for p in (own, before))
            assert abs(float(excess.mean()) - 1 / distance) < 5 / distance / math.sqrt(len(own))
            assert float(was.mean()) > 2 / distance
        # The other coordinates come back more slowly: from sigma ** 2 towards 1, and 24 moves do most of the way.
        if d > 2:
            assert float(points[:, 2:].square().mean()) < 0.6 * float(raw[:, 2:].square().mean())


def test_far_draws_say_when_they_meet_nothing() -> None:
    assert FarDraws(draws=500).points(black(3, lambda x: x[:, 0] - 40), Rng(0)) == [None]
    few = FarDraws(draws=500).points(black(3, lambda x: x[:, 0] - 8.5), Rng(0))[0]
    assert few is not None
    assert 0 < len(few) < 10, "no copies beyond what was met"
    assert FarDraws(draws=500).points(make(3, lambda x: -1 - x[:, 0].square()), Rng(0)) == [None]


def test_some_of_the_draws_climb_to_what_is_bounded() -> None:
    """A ball of radius 1 in twenty dimensions is never met: gradients lead to it."""
    centre = torch.zeros(20)
    centre[0] = 5.0

    def ball(x: Tensor) -> Tensor:
        return 1 - (x - centre).norm(dim=1)

    assert FarDraws().points(black(20, ball), Rng(0)) == [None]
    (points,) = FarDraws().points(make(20, ball), Rng(0))
    assert points is not None
    assert len(points) >= 8
    assert (ball(points) >= 0).all()


def test_far_draws_keep_the_budget() -> None:
    for made in (make, black):
        with pytest.raises(Exhausted):
            FarDraws().points(made(3, lambda x: x[:, 0] - 5, calls=1000), Rng(0))


def test_the_law_of_points_that_were_brought_back() -> None:
    """With many moves they are draws from p(z | violation): the excess over a plane at 5 is known."""
    found = [FarDraws(kept=200, steps=200).points(black(4, lambda x: x[:, 0] - 5), Rng(seed))[0] for seed in range(4)]
    points = torch.cat([some for some in found if some is not None])
    excess = points[:, 0].double() - 5
    wanted = stats.norm.pdf(5) / stats.norm.sf(5) - 5
    # Few of the first 2,000 draws are hits, so that the same one starts several: count every tenth as independent.
    assert abs(float(excess.mean()) - wanted) < 5 * float(excess.std()) / math.sqrt(len(points) / 10)
    assert stats.kstest(points[::10, 1].numpy(), stats.norm.cdf).pvalue > 1e-4


def test_unseen_points() -> None:
    g = torch.Generator().manual_seed(0)
    seen = torch.randn(200, 6, generator=g)
    more, away = torch.randn(200, 6, generator=g), torch.randn(50, 6, generator=g) + 8.0
    assert float(unseen_points(more, seen).double().mean()) < 0.05
    assert unseen_points(away, seen).all()
    assert not unseen_points(away, seen[:7]).any(), "seven points show no region"


@pytest.mark.parametrize("d", [5, 20, 60, 100])
def test_a_lost_mode_shows_in_many_dimensions_and_noise_does_not(d: int) -> None:
    """Points beyond z_0 = 6 have been seen; those met far out lie beyond z_1 = 5, or beyond z_0 = 6 too."""

    def beyond(n: int, axis: int, distance: float, g: torch.Generator) -> Tensor:
        z = torch.randn(n, d, generator=g)
        z[:, axis] = distance - torch.rand(n, generator=g).log() / distance
        return z

    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        seen = beyond(800, 0, 6.0, g)
        assert lost_share(beyond(64, 0, 6.0, g), seen) < 0.2
        assert lost_share(torch.cat([beyond(40, 1, 5.0, g), beyond(24, 0, 6.0, g)]), seen) > 0.2


@pytest.mark.parametrize("seed", range(4))
def test_a_way_to_fail_that_is_flat_in_the_middle_and_ahead_nowhere_far_out(seed: int) -> None:
    """All ReLUs are off where the search begins; farther out one of a hundred steeper ones hides the nearest."""
    hidden, out = nn.Linear(101, 101), nn.Linear(101, 102)
    with torch.no_grad():
        hidden.weight.copy_(torch.eye(101))
        hidden.bias.copy_(torch.tensor([*[-3.0] * 100, -2.0]))
        out.weight.copy_(torch.cat([torch.zeros(1, 101), torch.diag(torch.tensor([*[10.0] * 100, 1.0]))]))
        out.bias.copy_(torch.tensor([0.5, *[0.0] * 101]))
    problem = Problem(
        nn.Sequential(hidden, nn.ReLU(), out).eval(), Misclassification(0), Gaussian(torch.zeros(101), 1.0)
    )
    (batch,) = Execution(device="cpu").place([problem], Spend(1))
    found = [mode for mode in search_modes(batch, [None], Rng(seed)) if mode.way == 101]
    assert min(mode.distance for mode in found) == pytest.approx(2.5, abs=0.05)
