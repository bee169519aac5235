"""The step loop of a level: one step after another, recorded once and replayed where the device can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.execution import record
from rarely.core.rng import Rng
from rarely.kernels.base import Kernel, State

_FIRST = 16  # steps taken one by one before one is recorded: recording costs as much as some ten of them


class Walk:
    """Repeated steps of one kernel on one batch.

    On a GPU a step is some thirty kernels, which take longer to launch than a small network to run. It always reads and
    writes the same tensors, so it is recorded as one graph and replayed: nothing of a level waits for the host.
    """

    state: State
    total: Tensor  # (B, N) how often each chain moved since `begin`
    done: int

    def __init__(self, kernel: Kernel, batch: Batch, strict: bool, rng: Rng) -> None:
        self.kernel, self.batch, self.strict, self.rng = kernel, batch, strict, rng
        self._level = torch.empty(0)
        self._taken = 0
        self._replay: Callable[[], None] | None = None
        self._spent = (torch.zeros(0), torch.zeros(0))  # evaluations and gradients of a recorded step

    def begin(self, state: State, level: Tensor) -> None:
        """Start from `state`, which is used up, above `level` (B,)."""
        state = self.kernel.fit(state)
        self.done = 0
        if self._replay is not None and state.score.shape != self.total.shape:  # a recording is of one size
            self._replay, self._taken = None, 0
        if self._replay is None:
            self.state, self._level, self.total = state, level.unsqueeze(1).clone(), torch.zeros_like(state.score)
            return
        self._level.copy_(level.unsqueeze(1))
        self.total.zero_()
        _overwrite(self.state, state)

    def step(self) -> None:
        if self._replay is not None:
            self.batch.spend.check()
            self._replay()
            self.batch.spend.count(*self._spent)
        else:
            self.state, ok = self._next()
            self.total = self.total + ok
            self._taken += 1
            if self._taken == _FIRST:
                self._record()
        self.done += 1

    def finish(self) -> State:
        """The state after the steps of this level, step sizes adapted."""
        if self.kernel.adapts == "level":
            return self.kernel.adapt(self.state, self.total / max(self.done, 1))
        return self.state

    def _next(self) -> tuple[State, Tensor]:
        state, ok = self.kernel.step(self.batch, self.state, self._level, self.strict, self.rng)
        return (self.kernel.adapt(state, ok) if self.kernel.adapts == "step" else state), ok

    def _record(self) -> None:
        def in_place() -> None:
            state, ok = self._next()
            self.total.add_(ok)
            _overwrite(self.state, state)

        with self.batch.spend.measuring() as self._spent:
            self._replay = record(in_place, self.batch, self.rng)


def _overwrite(old: State, new: State) -> None:
    """Write the values of `new` into the tensors of `old`."""
    for spec in fields(State):
        target, value = getattr(old, spec.name), getattr(new, spec.name)
        if target is not value:
            target.copy_(value)
