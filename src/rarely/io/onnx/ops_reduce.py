"""Operators along axes: sums, maxima, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rarely.io.onnx.builder import Activation, Builder, Value, normal_axis
from rarely.io.onnx.registry import Operator, handles

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
}


@handles(*REDUCTIONS)
def reduce(builder: Builder, op: Operator) -> Value:
    return _reduce(builder, op, op.activation(), REDUCTIONS[op.kind])


@handles("ReduceL1", "ReduceL2", "ReduceSumSquare")
def reduce_norm(builder: Builder, op: Operator) -> Value:
    x = op.activation()
    inner = torch.abs if op.kind == "ReduceL1" else torch.square
    total = _reduce(builder, op, builder.call(inner, x, carrying=x.carrying), torch.sum)
    return builder.call(torch.sqrt, total, carrying=total.carrying) if op.kind == "ReduceL2" else total


@handles("ArgMax", "ArgMin")
def arg_extreme(builder: Builder, op: Operator) -> Value:
    if op.attr("select_last_index", 0):
        raise op.refuse("select_last_index=1")
    x, (axis,) = builder.axes(op.activation(), [op.attr("axis", 0)])
    function = torch.argmax if op.kind == "ArgMax" else torch.argmin
    return builder.call(function, x, axis, carrying=x.carrying, keepdim=bool(op.attr("keepdims", 1)))


@handles("Softmax", "LogSoftmax")
def softmax(builder: Builder, op: Operator) -> Value:
    x = op.activation()
    make = nn.Softmax if op.kind == "Softmax" else nn.LogSoftmax
    axis = normal_axis(op.attr("axis", -1 if op.opset >= 13 else 1), len(x.shape))
    if op.opset >= 13 or axis == len(x.shape) - 1:
        x, (torch_axis,) = builder.axes(x, [axis])
        return builder.module(make(dim=torch_axis), x)
    # Before operator set 13 all axes from `axis` on were one.
    flat = builder.view(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return builder.view(builder.module(make(dim=-1), flat), x.shape)


def _reduce(builder: Builder, op: Operator, x: Activation, function: Callable[..., Any]) -> Activation:
    axes = op.ints("axes", 1)
    if not axes:
        if op.attr("noop_with_empty_axes", 0):
            return x
        axes = list(range(len(x.shape)))
    if not axes:
        return x
    x, torch_axes = builder.axes(x, axes)
    return builder.call(function, x, tuple(torch_axes), carrying=x.carrying, keepdim=bool(op.attr("keepdims", 1)))
