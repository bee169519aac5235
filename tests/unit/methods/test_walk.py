"""The step loop: recorded and replayed steps are the steps, and are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rarely import Gaussian, Problem, Splitting, estimate
from rarely.core.execution import Execution
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.kernels import HMC, PCN, HitAndRun, Kernel, Langevin, RandomWalk
from rarely.methods import walk
from rarely.methods.walk import Walk

KERNELS = [PCN(), RandomWalk(), Langevin(), HMC(leaps=2), HitAndRun()]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record after a few steps, so that short runs replay."""
    monkeypatch.setattr(walk, "_RECORDED", 3)


def half_space() -> Problem:
    return Problem(torch.nn.Identity().eval(), lambda x, y: y.sum(1) / 2 - 3.0, Gaussian(torch.zeros(4), 1.0))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A recorder that works on a CPU: the step itself, which must therefore read and write the same tensors."""
    replays = [0]

    def record(step: Callable[[], None], *_: object) -> Callable[[], None]:
        def replay() -> None:
            replays[0] += 1
            step()

        return replay

    monkeypatch.setattr(walk, "record", record)
    return replays


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("keep", ["last", "all"])
def test_replayed_steps_give_the_same_bits(
    kernel: Kernel, keep: str, monkeypatch: pytest.MonkeyPatch, replayed: list[int]
) -> None:
    settings = Splitting(200, 0.1, 6 if keep == "last" else 1, kernel, islands=3, keep=keep)  # type: ignore[arg-type]
    recorded = estimate(half_space(), settings, device="cpu")
    assert replayed[0] > 5
    monkeypatch.setattr(walk, "record", lambda *_: None)
    plain = estimate(half_space(), settings, device="cpu")
    assert recorded.log_prob == plain.log_prob
    assert recorded.levels == plain.levels
    assert recorded.calls == plain.calls


def test_a_recorded_step_is_counted_when_replayed_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph does not run Python again: what one step costs is measured while it is recorded."""

    def record(step: Callable[[], None], *_: object) -> Callable[[], None]:
        step()
        return lambda: None

    monkeypatch.setattr(walk, "record", record)
    (batch,) = Execution(device="cpu").place([half_space()], spend := Spend(1))
    loop = Walk(PCN(), batch, True, Rng(0))
    state = PCN().init(batch, 50, Rng(1))
    loop.begin(state, torch.tensor([-10.0]))
    for steps in range(1, 7):
        loop.advance(1)
        assert int(spend.calls()[0]) == 50 * (1 + steps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_a_graph_gives_the_bits_of_the_steps_one_by_one(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Splitting(500, 0.1, 12, kernel, islands=3)
    recorded = estimate(half_space(), settings, device="cuda")
    monkeypatch.setattr(walk, "record", lambda *_: None)
    plain = estimate(half_space(), settings, device="cuda")
    assert (recorded.log_prob, recorded.calls) == (plain.log_prob, plain.calls)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_that_waits_for_the_host_runs_step_by_step() -> None:
    class Waits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(x.isfinite().all())

    problem = Problem(Waits().eval(), lambda x, y: y.sum(1) / 2 - 3.0, Gaussian(torch.zeros(4), 1.0))
    found = estimate(problem, Splitting(500, 0.1, 12, PCN(), islands=8), device="cuda")
    exact = float(torch.special.log_ndtr(torch.tensor(-3.0, dtype=torch.float64)))
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std


@pytest.mark.parametrize("steps", [4, "auto"])
def test_where_all_are_tied_at_a_level_of_the_papers_rule_nobody_is_replaced(steps: int | str) -> None:
    problem = Problem(torch.nn.Identity().eval(), lambda x, y: (y[:, 0] - 4).relu() - 1, Gaussian(torch.zeros(2), 1.0))
    found = estimate(problem, Splitting(50, 0.1, steps, islands=1, rule="paper", resample="killed"))  # type: ignore[arg-type]
    assert found.outcome.value == "stalled"
    assert found.calls == 50
