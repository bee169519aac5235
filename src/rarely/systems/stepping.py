"""Environments stepped side by side: several plain ones, or one vector environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rarely.core.errors import InputError, MissingExtra

Array = NDArray[Any]
_PLAIN = 32  # plain environments side by side: the policy sees them as one batch


@dataclass(frozen=True)
class Hooks:
    """Where what is drawn acts; see `environment`."""

    start: Callable[[Any, Array], Any] | None
    see: Callable[[Array, Array], Any] | None
    act: Callable[[Any, Array], Any] | None
    push: Callable[[Any, Array], None] | None


class Stepped(Protocol):
    """n rows, each in an environment of its own, observations as rows of numbers."""

    width: int  # numbers of an observation
    draws: bool

    def at_once(self, rows: int) -> int:
        """How many of so many rows to take together."""
        ...

    def begin(self, states: Array) -> Array:
        """Reset, and put first states (n, S) there: observations (n, O)."""
        ...

    def noticed(self, observations: Array, shocks: Array) -> Array:
        """What the policy sees of observations (n, O) under disturbances (n, D)."""
        ...

    def actions(self, answers: Array) -> Array:
        """What a policy says, as actions of the environments, (n, ...)."""
        ...

    def step(self, actions: Array, shocks: Array, ended: Array) -> tuple[Array, Array]:
        """The next observations (n, O) and which episodes are over (n,); those that are `ended` stand still."""
        ...

    def picture(self) -> Array:
        """The first row's environment, drawn."""
        ...

    def close(self) -> None: ...


def stepped(make: Callable[[], Any], hooks: Hooks, seed: int) -> Stepped:
    """What steps environments of this kind."""
    first = make()
    if hasattr(first, "single_action_space"):
        return _Vector(first, hooks, seed)
    return _Each(make, first, hooks, seed)


class _Each:
    """Plain environments, each called in turn."""

    def __init__(self, make: Callable[[], Any], first: Any, hooks: Hooks, seed: int) -> None:
        if not callable(getattr(first, "reset", None)) or not callable(getattr(first, "step", None)):
            raise InputError(
                f"an environment has reset and step, as gymnasium has them; {type(first).__name__} has not"
            )
        self.make, self.environments, self.hooks, self.seed = make, [first], hooks, seed
        self.draws = getattr(first, "render_mode", None) == "rgb_array"
        self.width = _width(first.observation_space)

    def at_once(self, rows: int) -> int:
        return min(rows, _PLAIN)

    def begin(self, states: Array) -> Array:
        while len(self.environments) < len(states):
            self.environments.append(self.make())
        seen = []
        for environment, state in zip(self.environments, states, strict=False):
            observation, _ = environment.reset(seed=self.seed)
            if self.hooks.start is not None:
                observation = _given(self.hooks.start(environment, state))
            seen.append(np.ravel(observation))
        return np.stack(seen).astype(np.float64)

    def noticed(self, observations: Array, shocks: Array) -> Array:
        if self.hooks.see is None:
            return observations
        return np.stack([np.ravel(self.hooks.see(*row)) for row in zip(observations, shocks, strict=True)])

    def actions(self, answers: Array) -> Array:
        return _actions(answers, self.environments[0].action_space)

    def step(self, actions: Array, shocks: Array, ended: Array) -> tuple[Array, Array]:
        after, over = np.zeros((len(ended), self.width)), ended.copy()
        for i in np.flatnonzero(~ended):
            if self.hooks.push is not None:
                self.hooks.push(self.environments[i], shocks[i])
            action = actions[i] if self.hooks.act is None else self.hooks.act(actions[i], shocks[i])
            observation, _, terminated, truncated, _ = self.environments[i].step(action)
            after[i], over[i] = np.ravel(observation), terminated or truncated
        return after, over

    def picture(self) -> Array:
        try:
            drawn = self.environments[0].render()
        except ImportError as error:
            raise MissingExtra(f"the environment cannot be drawn: {error}") from error
        return np.asarray(drawn)

    def close(self) -> None:
        for environment in self.environments:
            environment.close()


