"""Rollouts of one's own functions: the trajectory by hand, gradients, every kind of part, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pushed_point import brake, drift
from torch import Tensor, nn

import rarely
from rarely import Box, Gaussian
from rarely.core.errors import InputError, NetworkError
from rarely.core.rng import Rng
from rarely.inputs import Fixed, Normal, OneHot, Tabular, Uniform
from rarely.systems import System, always, closed_loop, eventually, load_policy, signal

START = Gaussian([0.0, 0.0], 0.1)
WIND = Gaussian([0.0], 0.1)


def by_hand(x: np.ndarray[Any, Any], steps: int) -> np.ndarray[Any, Any]:
    """Places and speeds (steps + 1, 2) of one input of the pushed point."""
    place, speed, states = x[0], x[1], []
    for k in range(steps):
        states.append((place, speed))
        place, speed = place + 0.5 * speed, speed + 0.5 * (-0.4 * place - 0.8 * speed) + x[2 + k]
    return np.array([*states, (place, speed)])


def test_a_rollout_is_what_it_is_by_hand(pushed: System) -> None:
    x = pushed.inputs.sample(3, Rng(1))
    assert x.shape == (3, 12)
    signals = pushed.signals(x)
    assert pushed.names.all == ("place", "speed", "push", "wind")
    assert signals.shape == (3, 4, 11)
    for row in range(3):
        np.testing.assert_allclose(signals[row, :2].T, by_hand(x[row].double().numpy(), 10), atol=1e-6)
        np.testing.assert_allclose(signals[row, 3, :10], x[row, 2:])
    torch.testing.assert_close(signals[:, 2, :10], -0.4 * signals[:, 0, :10] - 0.8 * signals[:, 1, :10])
    assert torch.equal(signals[:, 2:, 10], signals[:, 2:, 9])  # no action follows the last state: they hold


def test_gradients_flow_through_every_step(pushed: System) -> None:
    problem = pushed.problem(always(signal("place") < 1))
    assert problem.adapted.differentiable
    x = pushed.inputs.sample(4, Rng(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(pushed.rollout(x)[:, 0, -1].sum(), x)
    assert (gradient[:, :11] != 0).all()  # the last wind comes too late to move the place
    assert (gradient[:, 11] == 0).all()


def test_numpy_parts_make_it_a_black_box(pushed: System) -> None:
    def moved(state: Any, action: Any, wind: Any) -> Any:
        return np.concatenate((state[:, :1] + 0.5 * state[:, 1:], state[:, 1:] + 0.5 * action + np.asarray(wind)), 1)

    box = closed_loop(
        moved, lambda s: np.asarray(-0.4 * s[:, :1] - 0.8 * s[:, 1:]), initial=START, disturbance=WIND, steps=10
    )
    problem = box.problem(always(signal("state 0") < 1))
    assert not problem.adapted.differentiable
    x = pushed.inputs.sample(5, Rng(2))
    torch.testing.assert_close(box.signals(x), pushed.signals(x))
    assert box.names.all == ("state 0", "state 1", "action", "disturbance")


def test_steps_of_tensors_are_followed_and_declared_boxes_are_not() -> None:
    def bang(state: Tensor) -> Tensor:
        return -torch.sign(state[:, :1])

    def declared(state: Tensor) -> Tensor:
        return brake(state)

    declared.differentiable = False  # type: ignore[attr-defined]
    assert _loop(policy=bang)().problem(always(signal("state 0") < 1)).adapted.differentiable
    assert not _loop(policy=declared)().problem(always(signal("state 0") < 1)).adapted.differentiable


class _Brake(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.tensor([[-0.4], [-0.8]], dtype=dtype))

    def forward(self, state: Tensor) -> Tensor:
        return state @ self.gains


class _Drift(nn.Module):
    def forward(self, state: Tensor, action: Tensor, wind: Tensor) -> Tensor:
        return drift(state, action, wind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modules_are_parts_too(pushed: System, dtype: torch.dtype) -> None:
    loop = closed_loop(_Drift().eval(), _Brake(dtype).eval(), initial=START, disturbance=WIND, steps=10)
    x = pushed.inputs.sample(5, Rng(3))
    signals = loop.signals(x)
    assert signals.dtype == dtype
    torch.testing.assert_close(signals, pushed.signals(x), check_dtype=False)
    problem = loop.problem(always(signal("state 0") < 1))
    assert problem.adapted.dtype == dtype
    moved = problem.adapted.placed(torch.device("cpu"), torch.float64)
    torch.testing.assert_close(moved.call(x.double()), signals, check_dtype=False)
    assert loop.rollout.policy.module.gains.dtype == dtype  # the user's module stays what it is


def test_a_policy_in_training_mode_is_told_and_left_so() -> None:
    policy = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
    with pytest.warns(UserWarning, match="training mode"):
        loop = closed_loop(drift, policy, initial=START, disturbance=WIND, steps=5)
    assert policy.training
    x = loop.inputs.sample(3, Rng(0))
    assert torch.equal(loop.signals(x), loop.signals(x))


def test_the_policy_sees_what_observe_gives_it() -> None:
    loop = closed_loop(
        lambda s, a, e: s + a, lambda seen: -seen, initial=[0.0], disturbance=Gaussian([0.0], 1.0), steps=4,
        observe=lambda s, e: s + e,
    )  # fmt: skip
    x = loop.inputs.sample(6, Rng(0))
    torch.testing.assert_close(loop.signals(x)[:, 0, 1:], -x)  # each step undoes the place and adds the error


def test_without_a_policy_only_the_world_moves() -> None:
    loop = closed_loop(lambda s, w: s + w, initial=[1.0, 2.0], disturbance=Gaussian([0.0, 0.0], 1.0), steps=3)
    assert loop.names.all == ("state 0", "state 1", "disturbance 0", "disturbance 1")
    x = loop.inputs.sample(2, Rng(0))
    torch.testing.assert_close(loop.signals(x)[:, :2, 3], torch.tensor([1.0, 2.0]) + x.reshape(2, 3, 2).sum(1))


def test_laws_may_differ_from_step_to_step() -> None:
    laws = [Gaussian([0.0], 1.0), Box([5.0], [6.0]), torch.distributions.Exponential(torch.ones(1))]
    loop = closed_loop(lambda s, w: w, initial=[0.0], disturbance=laws, steps=3)
    signals = loop.signals(loop.inputs.sample(500, Rng(0)))
    assert ((signals[:, 0, 2] >= 5) & (signals[:, 0, 2] <= 6)).all()
    assert (signals[:, 0, 3] >= 0).all()
    assert loop.inputs.normal_dim == 3


def test_a_system_may_be_random_in_its_first_state_alone() -> None:
    loop = closed_loop(lambda s: 2 * s, initial=Box([1.0], [2.0]), steps=3)
    x = torch.tensor([[1.5]])
    assert loop.signals(x).tolist() == [[[1.5, 3.0, 6.0, 12.0]]]


class _Coin:
    """A user's law without a center, a support and a map from normals."""

    event_shape = (1,)

    def sample(self, n: int) -> Tensor:
        return torch.rand(n, 1)

    def log_density(self, x: Tensor) -> Tensor:
        return torch.where((x >= 0) & (x <= 1), 0.0, -torch.inf).sum(-1)


