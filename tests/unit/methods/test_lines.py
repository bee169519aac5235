"""Roots along lines, directions, tempering and what the referee makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from rarely import Execution, Gaussian, LineSampling, Outcome, Problem, estimate
from rarely.core.batch import Batch
from rarely.core.evidence import Found, Number, Searched
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.methods.beside import climb
from rarely.methods.guesses import survey
from rarely.methods.lined import LinedRegion
from rarely.methods.lines import Line, stack_lines
from rarely.methods.roots import HIGH, LOW, find_roots, search_directions
from rarely.methods.tempering import Lines, temper
from rarely.methods.unseen import compare, foreign


def make(d: int, score: Callable[[Tensor], Tensor]) -> Batch:
    problem = Problem(lambda x: x, lambda x, y: score(y), Gaussian(torch.zeros(d), 1.0))
    (batch,) = Execution(device="cpu").place([problem], Spend(1))
    return batch


def axis(d: int, i: int = 0, sign: float = 1.0) -> Tensor:
    e = torch.zeros(d)
    e[i] = sign
    return e


def roots(score: Callable[[Tensor], Tensor], guess: float, slope: float, lines: int = 50) -> tuple[Tensor, float]:
    """Entries of lines along the first axis at random places of the second, and the calls per line."""
    batch = make(2, score)
    base = torch.zeros(1, lines, 2)
    base[0, :, 1] = torch.linspace(-2, 2, lines)
    t = find_roots(batch, base, axis(2).unsqueeze(0), torch.full((1, lines), guess), torch.full((1, lines), slope))
    return t[0], int(batch.spend.evaluations[0]) / lines


@pytest.mark.parametrize("guess", [-5.0, 0.0, 3.9, 4.0, 4.5, 15.0])
@pytest.mark.parametrize("slope", [0.05, 1.0, 6.0])
def test_the_root_of_a_linear_score(guess: float, slope: float) -> None:
    """A slope given too large is believed for the last 0.03 of the way, and errs by as much for each time too large."""
    t, calls = roots(lambda x: 3 * (x[:, 0] - 4), guess, slope)
    assert (t - 4).abs().max() < 0.03 * max(0.0, slope / 3 - 1) + 2e-3
    assert calls <= 10


def test_a_good_guess_costs_two_calls() -> None:
    t, calls = roots(lambda x: 3 * (x[:, 0] - 4), 4.2, 3.0)
    assert (t - 4).abs().max() < 1e-4
    assert calls <= 2


def test_the_root_of_a_curved_score() -> None:
    t, calls = roots(lambda x: torch.sinh(x[:, 0] - 3 + 0.3 * x[:, 1]), 5.0, 1.0)
    expected = 3 - 0.3 * torch.linspace(-2, 2, 50)
    assert (t - expected).abs().max() < 0.03
    assert calls <= 10


def test_the_root_of_a_kinked_score() -> None:
    t, calls = roots(lambda x: torch.maximum(0.1 * (x[:, 0] - 6), 5 * (x[:, 0] - 4)), 8.0, 0.1)
    assert (t - 4).abs().max() < 0.02
    assert calls <= 16


def test_lines_that_never_or_always_violate() -> None:
    never, calls = roots(lambda x: -1 - 0.01 * x[:, 0].square(), 4.0, 1.0)
    assert torch.isposinf(never).all()
    assert calls <= 12
    always, calls = roots(lambda x: 1 + 0.01 * x[:, 0].square(), 4.0, 1.0)
    assert (always == LOW).all()
    assert calls <= 12
    flat, _ = roots(lambda x: torch.full_like(x[:, 0], -1.0), 4.0, 0.0)
    assert torch.isposinf(flat).all()
    assert HIGH > 20


def test_a_steep_score() -> None:
    t, calls = roots(lambda x: torch.tanh(200 * (x[:, 0] - 4.3)), 2.0, 1e-4)
    assert (t - 4.3).abs().max() < 0.02
    assert calls <= 20


@pytest.mark.parametrize(("below", "above"), [(-1.0, 1.0), (-7.0, 1.0), (-1.0, 7.0)])
@pytest.mark.parametrize("guess", [2.0, 4.1, 6.0])
def test_a_jump_is_found_by_its_bracket(below: float, above: float, guess: float) -> None:
    """A secant through a jump points between its sides: taking it for the root moved log p by 0.3 at t = 4."""
    t, calls = roots(lambda x: torch.where(x[:, 0] > 4.123, above, below), guess, 1.0)
    assert (t - 4.123).abs().max() < 0.03
    assert calls <= 30


def test_roots_are_counted_per_problem() -> None:
    batch = make(2, lambda x: x[:, 0] - 4)
    before = int(batch.spend.evaluations.sum())
    find_roots(batch, torch.zeros(1, 7, 2), axis(2).unsqueeze(0), torch.full((1, 7), 4.0), torch.ones(1, 7))
    assert int(batch.spend.evaluations.sum()) - before == 7


def _corner(x: Tensor) -> Tensor:
    """Two planes at distance 4 meet in a ridge: the nearest violation is on the ridge, at 4 sqrt(1.36)."""
    return (x[:, :2] @ torch.tensor([[1.0, 1.0], [0.6, -0.6]]) / math.sqrt(1.36)).amin(1) - 4


def test_directions_converge_where_plain_hlrf_cycles() -> None:
    batch = make(10, _corner)
    z = torch.zeros(1, 1, 10) + 0.01 * axis(10, 1)
    seen = []
    for _ in range(40):  # the textbook iteration: the nearest point of the plane that the gradient shows
        s, g = batch.gradient_normal(z)
        z = ((g * z).sum() - s) * g / g.square().sum()
        seen.append(float(z[0, 0, 1]))
    assert min(abs(v) for v in seen[-10:]) > 1, "HLRF jumps from side to side and never comes near the ridge"
    starts = torch.nn.functional.normalize(torch.randn(1, 8, 10, generator=torch.Generator().manual_seed(0)), dim=-1)
    found = search_directions(batch, starts, 8)
    assert float(found.distance.min()) < 4.9  # the ridge is at 4.665, either plane's own point at infinity or farther
    assert float(found.distance.median()) < 5.5
    best = found.alpha[0, int(found.distance.argmin())]
    assert float(best[0]) > 0.95
    assert float(best.norm()) == pytest.approx(1, abs=1e-5)


def test_directions_of_a_half_space_are_found_at_once() -> None:
    w = torch.nn.functional.normalize(torch.arange(1.0, 21.0), dim=0)
    batch = make(20, lambda x: x @ w - 5)
    starts = torch.nn.functional.normalize(torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(1)), dim=-1)
    found = search_directions(batch, starts, 2)
    assert (found.distance - 5).abs().max() < 0.02
    assert (found.alpha[0] @ w).min() > 0.999


def line(d: int, alpha: Tensor, distance: float) -> Line:
    return Line(0, 0, alpha, distance)


def rival_lines(lines: list[Line]) -> list[Line]:
    for one in lines:
        one.rivals = [other for other in lines if other is not one]
    return lines


def populate(batch: Batch, lines: list[Line], chains: int, length: int, rng: Rng) -> None:
    survey(batch, lines, rng)
    LineSampling().populate(batch, lines, chains, length, rng)


def populations(batch: Batch, lines: list[Line], each: int) -> Lines:
    return stack_lines(batch, lines).take(torch.arange(len(lines)).repeat_interleave(each))


def test_tempering_is_exact_on_a_half_space() -> None:
    batch = make(100, lambda x: x.sum(1) / 10 - 5)
    result = temper(populations(batch, [line(100, torch.full((100,), 0.1), 5.0)], 8), 8, 16, 5, Rng(0))
    assert (result.log_prob - stats.norm.logsf(5)).abs().max() < 1e-3  # every population, with no variance
    assert (result.alive == 1).all()


@pytest.mark.parametrize("curvature", [0.05, -0.03])
def test_tempering_on_a_parabola(curvature: float) -> None:
    law = stats.chi2(19)
    q = np.linspace(law.ppf(1e-13), law.ppf(1 - 1e-13), 100_001)
    exact = math.log(np.trapezoid(stats.norm.sf(5 + curvature * q) * law.pdf(q), q))
    batch = make(30, lambda x: x[:, 0] - 5 - curvature * x[:, 1:20].square().sum(1))
    result = temper(populations(batch, [line(30, axis(30), 5.0)], 64), 64, 32, 5, Rng(1))
    ratio = (result.log_prob - exact).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / 8 + 0.02  # the roots' tolerance is the rest
    assert float(ratio.std()) < 0.6


def test_cells_partition_the_space() -> None:
    alphas = torch.nn.functional.normalize(torch.randn(4, 6, generator=torch.Generator().manual_seed(2)), dim=-1)
    batch = make(6, lambda x: x[:, 0] - 4)
    lines = rival_lines([line(6, a, 4.0 + 0.2 * i) for i, a in enumerate(alphas)])
    stacked = stack_lines(batch, lines)
    z = 3 * torch.randn(500, 6, generator=torch.Generator().manual_seed(3))
    along = alphas @ z.T  # (4, n)
    entry, _ = stacked.cell_entry(stacked.complement(z.expand(4, 500, 6)))
    assert ((along >= entry).sum(0) == 1).all()
    claims = along - stacked.distance.unsqueeze(1)
    assert torch.equal((along >= entry).long().argmax(0), claims.argmax(0))


def test_cells_of_rivals_add_up_to_the_event() -> None:
    """Two modes that overlap in a quadrant: each alone is a half-space, their cells sum to the union."""
    batch = make(8, lambda x: torch.maximum(x[:, 0], x[:, 1]) - 3)
    result = temper(
        populations(batch, rival_lines([line(8, axis(8), 3.0), line(8, axis(8, 1), 3.0)]), 32), 32, 32, 5, Rng(4)
    )
    total = result.log_prob.reshape(2, 32).exp().sum(0)
    p = float(stats.norm.sf(3))
    exact = 2 * p - p * p
    assert abs(float(total.mean()) / exact - 1) < 5 * float(total.std()) / exact / math.sqrt(32) + 0.01


def test_lines_below_their_floor_are_given_up_with_a_bound() -> None:
    """A ball behind the entry: lines through most places miss it, so that p lies far under the half-space's."""
    batch = make(40, lambda x: x[:, 0] - 4 - 0.2 * x[:, 1:].square().sum(1))
    lines = [line(40, axis(40), 4.0), line(40, axis(40), 4.0)]
    survey(batch, lines, Rng(20))
    floor = torch.tensor([-15.0, -200.0], dtype=torch.float64).repeat_interleave(8)
    result = temper(populations(batch, lines, 8), 8, 32, 5, Rng(21), floor)
    assert result.faint.tolist() == [True] * 8 + [False] * 8
    given_up, whole = result.log_prob[:8].logsumexp(0), result.log_prob[8:].logsumexp(0)
    assert whole < given_up < -15.0 + math.log(8), "a bound from above, and below the floor"


