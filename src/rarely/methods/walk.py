"""The step loop of a level: one step after another, recorded and replayed, or all in one program, where a GPU can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from rarely.core.arguments import unchanged
from rarely.core.batch import Batch
from rarely.core.execution import record
from rarely.core.rng import Rng
from rarely.gpu.chip import Chip
from rarely.kernels.base import Kernel, State

_WORTH = 10**7  # evaluations of a level from which a program is made: compiling takes about a second
_SOON, _LONGEST = 4, 64  # steps between two looks at the acceptance, of a kernel that adapts by the step
_FIRST = 2  # steps taken one by one before one is recorded: libraries set themselves up in the first
_RECORDED = 16  # steps, taken or to come, from which one is recorded: that costs as much as some ten of them


class Walk:
    """Repeated steps of one kernel on one batch.

    On a GPU a step is some thirty kernels, which take longer to launch than a small network to run. It always reads and
    writes the same tensors, so it is recorded as one graph and replayed: nothing of a level waits for the host. Many
    steps of a small network are one program (`gpu/chip.py`). `evaluations` are those expected of a level.
    """

    state: State
    total: Tensor  # (B, N) how often each chain moved since `begin`
    done: int

    def __init__(self, kernel: Kernel, batch: Batch, strict: bool, rng: Rng, evaluations: float = 0) -> None:
        self.kernel, self.batch, self.strict, self.rng = kernel, batch, strict, rng
        make: Callable[[Batch], Chip | None] = getattr(kernel, "chip", lambda _: None)
        self._chip = make(batch) if evaluations >= _WORTH and unchanged(kernel, "chip", "step") else None
        self._compared = False
        self._level = torch.empty(0)
        self._taken = 0
        self._replay: Callable[[], None] | None = None
        self._spent = (torch.zeros(0), torch.zeros(0))  # evaluations and gradients of a recorded step

    def take(self, batch: Batch, index: Tensor) -> Walk:
        """The same on some of the rows, at `index` on the device, which are `batch`."""
        walk = Walk(self.kernel, batch, self.strict, self.rng)
        walk._chip, walk._compared = None if self._chip is None else self._chip.take(index), self._compared
        return walk

    def scored(self, state: State) -> State:
        """A first population with the scores that its steps would give it, to choose a level from.

        A program adds up in another order. Of outputs that are all alike on most inputs, one rounding more in a step
        than in the first draws lies above a level that it has not risen from: p came out 36 times too small.
        """
        if self._chip is None or self._compared:
            return state
        self._compared = True
        told = self._chip.scores(state.position, state.score, state.scale, self.rng)
        if told is None:
            self._chip = None
            return state
        return replace(state, score=told)

    def begin(self, state: State, level: Tensor) -> None:
        """Start from `state`, which is used up, above `level` (B,)."""
        state = self.kernel.fit(self.scored(state))
        self.done = 0
        if self._replay is not None and state.score.shape != self.total.shape:  # a recording is of one size
            self._replay, self._taken = None, 0
        if self._replay is None:
            self.state, self._level, self.total = state, level.unsqueeze(1).clone(), torch.zeros_like(state.score)
            if self._chip is not None:  # it writes to memory as it lies; the first scores are still needed
                whole = {name: getattr(state, name).contiguous() for name in ("position", "scale")}
                self.state = replace(state, score=state.score.clone(), **whole)
            return
        self._level.copy_(level.unsqueeze(1))
        self.total.zero_()
        _overwrite(self.state, state)

    def advance(self, steps: int) -> None:
        """Take so many steps."""
        if self._chip is None:
            for left in range(steps, 0, -1):
                self._step(left)
            return
        end, longest = self.done + steps, self._chip.steps_at_once(self.state.score.shape[1])
        while self.done < end:
            most = longest
            if self.kernel.adapts == "step":  # soon after a start, when most is to be learnt
                most = min(most, max(_SOON, min(self.done, _LONGEST)))
            self._leap(self._chip, min(most, end - self.done))
            if most == longest:  # launching does not wait: the clock is to tell what was done, not what is queued
                float(self.total[0, 0])

    def _leap(self, chip: Chip, steps: int) -> None:
        state = self.state
        self.batch.spend.charge(self.batch.rows, steps * state.score.shape[1])
        moves = torch.zeros_like(state.score)
        chip.walk(
            state.position, state.score, moves, state.scale, state.unit, self._level.squeeze(1), self.strict, steps,
            self.rng,
        )  # fmt: skip
        if self.kernel.adapts == "step":
            self.state = self.kernel.adapt(state, moves / steps)
        self.total += moves
        self.done += steps

    def _step(self, left: int) -> None:
        """The first of so many steps."""
        if self._replay is not None:
            self.batch.spend.check()
            self._replay()
            self.batch.spend.count(*self._spent)
        else:
            self.state, ok = self._next()
            self.total = self.total + ok
            self._taken += 1
            if self._taken == _RECORDED or (self._taken == _FIRST and left > _RECORDED):
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
