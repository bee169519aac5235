"""Pooling and resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from rarely.io.onnx.builder import (
    Activation,
    Builder,
    Constant,
    IllFormed,
    OnnxNode,
    Value,
    check_size,
    converts,
)
from rarely.io.onnx.model import Array
from rarely.io.onnx.ops_linear import Pads, pad_with_number, window_pads

MAX_POOLS: dict[int, type[nn.Module]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOLS: dict[int, type[nn.Module]] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


@converts("MaxPool", "AveragePool")
def _pool(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    dims = len(x.shape) - 2
    kernel, average = op.per_axis("kernel_shape", 0), op.kind == "AveragePool"
    strides, dilations = op.per_axis("strides", dims), op.per_axis("dilations", dims)
    if dims not in MAX_POOLS or len(kernel) != dims:
        raise op.refuse(f"a kernel of shape {kernel} on an input of shape {x.shape}")
    if average and any(dilation != 1 for dilation in dilations):
        raise op.refuse("dilations")
    pads = window_pads(op, x.shape[2:], kernel, strides, dilations)
    ceil_mode, include = bool(op.attr("ceil_mode", 0)), bool(op.attr("count_include_pad", 0))
    # torch pads both sides alike and by half a window at most.
    if all(begin == end and 0 <= begin <= width // 2 for (begin, end), width in zip(pads, kernel, strict=True)):
        padding = tuple(begin for begin, _ in pads)
        layer = (
            AVERAGE_POOLS[dims](kernel, strides, padding, ceil_mode, include)
            if average
            else MAX_POOLS[dims](kernel, strides, padding, dilations, ceil_mode=ceil_mode)
        )
        return builder.as_images(x, lambda images: builder.module(layer, images))
    exact = _exact_pads(x.shape[2:], kernel, strides, dilations, pads, ceil_mode)
    bare = AVERAGE_POOLS[dims](kernel, strides) if average else MAX_POOLS[dims](kernel, strides, 0, dilations)
    share = _counted_share(bare, x, exact, pads, include) if average else np.ones(1)

    def apply(images: Activation) -> Activation:
        pooled = builder.module(bare, pad_with_number(builder, images, exact, 0.0 if average else -math.inf))
        return pooled if np.all(share == 1) else builder.call(torch.div, pooled, Constant(share))

    return builder.as_images(x, apply)


@converts("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    x, axes = builder.axes(x, list(range(2, len(x.shape))))
    function = torch.mean if op.kind == "GlobalAveragePool" else torch.amax
    return builder.call(function, x, tuple(axes), keepdim=True)


def _exact_pads(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Pads,
    ceil_mode: bool,
) -> Pads:
    """Padding after which plain pooling gives ONNX's windows, none of which starts in the end padding."""
    exact = []
    for size, width, stride, dilation, (begin, end) in zip(sizes, kernel, strides, dilations, pads, strict=True):
        reach = (width - 1) * dilation + 1
        steps = (size + begin + end - reach) / stride
        count = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
        if ceil_mode and (count - 1) * stride >= size + begin:
            count -= 1
        exact.append((begin, (count - 1) * stride + reach - size - begin))
    return exact


def _counted_share(layer: nn.Module, x: Activation, exact: Pads, pads: Pads, include_pads: bool) -> Array:
    """The share of each window that ONNX counts: its input entries, and if asked the declared padding."""
    counted = torch.ones(1, 1, *x.shape[2:], dtype=x.probe.dtype)
    for axis, ((_, last), (begin, end)) in enumerate(zip(exact, pads, strict=True)):
        flat = [0] * (2 * (len(pads) - axis))
        flat[-2:] = [begin, min(end, last)]
        counted = nn.functional.pad(counted, flat, value=float(include_pads))
        flat[-2:] = [0, last - min(end, last)]
        counted = nn.functional.pad(counted, flat)
    share: Array = layer(counted).numpy()
    return share


