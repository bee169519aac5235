"""A layer that the library does not have, in one file: the hyperbolic cosine, which is convex."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rarely.bounds.operators import Elementwise, Interval, Relaxed, Terms, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads


class CoshModule(nn.Module):
    """The layer as a network holds it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * torch.cosh(x)


@dataclass(frozen=True)
class Cosh(Relaxed):
    """factor cosh(x), with a positive factor: the chord above, the tangent at the centre below."""

    factor: float

    def forward(self, *xs: Tensor) -> Tensor:
        return self.factor * torch.cosh(xs[0])

    def interval(self, *xs: Interval) -> Interval:
        least, most = self.forward(torch.clamp(xs[0][0] * 0, *xs[0])), self.forward(magnitude(xs[0]))
        margin = most * gamma(8, most.dtype)
        return least - margin, most + margin

    def terms(self, *H: Tensor) -> Terms:
        return Terms(H[1], 4)

    def relax(self, x: Interval) -> Elementwise:
        low, high = x
        centre, width = (low + high) / 2, (high - low).clamp(min=1e-9)
        tangent = self.factor * torch.sinh(centre)
        chord = (self.forward(high) - self.forward(low)) / width
        margin = (self.forward(magnitude(x)) + tangent.abs() * magnitude(x)) * gamma(32, low.dtype)
        top = torch.maximum(self.forward(low) - chord * low, self.forward(high) - chord * high)
        return Elementwise.lines(x, (tangent, self.forward(centre) - tangent * centre - margin), (chord, top + margin))

    def unsettled(self, x: Interval) -> Tensor:
        return x[0] < x[1]

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        return size * self.forward(magnitude(x)) * (x[1] - x[0]) / 4


@reads("cosh", CoshModule)
def cosh(r: Reader, input: Handle, factor: float = 1.0) -> Handle:
    return r.add(Cosh(factor), input.shape, input)
