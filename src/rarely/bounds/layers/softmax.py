"""Softmax and its logarithm, as functions of differences: softmax_i = 1 / sum_j exp(x_j - x_i).

Differences keep what numerator and denominator have in common. The network computes something else, e_j = exp(x_j - m)
with the maximum m, and then e_i / sum_j e_j; that is what stands here with small errors. With d_j = (x_j - m)(1 +
delta_j), d_j - d_i is off from x_j - x_i by at most u (|x_j - m| + |x_i - m|), so `Differences` charges |x_j| + |x_i| +
2 max |x|. The ratio e_j / e_i has the relative error of two exponentials, the sum one of k terms, the quotient one of
its own. An e_j that underflows is less than the smallest normal number; the sum is at least about 1, so it costs as
much in the result, which the charge for underflow covers.

Differences above `_CEILING` are taken as that, so that wide boxes do not overflow: a softmax_i with one of those is
less than 1e-26, in the network and here, and as much is charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.arithmetic import neg
from rarely.bounds.layers.curves import curve
from rarely.bounds.layers.dense import dense
from rarely.bounds.layers.functions import Exp, Log, Power
from rarely.bounds.layers.move import rearrange
from rarely.bounds.operators import Affine, Interval, Terms
from rarely.bounds.reader import Handle, Reader, reads

_LEAST = 0.99  # of the sums, one of whose terms is 1, but for the rounding of at most `_MOST` terms
_MOST = 2**16
_CEILING = 60.0
_SHARE = Power(-1.0, scale=1e-11)  # 16 float64 roundings of which are more than exp(-60)


@dataclass(frozen=True)
class Differences(Affine):
    """x_j - x_i for all pairs of entries along the last axis: (..., k) -> (..., k, k), j last."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0].unsqueeze(-2) - xs[0].unsqueeze(-1)

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        same = torch.eye(low.shape[-1], dtype=torch.bool, device=low.device)
        ends = low.unsqueeze(-2) - high.unsqueeze(-1), high.unsqueeze(-2) - low.unsqueeze(-1)
        return ends[0].masked_fill(same, 0.0), ends[1].masked_fill(same, 0.0)

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return (A.sum(-2) - A.sum(-1),)

    def constant(self) -> None:
        return None

    def terms(self, *H: Tensor) -> Terms:
        most = H[0].amax(-1, keepdim=True).unsqueeze(-1)
        return Terms(H[0].unsqueeze(-2) + H[0].unsqueeze(-1) + 2 * most, 2, 2 * H[0].shape[-1])


def _sums(r: Reader, x: Handle, dim: Any, function: Exp, dtype: Any) -> tuple[Handle, int]:
    """sum_j exp(x_j - x_i) with the axis moved last, and which axis that was."""
    rank = len(x.shape) + 1
    if dtype not in (None, getattr(torch, r.arithmetic.name)):
        raise Unprovable(f"softmax in {dtype}")
    if dim is None or dim % rank == 0:
        raise Unprovable("softmax over the batch dimension")
    axis = dim % rank
    last = rearrange(r, lambda v: v.movedim(axis, -1), x)
    k = last.shape[-1]
    if k > _MOST:
        raise Unprovable(f"softmax over {k} entries")
    apart = curve(r, r.add(Differences(), (*last.shape, k), last), function)
    total = dense(r, apart, torch.ones(1, k, dtype=torch.float64))
    return rearrange(r, lambda v: v.squeeze(-1), total), axis


@reads("softmax", nn.Softmax)
def softmax(r: Reader, input: Handle, dim: Any, _stacklevel: int = 3, dtype: Any = None) -> Handle:
    total, axis = _sums(r, input, dim, Exp(_CEILING), dtype)
    return rearrange(r, lambda v: v.movedim(-1, axis), curve(r, total, _SHARE, _LEAST))  # type: ignore[no-any-return]


@reads("log_softmax", nn.LogSoftmax)
def log_softmax(r: Reader, input: Handle, dim: Any, _stacklevel: int = 3, dtype: Any = None) -> Handle:
    total, axis = _sums(r, input, dim, Exp(), dtype)
    return rearrange(r, lambda v: v.movedim(-1, axis), neg(r, curve(r, total, Log(), _LEAST)))  # type: ignore[no-any-return]
