"""Arithmetic: sums of values, multiples and shifts by constants, batch norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.move import expand
from rarely.bounds.operators import Affine, Interval, Terms
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Scale(Affine):
    """y = s x + t entry by entry."""

    factor: Tensor  # broadcasts to the event shape
    shift: Tensor
    shift_size: Tensor  # sum of absolute terms that made `shift`, for the rounding
    entrywise: ClassVar[bool] = True

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] * self.factor + self.shift

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        one, two = low * self.factor, high * self.factor
        return torch.minimum(one, two) + self.shift, torch.maximum(one, two) + self.shift

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return (A * self.factor,)

    def constant(self) -> Tensor:
        return self.shift

    def terms(self, *H: Tensor) -> Terms:
        return Terms(H[0] * self.factor.abs() + self.shift_size, 4)


@dataclass(frozen=True)
class Add(Affine):
    """The sum of two values of equal shape."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] + xs[1]

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(*(x[0] for x in xs)), self.forward(*(x[1] for x in xs))

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return A, A

    def constant(self) -> None:
        return None

    def terms(self, *H: Tensor) -> Terms:
        return Terms(self.forward(*H), 2)


def _constant(r: Reader, value: Any, rank: int) -> Tensor:
    c = r.real(value)
    if c.ndim == rank + 1 and torch.equal(c, c[:1].expand_as(c)):  # the same for every row
        c = c[0]
    if c.ndim > rank:
        raise Unprovable("a constant that broadcasts over the batch dimension")
    return c


def scale(r: Reader, x: Handle, factor: Any, shift: Any) -> Handle:
    """factor x + shift with constants, broadcast as torch would."""
    s, t = (_constant(r, value, len(x.shape)) for value in (factor, shift))
    (x,) = expand(r, x, shapes=[s.shape, t.shape])
    return r.add(Scale(s, t, t.abs()), x.shape, x)


@reads("add", "iadd")
def add(r: Reader, input: Any, other: Any, alpha: float = 1) -> Handle:
    if not isinstance(input, Handle):
        return scale(r, other, alpha, input)
    if not isinstance(other, Handle):
        return scale(r, input, 1.0, r.real(other) * alpha)
    if len(input.shape) != len(other.shape):
        raise Unprovable("a sum that broadcasts over the batch dimension")
    xs = expand(r, input, other if alpha == 1 else scale(r, other, alpha, 0.0))
    return r.add(Add(), xs[0].shape, *xs)


@reads("sub", "isub")
def sub(r: Reader, input: Any, other: Any, alpha: float = 1) -> Handle:
    return add(r, input, other, -alpha)


@reads("neg")
def neg(r: Reader, input: Handle) -> Handle:
    return scale(r, input, -1.0, 0.0)


@reads(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm(
    r: Reader, input: Handle, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: bool, eps: float
) -> Handle:
    if training or running_mean is None or running_var is None:
        raise Unprovable("batch norm that does not use stored statistics")
    mean, var = r.real(running_mean), r.real(running_var)
    factor = (torch.ones_like(mean) if weight is None else r.real(weight)) / (var + eps).sqrt()
    bias = torch.zeros_like(mean) if bias is None else r.real(bias)
    # Which of its formulas runs is not known; none of them leaves the range of numbers as long as these do not.
    small = (factor != 0) & (factor.abs() < r.arithmetic.tiny)
    if bool((small | (mean.abs() > r.arithmetic.largest / 4)).any()):
        raise Unprovable("batch norm with statistics beyond the range of the network's numbers")
    parts = (factor, bias - mean * factor, bias.abs() + (mean * factor).abs())
    wide = (p.reshape(-1, *(1,) * (len(input.shape) - 1)) for p in parts)
    return r.add(Scale(*wide), input.shape, input)
