"""What is known of smooth functions of one number: their values, slopes, extremes and curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rarely.bounds.operators import EPS, Interval, magnitude

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