@converts("Upsample", "Resize")
def _resize(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    mode = op.attr("mode", "nearest")
    if mode not in ("nearest", "linear") or op.attr("antialias", 0) or op.attr("exclude_outside", 0):
        raise op.refuse(f"mode={mode!r}, antialias or exclude_outside")
    coordinates, rounding = "asymmetric", "floor"
    if op.kind == "Resize" and op.opset >= 11:
        coordinates = op.attr("coordinate_transformation_mode", "half_pixel")
        rounding = op.attr("nearest_mode", "round_prefer_floor")
    targets = _resize_targets(op, x.shape)
    points = {axis: _source_points(op, coordinates, *target) for axis, target in targets.items()}
    grown = math.prod(len(points[axis]) if axis in points else size for axis, size in enumerate(x.shape))
    check_size(grown, "what resizing gives")
    if mode == "nearest":
        indices = {axis: _nearest(op, rounding, points[axis], x.shape[axis]) for axis in points}
        factors = [_repeats(indices.get(axis), size) for axis, size in enumerate(x.shape)]
        if 3 <= len(factors) <= 5 and x.shape[0] == 1 and factors[:2] == [1, 1] and all(factors):
            layer = nn.Upsample(scale_factor=tuple(float(n) for n in factors[2:]), mode="nearest")
            return builder.module(layer, builder.carried(x))
        for axis, index in indices.items():
            x, (torch_axis,) = builder.axes(x, [axis])
            x = builder.select(x, torch_axis, index)
        return x
    for axis, point in points.items():
        x, (torch_axis,) = builder.axes(x, [axis])
        x = _interpolate(builder, x, torch_axis, point)
    return x


def _resize_targets(op: OnnxNode, shape: tuple[int, ...]) -> dict[int, tuple[int, int, float]]:
    """Input size, output size and scale of each axis whose size or sampling changes."""
    axes = [int(axis) % len(shape) for axis in op.attr("axes", range(len(shape)))]
    sizes = None
    if op.kind == "Upsample" and "scales" in op.attributes:
        scales = [float(s) for s in op.attributes["scales"]]
    else:
        index = 1 if op.kind == "Upsample" or op.opset < 11 else 2
        stored = op.optional_array(index)
        scales = [] if stored is None else [float(s) for s in stored]
        if not scales:
            sizes = [int(n) for n in op.array(3)]
            if op.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
                raise op.refuse("keep_aspect_ratio_policy")
            scales = [n / shape[axis] for n, axis in zip(sizes, axes, strict=True)]
    targets = {}
    for position, axis in enumerate(axes):
        scale = scales[position]
        size = sizes[position] if sizes is not None else math.floor(shape[axis] * scale)
        check_size(size, f"axis {axis}, resized,")
        if size < 1:
            raise IllFormed(f"cannot resize axis {axis} to {size}")
        if scale != 1:
            targets[axis] = (shape[axis], size, scale)
    return targets


def _source_points(op: OnnxNode, mode: str, size: int, target: int, scale: float) -> Array:
    """Where each output position lies among the input positions."""
    out = np.arange(target, dtype=np.float64)
    if mode == "asymmetric":
        return out / scale
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and target > 1):
        return (out + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - target / (scale * size)) + (out + 0.5) / scale - 0.5
    if mode == "align_corners" and target > 1:
        return out * (size - 1) / (target - 1)
    if mode in ("align_corners", "pytorch_half_pixel"):
        return np.zeros(1)
    if mode == "tf_half_pixel_for_nn":
        return (out + 0.5) / scale
    raise op.refuse(f"coordinate_transformation_mode={mode!r}")


def _nearest(op: OnnxNode, rounding: str, points: Array, size: int) -> Array:
    rules = {
        "floor": lambda: np.floor(points),
        "ceil": lambda: np.ceil(points),
        "round_prefer_floor": lambda: np.ceil(points - 0.5),
        "round_prefer_ceil": lambda: np.floor(points + 0.5),
    }
    if rounding not in rules:
        raise op.refuse(f"nearest_mode={rounding!r}")
    return np.clip(rules[rounding](), 0, size - 1).astype(np.int64)


def _repeats(indices: Array | None, size: int) -> int:
    """n if every entry is repeated n times, in order, else 0."""
    if indices is None:
        return 1
    factor = len(indices) // size
    return factor if np.array_equal(indices, np.repeat(np.arange(size), factor)) else 0


def _interpolate(builder: Builder, x: Activation, axis: int, points: Array) -> Activation:
    """Linear interpolation along one axis as two gathers and a weighted sum, which fits any rule."""
    size = x.probe.shape[axis]
    low = np.floor(points)
    columns = (len(points), *(1,) * (x.probe.dim() - axis - 1))
    weight = (points - low).reshape(columns)
    parts = []
    for offset, share in ((0, 1 - weight), (1, weight)):
        picked = builder.select(x, axis, np.clip(low + offset, 0, size - 1))
        numbers = torch.from_numpy(share).to(x.probe.dtype).numpy()
        parts.append(builder.call(torch.mul, picked, Constant(numbers)))
    return builder.call(torch.add, *parts)
