"""Affine operators of a network: forward, interval, transpose, and the rounding they can cost.

Every operator works on tensors with the batch first. `transpose` takes the coefficients A, of shape
(B, m, *out), of m linear functions of the output and gives those of the inputs, (B, m, *in).

Rounding. The bounds are statements about the network in real arithmetic, its stored weights taken as exact
reals. A sum of n products evaluated in floating point, in any order, is off by at most n u times the sum of the
absolute products (Higham 2002, sec. 3.1; u is the unit roundoff, half of `finfo.eps`, and terms of order u^2
are covered below). `slack(H)` therefore returns gamma (|W| H + |b|), with H >= |x| over the region and
gamma = (n + 8) eps = 2 (n + 8) u: twice the worst case, with eight more roundings for what surrounds the sum.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Interval = tuple[Tensor, Tensor]


def gamma(n: int, dtype: torch.dtype) -> float:
    """Relative error charged to a sum of n products, in units of the sum of absolute products."""
    return (n + 8) * torch.finfo(dtype).eps


def magnitude(bounds: Interval) -> Tensor:
    """The largest absolute value inside an interval."""
    return torch.maximum(bounds[0].abs(), bounds[1].abs())


class LinearOp(Protocol):
    """An affine map of one or several inputs."""

    def forward(self, *xs: Tensor) -> Tensor: ...

    def interval(self, *xs: Interval) -> Interval: ...

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]: ...

    def constant(self) -> Tensor | None: ...

    def slack(self, *H: Tensor) -> Tensor | None: ...


@dataclass(frozen=True)
class Dense:
    """y = x W^T + b over the last axis."""

    weight: Tensor  # (out, in)
    bias: Tensor  # (out,)

    def forward(self, *xs: Tensor) -> Tensor:
        return F.linear(xs[0], self.weight, self.bias)

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        centre = self.forward((low + high) / 2)
        reach = F.linear((high - low) / 2, self.weight.abs()) + self.slack(magnitude(xs[0]))
        return centre - reach, centre + reach

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return (A @ self.weight,)

    def constant(self) -> Tensor | None:
        return self.bias

    def slack(self, *H: Tensor) -> Tensor:
        n = max(self.weight.shape)
        return F.linear(H[0], self.weight.abs(), self.bias.abs()) * gamma(n, H[0].dtype)


@dataclass(frozen=True)
class Conv:
    """Convolution over one, two or three spatial axes, zero padding; average pooling is a case of it."""

    weight: Tensor  # (out, in / groups, *kernel)
    bias: Tensor  # (out,)
    in_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(
            x,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0,) * len(self.stride),
            self.groups,
        )

    def forward(self, *xs: Tensor) -> Tensor:
        return self._apply(xs[0], self.weight, self.bias)

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        centre = self.forward((low + high) / 2)
        reach = self._apply((high - low) / 2, self.weight.abs(), None) + self.slack(magnitude(xs[0]))
        return centre - reach, centre + reach

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        kernel = self.weight.shape[2:]
        # What the strided convolution never looked at comes back as zeros through the output padding.
        rest = tuple(
            self.in_shape[1 + i]
            - ((A.shape[3 + i] - 1) * self.stride[i] - 2 * self.padding[i] + self.dilation[i] * (k - 1) + 1)
            for i, k in enumerate(kernel)
        )
        back = torch.convolution(
            A.flatten(0, 1),
            self.weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            True,
            rest,
            self.groups,
        )
        return (back.reshape(*A.shape[:2], *self.in_shape),)

    def constant(self) -> Tensor | None:
        return self.bias.reshape(-1, *(1,) * len(self.stride))

    def slack(self, *H: Tensor) -> Tensor:
        n = math.prod(self.weight.shape[2:]) * max(self.weight.shape[:2])
        return self._apply(H[0], self.weight.abs(), self.bias.abs()) * gamma(n, H[0].dtype)


@dataclass(frozen=True)
class Scale:
    """y = s x + t entry by entry: batch norm, and arithmetic with constants."""

    factor: Tensor  # broadcasts to the event shape
    shift: Tensor
    shift_size: Tensor  # sum of absolute terms that made `shift`, for the rounding

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] * self.factor + self.shift

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        one, two = low * self.factor, high * self.factor
        margin = self.slack(magnitude(xs[0]))
        return torch.minimum(one, two) + self.shift - margin, torch.maximum(one, two) + self.shift + margin

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return (A * self.factor,)

    def constant(self) -> Tensor | None:
        return self.shift

    def slack(self, *H: Tensor) -> Tensor:
        return (H[0] * self.factor.abs() + self.shift_size) * gamma(4, H[0].dtype)


@dataclass(frozen=True)
class Add:
    """The sum of inputs of equal shape."""

    count: int

    def forward(self, *xs: Tensor) -> Tensor:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    def interval(self, *xs: Interval) -> Interval:
        margin = self.slack(*(magnitude(x) for x in xs))
        return self.forward(*(x[0] for x in xs)) - margin, self.forward(*(x[1] for x in xs)) + margin

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return (A,) * self.count

    def constant(self) -> Tensor | None:
        return None

    def slack(self, *H: Tensor) -> Tensor:
        return self.forward(*H) * gamma(self.count, H[0].dtype)


@dataclass(frozen=True)
class Gather:
    """Each output entry is one input entry, or zero: reshape, transpose, slice, expand, pad, concatenate.

    `index` holds, per output entry, a position in the inputs flattened and laid end to end; the position after
    the last is the constant zero. No rounding happens here.
    """

    index: Tensor  # out_shape, long
    in_shapes: tuple[tuple[int, ...], ...]
    plain: bool  # one input, order kept: a reshape

    def forward(self, *xs: Tensor) -> Tensor:
        if self.plain:
            return xs[0].reshape(-1, *self.index.shape)
        flat = torch.cat([x.flatten(1) for x in xs] + [xs[0].new_zeros(xs[0].shape[0], 1)], 1)
        return flat[:, self.index]

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(*(x[0] for x in xs)), self.forward(*(x[1] for x in xs))

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        lead = A.shape[:2]
        if self.plain:
            return (A.reshape(*lead, *self.in_shapes[0]),)
        sizes = [math.prod(shape) for shape in self.in_shapes]
        flat = A.new_zeros(*lead, sum(sizes) + 1).index_add(2, self.index.flatten(), A.flatten(2))
        parts = torch.split(flat[..., :-1], sizes, 2)
        return tuple(p.reshape(*lead, *s) for p, s in zip(parts, self.in_shapes, strict=True))

    def constant(self) -> Tensor | None:
        return None

    def slack(self, *H: Tensor) -> Tensor | None:
        return None


AnyOp = TypeVar("AnyOp")


def moved(op: AnyOp, device: torch.device, dtype: torch.dtype) -> AnyOp:
    """The same operator with its tensors on another device or in another precision (indices stay indices)."""
    if not dataclasses.is_dataclass(op) or isinstance(op, type):
        return op
    changed = {}
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = value.to(device, dtype if value.is_floating_point() else value.dtype)
    return dataclasses.replace(op, **changed) if changed else op
