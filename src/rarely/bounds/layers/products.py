"""Products of two values of the network, entry by entry, and quotients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.arithmetic import scale
from rarely.bounds.layers.curves import reciprocal, square
from rarely.bounds.layers.move import expand
from rarely.bounds.operators import TINY, Affine, Interval, Relaxed, Terms, contract, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads
MODE='best'

@dataclass(frozen=True)
class Pairs(Affine):
    """Of x and y of equal shape (*event): x, y, x + y and x - y, (4, *event)."""

    def forward(self, *xs: Tensor) -> Tensor:
        return torch.stack([xs[0], xs[1], xs[0] + xs[1], xs[0] - xs[1]], 1)

    def interval(self, *xs: Interval) -> Interval:
        (a, b), (c, d) = xs
        margin = self._sizes(magnitude(xs[0]), magnitude(xs[1])) * gamma(3, a.dtype) + TINY
        return torch.stack([a, c, a + c, a - d], 1) - margin, torch.stack([b, d, b + d, b - c], 1) + margin

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return A[:, :, 0] + A[:, :, 2] + A[:, :, 3], A[:, :, 1] + A[:, :, 2] - A[:, :, 3]

    def constant(self) -> None:
        return None

    def terms(self, *H: Tensor) -> Terms:
        """The network computes neither sum nor difference: they round in bounds alone."""
        return Terms(self._sizes(*H), 0, 3)

    def _sizes(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x, y, x + y, x + y], 1)


@dataclass(frozen=True)
class Planes:
    """lower (x, y) + shift <= x y <= upper (x, y) + shift over the first two of each four."""

    slopes: tuple[Tensor, Tensor]  # (B, 4, *event), below and above
    mid_shift: Tensor  # (B, *event)
    half_shift: Tensor  # less the slack

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        size = A.abs()
        lower, upper = (s.unsqueeze(1) for s in self.slopes)
        bias = contract(A, self.mid_shift) + contract(size, self.half_shift)
        A, size = A.unsqueeze(2), size.unsqueeze(2)
        return torch.addcmul(A * ((lower + upper) / 2.0), size, (lower - upper) / 2.0), bias


@dataclass(frozen=True)
class Product(Relaxed):
    """x y from `Pairs`."""

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
        a, b, p, q = ((x[1] - x[0]) / 2).unbind(1)
        return torch.stack([size * b, size * a, size * p / 4, size * q / 4], 1) / 4

    def relax(self, x: Interval) -> Planes:
        low, high = x
        centre, half = (low + high) / 2, (high - low) / 2
        cx, cy, cp, cq = centre.unbind(1)
        hx, hy, hp, hq = half.unbind(1)
        plane = [cy, cx, -cx * cy]
        lower, upper = [*plane[:2], plane[2] - hx * hy], [*plane[:2], plane[2] + hx * hy]
        sl = (hq * hq < 4 * hx * hy) if MODE == 'best' else torch.full_like(hq, MODE == 'squares', dtype=torch.bool)
        su = (hp * hp < 4 * hx * hy) if MODE == 'best' else torch.full_like(hq, MODE == 'squares', dtype=torch.bool)
        sq = [(cp - cq) / 2, (cp + cq) / 2]
        sq_low = [*sq, (low[:, 3] * high[:, 3] - cp * cp) / 4]
        sq_up = [*sq, (cq * cq - low[:, 2] * high[:, 2]) / 4]
        lower = [torch.where(sl, a, b) for a, b in zip(sq_low, lower)]
        upper = [torch.where(su, a, b) for a, b in zip(sq_up, upper)]
        H = magnitude(x)
        slack = (H[:, 0] + H[:, 1]) ** 2 * gamma(16 + H[0].numel(), H.dtype) + TINY
        slopes = [torch.stack([p[0], p[1], p[0] * 0, p[0] * 0], 1) for p in (lower, upper)]
        return Planes(tuple(slopes), (lower[2] + upper[2]) / 2, (lower[2] - upper[2]) / 2 - slack)


def product(r: Reader, x: Handle, y: Handle) -> Handle:
    if x == y:
        return square(r, x)
    if len(x.shape) != len(y.shape):
        raise Unprovable("a product that broadcasts over the batch dimension")
    x, y = expand(r, x, y)
    return r.add(Product(), x.shape, r.add(Pairs(), (4, *x.shape), x, y))


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