def test_lines_whose_guesses_would_have_them_given_up_are_searched() -> None:
    batch = make(30, lambda x: torch.maximum(x[:, 0] - 4.3, -x[:, 1] - 4 - 0.03 * x[:, 2:20].square().sum(1)))
    near, other = lines = rival_lines([line(30, axis(30), 4.3), line(30, axis(30, 1, -1.0), 4.0)])
    survey(batch, lines, Rng(22))
    alone, method = line(30, other.alpha, 4.0), LineSampling()
    alone.rivals = [near]
    survey(batch, [alone], Rng(23))
    method.populate(batch, [near, alone], 16, 8, Rng(24))
    other.zero, other.slope = other.zero + 5.0, other.slope / 3  # far beyond the truth, and more so where it is farther
    method.populate(batch, [other], 2, 4, Rng(25), {other: near.log_mean - 4})
    assert other.exact
    assert other.log_mean == pytest.approx(alone.log_mean, abs=5 * math.hypot(other.std, alone.std))


def test_only_lines_that_matter_have_a_first_round_of_their_own() -> None:
    """Twelve planes at 4 to 9.5: the farther eight hold nothing."""
    problem = Problem(
        lambda x: x[:, :12] - torch.linspace(4.0, 9.5, 12), lambda x, y: y.amax(1), Gaussian(torch.zeros(40), 1.0)
    )
    exact = float(np.logaddexp.reduce(stats.norm.logsf(np.linspace(4.0, 9.5, 12))))
    (batch,) = Execution(device="cpu").place([problem], Spend(1))
    starts = torch.zeros(64, 40)
    starts[:, 0] = 4.2
    runner = LineSampling().lines(batch, [starts + 0.1 * Rng(25).normal((64, 40), torch.float32)], Rng(26))
    while True:
        try:
            next(runner)
        except StopIteration as stop:
            (region,) = stop.value
            break
    sizes = sorted((one.states, round(one.distance, 1)) for one in region.lines)
    assert sizes[0][0] == 8, "two chains of four states of each replicate, at most"
    assert sizes[-1][0] >= 32
    assert region.log_prob == pytest.approx(exact, abs=5 * region.std + 0.02)