class _Vector:
    """A vector environment, whose hooks get all rows at once."""

    draws = False

    def __init__(self, environment: Any, hooks: Hooks, seed: int) -> None:
        self.environment, self.hooks, self.seed = environment, hooks, seed
        self.width, self.size = _width(environment.single_observation_space), int(environment.num_envs)
        if hooks.start is None:
            raise InputError(
                "a vector environment begins each of its rows elsewhere; give `initial` and `start`, so that a "
                "trajectory depends on its input alone"
            )
        if str(getattr(environment.metadata.get("autoreset_mode"), "value", "")) == "SameStep":
            raise InputError(
                "this vector environment hides the last observation of an episode; use AutoresetMode.NEXT_STEP"
            )

    def at_once(self, rows: int) -> int:
        return self.size

    def begin(self, states: Array) -> Array:
        assert self.hooks.start is not None
        self.environment.reset(seed=self.seed)
        return self._rows(_given(self.hooks.start(self.environment, self._filled(states))), len(states))

    def noticed(self, observations: Array, shocks: Array) -> Array:
        if self.hooks.see is None:
            return observations
        return self._rows(self.hooks.see(observations, shocks), len(observations))

    def actions(self, answers: Array) -> Array:
        return _actions(answers, self.environment.single_action_space)

    def step(self, actions: Array, shocks: Array, ended: Array) -> tuple[Array, Array]:
        shocks, n = self._filled(shocks), len(actions)
        if self.hooks.push is not None:
            self.hooks.push(self.environment, shocks)
        actions = self._filled(actions)
        done = actions if self.hooks.act is None else self.hooks.act(actions, shocks)
        observations, _, terminated, truncated, _ = self.environment.step(done)
        return self._rows(observations, n), (np.asarray(terminated) | np.asarray(truncated))[:n]

    def picture(self) -> Array:
        raise InputError("a vector environment is not drawn; make a plain one with the same hooks for that")

    def close(self) -> None:
        self.environment.close()

    def _filled(self, rows: Array) -> Array:
        """As many rows as there are environments; what is left over does what the last row does."""
        return np.concatenate((rows, rows[-1:].repeat(self.size - len(rows), 0)))

    def _rows(self, observations: Any, n: int) -> Array:
        return np.asarray(observations, dtype=np.float64).reshape(-1, self.width)[:n]


def _width(space: Any) -> int:
    if not hasattr(space, "low") or not space.shape:
        raise InputError(
            f"observations must be arrays of numbers, and these are {type(space).__name__}; wrap the environment in "
            "gymnasium.wrappers.FlattenObservation"
        )
    return int(np.prod(space.shape))


def _actions(answers: Array, space: Any) -> Array:
    """Rows of what a policy says as actions: the best of discrete ones, or numbers within their bounds."""
    if hasattr(space, "n"):
        if answers.ndim > 1 and answers.shape[1] > 1:
            if answers.shape[1] != space.n:
                raise InputError(f"the policy gives {answers.shape[1]} scores, and there are {space.n} actions")
            return np.asarray(answers.argmax(1) + space.start)
        return answers.reshape(len(answers)).round().astype(np.int64)
    if not hasattr(space, "low"):
        raise InputError(f"actions must be discrete or arrays of numbers, not {type(space).__name__}")
    try:
        shaped = answers.reshape(len(answers), *space.shape)
    except ValueError as error:
        raise InputError(f"the policy gives {answers.shape[1:]} for one action of shape {space.shape}") from error
    return np.clip(shaped, space.low, space.high).astype(space.dtype)


def _given(observation: Any) -> Any:
    if observation is None:
        raise InputError("`start` returned nothing; it must return the first observation")
    return observation
