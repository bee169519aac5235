"""Products of two values of the network, entry by entry, and quotients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.arithmetic import scale
from rarely.bounds.layers.curves import reciprocal, square
from rarely.bounds.layers.move import expand, rearrange
from rarely.bounds.operators import TINY, Along, Interval, Joint, Terms, contract, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Planes:
    """sum_k A_k x_k y_k from below: linear at the centre, and what the deviations from it multiply to.

    x y = cx y + cy x - cx cy + dx dy. One by one, |dx dy| is at most the product of the half widths. Together,
    with dx_k = a_k w + e_k and dy_k = b_k w + f_k over inputs |w| <= 1, the products of e and f are bounded one by one
    and the rest is w^T K w, K the symmetric part of sum_k A_k a_k b_k^T. With |w_i w_j| <= (w_i^2 + w_j^2) / 2 that is
    at least -sum_i max(0, sum_{j != i} |K_ij| - K_ii), zero where K is diagonally dominant. The better of both.
    """

    slope: Tensor  # (B, 2, *event): cy, cx
    shift: Tensor  # (B, *event): - cx cy
    slack: Tensor  # (B, *event)
    apart: Tensor  # (B, *event)
    linear: tuple[Tensor, Tensor] | None  # a and b, (B, k, n)
    rest: Tensor | None  # (B, *event)

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        size = A.abs()
        lost = contract(size, self.apart)
        if self.linear is not None and self.rest is not None:
            M = torch.einsum("bmk,bki,bkj->bmij", A.flatten(2), *self.linear)
            K = (M + M.mT) / 2
            own = K.diagonal(dim1=-2, dim2=-1)
            bent = (K.abs().sum(-1) - own.abs() - own).clamp(min=0).sum(-1)
            lost = torch.fmin(lost, bent + contract(size, self.rest))
        bias = contract(A, self.shift) - contract(size, self.slack) - lost
        return A.unsqueeze(2) * self.slope.unsqueeze(1), bias


@dataclass(frozen=True)
class Product(Joint):
    """x y of two values that are stacked, (2, *event)."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0][:, 0] * xs[0][:, 1]

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        ends = torch.stack([a * b for a in (low[:, 0], high[:, 0]) for b in (low[:, 1], high[:, 1])])
        least, most = ends.aminmax(dim=0)
        return least - least.abs() * gamma(1, low.dtype) - TINY, most + most.abs() * gamma(1, low.dtype) + TINY

    def terms(self, *H: Tensor) -> Terms:
        return Terms(H[1], 1)

    def unsettled(self, x: Interval) -> Tensor:
        return x[0] < x[1]

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        return size.unsqueeze(1) * ((x[1] - x[0]) / 8).flip(1)

    def relax(self, x: Interval, along: Along | None = None) -> Planes:
        centre, half, H = (x[0] + x[1]) / 2, (x[1] - x[0]) / 2, magnitude(x)
        (cx, cy), (hx, hy) = centre.unbind(1), half.unbind(1)
        slack = H[:, 0] * H[:, 1] * gamma(16 + cx[0].numel(), H.dtype) + TINY
        linear = rest = None
        if along is not None:
            n = along.reach.shape[1]
            slope = along.slope * along.reach.reshape(-1, *(1,) * (H.ndim - 1), n)
            swing = slope.abs().sum(-1)
            off = along.off + (along.middle - centre).abs()
            off = off + (off + swing + H) * gamma(n, H.dtype)
            (a, b), (sx, sy), (ex, ey) = slope.flatten(2, -2).unbind(1), swing.unbind(1), off.unbind(1)
            linear = a, b
            rest = (sx * ey + ex * (sy + ey)) * (1 + 1e-12) + sx * sy * gamma(a.shape[1] + 4 * n, H.dtype)
        return Planes(centre.flip(1), -cx * cy, slack, hx * hy, linear, rest)


def product(r: Reader, x: Handle, y: Handle) -> Handle:
    if x == y:
        return square(r, x)
    if len(x.shape) != len(y.shape):
        raise Unprovable("a product that broadcasts over the batch dimension")
    x, y = expand(r, x, y)
    return r.add(Product(), x.shape, rearrange(r, lambda a, b: torch.stack([a, b], 1), x, y))


@reads("mul", "imul")
def mul(r: Reader, input: Any, other: Any) -> Handle:
    if isinstance(input, Handle) and isinstance(other, Handle):
        return product(r, input, other)
    return scale(r, input, other, 0.0) if isinstance(input, Handle) else scale(r, other, input, 0.0)


@reads("div", "truediv", "itruediv")
def div(r: Reader, input: Any, other: Any) -> Handle:
    if isinstance(other, Handle):
        return mul(r, input, reciprocal(r, other))
    return scale(r, input, 1 / r.real(other), 0.0)
