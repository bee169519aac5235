"""Formulas that look ahead: always and eventually within a window of time, and until."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.systems.extremes import Extremes
from rarely.systems.logic import Formula, Trace, as_formula, joined_names


@dataclass(frozen=True, eq=False, repr=False)
class Window(Formula):
    """The part holds always, or eventually, from `low` to `high` ahead."""

    kind: Literal["always", "eventually"]
    part: Formula
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.kind}({self.part.text}{_interval(self.low, self.high)})"

    @property
    def names(self) -> frozenset[str]:
        return self.part.names

    @property
    def horizon(self) -> float:
        return _ahead(self.low, self.high) + self.part.horizon

    def evaluate(self, trace: Trace, extremes: Extremes) -> Tensor:
        values = self.part.evaluate(trace, extremes)
        low, high = trace.moments(self.low, self.high)
        always = self.kind == "always"
        empty = extremes.far if always else -extremes.far
        if low > high:  # beyond the end, seen from everywhere
            return torch.full_like(values, empty)
        fold = extremes.least if always else extremes.most
        folded = _folded(_later(values, low, empty), high - low + 1, partial(_both, fold, empty))
        seen = _seen(trace.length, low, high, values.device)
        ended = extremes.as_least(folded, seen) if always else extremes.as_most(folded, seen)
        return torch.where(seen > 0, ended, empty)


@dataclass(frozen=True, eq=False, repr=False)
class Until(Formula):
    """The second holds at some moment from `low` to `high` ahead, and the first at every moment before it."""

    left: Formula
    right: Formula
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"until({self.left.text}, {self.right.text}{_interval(self.low, self.high)})"

    @property
    def names(self) -> frozenset[str]:
        return joined_names((self.left, self.right))

    @property
    def horizon(self) -> float:
        return _ahead(self.low, self.high) + max(self.left.horizon, self.right.horizon)

    def evaluate(self, trace: Trace, extremes: Extremes) -> Tensor:
        left, right = (part.evaluate(trace, extremes) for part in (self.left, self.right))
        low, high = trace.moments(self.low, self.high)
        far = torch.full_like(right, extremes.far)
        best, before = -far, far  # the largest so far, and the smallest of `left` until then
        for ahead in range(high + 1):
            if ahead >= low:
                both = extremes.as_least(extremes.least(before, _later(right, ahead, -extremes.far)), ahead + 1)
                best = extremes.most(best, both)
            before = extremes.least(before, _later(left, ahead, extremes.far))
        seen = _seen(trace.length, low, high, right.device)
        return torch.where(seen > 0, extremes.as_most(best, seen), -extremes.far)


def always(part: Formula, low: float = 0.0, high: float = math.inf) -> Formula:
    """The part holds at every moment from `low` to `high` ahead: times, or steps where the system's step is 1."""
    return Window("always", as_formula(part), *_checked(low, high))


def eventually(part: Formula, low: float = 0.0, high: float = math.inf) -> Formula:
    """The part holds at some moment from `low` to `high` ahead."""
    return Window("eventually", as_formula(part), *_checked(low, high))


def until(left: Formula, right: Formula, low: float = 0.0, high: float = math.inf) -> Formula:
    """`right` holds at some moment from `low` to `high` ahead, and `left` from now to just before it."""
    return Until(as_formula(left), as_formula(right), *_checked(low, high))


def _checked(low: float, high: float) -> tuple[float, float]:
    if not 0 <= low <= high or low == math.inf:
        raise InputError(f"an interval runs from a time of at least 0 to a later one, not from {low:g} to {high:g}")
    return float(low), float(high)


def _ahead(low: float, high: float) -> float:
    return low if high == math.inf else high


def _interval(low: float, high: float) -> str:
    return "" if (low, high) == (0, math.inf) else f", {low:g}, {high:g}"


def _later(values: Tensor, ahead: int, empty: float) -> Tensor:
    """The values as seen `ahead` moments before them, and `empty` beyond the end."""
    if ahead == 0:
        return values
    kept = values[..., min(ahead, values.shape[-1]) :]
    return torch.nn.functional.pad(kept, (0, values.shape[-1] - kept.shape[-1]), value=empty)


def _folded(values: Tensor, width: int, both: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
    """Every `width` values in a row folded into one, by halves: a window of n takes log n passes, and none twice."""
    block, size, result, done = values, 1, None, 0
    while True:
        if width & size:
            result = block if result is None else both(result, block, done)
            done += size
        if done == width:
            assert result is not None
            return result
        block, size = both(block, block, size), 2 * size


def _both(fold: Callable[[Tensor, Tensor], Tensor], empty: float, first: Tensor, then: Tensor, ahead: int) -> Tensor:
    return fold(first, _later(then, ahead, empty))


def _seen(length: int, low: int, high: int, device: torch.device) -> Tensor:
    """How many moments of a window lie inside the trace, seen from each of its moments."""
    now = torch.arange(length, device=device)
    return (torch.clamp(now + high, max=length - 1) - now - low + 1).clamp(min=0)