def test_a_population_that_cannot_climb_ends_alone() -> None:
    """A score that saturates: ties reach the top in some populations of a line and not in others."""
    batch = make(12, lambda x: x[:, 0] - 6 + 3 * x[:, 1].clamp(max=1.0))
    one = line(12, axis(12), 4.5)
    survey(batch, [one], Rng(27))
    climbed = climb(populations(batch, [one], 32), 32, 4, 1, Rng(28))
    # x1 > 1 with probability 0.1587 has its line enter at 3, the rest farther on.
    grid = np.linspace(-8.0, 8.0, 160_001)
    exact = np.trapezoid(stats.norm.sf(6 - 3 * np.minimum(grid, 1.0)) * stats.norm.pdf(grid), grid)
    ratio = (climbed.tempered.log_prob - math.log(exact)).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(32)


@pytest.mark.parametrize("end", [5.0, 4.2])
def test_lines_that_leave_the_region_again_are_corrected(end: float) -> None:
    batch = make(5, lambda x: torch.minimum(x[:, 0] - 4, end - x[:, 0]))
    one = line(5, axis(5), 4.0)
    region = LinedRegion([one])
    populate(batch, [one], 64, 8, Rng(5))
    exact = math.log(stats.norm.sf(4) - stats.norm.sf(end))
    share = (stats.norm.sf(4) - stats.norm.sf(end)) / stats.norm.sf(4)
    error = math.sqrt((1 - share) / share / one.tests)
    assert abs(one.beyond - share) < 5 * error * share + 1e-3
    assert abs(region.log_prob - exact) < 5 * error + 0.01
    *_, witnesses = region.evidence("lines", 0)
    assert isinstance(witnesses, Found)
    found = witnesses.witnesses.inputs[:, 0]
    assert ((found >= 4) & (found <= end)).all()


