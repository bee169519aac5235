"""Tilted populations: moves that keep their law, and ratios of weighted states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rarely import Execution, Gaussian, LpBall, Problem, estimate
from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.methods import Tilting, rungs
from rarely.methods.ladder import bennett
from rarely.methods.rungs import Law, _exchange, raised, walk
from rarely.methods.tilted import TiltedRegion
from rarely.methods.tilting import _neighbours


def bent(x: Tensor) -> Tensor:
    """Neither the slope nor the curvature is the same anywhere, and half of the inputs violate."""
    return x[:, 0] + 0.4 * x[:, 1].square() - 0.7


def placed(populations: int) -> Batch:
    problem = Problem(lambda x: x, lambda x, y: bent(y), Gaussian(torch.zeros(2), 1.0))
    (batch,) = Execution(device="cpu").place([problem], Spend(1))
    return batch.take(torch.zeros(populations, dtype=torch.long))


def drawn(law: Law, chains: int, rng: Rng) -> Tensor:
    """Exact draws: normals kept as often as their density is of its largest."""
    z = rng.normal((400_000, 2), torch.float32)
    highest = float(law.b[0, 0] * law.soft[0, 0])
    kept = (
        rng.uniform((len(z),), torch.float64).log() < law.b[0, 0] * raised(bent(z).double(), law.soft[0, 0]) - highest
    )
    populations = len(law.b)
    return z[kept][: populations * chains].reshape(populations, chains, 2)


def deviation(broken: bool = False) -> float:
    """By how many standard errors the mean height of states changes in moves that start in equilibrium."""
    populations, chains, rng = 500, 8, Rng(0)
    b, soft = (torch.full((populations, 1), value, dtype=torch.float64) for value in (2.5, 0.8))
    law = Law(placed(populations), b, soft)
    z = drawn(law, chains, rng)
    start = law.at(z)
    walked = walk(law, start, torch.tensor([1.3]), 4, populations, rng, 0.0)
    height = raised(walked.scores, soft[0, 0])
    mean = (walked.shares * height).sum((1, 2)) / walked.shares.sum((1, 2))
    change = mean - raised(start.score, soft[0, 0]).mean(1)
    return float(change.mean() / (change.std() / math.sqrt(populations)))


def test_moves_keep_their_law() -> None:
    assert abs(deviation()) < 5


def test_moves_that_are_not_corrected_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would say of moves whose energy is counted wrongly."""
    monkeypatch.setattr(
        rungs, "_energy", lambda z, v: 0.3 * (z.double().square().sum(-1) + v.double().square().sum(-1))
    )
    assert abs(deviation()) > 8


def test_the_shares_of_a_move_are_those_of_one_state() -> None:
    law = Law(placed(3), *(torch.full((3, 1), value, dtype=torch.float64) for value in (1.0, 1.0)))
    rng = Rng(1)
    walked = walk(law, law.at(rng.normal((3, 5, 2), torch.float32)), torch.tensor([0.5]), 6, 3, rng, 0.5)
    assert torch.allclose(walked.shares.sum((1, 2)), torch.full((3,), 30.0, dtype=torch.float64))
    assert float(walked.shares.min()) >= 0
    assert walked.z.shape == (3, 30, 2)


def test_states_that_count_twice_are_two_states() -> None:
    g = torch.Generator().manual_seed(0)
    below, above = torch.randn(2, 40, generator=g), torch.randn(2, 30, generator=g) + 1
    twice = below[:, :7]
    counts = torch.zeros_like(below)
    counts[:, :7] = math.log(2)
    guess = torch.zeros(2)
    weighted = bennett(below, above, guess, (counts, torch.zeros_like(above)))
    assert torch.allclose(weighted, bennett(torch.cat([below, twice], 1), above, guess), atol=1e-5)


def test_what_it_needs_is_said() -> None:
    problem = Problem(lambda x: x, lambda x, y: y.sum(1) - 3, LpBall([0.01] * 200, 1.0, 2, clip=(0.0, 1.0)))
    with pytest.raises(InputError, match="normals"):
        estimate(problem, Tilting())
    with pytest.raises(InputError, match="replicates"):
        Tilting(replicates=1)
    with pytest.raises(InputError, match="target_error"):
        Tilting(target_error=0)


def test_populations_that_change_places_keep_their_laws() -> None:
    rng, chains = Rng(3, torch.device("cpu")), 4000
    laws = [Law(placed(2), torch.full((2, 1), b, dtype=torch.float64), torch.full((2, 1), 2.0)) for b in (0.5, 1.5)]
    law = Law(placed(4), *(torch.cat([getattr(one, name) for one in laws]) for name in ("b", "soft")))
    start = law.at(torch.cat([drawn(one, chains, rng) for one in laws]))
    fresh = law.at(torch.cat([drawn(one, chains, rng) for one in laws]))
    ((low, high), empty) = _neighbours([2], 2, rng.device)
    after = _exchange(law, start, low, high, rng)
    assert len(empty[0]) == 0
    assert 0.5 < float((after.z != start.z).any(-1).double().mean()) < 0.95
    assert torch.allclose(law.at(after.z).score, after.score)
    for of in (lambda at: raised(at.score, law.soft), lambda at: at.z[..., 1].square().double()):
        new, exact = of(after), of(fresh)
        error = ((new.var(1) + exact.var(1)) / chains).sqrt()
        assert bool(((new.mean(1) - exact.mean(1)).abs() < 5 * error).all())


def test_only_temperatures_of_one_problem_change_places() -> None:
    sets = _neighbours([3, 1, 2], 2, torch.device("cpu"))
    assert [(low.tolist(), high.tolist()) for low, high in sets] == [
        ([0, 1, 8, 9], [2, 3, 10, 11]),
        ([2, 3], [4, 5]),
    ]


@pytest.mark.parametrize(
    ("moves", "scatter", "rival", "going_on"),
    [
        (8, 2.7, 300_000.0, True),  # an error of 0.7 from chains too short to tell, and a rival that is no cheaper
        (24, 2.7, 300_000.0, False),  # now they tell
        (8, 2.7, 50_000.0, False),  # cheaper than tilting has ever been at this p
        (24, 0.45, 300_000.0, False),  # good enough
    ],
)
def test_short_chains_give_up_against_experience_only(moves: int, scatter: float, rival: float, going_on: bool) -> None:
    region = TiltedRegion(moves=moves, values=tuple(-39.0 + scatter * (k % 2 - 0.5) for k in range(16)))
    assert bool(Tilting()._more(region, 5_000 * moves, math.inf, rival)) == going_on
