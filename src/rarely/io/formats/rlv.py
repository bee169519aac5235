"""Planet's `.rlv`: a network and a property in one text file, a node or an assertion to a line.

    Input x0
    Linear n1 BIAS WEIGHT node WEIGHT node ...
    ReLU n2 BIAS WEIGHT node ...          the rectified affine combination
    MaxPool n3 node node ...
    Assert <= CONSTANT WEIGHT node ...    CONSTANT <= the combination; also >=, <, >, =, ==

The file is satisfiable, and the property violated, when a point meets every assertion, the strict
ones strictly.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import torch
from torch import nn

from rarely.core.errors import FormatError
from rarely.io.files import read_text
from rarely.io.formats import _formula
from rarely.io.formats._formula import Atom, Linear, Rejected
from rarely.io.formats._rlv_layers import RlvNode, build_layers
from rarely.io.formats.specification import Input, Specification, build_specification


class RlvNetwork(nn.Sequential):
    """The network of a `.rlv` file. Files with the same network share one object: copy it before a change."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    fingerprint: str  # of the network lines and the choice of outputs, not of the assertions

    def __init__(
        self,
        *layers: nn.Module,
        input_shape: tuple[int, ...] = (),
        output_shape: tuple[int, ...] = (),
        fingerprint: str = "",
    ) -> None:
        super().__init__(*layers)
        self.input_shape, self.output_shape, self.fingerprint = input_shape, output_shape, fingerprint


@dataclass(frozen=True, eq=False)
class RlvProblem:
    """What a `.rlv` file holds."""

    network: RlvNetwork
    specification: Specification


@dataclass(frozen=True, eq=False)
class _Graph:
    inputs: tuple[str, ...]
    nodes: Mapping[str, RlvNode]  # in topological order, without aliases
    alias: Mapping[str, str]  # every name, to itself or to the node that it repeats
    order: Mapping[str, int]  # every name, to its place in the file
    digest: str


@dataclass(frozen=True)
class _Assertion:
    operator: str
    constant: float
    names: tuple[str, ...]  # as written
    weights: tuple[float, ...]
    line: int


# 500 files of one network give one module, for as long as anybody holds it.
_networks: weakref.WeakValueDictionary[tuple[str, torch.dtype], RlvNetwork] = weakref.WeakValueDictionary()


def read_rlv(path: str | Path, dtype: torch.dtype = torch.float32) -> RlvProblem:
    """Read a `.rlv` (or `.rlv.gz`) file.

    The outputs of the network are the nodes that assertions mention and that are not inputs, in the order
    of the file; nodes that reach none of them are left out.
    """
    return parse_rlv(read_text(path), str(path), dtype)


def parse_rlv(text: str, source: str = "<text>", dtype: torch.dtype = torch.float32) -> RlvProblem:
    """The same for a string; `source` names it in errors."""
    network_lines: list[str] = []
    assertion_lines: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("Assert"):
            assertion_lines.append((number, line.split()))
            line = ""  # an empty line keeps the numbers of the others
        network_lines.append(line)
    try:
        graph = _graph("\n".join(network_lines).rstrip())
        assertions = [_assertion(words, number) for number, words in assertion_lines]
        names = _output_names(graph, assertions)
        atoms = _atoms(graph, assertions, names)
        inputs = [Input(name, graph.order[name]) for name in graph.inputs]
        specification = build_specification(tuple(atoms), [()], inputs, len(names), source)
        return RlvProblem(_network(graph, names, dtype), specification)
    except Rejected as error:
        raise FormatError(source, error.reason, error.position) from None


def _network(graph: _Graph, outputs: tuple[str, ...], dtype: torch.dtype) -> RlvNetwork:
    fingerprint = hashlib.sha256("\n".join([graph.digest, *outputs]).encode()).hexdigest()
    network = _networks.get((fingerprint, dtype))
    if network is None:
        network = RlvNetwork(
            *build_layers(graph.inputs, graph.nodes, outputs, dtype),
            input_shape=(len(graph.inputs),),
            output_shape=(len(outputs),),
            fingerprint=fingerprint,
        )
        network.eval().requires_grad_(False)
        _networks[fingerprint, dtype] = network
    return network


