"""Building a torch.fx graph for a batch of rows from ONNX operators defined on one row.

The meaning of an imported network is fixed by one sentence: row i of the result is what the ONNX model gives
for row i at batch size 1. Every activation therefore has a static ONNX shape, and its tensor has one of two
layouts:

* *carrying*: the ONNX shape starts with 1 and that axis is the batch: ONNX (1, a, b), torch (n, a, b);
* *rows*: the batch is an extra axis in front: ONNX (a, b), torch (n, a, b); ONNX (1, a), torch (n, 1, a). A vector of
  one entry, ONNX (1,), is kept in it: torch (n, 1), not (n,).

One reshape leads from either to the other, so an operator that touches ONNX axis 0 (a hard-coded Reshape, a
Transpose that moves the batch, a Concat along it) is expressed in rows and everything else in the carrying
layout, which is how a person would have written the network in torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from rarely.core.errors import UnsupportedOperator
from rarely.core.limits import ENTRIES
from rarely.io.onnx.model import Array

PROBE_BATCH = 3
"""Rows in the probe that is pushed through the graph while it is built, to know every shape."""


@dataclass(frozen=True)
class Constant:
    """A value known at import: a weight, or the outcome of folding."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The ONNX shape, which is the array's."""
        return tuple(self.array.shape)