def test_a_law_of_ones_own_will_do() -> None:
    loop = closed_loop(lambda s, w: s + w, initial=Box([0.0], [1.0]), disturbance=_Coin(), steps=3, states=["sum"])
    assert loop.inputs.normal_dim is None
    problem = loop.problem(always(signal("sum") < 3.0))
    found = rarely.estimate(problem, max_evaluations=4000, confidence=1 - 5.7e-7)  # five sigma
    assert math.log(1 / 24) in found.interval  # that four uniform numbers sum to 3 or more


def test_tables_name_signals() -> None:
    table = Tabular({"gust": Normal(0, 1), "kind": OneHot([0.5, 0.5], ["calm", "storm"]), "bias": Fixed(0.1)})
    loop = closed_loop(
        lambda s, w: s + w[:, :1], initial={"place": Uniform(0, 1), "load": Fixed(3)}, disturbance=table, steps=2
    )
    assert loop.names.states == ("place", "load")
    assert loop.names.disturbances == ("gust", "kind calm", "kind storm", "bias")
    assert closed_loop(lambda s, w: s + w, initial=[0.0], disturbance=Normal(0, 1), steps=2).names.disturbances == (
        "disturbance",
    )


def test_a_file_is_a_policy() -> None:
    from rarely.demo import assets

    path = assets() / "pendulum.onnx"
    loops = [
        closed_loop(
            lambda s, a, w: s + 0.01 * a + w, policy, initial=[0.1, 0.0], disturbance=Gaussian([0.0, 0.0], 0.1), steps=5
        )
        for policy in (path, rarely.load_network(path))
    ]
    x = loops[0].inputs.sample(3, Rng(0))
    assert all(torch.equal(loops[0].signals(x), loop.signals(x)) for loop in loops[1:])


