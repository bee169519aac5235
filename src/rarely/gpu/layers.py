"""Small networks as text: the layers of a chain that a thread of a GPU can hold, with their weights."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from rarely.core.network import altered

_WIDEST = 64  # numbers of a layer: they are held in registers, of which a thread has 255
_INPUTS = 32  # of these there are several copies
_LITERAL = 1500  # weights up to which they are written into the instructions; compiling takes long beyond
_MOST = 14_000  # weights that shared memory holds beside the columns of a block
_EXAMPLES = 3  # inputs that a network is read with

_SAME = {nn.Flatten, nn.Identity, nn.Dropout}
_SAME_CALLS = {torch.flatten, "flatten", "view", "reshape", "squeeze", "contiguous", operator.getitem}
_RELU_CALLS = {torch.relu, nn.functional.relu, "relu"}


@dataclass(frozen=True)
class Text:
    """A network as the body of a function, and its weights."""

    body: str
    outputs: int
    literal: bool
    weights: Tensor  # of the body, in the order that gpu/layers.cuh reads them
    widest: int  # outputs of a dense layer, rounded up to fours


def text_of(module: nn.Module, shape: Sequence[int]) -> Text | None:
    """The network on inputs of a shape, or None where it is no chain of layers that are known here, or too large."""
    if altered(module):
        return None
    try:
        layers = _layers(module, shape)
    except Exception:  # a user's forward may do anything
        return None
    inputs, dense = math.prod(shape), [layer for layer in layers if isinstance(layer, nn.Linear)]
    sizes = [inputs, *(size for layer in dense for size in (layer.in_features, layer.out_features))]
    count = sum(layer.weight.numel() + layer.out_features for layer in dense)
    if (
        inputs > _INPUTS
        or not dense
        or max(sizes) > _WIDEST
        or count > _MOST
        or any(d.weight.dtype != torch.float32 for d in dense)
    ):
        return None
    return _written(layers, inputs, count <= _LITERAL)


class _Unknown(Exception):
    """A network that does something that is not known here."""


def _layers(module: nn.Module, shape: Sequence[int]) -> list[nn.Module]:
    """The layers of a chain, one after the other, or an exception."""
    numbers = torch.arange(_EXAMPLES * math.prod(shape), dtype=torch.float32)
    chain = _Chain(numbers.reshape(_EXAMPLES, *shape))
    _read(module, chain)
    return chain.layers


@dataclass
class _Chain:
    """What is read of a network.

    The layers on the chip know no shapes. So the examples go the way of the inputs, and every number of them is another
    one: what only writes them in another shape is nothing, and what moves, mixes or drops any is seen.
    """

    examples: Tensor  # (_EXAMPLES, *shape of what the last layer gives)
    layers: list[nn.Module] = field(default_factory=list)

    def add(self, layer: nn.Linear | nn.MaxPool1d) -> None:
        """A layer of one row of numbers for each input: several rows would be several calls."""
        width = self.examples.shape[-1]
        if self.examples.numel() != _EXAMPLES * width or self.examples.shape[0] != _EXAMPLES:
            raise _Unknown
        with torch.no_grad():
            found = layer(self.examples.to(next(layer.parameters(), self.examples)))
        self.examples = torch.arange(found.numel(), dtype=torch.float32).reshape(found.shape)
        self.layers.append(layer)

    def reshape(self, call: Callable[[Tensor], Tensor]) -> None:
        """A call that gives the same numbers in the same order."""
        found = call(self.examples)
        if not torch.equal(found.reshape(_EXAMPLES, -1), self.examples.reshape(_EXAMPLES, -1)):
            raise _Unknown
        self.examples = found


def _read(module: nn.Module, chain: _Chain) -> None:
    forward = type(module).forward  # of a class derived from one of torch's it may be another
    if type(module) in _SAME:
        chain.reshape(module)
    elif isinstance(module, nn.Linear | nn.MaxPool1d) and forward in (nn.Linear.forward, nn.MaxPool1d.forward):
        chain.add(module)
    elif isinstance(module, nn.ReLU) and forward is nn.ReLU.forward:
        chain.layers.append(module)
    elif isinstance(module, nn.Sequential) and forward is nn.Sequential.forward:
        for part in module:
            _read(part, chain)
    else:
        _read_graph(module if isinstance(module, fx.GraphModule) else fx.symbolic_trace(module), chain)


def _read_graph(module: fx.GraphModule, chain: _Chain) -> None:
    last = None
    for node in module.graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        inputs = [value for value in node.args if isinstance(value, fx.Node)]
        if inputs != [last] or len(node.all_input_nodes) > 1:
            raise _Unknown
        last = node
        if node.op == "call_module":
            _read(module.get_submodule(str(node.target)), chain)
        elif node.target in _RELU_CALLS:
            chain.layers.append(nn.ReLU())
        elif node.target in _SAME_CALLS:
            chain.reshape(partial(_called, node))
        elif node.op != "output":
            raise _Unknown


def _called(node: fx.Node, x: Tensor) -> Tensor:
    call: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target
    found: Tensor = call(x, *node.args[1:], **node.kwargs)
    return found


def _written(layers: Sequence[nn.Module], inputs: int, literal: bool) -> Text | None:
    lines: list[str] = []
    weights: list[Tensor] = []
    name, width, widest = "x", inputs, 0
    for number, layer in enumerate(layers):
        target = f"v{number}"
        if isinstance(layer, nn.ReLU):
            if name == "x":  # the inputs themselves are still needed
                return None
            lines.append(f"relu({name});")
            continue
        if isinstance(layer, nn.MaxPool1d):
            size, stride = layer.kernel_size, layer.stride
            plain = (layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices) == (0, 1, False, False)
            if not (isinstance(size, int) and isinstance(stride, int) and plain and size <= width):
                return None
            width = (width - size) // stride + 1
            call = f"pool<{size}, {stride}>"
        else:
            assert isinstance(layer, nn.Linear)
            if layer.in_features != width:
                return None
            packed = _literal(layer) if literal else _in_fours(layer)
            offset = sum(map(len, weights))
            weights.append(packed)
            call = f"dense<{offset if literal else offset // 4}>"
            width, widest = layer.out_features, max(widest, -(-layer.out_features // 4) * 4)
        lines += [f"float {target}[EACH][{width}];", f"{call}({name}, {target});"]
        name = target
    body = "\n  ".join([*lines, f"copy({name}, y);"])
    return Text(body, width, literal, torch.cat(weights), widest)


def _bias(layer: nn.Linear) -> Tensor:
    """(out,)"""
    return torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().cpu()


def _literal(layer: nn.Linear) -> Tensor:
    return torch.cat([_bias(layer), layer.weight.detach().cpu().flatten()])


def _in_fours(layer: nn.Linear) -> Tensor:
    """For each four outputs their biases, then for each four inputs the four rows; zeros fill up."""
    rows, columns = (-(-size // 4) for size in layer.weight.shape)
    weight = torch.zeros(4 * rows, 4 * columns)
    weight[: layer.out_features, : layer.in_features] = layer.weight.detach().cpu()
    bias = torch.zeros(4 * rows)
    bias[: layer.out_features] = _bias(layer)
    blocks = weight.reshape(rows, 4, columns, 4).transpose(1, 2)  # (rows, columns, 4 outputs, 4 inputs)
    return torch.cat([bias.reshape(rows, 4), blocks.reshape(rows, -1)], 1).flatten()
