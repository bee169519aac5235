"""What a run may use and what it has used: network calls, seconds, boxes. Every call of a network is counted here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rarely.core.arguments import real, whole
from rarely.core.errors import InputError

_PASS = 0.04  # share of a time limit that one forward pass may take
_REPLAYS = 250  # calls kept back for running violating inputs again, and at most a twentieth of the limit
GRADIENT = 3  # calls that a gradient counts as: a forward and a backward pass


class Exhausted(Exception):
    """A limit is reached. Whoever catches it says what is known so far."""


class Spend:
    """Network evaluations and gradients of each case, and the limits of all.

    `max_calls` limits the calls of each case; what is charged beyond it raises `Exhausted` before the network is
    called. `timeout` limits the seconds since this object was made; forward passes are cut to what the pace so far says
    fits, and the first one after the limit raises `Exhausted`.
    """

    def __init__(self, cases: int, max_calls: int | None = None, timeout: float | None = None) -> None:
        if max_calls is not None and (max_calls := whole(max_calls, "max_evaluations")) < 1:
            raise InputError(f"max_evaluations must be at least 1, got {max_calls}")
        if timeout is not None and not (timeout := real(timeout, "timeout")) > 0:
            raise InputError(f"timeout must be positive, got {timeout}")
        self.evaluations = torch.zeros(cases, dtype=torch.long)
        self.gradients = torch.zeros(cases, dtype=torch.long)
        self.max_calls, self.timeout = max_calls, timeout
        self.stopped = False  # by somebody who waits no longer
        self.restart()
        self._kept_back = 0 if max_calls is None else min(_REPLAYS, max_calls // 20)
        self._fit = 64  # rows that the next forward pass may have
        self._pace = 0.0  # seconds a row of the last one
        self._rows, self._passing = 0, 0.0  # of all passes together, and their seconds
        self._lock = threading.Lock()

    # Calls ----------------------------------------------------------------------------------------------------------

    def charge(self, rows: Tensor, evaluations: int | Tensor, gradients: int | Tensor = 0) -> None:
        """Count calls that are about to be made, for each entry of `rows`; `Exhausted` where a case cannot pay."""
        with self._lock:
            if self.max_calls is not None:
                more = _spread(rows, evaluations, self.evaluations)
                more += GRADIENT * _spread(rows, gradients, self.evaluations)
                if bool(((more > 0) & (self.calls() + more > self.max_calls - self._kept_back)).any()):
                    raise Exhausted
            self.evaluations += _spread(rows, evaluations, self.evaluations)
            self.gradients += _spread(rows, gradients, self.evaluations)

    def count(self, evaluations: Tensor, gradients: Tensor) -> None:
        """Count calls of every case that were made without asking: by a recording, or on the way of a proof."""
        with self._lock:
            self.evaluations += evaluations
            self.gradients += gradients

    @contextmanager
    def measuring(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is counted inside goes into the two tensors instead of the totals."""
        before = self.evaluations.clone(), self.gradients.clone()
        spent = torch.zeros_like(before[0]), torch.zeros_like(before[1])
        try:
            yield spent
        finally:
            for total, old, more in zip((self.evaluations, self.gradients), before, spent, strict=True):
                more.copy_(total - old)
                total.copy_(old)

    def calls(self) -> Tensor:
        """Calls of each case so far."""
        return self.evaluations + GRADIENT * self.gradients

    def left(self, rows: Tensor) -> float:
        """Calls left to the one of these cases that has fewest."""
        return min(self.left_each(rows), default=math.inf)

    def left_each(self, rows: Tensor) -> list[float]:
        """Calls left to each of these cases."""
        if self.max_calls is None:
            return [math.inf] * len(rows)
        left: list[float] = (self.max_calls - self._kept_back - self.calls()[rows]).tolist()
        return left

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Inside, what was kept back for replays may be spent."""
        kept, self._kept_back = self._kept_back, 0
        try:
            yield
        finally:
            self._kept_back = kept

    def restart(self) -> None:
        """The clock starts now."""
        self.started = time.monotonic()
        self.deadline = math.inf if self.timeout is None else self.started + self.timeout

    @contextmanager
    def allotted(self, rows: Tensor, share: float) -> Iterator[None]:
        """Inside, at most this share of the calls and of the seconds that are left to these cases."""
        outer = self.max_calls
        if outer is not None:
            self.max_calls = min(outer, int(self.calls()[rows].max() + self._kept_back + share * self.left(rows)))
        try:
            with self.within(share * self.left_seconds):
                yield
        finally:
            self.max_calls = outer

    # Seconds --------------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def left_seconds(self) -> float:
        return 0.0 if self.stopped else max(0.0, self.deadline - time.monotonic())

    @property
    def late(self) -> bool:
        return self.stopped or time.monotonic() > self.deadline

    @property
    def pace(self) -> float:
        """Seconds that a call has taken so far, in the mean; 0 where that was not measured."""
        return self._passing / self._rows if self._rows else 0.0

    def stop(self) -> None:
        """Time is up, now: whoever calls a network from here on says what is known."""
        self.stopped = True

    def check(self) -> None:
        """`Exhausted` when time is up."""
        if self.late:
            raise Exhausted

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Inside, at most this many of the seconds that are left."""
        outer = self.deadline
        self.deadline = min(outer, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.deadline = outer

    def rows(self, most: int) -> int:
        """Rows of the next forward pass, at least one: `most`, or what fits by the last; `Exhausted` when late."""
        self.check()
        if self.deadline == math.inf:
            return most
        in_time = int(self.left_seconds / self._pace) if self._pace else most
        return max(1, min(most, self._fit, in_time))

    def took(self, rows: int, seconds: float) -> None:
        """Learn from a forward pass what calls take, and how many rows the next may have."""
        self._rows, self._passing = self._rows + rows, self._passing + seconds
        self.expect(rows, seconds)

    def expect(self, rows: int, seconds: float) -> None:
        """How many rows the next forward pass may have when one of so many takes so long.

        A call may cost by the row or by the call: twice as many are tried for as long as a pass is short enough.
        """
        if self.timeout is None:
            return
        share = _PASS * self.timeout
        self._fit = max(self._fit, 2 * rows) if seconds <= share else max(1, int(rows * share / seconds))
        self._pace = seconds / rows


def _spread(rows: Tensor, value: int | Tensor, like: Tensor) -> Tensor:
    each = value.long() if isinstance(value, Tensor) else torch.full_like(rows, value)
    return torch.zeros_like(like).index_add_(0, rows, each)
