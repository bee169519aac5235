"""What every kernel promises: started from exact draws of p(x | score > level), it leaves that law as it is.

Exact draws come from rejection, which needs nothing but the input model. A wrong kernel must fail: the last tests take
the Hastings and the Metropolis correction away and ask that the same check notices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats
from torch import Tensor

import rarely.kernels.langevin
import rarely.kernels.pcn
import rarely.kernels.random_walk
from rarely import Box, Execution, Gaussian, LpBall, Mixture, Problem, TruncatedGaussian
from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.inputs import Product, Tokens
from rarely.kernels import HMC, PCN, HitAndRun, Kernel, Langevin, RandomWalk, Redraw, State
from rarely.methods.moves import chains, move
from rarely.methods.walk import Walk

FIVE_SIGMA = 5.7e-7
CHAINS, STEPS = 20_000, 30


@dataclass(frozen=True)
class Target:
    inputs: object
    score: Callable[[Tensor, Tensor], Tensor]
    level: float

    def batch(self, problems: int = 1) -> Batch:
        problem = Problem(lambda x: x.flatten(1), self.score, self.inputs)
        return next(Execution(device="cpu").place([problem] * problems, Spend(problems)))


def _first(x: Tensor, y: Tensor) -> Tensor:
    return y[:, 0]


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return y.sum(1)


def _corner(x: Tensor, y: Tensor) -> Tensor:
    return y.amin(1) - 1


class TwoExponentials:
    def sample(self, n: int) -> Tensor:
        return torch.distributions.Exponential(1.0).sample((n, 2))

    def log_density(self, x: Tensor) -> Tensor:
        return torch.where((x >= 0).all(1), -x.sum(1), -torch.inf)


TARGETS: dict[str, Target] = {
    "half-space of a gaussian": Target(Gaussian(torch.zeros(3), torch.tensor([1.0, 1.0, 0.2])), _first, 1.5),
    "correlated gaussian": Target(Gaussian([0.0, 0.0], covariance=[[1.0, 0.8], [0.8, 1.0]]), _first, 1.0),
    "corner of a box": Target(Box(torch.zeros(2), torch.ones(2)), _corner, -0.3),
    "linear score in a box": Target(Box(torch.zeros(2), torch.tensor([1.0, 1.0])), _sum, 1.5),
    "box with a fixed coordinate": Target(Box([0.0, 0.0, 2.0], [1.0, 1.0, 2.0]), _sum, 3.5),
    "two regions": Target(Box([-1.0, -1.0], [1.0, 1.0]), lambda x, y: y[:, 0].abs() + 0.1 * y[:, 1], 0.8),
    "truncated gaussian": Target(TruncatedGaussian([0.0, 0.0], 1.0, [-1.0, 0.5], [1.0, 3.0]), _sum, 2.0),
    "l2 ball": Target(LpBall(torch.zeros(3), 1.0, 2), _first, 0.4),
    "l1 ball": Target(LpBall(torch.zeros(3), 1.0, 1), _first, 0.3),
    "mixture": Target(Mixture([Gaussian([0.0, 0.0], 1.0), Gaussian([2.0, 0.0], 0.5)], [0.7, 0.3]), _first, 1.5),
}
INPUT_TARGETS: dict[str, Target] = {
    "cut l2 ball": Target(LpBall([0.0, 0.5], 0.4, 2, clip=(0.0, 1.0)), _first, 0.15),
    "cut l1 ball": Target(LpBall([0.0, 0.5], 0.4, 1, clip=(0.0, 1.0)), _first, 0.1),
    "torch distribution": Target(torch.distributions.Normal(torch.zeros(2), 1.0), _first, 1.0),
    "user's object": Target(TwoExponentials(), _sum, 3.0),
}
KERNELS: dict[str, Kernel] = {
    "random walk, uniform": RandomWalk(radius=0.2),
    "random walk, gaussian": RandomWalk("gaussian", radius=0.3),
    "pcn": PCN(),
    "langevin": Langevin(),
    "hmc": HMC(),
    "hit and run": HitAndRun(),
    "redraw": Redraw(space="normal"),
}
DICE = Tokens([[1.0] * 12, [3.0, 2.0, 1.0] * 3, {1: 5.0, 4: 1.0, 6: 2.0, 7: 2.0}, [0.5, 0.2, 0.3]])


class Draws:
    """A user's object: a number and the number of coins that fall on heads, one part each."""

    event_shape, parts = (2,), 2

    def sample(self, n: int) -> Tensor:
        return torch.stack([torch.randn(n), torch.randint(0, 5, (n,)).float()], 1)

    def log_density(self, x: Tensor) -> Tensor:
        return -0.5 * x[:, 0].square()

    def redraw(self, x: Tensor, chosen: Tensor) -> Tensor:
        return torch.where(chosen, self.sample(len(x)), x)


