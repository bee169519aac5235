"""Bounds computed in float32: for convolutions ten times as fast as in float64, on a CPU.

Two uses. Rigorous: bounds on the inputs of ReLUs. Everything that is charged for our own rounding asks the numbers it
works with for their precision, so that the same code proves as much of float32 numbers, only less tightly: the charge
is about that which the network's own rounding costs anyway. The weights must be float32 numbers, or they would change.
Rough: the ascent on slopes and multipliers, where nothing is claimed; what it finds is evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated
from rarely.bounds.graph import Charges, Graph, Node
from rarely.bounds.operators import Affine, Interval, Kinked, Relaxation
from rarely.bounds.region import Region, repeated


def lowered(graph: Graph) -> Graph | None:
    """The graph in float32, where that changes nothing but its precision.

    Not where a weight would change, not for relaxations that know their rounding in float64 alone, and not where
    torch is free to compute float32 with fewer bits.
    """
    if torch.get_float32_matmul_precision() != "highest":
        return None
    nodes = [_lowered(node) for node in graph.nodes]
    return None if None in nodes else replace(graph, nodes=tuple(node for node in nodes if node is not None))


def _lowered(node: Node) -> Node | None:
    if node.op is None:
        return node
    wide = _wide(node.op)
    kept = all(torch.equal(t.float().double(), t) for t in wide.values())
    if not isinstance(node.op, Affine | Kinked) or not kept:
        return None
    op: Any = node.op
    return replace(node, op=replace(op, **{k: t.float() for k, t in wide.items()}))


def _wide(thing: Any) -> dict[str, Tensor]:
    """The fields of a dataclass that hold numbers."""
    parts = {f.name: getattr(thing, f.name) for f in fields(thing)}
    return {k: t for k, t in parts.items() if isinstance(t, Tensor) and t.is_floating_point()}


def outward(low: Tensor, high: Tensor) -> Interval:
    """The next float32 numbers beyond an interval."""
    least, most = low.float(), high.float()
    return torch.nextafter(least, least * 0 - torch.inf), torch.nextafter(most, most * 0 + torch.inf)


def rough(
    state: Propagated, graph: Graph, region: Region, count: int, relaxations: Mapping[int, Relaxation]
) -> Propagated:
    """So many copies of a region in float32, with these relaxations. Claims nothing: no rounding is charged."""
    return uncharged(
        replace(
            state,
            graph=graph,
            region=repeated(region, count),
            bounds=[(low.float(), high.float()) for low, high in state.bounds],
            relaxations=dict(relaxations),
            floor=state.floor.float(),
        )
    )


def uncharged(state: Propagated) -> Propagated:
    """The same as if nothing rounded: it claims nothing."""
    free = [Charges(None, None, None)] * len(state.graph.nodes)
    free[0] = Charges(None, torch.zeros_like(state.region.low[:1]), None)
    return replace(state, charges=free, floor=torch.zeros_like(state.floor), finite=torch.ones_like(state.finite))
