"""Matrix products: with a constant on either side, and of two values of the network, as attention has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.dense import dense
from rarely.bounds.layers.move import expand, rearrange
from rarely.bounds.operators import TINY, Affine, Interval, Relaxed, Terms, contract, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Stacked(Affine):
    """x C with a constant matrix for each leading index."""

    weight: Tensor  # (..., in, out), broadcasts with the leading axes of the value

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] @ self.weight

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        centre, reach = (low + high) / 2 @ self.weight, (high - low) / 2 @ self.weight.abs()
        return centre - reach, centre + reach

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return (A @ self.weight.mT,)

    def constant(self) -> None:
        return None

    def terms(self, *H: Tensor) -> Terms:
        return Terms(H[0] @ self.weight.abs(), *self.weight.shape[-2:])


@dataclass(frozen=True)
class Centred:
    """x y = cx y + x cy - cx cy + (x - cx) (y - cy), and the last is at most the product of the half widths."""

    left: Tensor  # (B, ..., n, k), centres
    right: Tensor  # (B, ..., k, p)
    shift: Tensor  # (B, ..., n, p)
    reach: Tensor  # (B, ..., n, p), with the slack

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        left, right = A @ self.right.unsqueeze(1).mT, self.left.unsqueeze(1).mT @ A
        bias = contract(A, self.shift) - contract(A.abs(), self.reach)
        return torch.cat([left.flatten(2), right.flatten(2)], 2), bias


@dataclass(frozen=True)
class MatMul(Relaxed):
    """The product of two matrices, or stacks of them, whose entries lie one after the other in one flat value."""

    left: tuple[int, ...]  # (..., n, k)
    right: tuple[int, ...]  # (..., k, p)

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        n = math.prod(self.left)
        return flat[:, :n].reshape(-1, *self.left), flat[:, n:].reshape(-1, *self.right)

    def forward(self, *xs: Tensor) -> Tensor:
        left, right = self._parts(xs[0])
        return left @ right

    def interval(self, *xs: Interval) -> Interval:
        centre = (xs[0][0] + xs[0][1]) / 2
        (cx, cy), (rx, ry) = self._parts(centre), self._parts((xs[0][1] - xs[0][0]) / 2)
        product = cx @ cy
        reach = cx.abs() @ ry + rx @ (cy.abs() + ry) + self._slack(magnitude(xs[0]))
        return product - reach, product + reach

    def _slack(self, H: Tensor) -> Tensor:
        n = sum(self.left[-2:]) + self.right[-1]
        return self.forward(H) * gamma(n + 16, H.dtype) + TINY

    def terms(self, *H: Tensor) -> Terms:
        return Terms(self.forward(H[0]), self.left[-1])

    def unsettled(self, x: Interval) -> Tensor:
        return x[0] < x[1]

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        rx, ry = self._parts((x[1] - x[0]) / 2)
        return torch.cat([(size @ ry.mT).flatten(1), (rx.mT @ size).flatten(1)], 1) / 4

    def relax(self, x: Interval) -> Centred:
        (cx, cy), (rx, ry) = self._parts((x[0] + x[1]) / 2), self._parts((x[1] - x[0]) / 2)
        slack = self._slack(magnitude(x)) * (1 + math.prod(self.left[:-1]) * self.right[-1])
        return Centred(cx, cy, -(cx @ cy), rx @ ry + slack)


def _with_constant(r: Reader, x: Handle, C: Tensor) -> Handle:
    """x C over the last two axes."""
    if C.ndim == 1:
        row = dense(r, x, C.unsqueeze(0))
        return rearrange(r, lambda v: v.squeeze(-1), row)  # type: ignore[no-any-return]
    if C.ndim == 2:
        return dense(r, x, C.mT)
    if C.ndim == len(x.shape) + 1 and C.shape[0] == 1:
        C = C[0]
    if C.ndim > len(x.shape):
        raise Unprovable("a product with constant matrices over the batch dimension")
    if C.ndim > 2:
        (x,) = expand(r, x, shapes=[(*C.shape[:-2], *x.shape[-2:])])
    return r.add(Stacked(C), (*x.shape[:-1], C.shape[-1]), x)


def _turned(r: Reader, x: Handle) -> Handle:
    return rearrange(r, lambda v: v.mT, x)  # type: ignore[no-any-return]


@reads("matmul", "bmm")
def matmul(r: Reader, input: Any, mat2: Any) -> Handle:
    if not isinstance(mat2, Handle):
        return _with_constant(r, input, r.real(mat2))
    if not isinstance(input, Handle):
        C = r.real(input)
        if C.ndim < 2 or len(mat2.shape) < 2:
            raise Unprovable("a constant vector times a value of the network")
        return _turned(r, _with_constant(r, _turned(r, mat2), C.mT))
    if len(input.shape) != len(mat2.shape) or len(input.shape) < 2:
        raise Unprovable("a matrix product over the batch dimension")
    lead = torch.broadcast_shapes(input.shape[:-2], mat2.shape[:-2])  # type: ignore[no-untyped-call]
    x, y = (expand(r, v, shapes=[(*lead, *v.shape[-2:])])[0] for v in (input, mat2))
    flat = rearrange(r, lambda a, b: torch.cat([a.flatten(1), b.flatten(1)], 1), x, y)
    return r.add(MatMul(x.shape, y.shape), (*lead, x.shape[-2], y.shape[-1]), flat)
