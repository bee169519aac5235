"""Smooth functions of one entry: powers (squares, roots, reciprocals), exp, log, sin and cos.

No root search has to be trusted. Where a function is convex, its maximum over a line of any slope is at an end of the
interval, and the tangent computed at the centre is off by no more than its rounding. Where its curvature changes sign,
it is evaluated on a grid: between two neighbours at distance h, f(x) - s x exceeds the larger of them by at most
|f''| h^2 / 8, whatever the slope s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.arithmetic import scale
from rarely.bounds.operators import EPS, TINY, Elementwise, Interval, Relaxed, Terms, magnitude
from rarely.bounds.reader import Handle, Reader, reads

GRID = 64  # steps over an interval of mixed curvature: what they miss is 1/4096 of M w^2 / 8
FAR = 2.0**20  # beyond, sin and cos are only known to lie in [-1, 1]
ROUNDING = 16 * EPS  # of a function or its derivative in float64, relative; torch's own are within 2 EPS


class Function(Protocol):
    """What the bounds need to know; everything is NaN outside the domain."""

    @property
    def scale(self) -> float:
        """What rounding is relative to, besides the value itself."""

    @property
    def least(self) -> float:
        """No value is below."""

    def value(self, x: Tensor) -> Tensor: ...

    def slope(self, x: Tensor) -> Tensor: ...

    def extent(self, x: Interval) -> Interval:
        """The least and the largest computed value, with what lies inside the interval."""

    def bend(self, x: Interval) -> Tensor:
        """1 where it is convex on the interval, -1 where concave, 0 where neither is known."""

    def curvature(self, x: Interval) -> Tensor:
        """At least |f''| on the interval, where `bend` is 0."""


@dataclass(frozen=True)
class Power:
    """x^p. Of a negative x only whole powers exist, and of zero only positive ones."""

    exponent: float
    scale: float = 0.0

    @property
    def _whole(self) -> bool:
        return self.exponent == round(self.exponent)

    @property
    def least(self) -> float:
        return 0.0 if self._even or not self._whole else -math.inf

    @property
    def _even(self) -> bool:
        return self._whole and round(self.exponent) % 2 == 0

    def value(self, x: Tensor) -> Tensor:
        return x.reciprocal() if self.exponent == -1 else x**self.exponent

    def slope(self, x: Tensor) -> Tensor:
        return self.exponent * x ** (self.exponent - 1)

    def extent(self, x: Interval) -> Interval:
        ends = [self.value(x[0]), self.value(x[1])]
        if self.exponent > 0:
            ends.append(self.value(torch.clamp(x[0] * 0, *x)))
        low, high = torch.stack(ends).aminmax(dim=0)
        if self.exponent < 0:
            split = (x[0] <= 0) & (x[1] >= 0)
            low, high = (torch.where(split, torch.nan, end) for end in (low, high))
        return low, high

    def bend(self, x: Interval) -> Tensor:
        p, one = self.exponent, torch.ones_like(x[0])
        if not self._whole:
            return one if p > 1 or p < 0 else -one
        if self._even:
            return one
        return torch.where(x[0] >= 0, one, torch.where(x[1] <= 0, -one, one * 0))

    def curvature(self, x: Interval) -> Tensor:
        p = self.exponent
        return abs(p * (p - 1)) * magnitude(x) ** (p - 2)


@dataclass(frozen=True)
class Exp:
    """exp(x), or exp(min(x, ceiling))."""

    ceiling: float = math.inf
    scale: float = 0.0
    least: float = 0.0

    def value(self, x: Tensor) -> Tensor:
        return x.clamp(max=self.ceiling).exp()

    def slope(self, x: Tensor) -> Tensor:
        return x.exp()

    def extent(self, x: Interval) -> Interval:
        return self.value(x[0]), self.value(x[1])

    def bend(self, x: Interval) -> Tensor:
        return (x[1] <= self.ceiling).double()

    def curvature(self, x: Interval) -> Tensor:
        return torch.full_like(x[0], torch.inf)  # no line across the ceiling


@dataclass(frozen=True)
class Log:
    scale: float = 0.0
    least: float = -math.inf

    def value(self, x: Tensor) -> Tensor:
        return x.log()

    def slope(self, x: Tensor) -> Tensor:
        return x.reciprocal()

    def extent(self, x: Interval) -> Interval:
        outside = x[0] <= 0
        return torch.where(outside, torch.nan, x[0].log()), torch.where(outside, torch.nan, x[1].log())

    def bend(self, x: Interval) -> Tensor:
        return -torch.ones_like(x[0])

    def curvature(self, x: Interval) -> Tensor:
        return x[0] ** -2.0


@dataclass(frozen=True)
class Wave:
    """sin or cos."""

    cosine: bool
    scale: float = 1.0
    least: float = -1.0

    def value(self, x: Tensor) -> Tensor:
        return x.cos() if self.cosine else x.sin()

    def slope(self, x: Tensor) -> Tensor:
        return -x.sin() if self.cosine else x.cos()

    def extent(self, x: Interval) -> Interval:
        ends = self.value(x[0]), self.value(x[1])
        peak = 0.0 if self.cosine else math.pi / 2
        far = ~(magnitude(x) <= FAR)
        low = torch.where(_meets(x, peak + math.pi) | far, -1.0, torch.minimum(*ends))
        high = torch.where(_meets(x, peak) | far, 1.0, torch.maximum(*ends))
        lost = (x[0] + x[1]).isnan()
        return torch.where(lost, torch.nan, low), torch.where(lost, torch.nan, high)

    def bend(self, x: Interval) -> Tensor:
        low, high = self.extent(x)  # f'' = -f
        return (high <= -ROUNDING).double() - (low >= ROUNDING).double()

    def curvature(self, x: Interval) -> Tensor:
        return torch.where(magnitude(x) <= FAR, 1.0, torch.inf)


def _meets(x: Interval, at: float) -> Tensor:
    """Whether an interval holds a point at + 2 pi k, or may: within `FAR`, the division is off by less than 1e-9."""
    first, last = ((end - at) / (2 * math.pi) for end in x)
    return (last + 1e-9).floor() >= (first - 1e-9).ceil()


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
        below, above = (
            tuple(torch.where(convex, a, b) for a, b in zip(*pair, strict=True))
            for pair in ((tangent, straight), (straight, tangent))
        )
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
    return torch.where(kept, line[0], constant * 0), torch.where(kept, line[1], constant)


def curve(r: Reader, x: Handle, function: Function, floor: float = -math.inf) -> Handle:
    return r.add(Curve(function, floor), x.shape, x)


@reads("pow")
def power(r: Reader, input: Any, exponent: Any) -> Handle:
    if isinstance(exponent, Handle) or not isinstance(input, Handle):
        raise Unprovable("a power with an exponent that the network computes")
    p = r.real(exponent)
    if p.numel() != 1:
        raise Unprovable("powers with several exponents")
    p = float(p)
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
