"""From a torch module to a `Graph`, refusing (`Unprovable`) whatever we could not bound.

The module is traced by torch.fx. Operators that only move entries about (reshape, slice, concatenate, ...) are
not interpreted: they are run once on numbered entries, and where each number lands is the operator. A final
comparison with the module on random inputs guards against every misreading.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from rarely.bounds.graph import Graph, Unprovable
from rarely.bounds.lowering import PROBE, Handle, Reader

_SPACES: tuple[Any, ...] = (operator, torch, F, torch._C._nn)
_MOVES = (
    *("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "contiguous", "clone", "detach"),
    *("permute", "transpose", "movedim", "swapaxes", "flip", "roll"),
    *("getitem", "narrow", "index_select", "chunk", "split", "cat", "concat", "stack", "pad"),
)


def _plus(b: Reader, x: Any, y: Any, alpha: float = 1) -> Handle:
    if isinstance(x, Handle) and isinstance(y, Handle):
        return b.sum(x, y if alpha == 1 else b.scale(y, alpha, 0.0))
    if isinstance(x, Handle):
        return b.scale(x, 1.0, b.real(y) * alpha)
    return b.scale(y, alpha, x)


def _times(b: Reader, x: Any, y: Any) -> Handle:
    if isinstance(x, Handle) and isinstance(y, Handle):
        raise Unprovable("the product of two values of the network")
    return b.scale(x, y, 0.0) if isinstance(x, Handle) else b.scale(y, x, 0.0)


def _over(b: Reader, x: Any, y: Any) -> Handle:
    if isinstance(y, Handle):
        raise Unprovable("division by a value of the network")
    return b.scale(x, 1 / b.real(y), 0.0)


def _matmul(b: Reader, x: Any, W: Any) -> Handle:
    if isinstance(W, Handle) or W.ndim != 2:
        raise Unprovable("a matrix product other than value times constant matrix")
    return b.dense(x, W.mT, None)


def _dropout(b: Reader, x: Handle, p: float = 0.5, training: bool = True, inplace: bool = False) -> Handle:
    if training:
        raise Unprovable("dropout in training mode")
    return x


def _clamp(b: Reader, x: Handle, min: Any = None, max: Any = None) -> Handle:
    """min + relu(x - min) - relu(x - max)."""
    for end in (min, max):
        if not (end is None or isinstance(end, (int, float))):
            raise Unprovable("clamping to anything but numbers")
    if min is None:
        return x if max is None else b.scale(b.leaky(b.scale(x, -1.0, max)), -1.0, max)
    above = b.leaky(b.scale(x, 1.0, -min))
    if max is not None:
        if max < min:
            raise Unprovable("clamping to an empty range")
        above = b.sum(above, b.scale(b.leaky(b.scale(x, 1.0, -max)), -1.0, 0.0))
    return b.scale(above, 1.0, min)


def _adaptive(b: Reader, x: Handle, size: Any) -> Handle:
    if any(s != 1 for s in (size if isinstance(size, Sequence) else [size])):
        raise Unprovable("adaptive pooling to more than one entry")
    return b.total(x, [len(x.shape) - 1, len(x.shape)], True, average=True)


_OPS: dict[str, Callable[..., Handle]] = {
    "add": _plus,
    "iadd": _plus,
    "sub": lambda b, x, y, alpha=1: _plus(b, x, y, -alpha) if isinstance(x, Handle) else b.scale(y, -alpha, x),
    "mul": _times,
    "div": _over,
    "truediv": _over,
    "neg": lambda b, x: b.scale(x, -1.0, 0.0),
    "matmul": _matmul,
    "linear": lambda b, x, weight, bias=None: b.dense(x, weight, bias),
    "conv1d": lambda b, input, weight, bias=None, *a, **k: b.conv(input, weight, bias, *a, **k),
    "conv2d": lambda b, input, weight, bias=None, *a, **k: b.conv(input, weight, bias, *a, **k),
    "relu": lambda b, input, inplace=False: b.leaky(input),
    "relu_": lambda b, input: b.leaky(input),
    "leaky_relu": lambda b, input, negative_slope=0.01, inplace=False: b.leaky(input, negative_slope),
    "sigmoid": lambda b, input: b.s_shape(input, "sigmoid"),
    "tanh": lambda b, input: b.s_shape(input, "tanh"),
    "max_pool1d": lambda b, input, *a, **k: b.max_pool(input, 1, *a, **_renamed(k)),
    "max_pool2d": lambda b, input, *a, **k: b.max_pool(input, 2, *a, **_renamed(k)),
    "avg_pool2d": lambda b, input, *a, **k: b.avg_pool(input, 2, *a, **_renamed(k)),
    "adaptive_avg_pool2d": _adaptive,
    "amax": lambda b, input, dim, keepdim=False: b.amax(input, dim, keepdim),
    "maximum": lambda b, x, y: b.amax(b.move(lambda u, v: torch.stack([u, v], -1), x, y), -1),
    "clamp": _clamp,
    "clip": _clamp,
    "abs": lambda b, x: b.sum(b.leaky(x), b.leaky(b.scale(x, -1.0, 0.0))),
    "mean": lambda b, input, dim, keepdim=False: b.total(input, dim, keepdim, average=True),
    "sum": lambda b, input, dim, keepdim=False: b.total(input, dim, keepdim),
    "dropout": _dropout,
}
_OPS["isub"], _OPS["imul"], _OPS["itruediv"] = _OPS["sub"], _times, _over


def _renamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"kernel" if k == "kernel_size" else k: v for k, v in kwargs.items()}


_NAMES = {getattr(space, name): name for name in (*_OPS, *_MOVES) for space in _SPACES if hasattr(space, name)}


def _module(b: Reader, m: nn.Module, x: Handle) -> Handle:
    match m:
        case nn.Linear():
            return b.dense(x, m.weight, m.bias)
        case nn.Conv1d() | nn.Conv2d() if m.padding_mode == "zeros":
            return b.conv(x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return b.batch_norm(x, m)
        case nn.ReLU():
            return b.leaky(x)
        case nn.LeakyReLU():
            return b.leaky(x, m.negative_slope)
        case nn.ReLU6() | nn.Hardtanh():
            return _clamp(b, x, m.min_val, m.max_val)
        case nn.Sigmoid():
            return b.s_shape(x, "sigmoid")
        case nn.Tanh():
            return b.s_shape(x, "tanh")
        case nn.MaxPool1d() | nn.MaxPool2d():
            rank = 1 if isinstance(m, nn.MaxPool1d) else 2
            rest = (m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)
            return b.max_pool(x, rank, *rest)
        case nn.AvgPool2d():
            pad = (m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override)
            return b.avg_pool(x, 2, m.kernel_size, m.stride, *pad)
        case nn.AdaptiveAvgPool2d():
            return _adaptive(b, x, m.output_size)
        case nn.Flatten() | nn.Unflatten():
            return b.move(m, x)  # type: ignore[no-any-return]
        case nn.Identity():
            return x
        case nn.Dropout() | nn.Dropout2d() if not m.training:
            return x
    raise Unprovable(f"no relaxation for {type(m).__name__}")


def _handles(value: Any) -> list[Handle]:
    if isinstance(value, Handle):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [h for v in value for h in _handles(v)]
    return []


def _fill(value: Any, known: dict[int, Tensor]) -> Any:
    if isinstance(value, Handle):
        return known[value.index]
    if isinstance(value, (tuple, list)):
        return type(value)(_fill(v, known) for v in value)
    if isinstance(value, Tensor) and value.is_floating_point():
        raise Unprovable("a constant tensor joined with values of the network")
    return value


def _call(b: Reader, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    method = node.op == "call_method"
    target: Any = node.target
    name = str(target) if method else _NAMES.get(target, "")
    handles = _handles((args, kwargs))
    if not handles:
        return getattr(args[0], name)(*args[1:], **kwargs) if method else target(*args, **kwargs)
    if name == "size" or (target is getattr and args[1] == "shape"):
        full = torch.Size((PROBE, *args[0].shape))
        return full[args[1]] if name == "size" and len(args) > 1 else full
    if name == "getitem" and isinstance(args[0], tuple):
        return args[0][args[1]]
    if name in _MOVES:
        unique = list({h.index: h for h in handles}.values())

        def run(*probes: Tensor) -> Any:
            known = {h.index: p for h, p in zip(unique, probes, strict=True)}
            full, named = _fill(args, known), {k: _fill(v, known) for k, v in kwargs.items()}
            return getattr(full[0], name)(*full[1:], **named) if method else target(*full, **named)

        return b.move(run, *unique)
    if name in _OPS:
        return _OPS[name](b, *args, **kwargs)
    raise Unprovable(f"no relaxation for {target}")


def _walk(traced: torch.fx.GraphModule, b: Reader) -> Handle:
    env: dict[torch.fx.Node, Any] = {}
    modules = dict(traced.named_modules())
    fresh = True
    for node in traced.graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: env[n])
        match node.op:
            case "placeholder" if fresh:
                env[node], fresh = Handle(0, b.nodes[0].shape), False
            case "placeholder":
                raise Unprovable("a network with several inputs")
            case "get_attr":
                env[node] = operator.attrgetter(str(node.target))(traced)
            case "call_module" if len(args) == 1 and isinstance(args[0], Handle):
                env[node] = _module(b, modules[str(node.target)], args[0])
            case "call_function" | "call_method":
                env[node] = _call(b, node, tuple(args), dict(kwargs))
            case "output":
                out = args[0]
                out = out[0] if isinstance(out, (tuple, list)) and len(out) == 1 else out
                if not isinstance(out, Handle):
                    raise Unprovable("a network whose output is not one tensor that depends on the input")
                return out
            case _:
                raise Unprovable(f"cannot read {node.format_node()}")
    raise Unprovable("a network without output")


def build(module: nn.Module, input_shape: Sequence[int]) -> Graph:
    """The graph of `module` for inputs of `input_shape` (without batch), in float64 on the module's device.

    Raises `Unprovable` for anything outside the operators that `linear` and `relax` know.
    """
    anchor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))
    b = Reader(tuple(int(s) for s in input_shape), anchor.device)
    try:
        traced = module if isinstance(module, torch.fx.GraphModule) else torch.fx.symbolic_trace(module)
        graph = b.finish(_walk(traced, b))
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(3, *input_shape, generator=generator).to(anchor) * 2 - 0.5
        with torch.no_grad():
            expected, got = module(x).flatten(1).double(), graph(x.double())
    except Unprovable:
        raise
    except Exception as error:  # whatever a foreign module throws while it is read, we have no proof
        raise Unprovable(f"the network cannot be read: {error}") from error
    scale = float(expected.abs().max()) + 1e-3
    if expected.shape != got.shape or not float((expected - got).abs().max()) <= 1e-3 * scale:
        raise Unprovable("the graph read from the network does not reproduce it")
    return graph
