"""ReLU, leaky ReLU, and what is made of them: clamping and absolute values.

The chord lies above, and any line of slope in [0, 1] through the origin below (CROWN, Zhang et al. 2018, sec. 3; the
free slope is what alpha-CROWN, Xu et al. 2021, optimises).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.arithmetic import add, neg, scale, sub
from rarely.bounds.operators import Elementwise, Interval, Kinked, Terms, gamma, magnitude, tiny
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class LeakyReLU(Kinked):
    """max(x, a x) with 0 <= a < 1; the ReLU is a = 0."""

    leak: float

    @property
    def silent(self) -> bool:
        return self.leak == 0

    def forward(self, *xs: Tensor) -> Tensor:
        x = xs[0]
        return x.clamp(min=0) if self.leak == 0 else torch.where(x >= 0, x, self.leak * x)

    def interval(self, *xs: Interval) -> Interval:
        low, high = (self.forward(x) for x in xs[0])
        if self.leak == 0:
            return low, high
        margin = magnitude((low, high)) * gamma(1, low.dtype) + tiny(low.dtype)
        return low - margin, high + margin

    def terms(self, *H: Tensor) -> Terms | None:
        return None if self.leak == 0 else Terms(self.leak * H[0], 1)

    def unsettled(self, x: Interval) -> Tensor:
        return (x[0] < 0) & (x[1] > 0)

    def gap(self, x: Interval) -> Tensor:
        """The intercept of the chord."""
        low, high = x
        width = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        return torch.where(self.unsettled(x), -(1 - self.leak) * high * (low / width), low * 0)

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        return size * self.gap(x) / (x[1] - x[0]).clamp(min=torch.finfo(size.dtype).tiny)

    def relax(self, x: Interval) -> Elementwise:
        low, high = x
        one = torch.ones_like(low)
        open_ = self.unsettled(x)
        width = torch.where(open_, high - low, one)
        chord = torch.where(open_, (high - self.leak * low) / width, torch.where(low >= 0, one, one * self.leak))
        shift = torch.where(open_, (1 - chord) * high, low * 0)
        # Zhang et al.: of the two extreme lower lines, the one that leaves the smaller triangle.
        lower = torch.where(open_, torch.where(high > -low, one, one * self.leak), chord)
        return Elementwise.lines(x, (lower, low * 0), (chord, shift), open_, self.leak)


@reads("leaky_relu", nn.LeakyReLU)
def leaky_relu(r: Reader, input: Handle, negative_slope: float = 0.01, inplace: bool = False) -> Handle:
    if not 0 <= negative_slope < 1:
        raise Unprovable(f"leaky ReLU with slope {negative_slope}")
    return r.add(LeakyReLU(float(r.real(negative_slope))), input.shape, input)


@reads("relu", "relu_", nn.ReLU)
def relu(r: Reader, input: Handle, inplace: bool = False) -> Handle:
    return leaky_relu(r, input, 0.0)


@reads("clamp", "clip")
def clamp(r: Reader, input: Handle, min: Any = None, max: Any = None) -> Handle:
    """min + relu(x - min) - relu(x - max)."""
    for end in (min, max):
        if not (end is None or isinstance(end, (int, float))):
            raise Unprovable("clamping to anything but numbers")
    if min is None:
        return input if max is None else scale(r, relu(r, scale(r, input, -1.0, max)), -1.0, max)
    above = relu(r, scale(r, input, 1.0, -min))
    if max is not None:
        if max < min:
            raise Unprovable("clamping to an empty range")
        above = sub(r, above, relu(r, scale(r, input, 1.0, -max)))
    return scale(r, above, 1.0, min)


@reads("hardtanh", nn.Hardtanh)  # ReLU6 is one, too
def hardtanh(r: Reader, input: Handle, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Handle:
    return clamp(r, input, min_val, max_val)


@reads("abs")
def absolute(r: Reader, input: Handle) -> Handle:
    return add(r, relu(r, input), relu(r, neg(r, input)))
