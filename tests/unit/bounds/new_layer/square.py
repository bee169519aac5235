"""A layer that the library does not have, in one file: squares, which are convex."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rarely.bounds.operators import Elementwise, Interval, Relaxed, Terms, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads


class SquareModule(nn.Module):
    """The layer as a network holds it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x * x


@dataclass(frozen=True)
class Square(Relaxed):
    """factor x^2: the chord above, the tangent at the centre below."""

    factor: float

    def forward(self, *xs: Tensor) -> Tensor:
        return self.factor * xs[0] * xs[0]

    def interval(self, *xs: Interval) -> Interval:
        least, most = self.forward(torch.clamp(xs[0][0] * 0, *xs[0])), self.forward(magnitude(xs[0]))
        margin = most * gamma(2, most.dtype)
        return least - margin, most + margin

    def terms(self, *H: Tensor) -> Terms:
        return Terms(abs(self.factor) * H[0] * H[0], 2)

    def relax(self, x: Interval) -> Elementwise:
        low, high = x
        slope, centre = self.factor * (low + high), (low + high) / 2
        margin = self.forward(magnitude(x)) * gamma(8, low.dtype)
        tangent = (slope, -self.factor * centre * centre - margin)
        return Elementwise.lines(x, tangent, (slope, -self.factor * low * high + margin))

    def unsettled(self, x: Interval) -> Tensor:
        return x[0] < x[1]

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        return size * self.factor * (x[1] - x[0]) / 4


@reads("square", SquareModule)
def square(r: Reader, input: Handle, factor: float = 1.0) -> Handle:
    return r.add(Square(factor), input.shape, input)
