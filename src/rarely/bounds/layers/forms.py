"""Quadratic forms, sums of x times an affine function of itself: squares along the axes of the form.

Products bounded one by one forget that together they may be convex. A tangent plane below x^T M x, positive definite,
errs by z^T M z with z from the centre, where products err by |z|^T |M| |z|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.layers.arithmetic import add
from rarely.bounds.layers.curves import square
from rarely.bounds.layers.dense import Dense, dense
from rarely.bounds.layers.products import Product
from rarely.bounds.operators import EPS, Terms
from rarely.bounds.reader import Handle, Reader


@dataclass(frozen=True)
class AxisSum(Dense):
    """sum_k l_k q_k, where q_k = (v_k x)^2 along nearly orthonormal axes: x^T M x but for what the axes miss.

    M = V diag(l) V^T + R, and |x^T R x| <= |R|_F |x|^2. The network, which knows nothing of axes, rounds a sum of
    products that is at most |x|^T |M| |x| <= |M|_F |x|^2. And |x|^2 <= 1.01 sum_k q_k. What underflows in M x, at most
    2 n + 1 times the smallest normal number in each of n entries, is multiplied by |x_i| <= 1 + |x|^2.
    """

    cover: float  # |M|_F + |R|_F / (8 EPS)
    lost: float  # n (2 n + 1) tiny / eps, for which charges multiply by more than eps

    def terms(self, *H: Tensor) -> Terms:
        n = self.weight.shape[1]
        plain = super().terms(*H)
        total = 1.01 * H[0].sum(-1, keepdim=True)
        return Terms(plain.size + self.cover * total + self.lost * (1 + total), 2 * n + 4, plain.back)


def axes(M: Tensor) -> tuple[Tensor, Tensor, float] | None:
    """Eigenvalues (n,), axes (n, n) as columns, and a bound on what they miss of a symmetric M, in Frobenius norm."""
    values, V = torch.linalg.eigh(M)
    eye = torch.eye(len(M), dtype=M.dtype, device=M.device)
    if not float((V.mT @ V - eye).norm()) < 1e-6:  # then |V x|^2 and |x|^2 differ by less than 1 %
        return None
    rest = (M - (V * values) @ V.mT).norm()
    size = (M.abs() + (V * values).abs() @ V.abs().mT).norm()
    return values, V, float(rest + size * (2 * len(M) + 8) * EPS) * (1 + 1e-6)


def quadratic(r: Reader, x: Handle) -> Handle | None:
    """The sum over the entries of a flat product of y and an affine function of y, where x is that."""
    node = r.nodes[x.index]
    if not isinstance(node.op, Product) or len(x.shape) != 1:
        return None
    pair = r.nodes[node.inputs[0]].inputs  # of the values that were stacked
    for i, j in (pair, pair[::-1]):
        op = r.nodes[j].op
        if type(op) is Dense and r.nodes[j].inputs == (i,):
            found = axes((op.weight + op.weight.mT) / 2)
            if found is not None:
                y, (values, V, missed) = Handle(i, x.shape), found
                cover = float(op.weight.norm()) + missed / (8 * EPS)
                n, arithmetic = len(values), r.arithmetic
                lost = n * (2 * n + 1) * arithmetic.tiny / arithmetic.eps
                squares = square(r, dense(r, y, V.mT))
                form = r.add(AxisSum(values.unsqueeze(0), values.new_zeros(1), cover, lost), (1,), squares)
                return add(r, form, dense(r, y, op.bias.unsqueeze(0)))
    return None
