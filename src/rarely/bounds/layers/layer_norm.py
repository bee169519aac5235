"""Layer norm: what is left of a value without its mean, times the reciprocal root of its variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.layers.arithmetic import Scale
from rarely.bounds.layers.curves import rsqrt, square
from rarely.bounds.layers.dense import dense
from rarely.bounds.layers.move import expand, rearrange
from rarely.bounds.layers.products import product
from rarely.bounds.operators import Affine, Interval, Terms
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Variance(Affine):
    """The mean of squared deviations, the first input, over the last axis, and eps.

    The second input, the value itself, is there for its magnitude: some runtimes take mean(x^2) - mean(x)^2, which
    rounds against 2 mean(x^2), and more than a sum of squared deviations does.
    """

    eps: Tensor  # (1,)
    width: int

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0].mean(-1, keepdim=True) + self.eps

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(xs[0][0]), self.forward(xs[0][1])

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        each = (A / self.width).expand(*A.shape[:-1], self.width)
        return each, torch.zeros_like(each)

    def constant(self) -> Tensor:
        return self.eps

    def terms(self, *H: Tensor) -> Terms:
        size = H[0].mean(-1, keepdim=True) + 2 * (H[1] * H[1]).mean(-1, keepdim=True) + self.eps
        return Terms(size, H[0].shape[-1] + 4)


@reads("layer_norm", nn.LayerNorm)
def layer_norm(
    r: Reader, input: Handle, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Handle:
    shape, n = input.shape, math.prod(normalized_shape)
    lead = shape[: len(shape) - len(normalized_shape)]
    flat = rearrange(r, lambda v: v.reshape(len(v), *lead, n), input)
    # Twice the same: the network rounds what it squares and what it scales in ways of their own.
    squared, scaled = (dense(r, flat, torch.eye(n, dtype=torch.float64) - 1 / n) for _ in range(2))
    variance = r.add(Variance(r.real([eps]), n), (*lead, 1), square(r, squared), flat)
    unit = product(r, scaled, *expand(r, rsqrt(r, variance), shapes=[flat.shape]))
    factor = r.real([1.0] * n if weight is None else weight).flatten()
    shift = torch.zeros_like(factor) if bias is None else r.real(bias).flatten()
    out = r.add(Scale(factor, shift, shift.abs()), flat.shape, unit)
    return rearrange(r, lambda v: v.reshape(len(v), *shape), out)  # type: ignore[no-any-return]
