"""Sigmoid and tanh: a chosen slope, with the shift that makes the line valid found from the stationary points, so that
no root search has to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rarely.bounds.operators import Elementwise, Interval, Relaxed, Terms, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class SShape(Relaxed):
    """Sigmoid or tanh: increasing, convex below zero, concave above."""

    name: str

    def forward(self, *xs: Tensor) -> Tensor:
        return torch.sigmoid(xs[0]) if self.name == "sigmoid" else torch.tanh(xs[0])

    def interval(self, *xs: Interval) -> Interval:
        margin = gamma(16, xs[0][0].dtype)
        return self.forward(xs[0][0]) - margin, self.forward(xs[0][1]) + margin

    def terms(self, *H: Tensor) -> Terms:
        """Assumes an absolute error of at most 16 eps: libraries are within a few ulps, approximations of them too."""
        return Terms(torch.ones_like(H[0]), 8)

    def unsettled(self, x: Interval) -> Tensor:
        return torch.ones_like(x[0], dtype=torch.bool)

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        steepest = self._slope_at(torch.clamp(x[0] * 0, x[0], x[1]))
        return size * (steepest - torch.minimum(self._slope_at(x[0]), self._slope_at(x[1]))) / 4

    def _slope_at(self, x: Tensor) -> Tensor:
        y = self.forward(x)
        return y * (1 - y) if self.name == "sigmoid" else 1 - y * y

    def _point_of(self, slope: Tensor) -> Tensor:
        """The x >= 0 whose derivative is `slope` (0 where the slope is too large to occur)."""
        top = 0.25 if self.name == "sigmoid" else 1.0
        root = (1 - slope / top).clamp(0, 1 - torch.finfo(slope.dtype).eps).sqrt()
        return torch.atanh(root) * (2 if self.name == "sigmoid" else 1)

    def _upper_slope(self, low: Tensor, high: Tensor, chord: Tensor) -> Tensor:
        """Slope of a good upper line: the tangent from (low, f(low)), or the chord, or the tangent midway."""
        base, ends = self.forward(low), [low.clamp(min=0), high.clamp(min=0)]
        for _ in range(24):
            d = (ends[0] + ends[1]) / 2
            above = self.forward(d) + self._slope_at(d) * (low - d) >= base
            ends = [torch.where(above, ends[0], d), torch.where(above, d, ends[1])]
        straight = (high <= 0) | (self.forward(high) + self._slope_at(high) * (low - high) < base)
        tangent = torch.where(low >= 0, self._slope_at((low + high) / 2), self._slope_at(ends[1]))
        return torch.where(straight, chord, tangent)

    def relax(self, x: Interval) -> Elementwise:
        low, high = x
        f_low, f_high = self.forward(low), self.forward(high)
        narrow = high - low < 1e-6
        width = torch.where(narrow, torch.ones_like(low), high - low)
        chord = torch.where(narrow, self._slope_at((low + high) / 2), (f_high - f_low) / width)
        upper = self._upper_slope(low, high, chord)
        # f(-x) mirrors f(x), so the lower line is the upper line of the mirrored interval.
        lower = self._upper_slope(-high, -low, chord)

        def shifts(slope: Tensor) -> Tensor:
            p = self._point_of(slope)
            points = [low, high, torch.clamp(p, low, high), torch.clamp(-p, low, high)]
            return torch.stack([self.forward(q) - slope * q for q in points])

        # A stationary point found to relative precision e costs only e^2; the margin covers tanh and exp.
        margin = 64 * torch.finfo(low.dtype).eps * (1 + magnitude(x))
        return Elementwise.lines(x, (lower, shifts(lower).amin(0) - margin), (upper, shifts(upper).amax(0) + margin))


@reads("sigmoid", nn.Sigmoid)
def sigmoid(r: Reader, input: Handle) -> Handle:
    return r.add(SShape("sigmoid"), input.shape, input)


@reads("tanh", nn.Tanh)
def tanh(r: Reader, input: Handle) -> Handle:
    return r.add(SShape("tanh"), input.shape, input)