def test_a_region_that_lines_cross_often_is_called_weak() -> None:
    batch = make(5, lambda x: torch.minimum(x[:, 0] - 4, 4.05 - x[:, 0]))
    one = line(5, axis(5), 4.0)
    populate(batch, [one], 64, 8, Rng(6))
    assert "cross" in (LinedRegion([one]).weakness() or "")


@pytest.mark.parametrize(("known", "weak"), [(20, True), (2, False), (0, False)])
def test_a_line_that_does_not_get_to_violations_that_are_known_makes_all_of_them_weak(known: int, weak: bool) -> None:
    """A corner that no population meets by chance, several times as much of p as the wavy plane beside it."""

    def wavy(x: Tensor) -> Tensor:
        return x[:, 2] + 0.5 * torch.tanh(x[:, 3]) - 6.0

    batch = make(40, lambda x: torch.maximum(wavy(x), torch.minimum(x[:, 0] - 5.0, x[:, 1] - 2.0)))
    plane, corner = rival_lines([line(40, axis(40, 2), 6.0), line(40, axis(40, 1), 2.0)])
    plane.points = 6.1 * axis(40, 2).expand(80, 40)
    if known:
        corner.points = (5.1 * axis(40, 0) + 2.1 * axis(40, 1)).expand(known, 40)
    survey(batch, [plane, corner], Rng(9))
    corner.exact = True  # entries that are searched for, not guessed, give populations nothing to climb
    LineSampling().populate(batch, [plane, corner], 16, 8, Rng(9))
    assert corner.log_mean == -math.inf
    region = LinedRegion([plane, corner])
    assert (region.weakness() is not None) == weak
    assert bool(region.further(0.01, 10**6, 1, math.inf, math.inf)) != weak, "nor are more of its calls spent"


