"""Smooth functions of one entry: powers (squares, roots, reciprocals), exp, log, sin and cos.

No root search has to be trusted. Where a function is convex, its maximum over a line of any slope is at an end of the
interval, and the tangent computed at the centre is off by no more than its rounding. Where its curvature changes sign,
it is evaluated on a grid: between two neighbours at distance h, f(x) - s x exceeds the larger of them by at most
|f''| h^2 / 8, whatever the slope s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.arithmetic import scale
from rarely.bounds.layers.functions import ROUNDING, Exp, Function, Log, Power, Wave
from rarely.bounds.operators import EPS, TINY, Elementwise, Interval, Relaxed, Terms, magnitude
from rarely.bounds.reader import Handle, Reader, reads

GRID = 64  # steps over an interval of mixed curvature: what they miss is 1/4096 of M w^2 / 8


@dataclass(frozen=True)
class Curve(Relaxed):
    """A smooth function of each entry."""

    function: Function
    floor: float = -math.inf  # inputs are known to be no smaller, whatever their bounds say

    def _known(self, x: Interval) -> Interval:
        return x[0].clamp(min=self.floor), x[1].clamp(min=self.floor)

    def forward(self, *xs: Tensor) -> Tensor:
        return self.function.value(xs[0])

    def interval(self, *xs: Interval) -> Interval:
        low, high = self.function.extent(self._known(xs[0]))
        return (low - self._margin(low)).clamp(min=self.function.least), high + self._margin(high)

    def _margin(self, value: Tensor) -> Tensor:
        return (value.abs() + self.function.scale) * ROUNDING + TINY

    def terms(self, *H: Tensor) -> Terms:
        """Assumes that the network's function is within 12 eps of the result: libraries are within four."""
        return Terms(H[1] + self.function.scale, 4)

    def unsettled(self, x: Interval) -> Tensor:
        return x[0] < x[1]

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        x = self._known(x)
        (below, low), (above, high) = self._lines(x)
        gap = (above - below) * (x[0] + x[1]) / 2 + high - low
        return size * gap / (x[1] - x[0]).clamp(min=torch.finfo(size.dtype).tiny)

    def relax(self, x: Interval) -> Elementwise:
        x = self._known(x)
        return Elementwise.lines(x, *self._lines(x))

    def _lines(self, x: Interval) -> tuple[Interval, Interval]:
        """Slope and shift of a line below and of one above; where no better is known, the interval itself."""
        bend = self.function.bend(x)
        straight, tangent = self._chord(x, bend), self._tangent(x, bend)
        convex = bend > 0
        below, above = _chosen(convex, tangent, straight), _chosen(convex, straight, tangent)
        mixed = bend == 0
        if bool(mixed.any()):
            lines = self._on_grid((x[0][mixed], x[1][mixed]))
            for line, found in zip((below, above), lines, strict=True):
                for part, new in zip(line, found, strict=True):
                    part[mixed] = new
        low, high = self.interval(x)
        return _better(x, below, low, 1.0), _better(x, above, high, -1.0)

    def _rounding(self, x: Interval, slope: Tensor, *values: Tensor) -> Tensor:
        """Of lines that are made of these values: |slope| 2 H covers what a slope that is off does over the width."""
        size = torch.stack(values).abs().amax(0) + self.function.scale
        return 2 * ROUNDING * (size + 2 * slope.abs() * magnitude(x)) + TINY

    def _chord(self, x: Interval, bend: Tensor) -> Interval:
        """On the far side of both ends, above a convex function and below a concave one."""
        f = self.function
        low, high = f.value(x[0]), f.value(x[1])
        narrow = x[1] - x[0] <= 1e-8 * magnitude(x)
        width = torch.where(narrow, torch.ones_like(low), x[1] - x[0])
        slope = torch.where(narrow, f.slope((x[0] + x[1]) / 2), (high - low) / width)
        one, two = low - slope * x[0], high - slope * x[1]
        shift = torch.where(bend > 0, torch.maximum(one, two), torch.minimum(one, two))
        return slope, shift + bend * self._rounding(x, slope, low, high)

    def _tangent(self, x: Interval, bend: Tensor) -> Interval:
        centre = (x[0] + x[1]) / 2
        value, slope = self.function.value(centre), self.function.slope(centre)
        return slope, value - slope * centre - bend * self._rounding(x, slope, value)

    def _on_grid(self, x: Interval) -> tuple[Interval, Interval]:
        """Lines for intervals (n,) that nothing is known about but the curvature."""
        part = torch.linspace(0, 1, GRID + 1, dtype=x[0].dtype, device=x[0].device)
        points = torch.lerp(x[0], x[1], part.unsqueeze(1)).clamp(*x)
        points[0], points[-1] = x
        values = self.function.value(points)
        step = (x[1] - x[0]) / GRID * (1 + 1e-9) + 8 * EPS * magnitude(x)
        missed = self.function.curvature(x) * step * step / 8
        lines = []
        for sign in (-1.0, 1.0):
            slope = sign * _hull_slope(points, sign * values)
            shift = sign * (sign * (values - slope * points)).amax(0)
            lines.append((slope, shift + sign * (missed + self._rounding(x, slope, *values))))
        return lines[0], lines[1]


