"""Convolutions as sums of products, whoever computes them.

What bounds are charged for their own rounding is that of a sum of products, in any order. On a CPU torch convolves so.
On a GPU its library chooses, also Winograd's way and Fourier's, which round more; so there we make one matrix product
of the windows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Axes = tuple[int, ...]  # a number for each spatial axis


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    turned: bool,
    output_padding: Axes,
    groups: int,
) -> Tensor:
    """As `torch.convolution`; `turned` is its transpose."""
    if x.device.type == "cpu":
        return torch.convolution(x, weight, bias, stride, padding, dilation, turned, output_padding, groups)
    if turned:
        x, weight, padding = _spread(x, weight, stride, padding, dilation, output_padding, groups)
        stride = (1,) * len(stride)
    y = _windows_times(x, weight, stride, padding, dilation, groups)
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(stride))


def _windows_times(x: Tensor, weight: Tensor, stride: Axes, padding: Axes, dilation: Axes, groups: int) -> Tensor:
    """Windows of x (N, in, *size) times weights (out, in / groups, *kernel)."""
    rank, kernel = len(stride), weight.shape[2:]
    windows = F.pad(x, [pad for pad in reversed(padding) for _ in range(2)])
    for axis, (k, step, apart) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
        windows = windows.unfold(axis, apart * (k - 1) + 1, step)[..., ::apart]
    size = windows.shape[2 : 2 + rank]
    # (N, in, *size, *kernel) to one matrix for each group, of a row for each window.
    windows = windows.reshape(len(x), groups, weight.shape[1], *windows.shape[2:]).movedim(1, 0).movedim(2, 2 + rank)
    rows = windows.reshape(groups, len(x) * math.prod(size), math.prod(weight.shape[1:]))
    each = weight.shape[0] // groups
    found: Tensor = (rows @ weight.reshape(groups, each, -1).mT).reshape(groups, len(x), *size, each)
    return found.movedim(0, 1).movedim(-1, 2).reshape(len(x), weight.shape[0], *size)


def _spread(
    x: Tensor, weight: Tensor, stride: Axes, padding: Axes, dilation: Axes, output_padding: Axes, groups: int
) -> tuple[Tensor, Tensor, Axes]:
    """Input, weights (out, in / groups, *kernel) and padding of a convolution that is a transposed one."""
    rank, kernel = len(stride), weight.shape[2:]
    size = [(n - 1) * step + 1 for n, step in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *size)
    wide[(slice(None), slice(None), *(slice(None, None, step) for step in stride))] = x
    wide = F.pad(wide, [pad for more in reversed(output_padding) for pad in (0, more)])
    per_group = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
    margins = (apart * (k - 1) - pad for k, pad, apart in zip(kernel, padding, dilation, strict=True))
    return wide, per_group.flip([2 + axis for axis in range(rank)]), tuple(margins)