@lru_cache(maxsize=16)
def _graph(text: str) -> _Graph:
    """The nodes of a file without its assertions; cached, since most benchmarks repeat one network."""
    inputs: dict[str, int] = {}
    nodes: dict[str, RlvNode] = {}
    digest = hashlib.sha256()
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words:
            continue
        digest.update((" ".join(words) + "\n").encode("utf-8", "surrogatepass"))
        if len(words) < 2:
            raise Rejected(f"'{words[0][:40]}' needs a name", number)
        kind, name = words[:2]
        if name in inputs or name in nodes:
            raise Rejected(f"node '{name}' is defined twice", number)
        if kind == "Input" and len(words) == 2:
            inputs[name] = number
        elif kind == "MaxPool" and len(words) > 2:
            nodes[name] = RlvNode(kind, number, tuple(words[2:]))
        elif kind in ("Linear", "ReLU") and len(words) > 2:
            bias, weights, operands = _combination(words[2:], number)
            nodes[name] = RlvNode(kind, number, operands, weights, bias)
        elif kind in ("Input", "MaxPool", "Linear", "ReLU"):
            raise Rejected(f"{kind} '{name}' has {'too many' if kind == 'Input' else 'no'} operands", number)
        else:
            raise Rejected(f"unknown kind of node '{kind[:40]}'", number)
    if not inputs:
        raise Rejected("no Input node")

    alias = {name: name for name in inputs}
    resolved: dict[str, RlvNode] = {}
    for name in _sorted(inputs, nodes):
        node = nodes[name]
        node = node._replace(operands=tuple(alias[operand] for operand in node.operands))
        if node.kind == "Linear" and node.bias == 0.0 and node.weights == (1.0,):
            alias[name] = node.operands[0]
        else:
            alias[name] = name
            resolved[name] = node
    order = {**inputs, **{name: node.line for name, node in nodes.items()}}
    return _Graph(tuple(inputs), resolved, alias, order, digest.hexdigest())


def _sorted(inputs: Collection[str], nodes: Mapping[str, RlvNode]) -> list[str]:
    """The nodes, operands first; lines may come in any order."""
    for name, node in nodes.items():
        unknown = next((operand for operand in node.operands if operand not in inputs and operand not in nodes), None)
        if unknown is not None:
            raise Rejected(f"'{name}' uses the unknown node '{unknown[:40]}'", node.line)
    try:
        order = TopologicalSorter({name: node.operands for name, node in nodes.items()}).static_order()
        return [name for name in order if name in nodes]
    except CycleError as error:
        name = min(error.args[1], key=lambda name: nodes[name].line)
        raise Rejected(f"node '{name}' depends on itself: the network has a cycle", nodes[name].line) from None


def _combination(words: list[str], line: int) -> tuple[float, tuple[float, ...], tuple[str, ...]]:
    """CONSTANT WEIGHT node WEIGHT node ..."""
    if len(words) % 2 == 0:
        raise Rejected("weights and nodes do not come in pairs", line)
    try:
        numbers = tuple(map(float, (words[0], *words[1::2])))
    except ValueError as error:
        raise Rejected(str(error)[:120], line) from None
    if not all(map(math.isfinite, numbers)):
        raise Rejected("a number is not finite", line)
    return numbers[0], numbers[1:], tuple(words[2::2])


def _assertion(words: list[str], line: int) -> _Assertion:
    if words[0] != "Assert":
        raise Rejected(f"unknown kind of node '{words[0][:40]}'", line)
    if len(words) < 5 or words[1] not in ("<=", ">=", "<", ">", "=", "=="):
        raise Rejected("an assertion reads: Assert <=|>= CONSTANT WEIGHT node ...", line)
    constant, weights, names = _combination(words[2:], line)
    return _Assertion(words[1], constant, names, weights, line)


def _output_names(graph: _Graph, assertions: Iterable[_Assertion]) -> tuple[str, ...]:
    used: set[str] = set()
    for assertion in assertions:
        for name in assertion.names:
            if name not in graph.alias:
                raise Rejected(f"the assertion uses the unknown node '{name[:40]}'", assertion.line)
            used.add(name)
    written = sorted(used, key=graph.order.__getitem__)
    return tuple(dict.fromkeys(graph.alias[name] for name in written if graph.alias[name] in graph.nodes))


def _atoms(graph: _Graph, assertions: Iterable[_Assertion], outputs: Iterable[str]) -> Iterable[Atom]:
    variables = {name: i for i, name in enumerate(graph.inputs)}
    variables.update((name, ~j) for j, name in enumerate(outputs))
    for assertion in assertions:
        terms = [
            Linear({variables[graph.alias[name]]: weight}, 0.0)
            for name, weight in zip(assertion.names, assertion.weights, strict=True)
        ]
        sides = [Linear({}, assertion.constant), _formula.sum_of(terms)]
        clauses = _formula.comparison(assertion.operator, sides, assertion.line)
        if not clauses:
            raise Rejected("the assertion can never hold", assertion.line)
        yield from clauses[0]
