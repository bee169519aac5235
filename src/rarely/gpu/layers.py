"""Small networks as text: the layers of a chain that a thread of a GPU can hold, with their weights."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

_WIDEST = 64  # numbers of a layer: they are held in registers, of which a thread has 255
_INPUTS = 32  # of these there are several copies
_LITERAL = 1500  # weights up to which they are written into the instructions; compiling takes long beyond
_MOST = 14_000  # weights that shared memory holds beside the columns of a block

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

    @property
    def bytes_shared(self) -> int:
        """Of the weights."""
        return 0 if self.literal else 4 * self.weights.numel()


def text_of(module: nn.Module, inputs: int) -> Text | None:
    """The network on so many inputs, or None where it is no chain of layers that are known here, or too large.

    What is read is compared with the network itself before it is used, so reshaping is taken for what it looks like.
    """
    layers = list(_layers(module))
    known = [layer for layer in layers if layer is not None]
    if len(known) < len(layers):
        return None
    dense = [layer for layer in known if isinstance(layer, nn.Linear)]
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
    return _written(known, inputs, count <= _LITERAL)


def _layers(module: nn.Module) -> Iterator[nn.Module | None]:
    """The layers of a chain, one after the other; None for anything else."""
    if type(module) in _SAME:
        return
    if isinstance(module, nn.Linear | nn.ReLU | nn.MaxPool1d):
        yield module
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for part in module:
            yield from _layers(part)
    elif isinstance(module, fx.GraphModule):
        yield from _of_graph(module)
    else:
        try:
            traced = fx.symbolic_trace(module)
        except Exception:  # a user's forward may do anything
            yield None
            return
        yield from _of_graph(traced)


def _of_graph(module: fx.GraphModule) -> Iterator[nn.Module | None]:
    last = None
    for node in module.graph.nodes:
        if node.op == "placeholder":
            if last is not None:
                yield None
            last = node
            continue
        tensors = [value for value in node.args if isinstance(value, fx.Node)]
        if tensors != [last] or any(isinstance(value, fx.Node) for value in node.kwargs.values()):
            yield None
            return
        last = node
        if node.op == "call_module":
            yield from _layers(module.get_submodule(str(node.target)))
        elif node.target in _RELU_CALLS:
            yield nn.ReLU()
        elif node.op != "output" and node.target not in _SAME_CALLS:
            yield None


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