def _chosen(where: Tensor, one: Interval, other: Interval) -> Interval:
    return torch.where(where, one[0], other[0]), torch.where(where, one[1], other[1])


def _hull_slope(points: Tensor, values: Tensor) -> Tensor:
    """Slope of the line above all points (k, n) that is lowest at the centre.

    The largest value - s (x - centre) is convex in s, and falls while it is taken at the right of the centre.
    """
    from_centre = points - (points[0] + points[-1]) / 2
    step = (points[1:] - points[:-1]).clamp(min=TINY)
    steepest = ((values[1:] - values[:-1]).abs() / step).amax(0)
    low, high = -steepest, steepest
    for _ in range(32):
        middle = (low + high) / 2
        top = (values - middle * from_centre).argmax(0, keepdim=True)
        right = from_centre.gather(0, top).squeeze(0) > 0
        low, high = torch.where(right, middle, low), torch.where(right, high, middle)
    return (low + high) / 2


def _better(x: Interval, line: Interval, constant: Tensor, sign: float) -> Interval:
    """The line, or the constant where that is higher (sign 1) at the centre, or the line is not a number."""
    kept = sign * (line[0] * ((x[0] + x[1]) / 2) + line[1] - constant) >= 0
    return _chosen(kept, line, (constant * 0, constant))


def curve(r: Reader, x: Handle, function: Function, floor: float = -math.inf) -> Handle:
    return r.add(Curve(function, floor), x.shape, x)


@reads("pow")
def power(r: Reader, input: Any, exponent: Any) -> Handle:
    if isinstance(exponent, Handle) or not isinstance(input, Handle):
        raise Unprovable("a power with an exponent that the network computes")
    exponents = r.real(exponent)
    if exponents.numel() != 1:
        raise Unprovable("powers with several exponents")
    p = float(exponents)
    if float(torch.tensor(p, dtype=getattr(torch, r.arithmetic.name))) != p:
        raise Unprovable(f"a power with the exponent {p:g}, which is none of the network's numbers")
    if p in (0.0, 1.0):
        return input if p == 1 else scale(r, input, 0.0, 1.0)
    return curve(r, input, Power(p))


@reads("square")
def square(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Power(2.0))


@reads("sqrt")
def sqrt(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Power(0.5))


@reads("rsqrt")
def rsqrt(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Power(-0.5))


@reads("reciprocal")
def reciprocal(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Power(-1.0))


@reads("exp")
def exp(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Exp())


@reads("log")
def log(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Log())


@reads("sin")
def sin(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Wave(cosine=False))


@reads("cos")
def cos(r: Reader, input: Handle) -> Handle:
    return curve(r, input, Wave(cosine=True))
