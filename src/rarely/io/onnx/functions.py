"""Local functions of a model: how large it becomes once they stand where they are called.

Functions that call functions multiply, so that a kilobyte could ask for any number of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from rarely.core.limits import MEMORY, NODES
from rarely.io.files import refuse


@dataclass(frozen=True)
class _Size:
    """Of some nodes; whole numbers, since these have no largest value."""

    nodes: int = 0
    content: int = 0  # bytes
    slots: int = 0  # attributes that each call fills in

    def plus(self, other: _Size, times: int) -> _Size:
        return _Size(
            self.nodes + times * other.nodes, self.content + times * other.content, self.slots + times * other.slots
        )


def refuse_growth(model: Any, source: str) -> None:
    """Raise what the limits have against the model with its functions put in place, before they are."""
    nodes = {_name(one.domain, one.name, one): list(_all(one.node)) for one in model.functions}
    whole = list(_all(model.graph.node))
    calls = {name: _calls(inside, nodes) for name, inside in nodes.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())  # what is called comes first
    except CycleError:
        return  # whoever puts them in place says so
    grown: dict[Any, _Size] = {}
    for name in order:
        grown[name] = _grown(nodes[name], calls[name], grown)
    total = _grown(whole, _calls(whole, nodes), grown)
    refuse(source, NODES.excess(total.nodes, "the graph, with its local functions put in place,"))
    every = (node for body in (whole, *nodes.values()) for node in body)
    filled = max((one.ByteSize() for node in every for one in node.attribute), default=0)
    size = total.content + total.slots * filled
    refuse(source, MEMORY.excess(size, "the graph, with its local functions put in place,"))


def _grown(nodes: list[Any], calls: Counter[Any], known: dict[Any, _Size]) -> _Size:
    slots = sum(bool(one.ref_attr_name) for node in nodes for one in node.attribute)
    size = _Size(len(nodes), sum(node.ByteSize() for node in nodes), slots)
    for name, times in calls.items():
        size = size.plus(known[name], times)
    return size


def _calls(nodes: Iterable[Any], known: dict[Any, Any]) -> Counter[Any]:
    names = (_name(node.domain, node.op_type, node) for node in nodes)
    return Counter(name for name in names if name in known)


def _name(domain: str, name: str, of: Any) -> tuple[str, str, str]:
    return "" if domain == "ai.onnx" else domain, name, getattr(of, "overload", "")


def _all(nodes: Iterable[Any]) -> Iterator[Any]:
    """Also those inside of nodes."""
    for node in nodes:
        yield node
        for entry in node.attribute:
            for graph in (entry.g, *entry.graphs):
                yield from _all(graph.node)
