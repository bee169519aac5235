"""A region of inputs whose bounds are allowed to fail, each with a small probability that is paid for.

Where V lies in the half-space {T x + c >= 0} and e is bound (1) of `tails` on its log-probability, bound (2) gives for
any linear function, with m the mean of the law tilted by T,

    log P(V and A x < A m - sqrt(2 r S(A))) <= e - r.                                                        (3)

(Take the tilt T - u A and u = sqrt(2 r / S(A)).) Without a tilt V is everything, e = 0 and r is what a failure costs.
With the tilt of the violation itself a failure costs as much at a much smaller r, and the interval lies around what the
inputs are *where they violate*: most ReLUs are settled there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.region import BoxRegion
from rarely.bounds.tails import Tails

_WIDE = 10.0  # nats below the other failures that of the box is, where inputs have no bounds


@dataclass(frozen=True)
class Likely:
    """Inputs of a law, each region of the batch seen under a tilt; see `Bounded`."""

    law: Tails
    shape: tuple[int, ...]  # of an event
    tilt: Tensor  # (B, n)
    room: Tensor  # (B,): the r above

    @cached_property
    def box(self) -> BoxRegion:
        level = self.room + math.log(2 * self.tilt.shape[1]) + _WIDE
        low, high = (end.reshape(-1, *self.shape) for end in self.law.box(self.tilt, level))
        return BoxRegion(low, high)

    @property
    def low(self) -> Tensor:
        return self.box.low

    @property
    def high(self) -> Tensor:
        return self.box.high

    @cached_property
    def _mean(self) -> tuple[Tensor, Tensor]:
        return self.law.mean(self.tilt)

    def minimum(self, A: Tensor, blur: Tensor) -> tuple[Tensor, Tensor]:
        """What A x, A (B, m, n), falls below with no more than the probability that is paid."""
        mean, error = (t.unsqueeze(-1) for t in self._mean)
        size = torch.bmm(A.abs(), error + mean.abs() * (A.shape[2] + 8) * torch.finfo(A.dtype).eps).squeeze(-1)
        reach = (2 * self.room).sqrt().unsqueeze(1) * self.law.deviation(A)
        least = torch.bmm(A, mean).squeeze(-1) - size - reach * (1 + 1e-15)
        surely, toll = self.box.minimum(A, blur)
        return torch.fmax(least, surely), toll
