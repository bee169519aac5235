"""Linear layers, convolutions and normalisations, as the torch modules a person would have used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from rarely.io.onnx.builder import (
    Activation,
    Builder,
    Constant,
    IllFormed,
    OnnxNode,
    Value,
    as_tensor,
    check_size,
    converts,
    normal_axis,
)
from rarely.io.onnx.model import Array

CONVOLUTIONS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORMS: dict[int, type[nn.Module]] = dict(
    enumerate((nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
)
INSTANCE_NORMS: dict[int, type[nn.Module]] = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}

Pads = list[tuple[int, int]]


@converts("Gemm")
def _gemm(builder: Builder, op: OnnxNode) -> Value:
    left, right = op.input(0), op.input(1)
    if op.attr("transA", 0):
        left = transpose(builder, left, (1, 0))
    if op.attr("transB", 0):
        right = transpose(builder, right, (1, 0))
    alpha, beta = op.attr("alpha", 1.0), op.attr("beta", 1.0)
    offset = op.optional(2)
    if isinstance(left, Activation) and isinstance(right, Constant):
        weight = right.array if alpha == 1.0 else (alpha * right.array).astype(right.array.dtype)
        bias = None
        if isinstance(offset, Constant) and offset.array.size in (1, weight.shape[1]) and beta != 0:
            row = offset.array.reshape(-1) if beta == 1.0 else beta * offset.array.reshape(-1)
            if offset.array.size == 1 or offset.shape[-1] == weight.shape[1]:
                bias = np.broadcast_to(row, weight.shape[1:]).astype(weight.dtype)
                offset = None
        product = _linear(builder, left, weight, bias)
    else:
        product = _product(builder, left, right)
        if alpha != 1.0:
            product = builder.call(torch.mul, product, alpha)
    if offset is None or beta == 0:
        return product
    if beta != 1.0:
        offset = _scaled(builder, offset, beta)
    return builder.broadcast(torch.add, product, offset)


@converts("MatMul")
def _matrix_product(builder: Builder, op: OnnxNode) -> Value:
    return _product(builder, op.input(0), op.input(1))


def _product(builder: Builder, left: Value, right: Value) -> Activation:
    """A matrix product, as one nn.Linear wherever one factor is a constant matrix."""
    if isinstance(left, Activation) and isinstance(right, Constant) and len(right.shape) == 2:
        return _linear(builder, left, right.array, None)
    if isinstance(right, Activation) and isinstance(left, Constant) and len(left.shape) == 2:
        if len(right.shape) == 1:
            return _linear(builder, right, left.array.T, None)
        if len(right.shape) == 2 and right.shape[1] == 1:
            column = builder.view(right, (1, right.shape[0]))
            return builder.view(_linear(builder, column, left.array.T, None), (left.shape[0], 1))
    if not left.shape or not right.shape:
        raise IllFormed(f"a product of shapes {left.shape} and {right.shape} is not defined")
    if len(left.shape) == 1:  # a row for the product, which the result then lacks
        product = _product(builder, _reshaped(builder, left, (1, *left.shape)), right)
        return builder.view(product, (*product.shape[:-2], product.shape[-1]))
    if len(right.shape) == 1:  # a column
        product = _product(builder, left, _reshaped(builder, right, (*right.shape, 1)))
        return builder.view(product, product.shape[:-1])
    aligned, carrying = builder.align(left, right)
    if carrying and max(len(left.shape), len(right.shape)) == 2:
        # (1, k) times a computed (1, n): the leading 1 is a row of the matrix here, not only the batch.
        aligned = [builder.rows(value) if isinstance(value, Activation) else value for value in aligned]
        carrying = False
    return builder.call(torch.matmul, *aligned, carrying=carrying)


def _reshaped(builder: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    return Constant(value.array.reshape(shape)) if isinstance(value, Constant) else builder.view(value, shape)


def _linear(builder: Builder, x: Activation, weight: Array, bias: Array | None) -> Activation:
    """x @ weight + bias on the last axis; weight is (in, out)."""
    if len(x.shape) < 2:
        x = builder.rows(x)
    elif x.shape[0] == 1:
        x = builder.carried(x)
    if x.shape[-1] != weight.shape[0]:
        raise IllFormed(f"a product of shapes {x.shape} and {weight.shape} is not defined")
    layer = nn.Linear(1, 1, bias=bias is not None)
    layer.in_features, layer.out_features = weight.shape
    _set_weights(layer, weight.T, bias)
    return builder.module(layer, x)


def transpose(builder: Builder, value: Value, permutation: Sequence[int]) -> Value:
    """Permute ONNX axes; the batch stays in front, so moving it is only a change of layout."""
    if isinstance(value, Constant):
        return Constant(np.ascontiguousarray(np.transpose(value.array, permutation)))
    if sorted(permutation) != list(range(len(value.shape))):
        raise IllFormed(f"{list(permutation)} does not permute the axes of shape {value.shape}")
    shape = tuple(value.shape[axis] for axis in permutation)
    kept = [axis for axis in permutation if value.shape[axis] != 1]
    if kept == sorted(kept):
        return builder.view(value, shape)
    if value.carrying and permutation[0] == 0:
        return builder.call(torch.permute, value, tuple(permutation), carrying=True)
    x = builder.rows(value)
    return builder.call(torch.permute, x, (0, *(axis + 1 for axis in permutation)), carrying=False)


def _scaled(builder: Builder, value: Value, factor: float) -> Value:
    """Multiply by a number."""
    if isinstance(value, Constant):
        return Constant((factor * value.array).astype(value.array.dtype))
    return builder.call(torch.mul, value, factor)


@converts("Conv", "ConvTranspose")
def _convolution(builder: Builder, op: OnnxNode) -> Value:
    x, weight, bias = op.activation(), op.array(1), op.optional_array(2)
    dims, transposed = weight.ndim - 2, op.kind == "ConvTranspose"
    if dims not in CONVOLUTIONS or len(x.shape) != weight.ndim:
        raise op.refuse(f"an input of shape {x.shape} and a weight of shape {weight.shape}")
    strides, dilations, groups = op.per_axis("strides", dims), op.per_axis("dilations", dims), int(op.attr("group", 1))
    more: dict[str, Any] = {}
    if transposed:
        channels = weight.shape[0], weight.shape[1] * groups
        more["output_padding"] = extra = op.per_axis("output_padding", dims, 0)
        pads = _transposed_pads(op, x.shape[2:], weight.shape[2:], strides, dilations, extra)
    else:
        channels = weight.shape[1] * groups, weight.shape[0]
        if x.shape[1] != channels[0]:
            raise IllFormed(f"an input of shape {x.shape} does not fit a weight of shape {weight.shape}")
        pads = window_pads(op, x.shape[2:], weight.shape[2:], strides, dilations)
    symmetric = all(begin == end >= 0 for begin, end in pads)
    layer = (TRANSPOSED if transposed else CONVOLUTIONS)[dims](
        *channels,
        tuple(weight.shape[2:]),
        stride=strides,
        padding=tuple(begin for begin, _ in pads) if symmetric else 0,
        dilation=dilations,
        groups=groups,
        bias=bias is not None,
        **more,
    )
    _set_weights(layer, weight, bias)

    def apply(images: Activation) -> Activation:
        if symmetric:
            return builder.module(layer, images)
        if transposed:
            return pad_with_number(builder, builder.module(layer, images), [(-begin, -end) for begin, end in pads], 0.0)
        return builder.module(layer, pad_with_number(builder, images, pads, 0.0))

    return builder.as_images(x, apply)


def window_pads(
    op: OnnxNode,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pads:
    """Padding of every spatial axis, from `pads` or `auto_pad`."""
    mode = op.attr("auto_pad", "NOTSET")
    if mode == "NOTSET":
        flat = [int(n) for n in op.attr("pads", [0] * (2 * len(sizes)))]
        if len(flat) != 2 * len(sizes):
            raise IllFormed(f"pads {flat} do not fit {len(sizes)} spatial axes")
        return list(zip(flat[: len(sizes)], flat[len(sizes) :], strict=True))
    if mode == "VALID":
        return [(0, 0)] * len(sizes)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise IllFormed(f"unknown auto_pad {mode!r}")
    pads = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        pads.append(_shared(total, mode))
    return pads


def _shared(total: int, mode: str) -> tuple[int, int]:
    """Padding of both sides; the odd one goes to the end with SAME_UPPER, else to the beginning."""
    begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
    return begin, total - begin


def pad_with_number(builder: Builder, x: Activation, pads: Pads, value: float) -> Activation:
    """Pad (or with negative numbers crop) the last axes with a number."""
    if all(entry == (0, 0) for entry in pads):
        return x
    grown = math.prod(size + sum(p) for size, p in zip(x.tail[-len(pads) :], pads, strict=True))
    check_size(grown, f"the result of padding by {pads}")
    flat = tuple(n for entry in reversed(pads) for n in entry)
    return builder.call(F.pad, x, flat, mode="constant", value=value)


@converts("BatchNormalization", "InstanceNormalization")
def _channel_norm(builder: Builder, op: OnnxNode) -> Value:
    x, gamma, shift = op.activation(), as_tensor(op.array(1)), as_tensor(op.array(2))
    if op.attr("training_mode", 0) or not op.attr("spatial", 1):
        raise op.refuse("training_mode=1 or spatial=0")
    whole = op.kind == "BatchNormalization"
    kinds = BATCH_NORMS if whole else INSTANCE_NORMS
    if len(x.shape) - 2 not in kinds:
        raise op.refuse(f"an input of shape {x.shape}")
    layer = kinds[len(x.shape) - 2](len(gamma), eps=op.attr("epsilon", 1e-5), affine=True, dtype=gamma.dtype)
    layer.weight, layer.bias = nn.Parameter(gamma), nn.Parameter(shift)
    if whole:
        layer.running_mean, layer.running_var = as_tensor(op.array(3)), as_tensor(op.array(4))
    return builder.as_images(x, lambda images: builder.module(layer, images))


@converts("LayerNormalization")
def _layer_norm(builder: Builder, op: OnnxNode) -> Value:
    x, gamma, shift = op.activation(), op.array(1), op.optional_array(2)
    axis = normal_axis(op.attr("axis", -1), len(x.shape))
    x, _ = builder.axes(x, [axis])
    normalized = x.shape[axis:]
    layer = nn.LayerNorm(normalized, eps=op.attr("epsilon", 1e-5), bias=shift is not None)
    layer.weight = nn.Parameter(as_tensor(np.broadcast_to(gamma, normalized)))
    if shift is not None:
        layer.bias = nn.Parameter(as_tensor(np.broadcast_to(shift, normalized)))
    return builder.module(layer, x)


def _set_weights(layer: nn.Module, weight: Array, bias: Array | None) -> None:
    layer.weight = nn.Parameter(as_tensor(weight))
    if bias is not None:
        layer.bias = nn.Parameter(as_tensor(bias))


def _transposed_pads(
    op: OnnxNode,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> Pads:
    """What ConvTranspose crops from each side of its full output."""
    mode = op.attr("auto_pad", "NOTSET")
    wanted = op.attr("output_shape", None)
    if wanted is None and mode in ("NOTSET", "VALID"):
        return window_pads(op, sizes, kernel, strides, dilations)
    wanted = [int(n) for n in wanted] if wanted is not None else [n * s for n, s in zip(sizes, strides, strict=True)]
    pads = []
    for axis, size in enumerate(wanted[-len(sizes) :]):
        full = strides[axis] * (sizes[axis] - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        pads.append(_shared(full - size, mode))
    return pads
