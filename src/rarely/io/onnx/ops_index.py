"""Operators whose positions may be computed: one-hot codes, scattered entries, windows that the input moves."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import fx, nn

from rarely.core.errors import UnsupportedOperator
from rarely.io.onnx.builder import (
    Activation,
    Builder,
    Constant,
    IllFormed,
    OnnxNode,
    Value,
    check_size,
    converts,
    normal_axis,
)
from rarely.io.onnx.model import Array

REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


ABSENT = -(2**50)
"""Stands for an entry that ONNX leaves away, see `windows`; sums with it are still below half of it."""


@converts("OneHot")
def _one_hot(builder: Builder, op: OnnxNode) -> Value:
    indices, depth, (off, on) = op.activation(), int(op.array(1).item()), op.array(2)
    rank = len(indices.shape) + 1
    axis = normal_axis(op.attr("axis", -1), rank)
    shape = list(indices.shape)
    shape.insert(axis, 1)
    check_size(math.prod(shape) * depth, f"the result of a depth of {depth}")
    if indices.probe.is_floating_point():
        indices = builder.method("to", indices, torch.int64)
    column = builder.view(indices, shape)
    classes = np.arange(depth).reshape(-1, *(1,) * (rank - axis - 1))
    # Negative indices count from the end; one outside of [-depth, depth) is never hot.
    ahead, behind = (builder.broadcast(torch.eq, column, Constant(c)) for c in (classes, classes - depth))
    return builder.broadcast(torch.where, builder.call(torch.logical_or, ahead, behind), Constant(on), Constant(off))


@converts("ScatterND")
def _scatter(builder: Builder, op: OnnxNode) -> Value:
    reduction = op.attr("reduction", "none")
    if reduction != "none" and reduction not in REDUCTIONS:
        raise op.refuse(f"reduction={reduction!r}")
    data, indices, updates = (_in_rows(builder, op.input(i)) for i in range(3))
    depth = indices.shape[-1]
    if updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise IllFormed(f"updates of shape {updates.shape} do not fit indices of shape {indices.shape}")
    given = op.input(1)
    if isinstance(given, Constant):
        sizes = np.array(data.shape[:depth])
        if not bool(((given.array >= -sizes) & (given.array < sizes)).all()):
            raise IllFormed(f"indices outside a tensor of shape {data.shape}")
    return builder.call(scatter_nd, data, indices, updates, REDUCTIONS.get(reduction))


def scatter_nd(data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, reduce: str | None) -> torch.Tensor:
    """ScatterND on every row: data (n, *shape), indices (n, *k, depth), updates (n, *k, *shape[depth:])."""
    sizes = data.shape[1 : indices.shape[-1] + 1]
    inner = math.prod(data.shape[len(sizes) + 1 :])
    place = indices.new_zeros(indices.shape[:-1])
    for axis, size in enumerate(sizes):
        entry = indices[..., axis]
        place = place * size + torch.where(entry < 0, entry + size, entry)
    flat = place.reshape(len(data), -1, 1) * inner + torch.arange(inner, device=data.device)
    whole = nn.functional.pad(data.flatten(1), (0, 1))  # what is absent goes into a place that is dropped
    absent = (indices < ABSENT // 2).any(-1).reshape(len(data), -1, 1)
    index = torch.where(absent, whole.shape[1] - 1, flat).flatten(1)
    source = updates.reshape(len(data), -1)
    result = whole.scatter(1, index, source) if reduce is None else whole.scatter_reduce(1, index, source, reduce)
    return result[:, :-1].reshape(data.shape)


def moved_window(builder: Builder, op: OnnxNode, axes: Array | None, steps: Array | None) -> Value:
    """A Slice from a computed start to a computed end, at a distance that the graph itself fixes."""
    start, end = op.activation(1), op.activation(2)
    origin, begins = _counted_from(builder, start)
    other, ends = _counted_from(builder, end)
    if start.shape != (1,) or end.shape != (1,) or origin is not other or ends <= begins:
        raise op.refuse("computed starts and ends whose distance is not fixed (its shape would depend on the input)")
    if steps is not None and bool((steps != 1).any()):
        raise op.refuse("a computed start and steps other than 1")
    x = _in_rows(builder, op.input(0))
    axis = normal_axis(0 if axes is None else int(axes.item()), len(x.shape))
    return builder.call(window, x, start, axis + 1, ends - begins)


def window(x: torch.Tensor, start: torch.Tensor, axis: int, width: int) -> torch.Tensor:
    """x[start : start + width] along `axis`, for a start (n, 1) of its own in each row (n, ...)."""
    size, starts = x.shape[axis], start.reshape(-1, 1)
    # ONNX counts a negative end from the back, by itself, so that [-1, 0) is empty.
    first, last = (torch.where(end < 0, end + size, end).clamp(0, size) for end in (starts, starts + width))
    index = first + torch.arange(width, device=x.device)
    shape = [1] * x.dim()
    shape[0], shape[axis] = index.shape
    picked = torch.take_along_dim(x, index.clamp(max=size - 1).reshape(shape), dim=axis)
    return torch.where((index < last).reshape(shape), picked, math.nan if x.is_floating_point() else ABSENT)


def _in_rows(builder: Builder, value: Value) -> Activation:
    return builder.expand_constant(value, carrying=False) if isinstance(value, Constant) else builder.rows(value)


def _counted_from(builder: Builder, value: Activation) -> tuple[fx.Node, int]:
    """The node that a whole number is counted from, and how far it lies ahead: (x + 2) - 1 is 1 ahead of x."""
    if value.probe.is_floating_point():
        raise UnsupportedOperator("positions that are no whole numbers are not supported")
    node, ahead = value.node, 0
    while True:
        arguments = [entry for entry in node.args if isinstance(entry, fx.Node)]
        if _only_reshapes(builder, node):
            node = arguments[0]
            continue
        if node.op != "call_function" or node.target not in (torch.add, torch.sub) or len(arguments) != 2:
            return node, ahead
        left, right = arguments
        if node.target is torch.add and left.op == "get_attr":
            left, right = right, left
        if right.op != "get_attr" or builder.root.get_buffer(str(right.target)).numel() != 1:
            return node, ahead
        step = int(builder.root.get_buffer(str(right.target)).item())
        node, ahead = left, ahead + (step if node.target is torch.add else -step)


def _only_reshapes(builder: Builder, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(builder.root.get_submodule(str(node.target)), nn.Flatten)
    return node.op == "call_function" and node.target is torch.reshape
