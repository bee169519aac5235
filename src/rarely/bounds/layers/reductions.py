"""Sums, means and maxima over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.dense import dense
from rarely.bounds.layers.forms import quadratic
from rarely.bounds.layers.max_windows import MaxWindows
from rarely.bounds.layers.move import rearrange
from rarely.bounds.reader import Handle, Reader, reads


def _axes(x: Handle, dim: Any, keepdim: bool) -> tuple[Callable[[Tensor], Tensor], tuple[int, ...]]:
    """The move that flattens the axes meant by `dim` into one at the end, and the shape without them."""
    rank = len(x.shape) + 1
    axes = [d % rank for d in (dim if isinstance(dim, Sequence) else [dim])]
    if 0 in axes or not axes:
        raise Unprovable("a reduction over the batch dimension")
    keep = [d for d in range(rank) if d not in axes]
    shape = tuple(1 if d in axes else x.shape[d - 1] for d in range(1, rank) if keepdim or d not in axes)
    return lambda v: v.permute(*keep, *axes).flatten(len(keep)), shape


def _total(r: Reader, x: Handle, dim: Any, keepdim: bool, average: bool) -> Handle:
    """The axes are moved last and joined by a dense row."""
    last, shape = _axes(x, dim, keepdim)
    flat = rearrange(r, last, x)
    n = flat.shape[-1]
    row = None if average else quadratic(r, flat)
    if row is None:
        row = dense(r, flat, torch.full((1, n), 1 / n if average else 1.0, dtype=torch.float64))
    return rearrange(r, lambda v: v.reshape(len(v), *shape), row)  # type: ignore[no-any-return]


@reads("sum")
def total(r: Reader, input: Handle, dim: Any, keepdim: bool = False) -> Handle:
    return _total(r, input, dim, keepdim, average=False)


@reads("mean")
def mean(r: Reader, input: Handle, dim: Any, keepdim: bool = False) -> Handle:
    return _total(r, input, dim, keepdim, average=True)


@reads("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d)
def adaptive_avg_pool2d(r: Reader, input: Handle, output_size: Any) -> Handle:
    if any(s != 1 for s in (output_size if isinstance(output_size, Sequence) else [output_size])):
        raise Unprovable("adaptive pooling to more than one entry")
    return mean(r, input, [-2, -1], keepdim=True)


@reads("amax")
def amax(r: Reader, input: Handle, dim: Any, keepdim: bool = False) -> Handle:
    """Windows made of the entries along the axes."""
    last, shape = _axes(input, dim, keepdim)
    windows = last(torch.arange(math.prod(input.shape), device=r.device).reshape(1, *input.shape))[0]
    return r.add(MaxWindows(windows.reshape(-1, windows.shape[-1]), input.shape, shape), shape, input)


@reads("maximum")
def maximum(r: Reader, input: Handle, other: Handle) -> Handle:
    return amax(r, rearrange(r, lambda x, y: torch.stack([x, y], -1), input, other), -1)
