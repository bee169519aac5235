"""Environments of gymnasium: plain and vector ones, every hook, episodes that end, pictures, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rarely
from rarely import Box, Gaussian
from rarely.core.errors import InputError, MissingExtra, NetworkError
from rarely.core.rng import Rng
from rarely.demo import assets
from rarely.systems import System, always, environment, eventually, signal

gym = pytest.importorskip("gymnasium")
NAMES = ["place", "speed", "angle", "spin"]
START = Box([-0.05] * 4, [0.05] * 4)
GUST = Gaussian([0.0], 0.2)
POLICY = assets() / "cart-pole.onnx"


def begin(env: Any, state: np.ndarray[Any, Any]) -> Any:
    env.unwrapped.state = state.copy()
    return state


def gust(env: Any, wind: np.ndarray[Any, Any]) -> None:
    env.unwrapped.state = np.asarray(env.unwrapped.state) + np.array([0, 0, 0, wind[0]])


def carts(**changed: Any) -> System:
    options: dict[str, Any] = {
        "make": "CartPole-v1", "policy": POLICY, "steps": 40, "initial": START, "start": begin, "disturbance": GUST,
        "push": gust, "step": 0.02, "observations": NAMES, "disturbances": ["gust"], **changed,
    }  # fmt: skip
    return environment(**options)


class Countdown(gym.Env):  # type: ignore[misc]
    """Ends after five steps; the place is what was done so far."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, **draws: Any) -> None:
        self.noise = draws.get("noise", 0.0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.left = 0.0, 5
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.place, self.left = self.place + float(action[0]), self.left - 1
        self.place += self.noise * float(np.random.default_rng().normal())
        return self.seen(), 0.0, self.left == 0, False, {}

    def seen(self) -> Any:
        return np.array([self.place], dtype=np.float32)


def test_a_rollout_is_what_gymnasium_does() -> None:
    system = carts()
    assert system.names.all == (*NAMES, "ended", "action", "gust")
    x = system.inputs.sample(40, Rng(0))  # more rows than are stepped side by side
    signals = system.signals(x)
    policy = rarely.load_network(POLICY)
    for row in (0, 35, 39):
        env = gym.make("CartPole-v1")
        env.reset(seed=0)
        seen = begin(env, x[row, :4].double().numpy())
        for k in range(40):
            np.testing.assert_allclose(signals[row, :4, k], seen, atol=1e-5)
            action = int(policy(torch.from_numpy(np.asarray(seen, dtype=np.float32))[None])[0].argmax())
            assert signals[row, 5, k] == action
            gust(env, x[row, 4 + k : 5 + k].double().numpy())
            seen, _, over, _, _ = env.step(action)
            assert bool(signals[row, 4, k + 1]) == over
            if over:
                break


def test_a_vector_environment_gives_the_same_in_batches() -> None:
    def begin_all(env: Any, states: Any) -> Any:
        env.state, env.prev_done = states.T.copy(), np.zeros(len(states), dtype=bool)
        return states

    def gust_all(env: Any, winds: Any) -> None:
        env.state[3] += winds[:, 0]

    def make() -> Any:
        return gym.make_vec("CartPole-v1", num_envs=16, vectorization_mode="vector_entry_point")

    plain, many = carts(), carts(make=make, start=begin_all, push=gust_all)
    x = plain.inputs.sample(37, Rng(1))
    torch.testing.assert_close(many.signals(x), plain.signals(x), atol=1e-4, rtol=1e-4)
    found = rarely.estimate(many.problem(always(abs(signal("angle")) < 0.2)), max_evaluations=1500)
    assert found.evaluations <= 1500
    with pytest.raises(InputError, match="begins each of its rows elsewhere"):
        carts(make=make, initial=None, start=None, push=gust_all)


def test_after_the_end_signals_hold() -> None:
    system = environment(
        Countdown, lambda seen: 0.5 + 0 * seen, steps=8, disturbance=Gaussian([0.0], 0.1),
        act=lambda action, error: action + error,
    )  # fmt: skip
    x = torch.arange(8.0).unsqueeze(0) / 100
    signals = system.signals(x)[0]
    expected = np.concatenate(([0.0], np.cumsum(0.5 + x[0, :5].numpy()), [2.6] * 3))
    np.testing.assert_allclose(signals[0], expected, atol=1e-6)
    assert signals[1].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    torch.testing.assert_close(signals[3], torch.tensor([0, 1, 2, 3, 4, 4, 4, 4, 4]) / 100)
    late = system.replay(x[0], eventually(signal("observation") > 2.59, 5, 8))
    assert late.robustness == pytest.approx(0.01, abs=1e-5)


def test_disturbances_act_on_what_the_policy_sees() -> None:
    system = environment(
        Countdown, lambda seen: -seen, steps=3, disturbance=Gaussian([0.0], 0.1), see=lambda place, error: place + error
    )
    x = torch.tensor([[0.1, 0.2, 0.3]])
    torch.testing.assert_close(system.signals(x)[0, 0], torch.tensor([0.0, -0.1, -0.2, -0.3]))


def test_actions_keep_to_their_space() -> None:
    system = environment(
        Countdown, lambda seen: 7 + 0 * seen, steps=2, disturbance=Gaussian([0.0], 0.1), see=lambda seen, e: seen + e
    )
    assert system.signals(torch.zeros(1, 2))[0, 0].tolist() == [0, 1, 2]
    numbers = carts(policy=lambda seen: (seen[:, 2] > 0).astype(np.int64))  # actions themselves, not scores of them
    assert set(numbers.signals(numbers.inputs.sample(5, Rng(0)))[:, 5].flatten().tolist()) == {0.0, 1.0}


def test_a_witness_is_replayed_and_drawn() -> None:
    pytest.importorskip("pygame")
    system, formula = carts(disturbance=Gaussian([0.0], 0.5)), always(abs(signal("angle")) < 0.2)
    found = rarely.estimate(system.problem(formula), max_evaluations=400)
    trajectory = system.replay(found.witnesses.inputs[0], formula, pictures=True)
    assert trajectory.robustness <= 0
    ended = int((trajectory["ended"] == 0).sum())
    assert len(trajectory.pictures) == min(41, ended + 1)
    assert all(picture.ndim == 3 and picture.shape[2] == 3 for picture in trajectory.pictures)
    assert len(trajectory.film(pictures=4).axes) == 4


def test_an_environment_that_draws_by_itself_is_refused() -> None:
    with pytest.raises(InputError, match="gave two different trajectories"):
        environment(
            lambda: Countdown(noise=1.0), lambda seen: seen, steps=3, disturbance=GUST, see=lambda seen, e: seen + e
        )


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        (lambda: carts(make="CartPole-v99"), InputError, "gymnasium knows no environment"),
        (lambda: carts(make=lambda: 3), InputError, "has reset and step"),
        (lambda: carts(make="FrozenLake-v1"), InputError, "must be arrays of numbers"),
        (lambda: carts(start=None), InputError, "needs `start`"),
        (lambda: carts(initial=None), InputError, "needs such a law"),
        (lambda: carts(push=None), InputError, "needs a hook where it acts"),
        (lambda: carts(disturbance=None), InputError, "a hook needs the disturbance's law"),
        (lambda: carts(start=lambda env, state: None), InputError, "must return the first observation"),
        (lambda: carts(policy=lambda seen: np.zeros((len(seen), 3))), InputError, "3 scores, and there are 2 actions"),
        (lambda: carts(policy=lambda seen: seen.sum()), NetworkError, r"turned a batch of 2 into \(\)"),
        (lambda: carts(observations=["place"]), InputError, "1 names for 4 observations"),
        (lambda: carts(steps=0), InputError, "steps must be a whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_said(wrong: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        wrong()


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"pip install 'rarely\[gymnasium\]'"):
        carts()


def test_without_stable_baselines_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "stable_baselines3", None)
    path = tmp_path / "ppo.zip"
    path.write_bytes(b"")
    with pytest.raises(MissingExtra, match=r"pip install 'rarely\[policies\]'"):
        rarely.systems.load_policy(path, "PPO", trust_pickle=True)
