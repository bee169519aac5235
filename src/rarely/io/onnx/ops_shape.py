"""Operators that move entries about without computing: reshapes, slices, joins, pads."""

from __future__ import annotations

import math

import numpy as np
import torch

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
from rarely.io.onnx.ops_index import moved_window
from rarely.io.onnx.ops_linear import Pads, pad_with_number, transpose


@converts("Identity", "Dropout")
def _same(builder: Builder, op: OnnxNode) -> Value:
    training = op.optional_array(2)
    if training is not None and bool(training.any()):
        raise op.refuse("training_mode=True")
    return op.activation()


@converts("Shape")
def _shape_of(builder: Builder, op: OnnxNode) -> Value:
    shape = op.activation().shape
    return Constant(np.array(shape[slice(op.attr("start", 0), op.attr("end", None))], dtype=np.int64))


@converts("Size")
def _size_of(builder: Builder, op: OnnxNode) -> Value:
    return Constant(np.array(math.prod(op.activation().shape), dtype=np.int64))


@converts("Flatten")
def _flatten(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    axis = op.attr("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return builder.view(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@converts("Reshape")
def _reshape(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    target = [int(n) for n in op.array(1).reshape(-1)]
    if not op.attr("allowzero", 0):
        target = [x.shape[axis] if n == 0 else n for axis, n in enumerate(target)]
    total = math.prod(x.shape)
    if target.count(-1) == 1:
        known = math.prod(n for n in target if n != -1)
        target = [total // known if n == -1 and known else n for n in target]
    if math.prod(target) != total or min(target, default=1) < 0:
        raise IllFormed(f"cannot reshape {x.shape} to {target}")
    return builder.view(x, target)


@converts("Squeeze")
def _squeeze(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    axes = op.ints("axes", 1)
    if axes is None:
        axes = [axis for axis, size in enumerate(x.shape) if size == 1]
    dropped = {normal_axis(axis, len(x.shape)) for axis in axes}
    if any(x.shape[axis] != 1 for axis in dropped):
        raise IllFormed(f"cannot squeeze axes {axes} of shape {x.shape}")
    return builder.view(x, [size for axis, size in enumerate(x.shape) if axis not in dropped])


@converts("Unsqueeze")
def _unsqueeze(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    axes = op.ints("axes", 1) or []
    rank = len(x.shape) + len(axes)
    shape = list(x.shape)
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        shape.insert(axis, 1)
    return builder.view(x, shape)


@converts("Transpose")
def _transpose(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    return transpose(builder, x, op.attr("perm", list(reversed(range(len(x.shape))))))


@converts("Concat")
def _concat(builder: Builder, op: OnnxNode) -> Value:
    values = [value for value in op.inputs if value is not None]
    axis = normal_axis(op.attr("axis", 1), len(values[0].shape))
    carrying = axis != 0 and all(value.shape[0] == 1 for value in values)
    parts: list[Activation] = []
    for value in values:
        if isinstance(value, Constant):
            parts.append(builder.expand_constant(value, carrying=carrying))
        else:
            parts.append(builder.carried(value) if carrying else builder.rows(value))
    if len(parts) == 1:
        return parts[0]
    return builder.call(torch.cat, parts, axis if carrying else axis + 1, carrying=carrying)


@converts("Split")
def _split(builder: Builder, op: OnnxNode) -> list[Value]:
    x, (axis,) = builder.axes(op.activation(), [op.attr("axis", 0)])
    size = x.probe.shape[axis]
    sizes = op.ints("split", 1)
    if sizes is None:
        count = op.attr("num_outputs", op.outputs)
        chunk = math.ceil(size / count)
        sizes = [min(chunk, size - chunk * position) for position in range(count)]
    if sum(sizes) != size or min(sizes) < 0:
        raise IllFormed(f"cannot split an axis of size {size} into {sizes}")
    starts = [sum(sizes[:position]) for position in range(len(sizes))]
    return [builder.getitem(x, axis, slice(start, start + width)) for start, width in zip(starts, sizes, strict=True)]


@converts("Slice")
def _slice(builder: Builder, op: OnnxNode) -> Value:
    if isinstance(op.optional(1), Activation):
        return moved_window(builder, op, op.optional_array(3), op.optional_array(4))
    x = op.activation()
    starts, ends = op.ints("starts", 1), op.ints("ends", 2)
    if starts is None or ends is None:
        raise IllFormed("starts and ends are missing")
    axes = op.ints("axes", 3) or list(range(len(starts)))
    steps = op.ints("steps", 4) or [1] * len(starts)
    for start, end, onnx_axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[normal_axis(onnx_axis, len(x.shape))]
        picked = range(*slice(start, end, step).indices(size))
        if picked == range(size):
            continue
        x, (axis,) = builder.axes(x, [onnx_axis])
        if step > 0:
            x = builder.getitem(x, axis, slice(picked.start, picked.stop, picked.step))
        else:
            x = builder.select(x, axis, np.array(picked))
    return x


@converts("Gather")
def _gather(builder: Builder, op: OnnxNode) -> Value:
    x, (axis,) = builder.axes(op.activation(), [op.attr("axis", 0)])
    indices = op.array(1)
    size = x.probe.shape[axis]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise IllFormed(f"indices outside an axis of size {size}")
    indices = indices % size
    if indices.ndim == 0:
        return builder.getitem(x, axis, int(indices))
    picked = builder.select(x, axis, indices.reshape(-1))
    if indices.ndim == 1:
        return picked
    onnx_axis = axis if x.carrying else axis - 1
    return builder.view(picked, (*x.shape[:onnx_axis], *indices.shape, *x.shape[onnx_axis + 1 :]))


@converts("Pad")
def _pad(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    flat = op.ints("pads", 1) or []
    axes = op.optional_array(3)
    onnx_axes = list(range(len(x.shape))) if axes is None else [int(axis) for axis in axes]
    pads: Pads = list(zip(flat[: len(onnx_axes)], flat[len(onnx_axes) :], strict=True))
    padded = [(axis, entry) for axis, entry in zip(onnx_axes, pads, strict=True) if entry != (0, 0)]
    x, torch_axes = builder.axes(x, [axis for axis, _ in padded])
    mode = op.attr("mode", "constant")
    if mode == "constant":
        stored = op.optional_array(2)
        value = op.attr("value", 0.0) if stored is None else float(stored.item())
        by_axis = dict(zip(torch_axes, (entry for _, entry in padded), strict=True))
        first = min(by_axis, default=x.probe.dim())
        return pad_with_number(builder, x, [by_axis.get(axis, (0, 0)) for axis in range(first, x.probe.dim())], value)
    if mode not in ("reflect", "edge", "wrap"):
        raise op.refuse(f"mode={mode!r}")
    for axis, (_, (begin, end)) in zip(torch_axes, padded, strict=True):
        check_size(max(begin, end), f"a padding by {(begin, end)}")
        positions = np.pad(np.arange(x.probe.shape[axis]), (max(begin, 0), max(end, 0)), mode=mode)
        x = builder.select(x, axis, positions[max(-begin, 0) : len(positions) - max(-end, 0)])
    return x


@converts("Expand")
def _expand(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    shape = np.broadcast_shapes(x.shape, tuple(int(n) for n in op.array(1)))
    if shape == x.shape:
        return x
    check_size(math.prod(shape), f"the result of expanding to {shape}")
    x = builder.view(x, (1,) * (len(shape) - len(x.shape)) + x.shape)
    if shape[0] != 1:
        x = builder.rows(x)
    return builder.method("expand", x, -1, *(shape[1:] if x.carrying else shape))


@converts("Tile")
def _tile(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    repeats = [int(n) for n in op.array(1)]
    check_size(math.prod(repeats) * math.prod(x.shape), f"the result of tiling by {repeats}")
    if repeats[0] != 1:
        x = builder.rows(x)
    return builder.call(torch.tile, x, (1, *(repeats[1:] if x.carrying else repeats)))


@converts("DepthToSpace", "SpaceToDepth")
def _depth_space(builder: Builder, op: OnnxNode) -> Value:
    x, block = op.activation(), int(op.attr("blocksize", 1))
    count, channels, height, width = x.shape
    if op.kind == "SpaceToDepth":
        x = builder.view(x, (count, channels, height // block, block, width // block, block))
        moved = transpose(builder, x, (0, 3, 5, 1, 2, 4))
        return _view(builder, moved, (count, channels * block * block, height // block, width // block))
    depth = channels // (block * block)
    if op.attr("mode", "DCR") == "DCR":
        x = builder.view(x, (count, block, block, depth, height, width))
        moved = transpose(builder, x, (0, 3, 4, 1, 5, 2))
    else:
        x = builder.view(x, (count, depth, block, block, height, width))
        moved = transpose(builder, x, (0, 1, 4, 2, 5, 3))
    return _view(builder, moved, (count, depth, height * block, width * block))


def _view(builder: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    return builder.view(value, shape) if isinstance(value, Activation) else value
