"""Minima and maxima of robustness: sharp ones, or smooth ones that err to one side."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.core.errors import InputError

_FAR = 1e30  # stands for infinity where gradients of infinities would be NaN


@dataclass(frozen=True)
class Extremes:
    """Folds of two values, and what is still to be done when all n of a window are folded.

    With a temperature t the folds are log-sum-exp. The smooth minimum of n values lies below the sharp one, and the
    smooth maximum less t log n below the sharp one, each by at most t log n. So a formula built of them is never more
    robust than it is: what the smooth formula keeps, the formula keeps. Under a negation the sides change.
    """

    temperature: float
    lower: bool = True  # whether the result may not exceed the sharp one, or not fall below it

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature must be a number of at least 0, got {self.temperature}")

    @property
    def far(self) -> float:
        """The minimum over nothing."""
        return _FAR if self.temperature else math.inf

    def mirrored(self) -> Extremes:
        return replace(self, lower=not self.lower) if self.temperature else self

    def least(self, a: Tensor, b: Tensor) -> Tensor:
        return -self._smooth(-a, -b) if self.temperature else torch.minimum(a, b)

    def most(self, a: Tensor, b: Tensor) -> Tensor:
        return self._smooth(a, b) if self.temperature else torch.maximum(a, b)

    def as_least(self, folded: Tensor, n: Tensor | int) -> Tensor:
        return folded if self.lower else folded + self._gap(folded, n)

    def as_most(self, folded: Tensor, n: Tensor | int) -> Tensor:
        return folded - self._gap(folded, n) if self.lower and self.temperature else folded

    def _smooth(self, a: Tensor, b: Tensor) -> Tensor:
        return self.temperature * torch.logaddexp(a / self.temperature, b / self.temperature)

    def _gap(self, like: Tensor, n: Tensor | int) -> Tensor:
        count = torch.as_tensor(n, dtype=like.dtype, device=like.device).clamp(min=1)
        return self.temperature * torch.log(count)


EXACT = Extremes(0.0)