PART_TARGETS: dict[str, Target] = {
    "dice": Target(DICE, _sum, 19.5),
    "mixture of dice": Target(Mixture([DICE, Tokens([1.0, 2.0, 7.0] * 3, 4)], [0.6, 0.4]), _sum, 19.5),
    "user's parts": Target(Draws(), _sum, 3.2),
    "words beside numbers": Target(
        Product([Tokens([0.6, 0.3, 0.1], 2), TwoExponentials(), *[Box([0.0], [2.0])] * 2, Draws()]), _sum, 7.0
    ),
}
PAIRS = [
    pytest.param(kernel, target, id=f"{k}: {t}")
    for k, kernel in KERNELS.items()
    for t, target in {**TARGETS, **(INPUT_TARGETS if kernel.space == "input" else {})}.items()
] + [pytest.param(Redraw(), target, id=f"redraw: {t}") for t, target in PART_TARGETS.items()]


def exact(kernel: Kernel, batch: Batch, level: float, count: int, rng: Rng) -> State:
    """A state of `count` chains drawn from p(x | score > level) by rejection, as the kernel would make it."""
    kept: list[State] = []
    have = 0
    while have < count:
        state = kernel.init(batch, 100_000, rng)
        index = (state.score[0] > level).nonzero().squeeze(1).unsqueeze(0)
        kept.append(state.clone(index))
        have += index.shape[1]
    return State.join(kept).clone(torch.arange(count).unsqueeze(0))


def _inputs(kernel: Kernel, batch: Batch, state: State) -> Tensor:
    x = batch.inputs.from_normal(state.position) if kernel.space == "normal" else state.position
    return x.flatten(2)[0].float()


def assert_same_law(kernel: Kernel, batch: Batch, state: State, reference: State) -> None:
    """Kolmogorov-Smirnov at 5 sigma on the score, every coordinate, and the length and product of coordinates."""
    x, y = _inputs(kernel, batch, state).double(), _inputs(kernel, batch, reference).double()
    looks = {"score": (state.score[0], reference.score[0]), "length": (x.norm(dim=1), y.norm(dim=1))}
    looks["product"] = (x.prod(1), y.prod(1))
    looks |= {f"coordinate {k}": (x[:, k], y[:, k]) for k in range(x.shape[1]) if y[:, k].std() > 0}
    for name, (a, b) in looks.items():
        result = stats.ks_2samp(a.numpy(), b.numpy(), method="asymp")
        assert result.pvalue > FIVE_SIGMA, (name, result)


