"""Dynamics and a policy, stepped together: a closed loop of one's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rarely.core.errors import InputError, NetworkError
from rarely.core.input_model import tensor
from rarely.core.network import Network, adapt_network
from rarely.core.rng import Rng
from rarely.systems.policies import load_policy
from rarely.systems.system import Drawn, System, drawn, named
from rarely.systems.trajectory import Names

_PROBE = 2  # rows of the first call of each part


def closed_loop(
    dynamics: Callable[..., Any],
    policy: Callable[[Any], Any] | str | Path | None = None,
    *,
    initial: Any,
    steps: int,
    disturbance: Any = None,
    observe: Callable[[Any, Any], Any] | None = None,
    step: float = 1.0,
    states: Sequence[str] = (),
    actions: Sequence[str] = (),
    disturbances: Sequence[str] = (),
) -> System:
    """A system of `dynamics(state, action, disturbance) -> state` and `policy(observation) -> action`.

    Both take batches: states (n, S), actions (n, A), disturbances (n, D). They are torch modules, functions of
    tensors, which keep gradients, or functions of numpy arrays, which make the loop a black box. What a system does not
    have is left out: without a policy, dynamics are `dynamics(state, disturbance)`. The policy sees the state, or
    `observe(state, disturbance)`; it may be the file of a network.

    `initial` is the law of the first state, or that state itself as numbers. `disturbance` is the law of one step, the
    same and independent for all of them, or a list of laws, one for each. A law is an input model, a torch
    distribution, or laws by name as in `Tabular`, which also name the signals.
    """
    fixed, law = _first(initial)
    laws = drawn(law, disturbance, steps)
    probe = laws.inputs.sample(_PROBE, Rng(0)).float()
    state, shocks = laws.parts(probe)
    state = fixed.float().expand(_PROBE, -1) if fixed is not None else state
    shock = shocks[:, 0] if laws.width else state.new_zeros(_PROBE, 0)
    seen, watcher = state, None
    if observe is not None:
        watcher, seen = _part(observe, _there(state, shock), "observe")
    controller, action = None, state.new_zeros(_PROBE, 0)
    if policy is not None:
        controller, action = _part(load_policy(policy) if isinstance(policy, str | Path) else policy, (seen,), "policy")
        action = action.reshape(_PROBE, -1).to(state)
    world, after = _part(dynamics, _there(state, action, shock), "dynamics")
    if after.shape != state.shape:
        raise NetworkError(
            f"dynamics turned states {tuple(state.shape)} into {tuple(after.shape)}; they must keep their shape"
        )
    first = laws.disturbances[0] if laws.disturbances else None
    names = Names(
        named(states, laws.initial, state.shape[1], "state"),
        named(actions, None, action.shape[1], "action"),
        named(disturbances, first, laws.width, "disturbance"),
    )
    return System(Rollout(laws, steps, fixed, world, controller, watcher), laws.inputs, names, laws.start, step)


class Rollout(nn.Module):
    """First states and disturbances (n, d) -> signals (n, K, steps + 1)."""

    fixed: Tensor | None

    def __init__(
        self,
        laws: Drawn,
        steps: int,
        fixed: Tensor | None,
        dynamics: Network,
        policy: Network | None,
        observe: Network | None,
    ) -> None:
        super().__init__()
        self.laws, self.steps = laws, steps
        self.dynamics, self.policy, self.observe = dynamics, policy, observe
        # Of numpy there are no gradients, and those of the rest of a step would be wrong.
        self.tracked = all(part.differentiable for part in (dynamics, policy, observe) if part is not None)
        # Registered so that they move with the rollout; the networks beside them hold the same objects.
        modules = [part.module for part in (dynamics, policy, observe) if part is not None]
        self.moved = nn.ModuleList([module for module in modules if module is not None])
        self.register_buffer("fixed", fixed, persistent=False)
        self.training = self.moved.training = False  # those of the modules are their own

    def forward(self, inputs: Tensor) -> Tensor:
        state, shocks = self.laws.parts(inputs if self.tracked else inputs.detach())
        if self.fixed is not None:
            state = self.fixed.to(inputs).expand(len(inputs), -1)
        nothing = state.new_zeros(len(state), 0)
        moments, action, shock = [], nothing, nothing
        for k in range(self.steps):
            shock = shocks[:, k] if self.laws.width else nothing
            if self.policy is not None:
                seen = state if self.observe is None else self.observe.call(torch.cat((state, shock), 1))
                action = self.policy.call(seen.to(state)).reshape(len(state), -1).to(state)
            moments.append(torch.cat((state, action, shock), 1))
            state = self.dynamics.call(torch.cat((state, action, shock), 1)).to(state)
        moments.append(torch.cat((state, action, shock), 1))
        return torch.stack(moments, 2)


class _Spread(nn.Module):
    """A module of several arguments as one of a row that holds them all."""

    def __init__(self, module: nn.Module, ends: Sequence[int]) -> None:
        super().__init__()
        self.module, self.ends, self.training = module, ends, False

    def forward(self, row: Tensor) -> Any:
        return self.module(*_cut(row, self.ends))


def _there(*parts: Tensor) -> list[Tensor]:
    """The parts that a system has: one without a policy has no actions."""
    return [part for part in parts if part.shape[1]]


def _part(function: Any, given: Sequence[Tensor], what: str) -> tuple[Network, Tensor]:
    """A user's module or function as a network of all its arguments side by side, and what it gives for these.

    The network is called differentiable where gradients can be followed through it, even if all are zero.
    """
    if not callable(function):
        raise InputError(f"{what} must be a torch module or a function of a batch, not {type(function).__name__}")
    ends = torch.tensor([part.shape[1] for part in given]).cumsum(0).tolist()
    whole: Any = function
    if len(given) > 1 and isinstance(function, nn.Module):
        whole = _Spread(function, ends)
    elif len(given) > 1:

        def whole(row: Any) -> Any:
            return function(*_cut(row, ends))

        whole.differentiable = getattr(function, "differentiable", True)
    try:
        network, made = adapt_network(whole, torch.cat(list(given), 1))
    except NetworkError as error:
        raise NetworkError(f"{what} failed on its first call: {error}") from error
    if made.ndim == 0 or len(made) != len(given[0]):
        raise NetworkError(
            f"{what} turned a batch of {len(given[0])} into {tuple(made.shape)}; its first dimension must be the batch"
        )
    # A step function of tensors has gradients that are zero, which is the truth; of arrays none are known.
    followed = network.differentiable or network.module is not None
    followed |= network.call is whole and getattr(whole, "differentiable", True)
    return replace(network, differentiable=followed), made


def _cut(row: Any, ends: Sequence[int]) -> list[Any]:
    """The arguments in a row, of a tensor or of an array."""
    return [row[:, begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _first(initial: Any) -> tuple[Tensor | None, Any]:
    """A known first state (1, S) and no law, or no state and its law."""
    numbers = isinstance(initial, Tensor | np.ndarray | int | float) or (
        isinstance(initial, Sequence) and all(isinstance(number, int | float) for number in initial)
    )
    if numbers:
        return tensor(initial, "initial").reshape(1, -1).to(torch.get_default_dtype()), None
    return None, initial
