"""From a torch module to a `Graph`, refusing (`Unprovable`) whatever we could not bound.

The module is traced by torch.fx, and every call is handed to the function in `layers` that reads it. A final comparison
with the module on random inputs guards against every misreading.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from rarely.bounds.graph import Graph, Node, Unprovable, intervals
from rarely.bounds.layers.move import MOVES, handles, rearrange
from rarely.bounds.operators import Arithmetic
from rarely.bounds.reader import PROBE, READINGS, Handle, Reader, read_module

_SPACES: tuple[Any, ...] = (operator, torch, F, torch._C._nn)


CHECKED = 3  # inputs on which a graph is compared with its module


class _Tracer(torch.fx.Tracer):
    """Looks into every module but torch's own and those that a layer reads whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in READINGS or super().is_leaf_module(m, module_qualified_name)


def _traced(module: nn.Module) -> torch.fx.GraphModule:
    if isinstance(module, torch.fx.GraphModule):
        return module
    tracer = _Tracer()
    graph = tracer.trace(module)
    return torch.fx.GraphModule(tracer.root, graph)


def _name(function: Any) -> str:
    """What torch calls a function, or nothing if it is not torch's."""
    name = getattr(function, "__name__", "")
    return name if any(getattr(space, name, None) is function for space in _SPACES) else ""


def _module(r: Reader, module: nn.Module, x: Handle) -> Any:
    for kind in type(module).__mro__:
        if kind in MOVES:
            return rearrange(r, module, x)
        if kind in READINGS:
            return read_module(READINGS[kind], r, module, x)
    raise Unprovable(f"no relaxation for {type(module).__name__}")


def _call(r: Reader, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    method, target = node.op == "call_method", node.target
    name = str(target) if method else _name(target)
    call: Any = (lambda value, *rest, **named: getattr(value, name)(*rest, **named)) if method else target
    if not handles((args, kwargs)):
        return call(*args, **kwargs)
    if name == "size" or (target is getattr and args[1] == "shape"):
        full = torch.Size((PROBE, *args[0].shape))
        return full[args[1]] if name == "size" and len(args) > 1 else full
    if name == "getitem" and isinstance(args[0], tuple):
        return args[0][args[1]]
    if name in MOVES:
        return rearrange(r, call, *args, **kwargs)
    if name in READINGS:
        return READINGS[name](r, *args, **kwargs)
    raise Unprovable(f"no relaxation for {target}")


def _walk(traced: torch.fx.GraphModule, r: Reader) -> Handle:
    env: dict[torch.fx.Node, Any] = {}
    modules = dict(traced.named_modules())
    fresh = True
    for node in traced.graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: env[n])
        match node.op:
            case "placeholder" if fresh:
                env[node], fresh = Handle(0, r.nodes[0].shape), False
            case "placeholder":
                raise Unprovable("a network with several inputs")
            case "get_attr":
                env[node] = operator.attrgetter(str(node.target))(traced)
            case "call_module" if len(args) == 1 and isinstance(args[0], Handle):
                env[node] = _module(r, modules[str(node.target)], args[0])
            case "call_function" | "call_method":
                env[node] = _call(r, node, tuple(args), dict(kwargs))
            case "output":
                out = args[0]
                out = out[0] if isinstance(out, (tuple, list)) and len(out) == 1 else out
                if not isinstance(out, Handle):
                    raise Unprovable("a network whose output is not one tensor that depends on the input")
                return out if len(out.shape) == 1 else rearrange(r, lambda x: x.flatten(1), out)
            case _:
                raise Unprovable(f"cannot read {node.format_node()}")
    raise Unprovable("a network without output")


def _needed(nodes: Sequence[Node], output: int, arithmetic: Arithmetic) -> Graph:
    """The graph of those nodes that the output depends on: others would be bounded in vain."""
    needed = {0, output}
    for i in range(output, 0, -1):
        if i in needed:
            needed.update(nodes[i].inputs)
    place = {old: new for new, old in enumerate(sorted(needed))}
    kept = (replace(nodes[i], inputs=tuple(place[j] for j in nodes[i].inputs)) for i in place)
    return Graph(tuple(kept), place[output], arithmetic)


def runs_in(module: nn.Module) -> Arithmetic:
    """The coarsest of the numbers that a module computes with."""
    kinds = [t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    return Arithmetic.of(max(kinds or [torch.float32], key=lambda kind: torch.finfo(kind).eps))


def build(module: nn.Module, input_shape: Sequence[int]) -> Graph:
    """The graph of `module` for inputs of `input_shape` (without batch), in float64 on the module's device.

    Raises `Unprovable` for anything that no file of `layers` reads.
    """
    anchor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))
    r = Reader(tuple(int(s) for s in input_shape), anchor.device, runs_in(module))
    try:
        output = _walk(_traced(module), r).index
        graph = _needed(r.nodes, output, r.arithmetic)
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(CHECKED, *input_shape, generator=generator).to(anchor) * 2 - 0.5
        with torch.no_grad():
            expected, got = module(x).flatten(1).double(), graph(x.double())
            low, high = intervals(graph, x.double(), x.double())[graph.output]
    except Unprovable:
        raise
    except Exception as error:  # whatever a foreign module throws while it is read, we have no proof
        raise Unprovable(f"the network cannot be read: {error}") from error
    if expected.shape != got.shape:
        raise Unprovable("the graph read from the network gives another shape than it does")
    # What rounding may move the network's outputs by says nothing against the graph.
    wide = torch.where((high - low).isfinite(), high - low, 0.0)
    if not bool(((expected - got).abs() <= 1e-3 * (expected.abs().max() + 1e-3) + wide).all()):
        raise Unprovable("the graph read from the network does not reproduce it")
    return graph