def check_invariance(kernel: Kernel, target: Target, steps: int = STEPS) -> None:
    batch, rng = target.batch(), Rng(5)
    level = torch.tensor([target.level])
    start = exact(kernel, batch, target.level, CHAINS, rng)
    reference = exact(kernel, batch, target.level, 4 * CHAINS, rng)
    moved = move(Walk(kernel, batch, True, rng), start.copy(), level, steps, steps)
    assert (moved.state.score > target.level).all()
    assert 0.02 < float(moved.acceptance[0]) <= 1
    assert (moved.state.position != start.position).any(-1).double().mean() > 0.9, "hardly any chain has moved"
    assert_same_law(kernel, batch, moved.state, reference)
    torch.testing.assert_close(
        moved.state.score, target.batch().score(_inputs(kernel, batch, moved.state).unsqueeze(0)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("kernel", "target"), PAIRS)
def test_the_law_above_a_level_stays(kernel: Kernel, target: Target) -> None:
    check_invariance(kernel, target)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_every_state_of_a_chain_has_the_law(kernel: Kernel) -> None:
    """keep="all": 2000 chains of 10 states. States of a chain depend on each other, so each time is looked at alone."""
    target = TARGETS["linear score in a box"]
    batch, rng = target.batch(), Rng(6)
    n, length = 5000, 10
    start = exact(kernel, batch, target.level, n, rng)
    reference = exact(kernel, batch, target.level, 50_000, rng)
    moved = chains(Walk(kernel, batch, True, rng), start, torch.tensor([target.level]), length, 1)
    assert moved.state.score.shape == (1, n * length)
    for k in (0, 4, 9):
        one = moved.state.clone(torch.arange(k * n, (k + 1) * n).unsqueeze(0))
        assert_same_law(kernel, batch, one, reference)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_the_first_draws_have_the_law_of_the_inputs(kernel: Kernel) -> None:
    target = TARGETS["half-space of a gaussian"]
    batch = target.batch()
    state = kernel.init(batch, CHAINS, Rng(7))
    assert stats.kstest(state.score[0].double().numpy(), stats.norm.cdf).pvalue > FIVE_SIGMA
    calls = int(batch.spend.calls()[0])
    kernel.step(batch, state, torch.full((1, 1), -torch.inf), True, Rng(8))
    assert int(batch.spend.calls()[0]) - calls == CHAINS * kernel.cost


@pytest.mark.parametrize(
    "kernel", [PCN(scale=0.01), PCN(scale=1.0), Langevin(scale=0.02), HMC(scale=0.01, leaps=2)], ids=str
)
def test_acceptance_adapts_to_its_target(kernel: PCN | Langevin | HMC) -> None:
    target = TARGETS["half-space of a gaussian"]
    batch, rng = target.batch(), Rng(9)
    state = exact(kernel, batch, target.level, 4000, rng)
    level = torch.tensor([target.level])
    state = move(Walk(kernel, batch, True, rng), state, level, 120, 120).state
    late = move(Walk(kernel, batch, True, rng), state, level, 20, 20).acceptance
    # One step has a binomial error of 0.8 % over 4000 chains, which the adaptation turns into wobble, not bias.
    assert float(late) == pytest.approx(kernel.target, abs=0.05)


@pytest.mark.parametrize("proposal", ["uniform", "gaussian"])
def test_a_random_walk_halves_and_grows_its_radii_as_the_paper_says(proposal: str) -> None:
    kernel = RandomWalk(proposal, radius=0.4)  # type: ignore[arg-type]
    state = kernel.init(TARGETS["corner of a box"].batch(), 4, Rng(0))
    adapted = kernel.adapt(state, torch.tensor([[0.0, 0.2339, 0.2341, 1.0]]))
    torch.testing.assert_close(adapted.scale, torch.tensor([[0.2, 0.2, 0.408, 0.408]]))
    torch.testing.assert_close(adapted.clone(torch.tensor([[3, 0]])).scale, torch.tensor([[0.408, 0.2]]))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_problems_of_a_batch_do_not_touch_each_other(kernel: Kernel) -> None:
    """Two problems with their own levels: each keeps its own law."""
    target = TARGETS["linear score in a box"]
    two, rng = target.batch(2), Rng(10)
    one = target.batch()
    low, high = exact(kernel, one, 0.8, 10_000, rng), exact(kernel, one, 1.6, 10_000, rng)
    fields = {f: getattr(low, f) for f in low.__dataclass_fields__}
    both = replace(low, **{f: torch.cat([v, getattr(high, f)]) for f, v in fields.items() if isinstance(v, Tensor)})
    moved = move(Walk(kernel, two, True, rng), both, torch.tensor([0.8, 1.6]), 10, 10).state
    for row, level in enumerate((0.8, 1.6)):
        reference = exact(kernel, one, level, 40_000, rng)
        assert_same_law(kernel, one, moved.rows(torch.tensor([row])), reference)


@pytest.mark.parametrize("proposal", ["uniform", "gaussian"])
@pytest.mark.parametrize("name", ["corner of a box", "linear score in a box"])
def test_a_walk_without_its_hastings_correction_fails(
    proposal: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("_uniform_length", "_gaussian_mass"):
        monkeypatch.setattr(rarely.kernels.random_walk, function, lambda x, *_: torch.ones_like(x))
    with pytest.raises(AssertionError, match="pvalue"):
        check_invariance(RandomWalk(proposal), TARGETS[name])  # type: ignore[arg-type]


class Loaded(Draws):
    """Draws parts from another law than its own."""

    def redraw(self, x: Tensor, chosen: Tensor) -> Tensor:
        return torch.where(chosen, self.sample(len(x)) * torch.tensor([1.2, 1.0]), x)


@dataclass(frozen=True)
class Greedy(Redraw):
    """Chooses the parts by what they are."""

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        often = torch.where(state.position > 5, 0.2, 0.8)
        chosen = rng.uniform(state.position.shape) < often
        y = batch.inputs.redraw(state.position, chosen, rng)  # type: ignore[attr-defined]
        score = batch.score(y)
        ok = score > level
        return state.accept(State(y, score, state.scale), ok), ok


@pytest.mark.parametrize(
    ("kernel", "target"),
    [(Redraw(), Target(Loaded(), _sum, 3.2)), (Greedy(), PART_TARGETS["dice"])],
    ids=["another law", "chosen by what they are"],
)
def test_parts_drawn_from_another_law_or_chosen_by_what_they_are_fail(kernel: Kernel, target: Target) -> None:
    with pytest.raises(AssertionError, match="pvalue"):
        check_invariance(kernel, target)


def test_langevin_without_its_metropolis_ratio_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rarely.kernels.langevin, "_tilt", lambda push, noise: push.new_zeros(push.shape[:-1]))
    with pytest.raises(AssertionError, match="pvalue"):
        check_invariance(Langevin(), TARGETS["half-space of a gaussian"])


CUT = Target(LpBall([0.05, 0.97, 0.9], 0.3, 2, clip=(0.0, 1.0)), _first, 0.1)  # keeps a quarter of its normals


@pytest.mark.parametrize("kernel", [PCN(), Langevin(), HMC(), HitAndRun()], ids=lambda kernel: type(kernel).__name__)
def test_the_law_stays_where_some_normals_are_kept(kernel: Kernel) -> None:
    check_invariance(kernel, CUT, steps=10)


def test_pcn_without_the_chances_of_normals_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rarely.kernels.pcn, "allowed", lambda batch, old, new, ok, rng: ok)
    with pytest.raises(AssertionError, match="pvalue"):
        check_invariance(PCN(), CUT, steps=10)