@dataclass(frozen=True)
class Activation:
    """A value that depends on the input, with its tensor for the probe batch."""

    node: fx.Node
    probe: torch.Tensor
    carrying: bool

    @property
    def tail(self) -> tuple[int, ...]:
        """The tensor's shape behind the batch axis."""
        return tuple(self.probe.shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """The ONNX shape at batch size 1."""
        return (1, *self.tail) if self.carrying else self.tail


@dataclass(frozen=True)
class _Size:
    """The number of rows, as a graph node."""

    node: fx.Node
    probe: int


Value = Constant | Activation


class IllFormed(ValueError):
    """A node that no implementation could run, such as a product of shapes that do not fit."""


def check_size(entries: float, what: str) -> None:
    """Refuse what a file makes too large, before it is made."""
    reason = ENTRIES.excess(entries, what)
    if reason is not None:
        raise IllFormed(reason)


class Builder:
    """Appends operators to an fx graph and runs the probe through each."""

    def __init__(self, row_shape: tuple[int, ...], dtype: torch.dtype, carrying: bool) -> None:
        self.graph = fx.Graph()
        self.root = nn.Module()
        self._counts: dict[str, int] = {}
        self._buffers: dict[int, tuple[Constant, fx.Node, torch.Tensor]] = {}
        generator = torch.Generator().manual_seed(0)
        probe = torch.rand(PROBE_BATCH, *row_shape, generator=generator).to(dtype)
        self.input = Activation(self.graph.placeholder("x"), probe, carrying)

    def call(self, function: Callable[..., Any], *args: Any, carrying: bool | None = None, **kwargs: Any) -> Activation:
        """Append a function call; activations and constants may stand anywhere in `args`.

        The result has the layout of the first argument unless told otherwise.
        """
        probe = function(*self._map(args, 1), **kwargs)
        node = self.graph.call_function(function, tuple(self._map(args, 0)), kwargs)
        return Activation(node, probe, args[0].carrying if carrying is None else carrying)

    def method(self, name: str, *args: Any, carrying: bool | None = None) -> Activation:
        """Append a tensor method call."""
        values = self._map(args, 1)
        probe = getattr(values[0], name)(*values[1:])
        node = self.graph.call_method(name, tuple(self._map(args, 0)))
        return Activation(node, probe, args[0].carrying if carrying is None else carrying)

    def module(self, module: nn.Module, x: Activation, *, carrying: bool | None = None) -> Activation:
        """Append a module call."""
        module = module.eval().requires_grad_(False)
        name = self._name(type(module).__name__.lower())
        probe = module(x.probe)
        self.root.add_module(name, module)
        return Activation(self.graph.call_module(name, (x.node,)), probe, x.carrying if carrying is None else carrying)

    def rows(self, x: Activation) -> Activation:
        """The same value with the batch as an extra axis: (n, *shape)."""
        return self._reshape(x, x.shape, carrying=False)

    def carried(self, x: Activation) -> Activation:
        """The same value with ONNX axis 0, of size 1, as the batch: (n, *shape[1:])."""
        if not x.shape or x.shape[0] != 1:
            raise UnsupportedOperator(f"a leading dimension of 1 is needed, the shape is {x.shape}")
        return self._reshape(x, x.shape[1:], carrying=True)

    def view(self, x: Activation, shape: Sequence[int]) -> Activation:
        """An ONNX reshape."""
        carrying = len(shape) > 1 and shape[0] == 1
        return self._reshape(x, tuple(shape[1:] if carrying else shape), carrying=carrying)

    def axes(self, x: Activation, axes: Sequence[int]) -> tuple[Activation, list[int]]:
        """A layout in which none of the ONNX `axes` is the batch, and these axes in it."""
        rank = len(x.shape)
        normal = [normal_axis(axis, rank) for axis in axes]
        if x.carrying and 0 in normal:
            x = self.rows(x)
        return x, normal if x.carrying else [axis + 1 for axis in normal]

    def align(self, *values: Value) -> tuple[list[Value], bool]:
        """Bring operands of one broadcast into one layout, so that torch broadcasts as ONNX does."""
        rank = max(len(value.shape) for value in values)
        padded = [(1,) * (rank - len(value.shape)) + value.shape for value in values]
        carrying = rank > 1 and all(shape[0] == 1 for shape in padded)
        aligned: list[Value] = []
        for value, shape in zip(values, padded, strict=True):
            if isinstance(value, Activation):
                value = self._reshape(value, shape[1:] if carrying else shape, carrying=carrying)
            aligned.append(value)
        return aligned, carrying

    def broadcast(self, function: Callable[..., Any], *values: Value) -> Activation:
        """Append an elementwise function of several operands."""
        aligned, carrying = self.align(*values)
        return self.call(function, *aligned, carrying=carrying)

    def as_images(self, x: Activation, apply: Callable[[Activation], Activation]) -> Activation:
        """Apply a torch layer that wants (batch, channels, ...), whatever the first ONNX dimension is."""
        if len(x.shape) < 2:
            raise UnsupportedOperator(f"an input with channels is needed, the shape is {x.shape}")
        if x.shape[0] == 1:
            return apply(self.carried(x))
        count = x.shape[0]
        merged = self.call(torch.reshape, self.rows(x), (-1, *x.shape[1:]), carrying=True)
        result = apply(merged)
        return self.call(torch.reshape, result, (-1, count, *result.tail), carrying=False)

    def expand_constant(self, constant: Constant, *, carrying: bool) -> Activation:
        """Repeat a constant for every row."""
        size = _Size(self.graph.call_method("size", (self.input.node, 0)), PROBE_BATCH)
        tail = constant.shape[1:] if carrying else constant.shape
        return self.method("expand", constant, size, *([-1] * len(tail)), carrying=carrying)

    def select(self, x: Activation, axis: int, indices: Array) -> Activation:
        """Pick entries along a torch axis."""
        return self.call(torch.index_select, x, axis, Constant(indices.astype(np.int64)))

    def getitem(self, x: Activation, axis: int, item: slice | int) -> Activation:
        """Slice or index a torch axis other than the batch."""
        return self.call(operator.getitem, x, (*(slice(None),) * axis, item))

    def _reshape(self, x: Activation, tail: tuple[int, ...], *, carrying: bool) -> Activation:
        if x.tail == tail:
            return replace(x, carrying=carrying)
        if len(tail) == 1 and len(x.tail) > 1:
            return self.module(nn.Flatten(), x, carrying=carrying)
        return self.call(torch.reshape, x, (-1, *tail), carrying=carrying)

    def _map(self, value: Any, which: int) -> Any:
        """Replace activations and constants by their graph node (0) or their tensor (1)."""
        if isinstance(value, Activation | _Size):
            return value.probe if which else value.node
        if isinstance(value, Constant):
            return self._buffer(value)[which]
        if isinstance(value, tuple | list):
            return type(value)(self._map(item, which) for item in value)
        return value

    def _buffer(self, constant: Constant) -> tuple[fx.Node, torch.Tensor]:
        if id(constant) not in self._buffers:
            tensor = as_tensor(constant.array)
            name = self._name("constant")
            self.root.register_buffer(name, tensor)
            # The constant itself is kept, so that its id is not given to another one.
            self._buffers[id(constant)] = (constant, self.graph.get_attr(name), tensor)
        _, node, tensor = self._buffers[id(constant)]
        return node, tensor

    def _name(self, stem: str) -> str:
        self._counts[stem] = self._counts.get(stem, 0) + 1
        return f"{stem}_{self._counts[stem]}"


@dataclass(frozen=True)
class OnnxNode:
    """One ONNX node with its inputs resolved; missing optional inputs are None."""

    kind: str
    inputs: Sequence[Value | None]
    attributes: dict[str, Any]
    opset: int
    outputs: int

    def input(self, index: int) -> Value:
        """Any input that must be there."""
        value = self.optional(index)
        if value is None:
            raise IllFormed(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Any input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def activation(self, index: int = 0) -> Activation:
        """An input that depends on the network's input."""
        value = self.input(index)
        if not isinstance(value, Activation):
            raise UnsupportedOperator(f"{self.kind} with a constant input {index} is not supported")
        return value

    def array(self, index: int) -> Array:
        """An input that must be known at import, such as a weight."""
        value = self.input(index)
        if not isinstance(value, Constant):
            raise UnsupportedOperator(f"{self.kind} whose input {index} is computed is not supported")
        return value.array

    def optional_array(self, index: int) -> Array | None:
        """Like `array`, or None where the input is absent."""
        return None if self.optional(index) is None else self.array(index)

    def attr(self, name: str, default: Any) -> Any:
        """An attribute or its default; strings are decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def per_axis(self, name: str, dims: int, default: int = 1) -> tuple[int, ...]:
        """A whole number for each spatial axis."""
        return tuple(int(entry) for entry in self.attr(name, [default] * dims))

    def ints(self, name: str, index: int) -> list[int] | None:
        """A list that older operator sets store as an attribute and newer ones as a constant input."""
        if name in self.attributes:
            return [int(entry) for entry in self.attributes[name]]
        array = self.optional_array(index)
        return None if array is None else [int(entry) for entry in array.reshape(-1)]

    def refuse(self, feature: str) -> UnsupportedOperator:
        """The error for a variant of a known operator that is not implemented."""
        return UnsupportedOperator(f"{self.kind} with {feature} is not supported")


Handler = Callable[[Builder, OnnxNode], Value | list[Value]]

HANDLERS: dict[str, Handler] = {}


def converts(*kinds: str) -> Callable[[Handler], Handler]:
    """Register a handler for operators of the standard domain."""

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register


def as_tensor(array: Array) -> torch.Tensor:
    """A torch copy of a numpy array that owns its memory."""
    try:
        return torch.from_numpy(np.array(array, order="C"))
    except TypeError as error:
        raise UnsupportedOperator(f"constants of type {array.dtype} are not supported") from error


def normal_axis(axis: int, rank: int) -> int:
    """A non-negative axis."""
    if not -rank <= axis < rank:
        raise IllFormed(f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank
