"""Operators on entries and along axes: arithmetic, activations, comparisons, casts, sums, maxima, softmax."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rarely.io.onnx.builder import Activation, Builder, Constant, OnnxNode, Value, as_tensor, converts, normal_axis

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
}

MODULES: dict[str, Callable[[OnnxNode], nn.Module]] = {
    "Celu": lambda op: nn.CELU(op.attr("alpha", 1.0)),
    "Elu": lambda op: nn.ELU(op.attr("alpha", 1.0)),
    "Gelu": lambda op: nn.GELU(approximate=op.attr("approximate", "none")),
    "HardSwish": lambda op: nn.Hardswish(),
    "LeakyRelu": lambda op: nn.LeakyReLU(op.attr("alpha", 0.01)),
    "Mish": lambda op: nn.Mish(),
    "Relu": lambda op: nn.ReLU(),
    "Sigmoid": lambda op: nn.Sigmoid(),
    "Softplus": lambda op: nn.Softplus(threshold=40.0),  # torch's own 20 shows in float64
    "Softsign": lambda op: nn.Softsign(),
    "Tanh": lambda op: nn.Tanh(),
    "ThresholdedRelu": lambda op: nn.Threshold(op.attr("alpha", 1.0), 0.0),
}

BINARY: dict[str, Callable[..., Any]] = {
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}

ARITHMETIC: dict[str, tuple[Callable[..., Any], int, bool]] = {
    # function, neutral right operand, whether it is neutral on the left too
    "Add": (torch.add, 0, True),
    "Sub": (torch.sub, 0, False),
    "Mul": (torch.mul, 1, True),
    "Div": (torch.div, 1, False),
}


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
}


@converts(*FUNCTIONS)
def _function(builder: Builder, op: OnnxNode) -> Value:
    return builder.call(FUNCTIONS[op.kind], op.activation())


@converts(*MODULES)
def _module(builder: Builder, op: OnnxNode) -> Value:
    return builder.module(MODULES[op.kind](op), op.activation())


@converts(*BINARY)
def _binary(builder: Builder, op: OnnxNode) -> Value:
    return builder.broadcast(BINARY[op.kind], op.input(0), op.input(1))


@converts(*ARITHMETIC)
def _arithmetic(builder: Builder, op: OnnxNode) -> Value:
    torch_function, neutral, commutes = ARITHMETIC[op.kind]
    left, right = op.input(0), op.input(1)
    if _is_neutral(right, neutral, left):
        return left
    if commutes and _is_neutral(left, neutral, right):
        return right
    aligned, carrying = builder.align(left, right)
    if op.kind == "Div" and not any(_is_float(value) for value in aligned):
        return builder.call(torch.div, *aligned, carrying=carrying, rounding_mode="trunc")
    return builder.call(torch_function, *aligned, carrying=carrying)


@converts("Pow")
def _power(builder: Builder, op: OnnxNode) -> Value:
    base, exponent = op.input(0), op.input(1)
    if isinstance(base, Activation) and isinstance(exponent, Constant) and exponent.array.size == 1:
        value = exponent.array.item()
        if len(exponent.shape) <= len(base.shape):
            return base if value == 1 else builder.call(torch.pow, base, value)
    return builder.broadcast(torch.pow, base, exponent)


@converts("Sum", "Mean", "Max", "Min")
def _variadic(builder: Builder, op: OnnxNode) -> Value:
    # Activations first: a sum of two constants alone would have no batch.
    values = sorted((v for v in op.inputs if v is not None), key=lambda v: isinstance(v, Constant))
    if op.kind == "Max" and len(values) == 2:
        for x, floor in (values, reversed(values)):
            if isinstance(x, Activation) and _is_neutral(floor, 0, x):
                return builder.module(nn.ReLU(), x)
    combine = {"Max": torch.maximum, "Min": torch.minimum}.get(op.kind, torch.add)
    total = functools.reduce(functools.partial(builder.broadcast, combine), values)
    if op.kind == "Mean" and isinstance(total, Activation):
        return builder.call(torch.div, total, len(values))
    return total


@converts("Where")
def _where(builder: Builder, op: OnnxNode) -> Value:
    return builder.broadcast(torch.where, op.input(0), op.input(1), op.input(2))


@converts("Clip")
def _clip(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    # Exporters write "no bound" as the largest float, too.
    largest = torch.finfo(x.probe.dtype).max if x.probe.is_floating_point() else math.inf
    low, high = _bound(op, "min", 1), _bound(op, "max", 2)
    minimum = low if low is not None and low > -largest else None
    maximum = high if high is not None and high < largest else None
    if minimum is None and maximum is None:
        return x
    if minimum == 0 and maximum is None:
        return builder.module(nn.ReLU(), x)
    return builder.call(torch.clamp, x, min=minimum, max=maximum)


@converts("PRelu")
def _prelu(builder: Builder, op: OnnxNode) -> Value:
    x, slope = op.activation(), op.array(1)
    if slope.size == 1 and slope.ndim <= len(x.shape):
        return builder.module(nn.LeakyReLU(float(slope.item())), x)
    channels = x.shape[1] if len(x.shape) > 1 else 0
    per_channel = (channels, *(1,) * (len(x.shape) - 2))
    if x.carrying and slope.shape in (per_channel, (1, *per_channel)):
        layer = nn.PReLU(channels, dtype=x.probe.dtype)
        layer.weight = nn.Parameter(as_tensor(slope.reshape(-1)))
        return builder.module(layer, x)
    negative = builder.call(torch.clamp, x, max=0.0)
    scaled = builder.broadcast(torch.mul, Constant(slope), negative)
    return builder.broadcast(torch.add, builder.module(nn.ReLU(), x), scaled)


@converts("Selu")
def _selu(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    alpha, gamma = op.attr("alpha", 1.6732632423543772), op.attr("gamma", 1.0507009873554805)
    if math.isclose(alpha, 1.6732632423543772, rel_tol=1e-6) and math.isclose(gamma, 1.0507009873554805, rel_tol=1e-6):
        return builder.module(nn.SELU(), x)
    return builder.call(torch.mul, builder.module(nn.ELU(alpha), x), gamma)


@converts("HardSigmoid")
def _hard_sigmoid(builder: Builder, op: OnnxNode) -> Value:
    y = builder.call(torch.mul, op.activation(), op.attr("alpha", 0.2))
    y = builder.call(torch.add, y, op.attr("beta", 0.5))
    return builder.call(torch.clamp, y, min=0.0, max=1.0)


@converts("Cast", "CastLike")
def _cast(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    target = _cast_target(op)
    if x.probe.dtype == target:
        return x
    if target == builder.input.probe.dtype:
        # Follows the network's own type, so that the module still works after .to(torch.float64).
        return builder.method("type_as", x, builder.input)
    return builder.method("to", x, target)


@converts(*REDUCTIONS)
def _reduce(builder: Builder, op: OnnxNode) -> Value:
    return _along(builder, op, op.activation(), REDUCTIONS[op.kind])


@converts("ReduceL1", "ReduceL2", "ReduceSumSquare")
def _reduce_norm(builder: Builder, op: OnnxNode) -> Value:
    inner = torch.abs if op.kind == "ReduceL1" else torch.square
    total = _along(builder, op, builder.call(inner, op.activation()), torch.sum)
    return builder.call(torch.sqrt, total) if op.kind == "ReduceL2" else total


@converts("ArgMax", "ArgMin")
def _arg_extreme(builder: Builder, op: OnnxNode) -> Value:
    if op.attr("select_last_index", 0):
        raise op.refuse("select_last_index=1")
    x, (axis,) = builder.axes(op.activation(), [op.attr("axis", 0)])
    function = torch.argmax if op.kind == "ArgMax" else torch.argmin
    return builder.call(function, x, axis, keepdim=bool(op.attr("keepdims", 1)))


@converts("Softmax", "LogSoftmax")
def _softmax(builder: Builder, op: OnnxNode) -> Value:
    x = op.activation()
    make = nn.Softmax if op.kind == "Softmax" else nn.LogSoftmax
    axis = normal_axis(op.attr("axis", -1 if op.opset >= 13 else 1), len(x.shape))
    if op.opset >= 13 or axis == len(x.shape) - 1:
        x, (torch_axis,) = builder.axes(x, [axis])
        return builder.module(make(dim=torch_axis), x)
    # Before operator set 13 all axes from `axis` on were one.
    flat = builder.view(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return builder.view(builder.module(make(dim=-1), flat), x.shape)


def _along(builder: Builder, op: OnnxNode, x: Activation, function: Callable[..., Any]) -> Activation:
    axes = op.ints("axes", 1)
    if not axes:
        if op.attr("noop_with_empty_axes", 0):
            return x
        axes = list(range(len(x.shape)))
    if not axes:
        return x
    x, torch_axes = builder.axes(x, axes)
    return builder.call(function, x, tuple(torch_axes), keepdim=bool(op.attr("keepdims", 1)))


def _cast_target(op: OnnxNode) -> torch.dtype:
    import onnx

    if op.kind == "CastLike":
        like = op.input(1)
        return like.probe.dtype if isinstance(like, Activation) else as_tensor(like.array).dtype
    return as_tensor(np.empty(0, onnx.helper.tensor_dtype_to_np_dtype(op.attr("to", 1)))).dtype


def _is_neutral(value: Value, neutral: int, other: Value) -> bool:
    """Whether an operand is a constant that changes neither values, shape nor type of the other."""
    if not isinstance(value, Constant) or not isinstance(other, Activation):
        return False
    return (
        np.broadcast_shapes(value.shape, other.shape) == other.shape
        and as_tensor(value.array).dtype == other.probe.dtype
        and bool(np.all(value.array == neutral))
    )


def _is_float(value: Value) -> bool:
    return value.probe.is_floating_point() if isinstance(value, Activation) else value.array.dtype.kind == "f"


def _bound(op: OnnxNode, name: str, index: int) -> float | None:
    """A limit of Clip: an attribute before operator set 11, an input since."""
    if name in op.attributes:
        return float(op.attributes[name])
    array = op.optional_array(index)
    return None if array is None else float(array.item())