def test_problems_of_one_system_share_their_rollouts(pushed: System) -> None:
    place = signal("place")
    problems = [pushed.problem(always(place < bound), f"{bound:g} m") for bound in (0.5, 0.7)]
    assert problems[0].network is problems[1].network
    found = rarely.estimate([*problems, pushed.problem(eventually(place > 1.0, 0, 5))], max_evaluations=4000)
    assert [e.name for e in found][:2] == ["0.5 m", "0.7 m"]
    assert found[0].log_prob > found[1].log_prob


def test_a_smooth_problem_is_the_same_problem(pushed: System) -> None:
    x = pushed.inputs.sample(50, Rng(4))
    formula = always(signal("place") < 0.3)
    assert torch.equal(pushed.problem(formula).score(x), pushed.problem(formula, temperature=0.1).score(x))


def _drawing(state: Tensor, action: Tensor, wind: Tensor) -> Tensor:
    return state + torch.randn_like(state)


def _loop(dynamics: Any = drift, policy: Any = brake, **changed: Any) -> Callable[[], System]:
    options: dict[str, Any] = {"initial": START, "disturbance": WIND, "steps": 10, **changed}
    return lambda: closed_loop(dynamics, policy, **options)


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        (_loop(_drawing), InputError, "gave two different trajectories"),
        (_loop(steps=0), InputError, "steps must be a whole number of at least 1"),
        (_loop(steps=2.5), InputError, "a whole number of at least 1, got 2.5"),
        (_loop(lambda s, a, w: s / (s - s)), NetworkError, r"makes the signal 'state 0' NaN or infinite after 1 step"),
        (_loop(step=0.0), InputError, "step must be a positive time"),
        (_loop(initial=[0.0, 0.0], disturbance=None), InputError, "nothing is random"),
        (_loop(disturbance=[WIND] * 3), InputError, "3 laws of disturbances for 10 steps"),
        (_loop(disturbance=[WIND] * 9 + [START]), InputError, r"\[1, 2\] numbers"),
        (_loop(states=["place"]), InputError, "1 names for 2 states: place"),
        (_loop(states=["a", "a"]), InputError, "'a' names more than one signal"),
        (_loop(states=["action", "b"]), InputError, "'action' names more than one signal"),
        (_loop(lambda s, a, w: s[:, :1]), NetworkError, r"dynamics turned states \(2, 2\) into \(2, 1\)"),
        (_loop(lambda s, a, w: s[:1]), NetworkError, r"dynamics turned a batch of 2 into \(1, 2\)"),
        (_loop(lambda s, a: s), NetworkError, "dynamics failed on its first call"),
        (_loop(policy=lambda s: s.sum()), NetworkError, r"policy turned a batch of 2 into \(\)"),
        (_loop(policy=3), InputError, "policy must be a torch module or a function of a batch, not int"),
        (_loop(observe=lambda s: s), NetworkError, "observe failed on its first call"),
        (_loop(initial="here"), InputError, "the input model str has no sample"),
        (_loop(policy="nowhere.onnx"), rarely.RarelyError, "nowhere.onnx"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(wrong: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        wrong()


def test_a_formula_of_unknown_signals_is_refused(pushed: System) -> None:
    with pytest.raises(InputError, match="speaks of 'height'; the signals are place, speed, push, wind"):
        pushed.problem(always(signal("height") > 0))
    with pytest.raises(InputError, match="looks 6 ahead, and a trajectory of 11 moments lasts 5"):
        pushed.problem(always(signal("place") > 0, 0, 6))


def test_pickled_policies_are_trusted_by_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "ppo.zip"
    with pytest.raises(InputError, match="say which algorithm"):
        load_policy(path)
    with pytest.raises(InputError, match="trust_pickle"):
        load_policy(path, "PPO")
    with pytest.raises(rarely.RarelyError, match="no such file"):
        load_policy(path, "PPO", trust_pickle=True)
