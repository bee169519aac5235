"""Maxima over windows of entries: max-pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.operators import Interval, Relaxed, Terms, contract, gamma, magnitude, tiny
from rarely.bounds.reader import Handle, Reader, per_axis, reads


@dataclass(frozen=True)
class Windows:
    """Lines over the window of each output: sum_j c_j x_j + t, below (no shift) and above."""

    index: Tensor  # (n_out, w) positions in the flattened input
    in_shape: tuple[int, ...]
    lower: Tensor  # (B, n_out, w)
    upper: Tensor
    upper_shift: Tensor  # (B, n_out)
    slack: Tensor  # (B, n_out)

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        flat = A.flatten(2)
        above, below = flat.clamp(min=0), flat.clamp(max=0)
        bias = contract(below, self.upper_shift) - contract(flat.abs(), self.slack)
        batch = max(A.shape[0], self.lower.shape[0])
        back = A.new_zeros(batch, A.shape[1], math.prod(self.in_shape))
        for j in range(self.index.shape[1]):
            part = above * self.lower[:, None, :, j] + below * self.upper[:, None, :, j]
            back = back.index_add(2, self.index[:, j], part)
        return back.reshape(batch, A.shape[1], *self.in_shape), bias


@dataclass(frozen=True)
class MaxWindows(Relaxed):
    """Maximum over windows of entries (max-pool of any dimension, stride, padding and dilation).

    Below: the entry with the largest lower bound. Above, for any c >= max_j l_j: max_j x_j <= c + sum_j
    relu(x_j - c), each term under its chord; c = max_j l_j uses every entry that can win, and
    c = max(second largest u, max_j l_j) only the one that reaches highest. The better of both at the centre.
    """

    index: Tensor  # (n_out, w)
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]

    def _windows(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, self.index]

    def forward(self, *xs: Tensor) -> Tensor:
        return self._windows(xs[0]).amax(-1).reshape(-1, *self.out_shape)

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(xs[0][0]), self.forward(xs[0][1])

    def terms(self, *H: Tensor) -> Terms | None:
        return None

    def unsettled(self, x: Interval) -> Tensor:
        return torch.ones_like(x[0], dtype=torch.bool)

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        low, high = self._windows(x[0]), self._windows(x[1])
        live = high > low.amax(-1, keepdim=True)
        live = live & (live.sum(-1, keepdim=True) > 1)
        part = torch.where(live, size.flatten(1).unsqueeze(-1) / 4, low * 0)
        flat = torch.zeros_like(x[0]).flatten(1).index_add(1, self.index.flatten(), part.flatten(1))
        return flat.reshape(x[0].shape)

    def relax(self, x: Interval) -> Windows:
        low, high = self._windows(x[0]), self._windows(x[1])
        floor, best = low.max(-1, keepdim=True)
        lower = torch.zeros_like(low).scatter(-1, best, 1.0)

        def plane(c: Tensor) -> tuple[Tensor, Tensor]:
            live = high > c
            width = torch.where(live, high - low, torch.ones_like(low))
            slope = torch.where(live, ((high - c) / width).clamp(max=1), low * 0)
            # At x_j = u_j the term must reach u_j - c; below, it must stay above zero: both ends are checked.
            shift = torch.where(live, torch.maximum(high - c - slope * high, -slope * low), low * 0)
            return slope, c.squeeze(-1) + shift.sum(-1)

        runner = high.topk(2, -1).values[..., 1:] if high.shape[-1] > 1 else floor
        all_, one = plane(floor), plane(torch.maximum(runner, floor))
        centre = (low + high) / 2
        pick = (all_[0] * centre).sum(-1) + all_[1] <= (one[0] * centre).sum(-1) + one[1]
        upper = torch.where(pick.unsqueeze(-1), all_[0], one[0])
        shift = torch.where(pick, all_[1], one[1])
        size = (magnitude((low, high)) * (lower + upper.abs() + 1)).sum(-1) + shift.abs()
        slack = size * gamma(self.index.shape[0] + 4 * self.index.shape[1], low.dtype) + tiny(low.dtype)
        return Windows(self.index, self.in_shape, lower, upper, shift, slack)


def _places(n: int, size: tuple[int, ...], ceil_mode: bool) -> Tensor:
    """Which of n positions along one axis each window covers, (windows, kernel); its size as torch lists it."""
    kernel, stride, padding, dilation = size
    reach = n + 2 * padding - dilation * (kernel - 1) - 1
    count = (math.ceil if ceil_mode else math.floor)(reach / stride) + 1
    if ceil_mode and (count - 1) * stride >= n + padding:
        count -= 1
    at = torch.arange(count)[:, None] * stride - padding + torch.arange(kernel) * dilation
    inside = (at >= 0) & (at < n)
    if not bool(inside.any(1).all()):
        raise Unprovable("a max-pool window that lies in the padding")
    # Padding never wins the maximum, so it can repeat an entry of its own window.
    first = at.gather(1, inside.int().argmax(1, keepdim=True))
    return torch.where(inside, at, first)


def max_pool(
    rank: int,
    r: Reader,
    input: Handle,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Handle:
    if return_indices or len(input.shape) < rank:
        raise Unprovable("max-pool with indices or without enough dimensions")
    lead, spatial = input.shape[:-rank], input.shape[-rank:]
    sizes = zip(*(per_axis(v, rank) for v in (kernel_size, stride or kernel_size, padding, dilation)), strict=True)
    # Positions in one channel (o1, k1, o2, k2, ...), then the windows last, then the channels in front.
    flat = torch.zeros((), dtype=torch.long)
    for n, size in zip(spatial, sizes, strict=True):
        flat = flat[..., None, None] * n + _places(n, size, ceil_mode)
    windows = flat.permute(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    channel = torch.arange(math.prod(lead)).reshape(*lead, *(1,) * (2 * rank)) * math.prod(spatial)
    windows = (windows + channel).to(r.device)
    shape = tuple(windows.shape[:-rank])
    return r.add(MaxWindows(windows.reshape(math.prod(shape), -1), input.shape, shape), shape, input)


for _rank, _module in ((1, nn.MaxPool1d), (2, nn.MaxPool2d)):
    reads(f"max_pool{_rank}d", _module)(partial(max_pool, _rank))
