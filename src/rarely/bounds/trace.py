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
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rarely.bounds.graph import Graph, Node, Unprovable, intervals
from rarely.bounds.layers.move import MOVES, handles, rearrange
from rarely.bounds.operators import Arithmetic, Interval
from rarely.bounds.reader import PROBE, READINGS, Handle, Reader, read_module
from rarely.core.network import altered

_SPACES: tuple[Any, ...] = (operator, torch, F, torch._C._nn)


CHECKED, INSIDE = 3, 6  # inputs on which a graph is compared with its module: any, and some of a box
_IN_PLACE = {"iadd", "isub", "imul", "itruediv"}  # and whatever ends in an underscore
_SUMS = (operator.add, operator.sub, operator.mul, operator.truediv)  # which `y += x` is traced as


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
    if name == "pad":  # a whole number that fills is a constant like any other
        args = (*args[:3], *(float(value) for value in args[3:]))
        kwargs = {key: float(v) if key == "value" and v is not None else v for key, v in kwargs.items()}
    if name in MOVES:
        return rearrange(r, call, *args, **kwargs)
    if name in READINGS:
        return READINGS[name](r, *args, **kwargs)
    raise Unprovable(f"no relaxation for {name or target}")


class _Writing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls that write over a tensor while a network runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._schema.is_mutable
        return func(*args, **(kwargs or {}))


def _writes(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call writes its result over its first argument."""
    if node.op not in ("call_module", "call_function", "call_method"):
        return False
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    written = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return written or bool(node.kwargs.get("inplace", False))


def _moves(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call may give a view of its arguments."""
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and (name in MOVES or name in ("getattr", "dropout"))


def _check_writing(graph: torch.fx.Graph, modules: dict[str, nn.Module], count: int) -> None:
    """Values that are written over must not be read afterwards, by their own name or through a view of them.

    `count` calls write while the network runs. Where the graph shows fewer, any sum may be one that writes.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    writing = [node for node in graph.nodes if _writes(node, modules)]
    if len(writing) < count:
        writing += [node for node in graph.nodes if node.target in _SUMS]
    if len(writing) < count:
        raise Unprovable("values are written over in place where the graph of the network does not show it")
    for node in writing:
        todo = list(node.all_input_nodes[:1])
        shared = set(todo)
        while todo:
            one = todo.pop()
            kin = [*one.all_input_nodes] if _moves(one, modules) or _writes(one, modules) else []
            kin += [user for user in one.users if user is not node and _moves(user, modules)]
            fresh = [k for k in kin if k not in shared]
            shared.update(fresh)
            todo += fresh
        late = [user for one in shared for user in one.users if user is not node and order[user] > order[node]]
        if late:
            raise Unprovable(f"a value that is written over in place ({node.name}) is read again ({late[0].name})")


def _walk(traced: torch.fx.GraphModule, r: Reader, writing: int) -> Handle:
    env: dict[torch.fx.Node, Any] = {}
    modules = dict(traced.named_modules())
    _check_writing(traced.graph, modules, writing)
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


def build(module: nn.Module, input_shape: Sequence[int], box: Interval | None = None) -> Graph:
    """The graph of `module` for inputs of `input_shape` (without batch), in float64 on the module's device.

    Raises `Unprovable` for anything that no file of `layers` reads, and where the graph does not reproduce the module
    on random inputs; some of a `box`, low and high (*input_shape), if it is given.
    """
    if altered(module):
        raise Unprovable("a network with forward hooks, or a forward of its own, which bounds do not see")
    anchor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))
    r = Reader(tuple(int(s) for s in input_shape), anchor.device, runs_in(module))
    try:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(CHECKED, *input_shape, generator=generator).to(anchor) * 2 - 0.5
        if box is not None:
            x = torch.cat([x, _inside(box, generator).to(anchor)])
        with torch.no_grad(), _Writing() as writing:
            expected = module(x.clone()).flatten(1).double()
        output = _walk(_traced(module), r, writing.count).index
        graph = _needed(r.nodes, output, r.arithmetic)
        with torch.no_grad():
            got = graph(x.double())
            low, high = intervals(graph, x.double(), x.double())[graph.output]
    except Unprovable:
        raise
    except Exception as error:  # whatever a foreign module throws while it is read, we have no proof
        raise Unprovable(f"the network cannot be read: {error}") from error
    if expected.shape != got.shape:
        raise Unprovable("the graph read from the network gives another shape than it does")
    if bool(expected.isnan().any(1).all()):
        raise Unprovable("the network gives no numbers on the inputs that it was tried on")
    # What rounding may move the network's outputs by says nothing against the graph.
    wide = torch.where((high - low).isfinite(), high - low, 0.0)
    size = expected.abs().nan_to_num(posinf=0.0).amax(1, keepdim=True)
    same = (expected == got) | (expected.isnan() & got.isnan())
    if not bool((same | ((expected - got).abs() <= 1e-3 * (size + 1e-3) + wide)).all()):
        raise Unprovable("the graph read from the network does not reproduce it")
    return graph


def _inside(box: Interval, generator: torch.Generator) -> Tensor:
    """Some inputs of a box, half of them corners."""
    low, high = (end.cpu().double() for end in box)
    share = torch.rand(INSIDE, *low.shape, generator=generator, dtype=torch.float64)
    share[INSIDE // 2 :] = share[INSIDE // 2 :].round()
    return low + share * (high - low)