def test_the_referee_sees_a_removed_mode() -> None:
    batch = make(10, lambda x: torch.maximum(x[:, 0] - 4.0, -x[:, 0] - 4.3))
    z = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
    tail = 0.25 * torch.rand(64, generator=torch.Generator().manual_seed(8))
    z[:, 0] = torch.where(torch.arange(64) % 4 > 0, 4.0 + tail, -4.3 - tail)  # a quarter in the other mode
    both = rival_lines([line(10, axis(10), 4.0), line(10, axis(10, 0, -1.0), 4.3)])
    single = [line(10, axis(10), 4.0)]
    populate(batch, both, 16, 8, Rng(9))
    populate(batch, single, 16, 8, Rng(9))
    (all_seen,) = compare(batch, [LinedRegion(both)], [z])
    assert all_seen.unseen == ""
    assert set(all_seen.lines) == set(both), "each accounts for some of the points"
    (part,) = compare(batch, [LinedRegion(single)], [z])
    assert "25%" in part.unseen
    (nothing,) = compare(batch, [LinedRegion(both)], [None])
    assert nothing.unseen == ""
    assert not nothing.lines


def test_only_lines_near_the_referees_points_answer_for_them() -> None:
    """The second mode holds most of p, the referee was in the first: lines say what p is where it looked."""
    batch = make(10, lambda x: torch.maximum(x[:, 0] - 4.0, 4 * (-x[:, 1] - 3.5)))
    both = rival_lines([line(10, axis(10), 4.0), line(10, axis(10, 1, -1.0), 3.5)])
    populate(batch, both, 32, 8, Rng(9))
    z = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
    z[:, 0] = 4.0 + 0.25 * torch.rand(64, generator=torch.Generator().manual_seed(8))
    region = LinedRegion(both)
    (look,) = compare(batch, [region], [z])
    assert look.unseen == ""
    assert look.lines == [both[0]]
    number, _ = region.evidence("lines", 0, look.unseen, look.lines)
    assert isinstance(number, Number)
    assert number.seen is not None
    sides = [float(stats.norm.logsf(4.0)), float(np.logaddexp(stats.norm.logsf(4.0), stats.norm.logsf(3.5)))]
    assert number.seen.log_prob == pytest.approx(sides[0], abs=5 * number.seen.std)
    assert number.log_prob == pytest.approx(sides[1], abs=5 * number.std)
    assert sides[1] - sides[0] > 5 * (number.std + number.seen.std), "they can be told apart"


def test_a_look_that_the_budget_does_not_reach_for_says_so() -> None:
    batch = make(10, lambda x: x[:, 0] - 4.0)
    one = line(10, axis(10), 4.0)
    populate(batch, [one], 16, 8, Rng(9))
    batch.spend.max_calls = int(batch.spend.calls()[0]) + 10
    z = torch.zeros(64, 10)
    z[:, 0] = 4.1
    (look,) = compare(batch, [LinedRegion([one])], [z])
    assert "budget" in look.unseen


