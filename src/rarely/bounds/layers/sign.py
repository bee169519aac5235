"""The sign of an entry: a step from -1 over 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.operators import TINY, Elementwise, Interval, Relaxed, Terms
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Sign(Relaxed):
    """-1, 0 or 1. Over the step, the line from the far end of one side to the edge of the other, or a constant."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0].sign() + xs[0] * 0  # torch's sign of what is not a number is a number

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(xs[0][0]), self.forward(xs[0][1])

    def terms(self, *H: Tensor) -> Terms | None:
        return None

    def unsettled(self, x: Interval) -> Tensor:
        return (x[0] <= 0) & (x[1] >= 0) & (x[0] < x[1])

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        step = self.forward(x[1]) - self.forward(x[0])
        return size * step / (x[1] - x[0]).clamp(min=torch.finfo(size.dtype).tiny)

    def relax(self, x: Interval) -> Elementwise:
        least, most = self.interval(x)
        open_, right = (x[0] < -TINY) & (x[1] > TINY), x[0] + x[1] > 0
        # Through (low, -1) and (0, 1) above, where the centre is negative, so that the line is below 1 there; and
        # through (high, 1) and (0, -1) below.
        one = torch.ones_like(least)
        above = torch.where(open_ & ~right, -2 / torch.where(open_, x[0], -one), one * 0)
        below = torch.where(open_ & right, 2 / torch.where(open_, x[1], one), one * 0)
        return Elementwise.lines(x, (below, least), (above, most))


@reads("sign")
def sign(r: Reader, input: Handle) -> Handle:
    return r.add(Sign(), input.shape, input)
