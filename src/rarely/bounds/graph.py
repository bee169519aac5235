"""A network as a list of operators whose bounds we know how to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.linear import Add, Conv, Dense, Gather, Interval, LinearOp, Scale, moved
from rarely.bounds.relax import LeakyReLU, MaxWindows, NonlinearOp, SShape
from rarely.core.errors import RarelyError


class Unprovable(RarelyError):
    """The network holds something that we cannot bound: there is no proof, which says nothing about safety."""


LINEAR = (Add, Conv, Dense, Gather, Scale)
NONLINEAR = (LeakyReLU, MaxWindows, SShape)
Op = LinearOp | NonlinearOp


@dataclass(frozen=True)
class Node:
    """One operator, the nodes it reads, and the shape of its value without the batch."""

    op: Op | None  # None for the input, which is node 0
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; the first is the input and `output` the flat result (B, k)."""

    nodes: tuple[Node, ...]
    output: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.nodes[0].shape

    @property
    def classes(self) -> int:
        return self.nodes[self.output].shape[0]

    @cached_property
    def relaxed(self) -> tuple[int, ...]:
        """Nodes whose operator is not affine."""
        return tuple(i for i, n in enumerate(self.nodes) if isinstance(n.op, NONLINEAR))

    @cached_property
    def bounded(self) -> frozenset[int]:
        """Nodes that feed a non-affine operator, whose bounds therefore decide how tight everything is."""
        return frozenset(j for i in self.relaxed for j in self.nodes[i].inputs)

    @cached_property
    def relus(self) -> tuple[int, ...]:
        """Nodes that are ReLUs or leaky ReLUs: the ones that can be split and have slopes to optimise."""
        return tuple(i for i in self.relaxed if isinstance(self.nodes[i].op, LeakyReLU))

    @cached_property
    def box_exact(self) -> frozenset[int]:
        """Nodes where interval arithmetic over a box is exact: at most one mixing operator since the input."""
        mixed: dict[int, int] = {0: 0}
        for i, node in enumerate(self.nodes[1:], 1):
            alone = len(node.inputs) == 1 and node.inputs[0] in mixed
            if alone and isinstance(node.op, (Gather, Scale)):
                mixed[i] = mixed[node.inputs[0]]
            elif alone and isinstance(node.op, (Dense, Conv)) and mixed[node.inputs[0]] == 0:
                mixed[i] = 1
        return frozenset(mixed)

    @cached_property
    def widest(self) -> int:
        """Entries of the largest value."""
        return max(torch.Size(n.shape).numel() for n in self.nodes)

    def values(self, x: Tensor) -> list[Tensor]:
        """Every node's value at inputs x (B, *input_shape)."""
        out: list[Tensor] = [x]
        for node in self.nodes[1:]:
            assert node.op is not None
            out.append(node.op.forward(*(out[j] for j in node.inputs)))
        return out

    def __call__(self, x: Tensor) -> Tensor:
        return self.values(x)[self.output]

    def to(self, device: torch.device, dtype: torch.dtype) -> Graph:
        """The same network elsewhere, or in another precision (rounded: only float64 is used for proofs)."""
        nodes = tuple(replace(n, op=moved(n.op, device, dtype)) for n in self.nodes)
        return Graph(nodes, self.output)


def as_linear(op: Op | None) -> LinearOp | None:
    return op if isinstance(op, LINEAR) else None


def intervals(graph: Graph, low: Tensor, high: Tensor) -> list[Interval]:
    """Interval bound propagation (IBP): bounds on every node over the box, rounded outward."""
    out: list[Interval] = [(low, high)]
    for node in graph.nodes[1:]:
        assert node.op is not None
        out.append(node.op.interval(*(out[j] for j in node.inputs)))
    return out


def chunks(total: int, size: int) -> Sequence[slice]:
    """Consecutive slices of at most `size` that cover `total`."""
    return [slice(i, min(i + size, total)) for i in range(0, total, size)]