def test_line_sampling_alone_never_claims_to_be_confirmed() -> None:
    problem = Problem(lambda x: x, lambda x, y: y[:, 0] - 5, Gaussian(torch.zeros(20), 1.0))
    result = estimate(problem, LineSampling())
    assert result.outcome is Outcome.VIOLATED
    assert result.log_prob == pytest.approx(stats.norm.logsf(5), abs=0.01)
    assert any("no independent method has confirmed" in note for note in result.notes)


def test_line_sampling_says_when_nothing_is_reached() -> None:
    problem = Problem(lambda x: x, lambda x, y: -1 - y[:, 0].square(), Gaussian(torch.zeros(20), 1.0))
    result = estimate(problem, LineSampling())
    assert result.outcome is Outcome.STALLED
    assert result.log_prob == -math.inf
    assert result.notes


def test_a_shell_has_more_directions_than_lines() -> None:
    problem = Problem(lambda x: x, lambda x, y: y.norm(dim=1) - 9, Gaussian(torch.zeros(20), 1.0))
    result = estimate(problem, LineSampling())
    assert result.outcome is Outcome.STALLED
    assert any("directions" in note for note in result.notes)
    assert result.calls < 5000, "a number that will not be believed is not worth its calls"


@pytest.mark.parametrize("above", [0.01, 0.5, 0.99])
def test_steps_do_not_hide_where_lines_enter(above: float) -> None:
    """With the slope of a curve through the steps: the score is `above` zero long after the entry, no root."""

    def steps(x: Tensor) -> Tensor:
        return 4 * x[:, 0] + (torch.floor(4 * x[:, 0]) - 4 * x[:, 0]).detach() - 16 + above

    batch, one = make(6, steps), line(6, axis(6), 4.2)
    populate(batch, [one], 16, 8, Rng(11))
    assert len(one.rounds) == 1
    if above == 0.01:
        assert one.stepped, "the first guess was past the entry, and nothing that follows from it is kept"
    # Roots lie in brackets of 0.03; what that is in log p follows from the hazard at 4.
    assert abs(one.log_mean - float(stats.norm.logsf(4.0))) < 4.3 * 0.015


@pytest.mark.parametrize("beyond", [3.6, 7.5])
@pytest.mark.parametrize("waves", [4, 8])
def test_where_known_violations_are_rough_only_lines_that_lead_to_more_are_drawn(waves: int, beyond: float) -> None:
    """A plane on the other side holds most of p, or next to nothing. Eight waves leave no direction that suits them."""

    def rough(x: Tensor) -> Tensor:
        return x[:, 0] + torch.sin(3 * x[:, 1 : 1 + waves]).sum(1) - waves - 2.5

    batch = make(20, lambda x: torch.maximum(rough(x), -x[:, 10] - beyond))
    z = torch.randn(400_000, 20, generator=torch.Generator().manual_seed(5))
    z[:, 0] += 4.0
    known = z[rough(z) >= 0][:300]
    run, held = LineSampling().lines(batch, [known], Rng(4), None, [-9.5]), []
    while not held:
        try:
            next(run)
        except StopIteration as done:
            held = done.value
    (region,) = held
    drawn = [float(-own.alpha[10]) for own in region.lines if own.rounds]
    curved, astray, said = region.curved, bool(region.astray), region.evidence("lines", 0)[0]  # short in messages
    assert curved
    assert astray == (waves == 8)
    assert int(batch.calls()[0]) < 20_000
    assert any(cosine > 0.99 for cosine in drawn) == (beyond == 3.6)
    if beyond == 3.6:
        assert isinstance(said, Number)
        assert "too many directions" in said.doubt
        assert said.log_prob >= stats.norm.logsf(3.6) - 0.2
        assert "where it has no violation" in foreign(region, -9.5, known)
    elif not drawn:
        assert isinstance(said, Searched)
