"""Environments of gymnasium as systems: a first state and disturbances that act where the user says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import InputError, MissingExtra, NetworkError
from rarely.core.network import Network, adapt_network
from rarely.systems.policies import load_policy
from rarely.systems.stepping import Array, Hooks, Stepped, stepped
from rarely.systems.system import Drawn, System, drawn, named
from rarely.systems.trajectory import Names

ENDED = "ended"  # the signal that is 1 once an episode is over


def environment(
    make: str | Callable[[], Any],
    policy: Callable[[Any], Any] | str | Path,
    *,
    steps: int,
    initial: Any = None,
    start: Callable[[Any, Array], Any] | None = None,
    disturbance: Any = None,
    push: Callable[[Any, Array], None] | None = None,
    see: Callable[[Array, Array], Any] | None = None,
    act: Callable[[Any, Array], Any] | None = None,
    seed: int = 0,
    step: float = 1.0,
    observations: Sequence[str] = (),
    actions: Sequence[str] = (),
    disturbances: Sequence[str] = (),
) -> System:
    """A system of a gymnasium environment, by its id or a function that makes it, and a policy.

    Its signals are the observations, "ended", the actions and the disturbances; after the end of an episode they hold.
    What is random, and where it acts, is yours to say:

    * `initial` is the law of the first state, and `start(environment, state)` puts it into the environment that has
      just been reset, and returns the first observation;
    * `disturbance` is the law of one step, or a list of laws; `push(environment, disturbance)` changes the world before
      the step, `see(observation, disturbance)` what the policy sees, `act(action, disturbance)` what is done.

    What the environment draws by itself is the same in every rollout: each begins with a reset by `seed`. A vector
    environment takes a batch at once and its hooks get batches; of others some are stepped side by side. The policy
    gives actions, or for discrete actions a score for each, of which the largest wins.
    """
    laws = drawn(initial, disturbance, steps)
    _check_hooks(laws, start, (push, see, act))
    rollout = EnvironmentRollout(make, policy, laws, Hooks(start, see, act, push), seed, steps)
    first = laws.disturbances[0] if laws.disturbances else None
    names = Names(
        (*named(observations, None, rollout.stepped.width, "observation"), ENDED),
        named(actions, None, rollout.controller[1], "action"),
        named(disturbances, first, laws.width, "disturbance"),
    )
    return System(rollout, laws.inputs, names, laws.start, step, rollout.render if rollout.draws else None)


@dataclass(frozen=True, eq=False)
class EnvironmentRollout:
    """First states and disturbances (n, d) -> signals (n, K, steps + 1). A black box."""

    make: str | Callable[[], Any]
    policy: Callable[[Any], Any] | str | Path
    laws: Drawn
    hooks: Hooks
    seed: int
    steps: int
    differentiable: ClassVar[bool] = False

    @cached_property
    def stepped(self) -> Stepped:
        return stepped(_maker(self.make), self.hooks, self.seed)

    @cached_property
    def controller(self) -> tuple[Network, int]:
        """The policy, and how many numbers are one action."""
        policy = load_policy(self.policy) if isinstance(self.policy, str | Path) else self.policy
        with torch.no_grad():
            network, made = adapt_network(policy, torch.zeros(2, self.stepped.width))
        if made.ndim == 0 or len(made) != 2:
            raise NetworkError(
                f"the policy turned a batch of 2 into {tuple(made.shape)}; its first dimension must be the batch"
            )
        return network, self.stepped.actions(made.numpy()).reshape(2, -1).shape[1]

    def __call__(self, inputs: Tensor) -> Tensor:
        states, shocks = self.laws.parts(inputs.detach().cpu().double())
        size = self.stepped.at_once(len(inputs))
        rows = [
            self._rows(self.stepped, states[at : at + size].numpy(), shocks[at : at + size].numpy())
            for at in range(0, len(inputs), size)
        ]
        return torch.from_numpy(np.concatenate(rows)).to(inputs)

    @property
    def draws(self) -> bool:
        return isinstance(self.make, str) or self.stepped.draws

    def render(self, x: Tensor) -> Sequence[Array]:
        """Pictures of one rollout, from its first moment to the end of the episode."""
        alone = stepped(_maker(self.make, render=True), self.hooks, self.seed)
        state, shocks = self.laws.parts(x.detach().cpu().double().unsqueeze(0))
        pictures: list[Array] = []
        try:
            self._rows(alone, state.numpy(), shocks.numpy(), watch=lambda: pictures.append(alone.picture()))
        finally:
            alone.close()
        return pictures

    def _rows(self, world: Stepped, states: Array, shocks: Array, watch: Callable[[], object] = lambda: None) -> Array:
        """Signals (n, K, steps + 1) of as many rows as are stepped side by side."""
        policy = self.controller[0]
        seen, ended = world.begin(states), np.zeros(len(states), dtype=bool)
        nothing = np.zeros((len(states), 0))
        moments, action, shock = [], np.zeros((len(states), self.controller[1])), nothing
        watch()
        for k in range(self.steps):
            now = shocks[:, k] if self.laws.width else nothing
            with torch.no_grad():
                answer = policy.call(torch.from_numpy(world.noticed(seen, now)).to(policy.dtype)).cpu().numpy()
            wanted = world.actions(answer)
            # Once an episode is over its signals hold, and nothing more is done.
            held = ended[:, None]
            action = np.where(held, action, wanted.reshape(len(states), -1))
            shock = now if k == 0 else np.where(held, shock, now)
            moments.append(np.concatenate((seen, held, action, shock), 1))
            if not ended.all():
                after, over = world.step(wanted, now, ended)
                seen, ended = np.where(held, seen, after), ended | over
                watch()
        moments.append(np.concatenate((seen, ended[:, None], action, shock), 1))
        return np.stack(moments, 2)


def _maker(make: str | Callable[[], Any], render: bool = False) -> Callable[[], Any]:
    """How one environment is made. Only one that is named can be made again to be drawn."""
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("environments need gymnasium: pip install 'rarely[gymnasium]'") from error
    if not isinstance(make, str):
        return make
    try:
        gymnasium.spec(make)
    except gymnasium.error.Error as error:
        raise InputError(f"gymnasium knows no environment {make!r}: {error}") from error
    return partial(gymnasium.make, make, render_mode="rgb_array" if render else None)


def _check_hooks(laws: Drawn, start: object, acting: tuple[object, ...]) -> None:
    """Everything that is drawn must have somewhere to go, or its probability means nothing."""
    if (laws.initial is None) != (start is None):
        raise InputError(
            "a law of the first state needs `start`, which puts it into the environment and returns the observation, "
            "and `start` needs such a law"
        )
    if bool(laws.disturbances) != any(hook is not None for hook in acting):
        raise InputError(
            "a disturbance needs a hook where it acts (`push`, `see` or `act`), and a hook needs the disturbance's law"
        )
