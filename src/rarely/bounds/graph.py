"""A network as a list of operators whose bounds we know how to compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.operators import Affine, Arithmetic, Interval, Kinked, Relaxed, Terms, gamma, magnitude, tiny
from rarely.core.errors import RarelyError

SMALL = 1024  # entries of the widest layer


class Unprovable(RarelyError):
    """The network holds something that we cannot bound: there is no proof, which says nothing about safety."""


@dataclass(frozen=True)
class Node:
    """One operator, the nodes it reads, and the shape of its value without the batch."""

    op: Affine | Relaxed | None  # None for the input, which is node 0
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; the first is the input and `output` the flat result (B, k)."""

    nodes: tuple[Node, ...]
    output: int
    arithmetic: Arithmetic  # that the network runs in

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.nodes[0].shape

    @property
    def classes(self) -> int:
        return self.nodes[self.output].shape[0]

    @cached_property
    def relaxed(self) -> dict[int, Relaxed]:
        """The operators that are not affine, by node."""
        return {i: n.op for i, n in enumerate(self.nodes) if isinstance(n.op, Relaxed)}

    @cached_property
    def bounded(self) -> dict[int, list[Relaxed]]:
        """Nodes that feed non-affine operators, and those: their bounds decide how tight everything is."""
        readers: dict[int, list[Relaxed]] = {}
        for i, op in self.relaxed.items():
            readers.setdefault(self.nodes[i].inputs[0], []).append(op)
        return readers

    @cached_property
    def relus(self) -> dict[int, Kinked]:
        """ReLUs, leaky or not, and their like: the operators that can be split and have slopes to optimise."""
        return {i: op for i, op in self.relaxed.items() if isinstance(op, Kinked)}

    @cached_property
    def box_exact(self) -> frozenset[int]:
        """Nodes where interval arithmetic over a box is exact: at most one mixing operator since the input."""
        mixed: dict[int, int] = {0: 0}
        for i, node in enumerate(self.nodes[1:], 1):
            if isinstance(node.op, Affine) and len(node.inputs) == 1 and node.inputs[0] in mixed:
                count = mixed[node.inputs[0]] + (not node.op.entrywise)
                if count <= 1:
                    mixed[i] = count
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


@dataclass(frozen=True)
class Charges:
    """What rounding may cost at one node, per unit of its coefficient; none where it costs nothing."""

    own: Tensor | None  # ours, in float64
    run: Tensor | None  # the network's
    peak: Tensor | None  # (B,) the largest number that the network may meet

    @cached_property
    def both(self) -> Tensor | None:
        if self.own is None or self.run is None:
            return self.run if self.own is None else self.own
        return self.own + self.run


def charged(graph: Graph, i: int, inputs: list[Interval]) -> tuple[Interval, Charges]:
    """Bounds on a node's value as the network computes it, from bounds on its inputs, and what they were charged."""
    op = graph.nodes[i].op
    assert op is not None
    low, high = op.interval(*inputs)
    known = inputs if isinstance(op, Affine) else [*inputs, (low, high)]
    terms = op.terms(*(magnitude(x) for x in known))
    if terms is None:
        return (low, high), Charges(None, None, None)
    run = graph.arithmetic.charge(terms)
    own = _own(op, graph.nodes[i].shape, terms) if isinstance(op, Affine) else None
    for margin in (run, own if terms.ahead else None):
        if margin is not None:
            low, high = low - margin, high + margin
    return (low, high), Charges(own, run, graph.arithmetic.peak(terms) if terms.ahead else None)


def _own(op: Affine, shape: tuple[int, ...], terms: Terms) -> Tensor:
    """The operator's rounding in one backward step, and that of adding up A times its constant."""
    dtype, constant = terms.size.dtype, op.constant()
    slack = terms.size * gamma(max(terms.ahead, terms.back), dtype) + tiny(dtype)
    return slack if constant is None else slack + constant.abs().expand(shape) * gamma(math.prod(shape), dtype)


def cast(graph: Graph, low: Tensor, high: Tensor) -> tuple[Interval, Charges]:
    """Bounds on what the network is given for the real numbers in a box, and the charge."""
    near = graph.arithmetic.cast
    peak = 4 * magnitude((low, high)).flatten(1).amax(1)
    return (low - near(low), high + near(high)), Charges(None, near(magnitude((low, high))), peak)


def intervals(graph: Graph, low: Tensor, high: Tensor) -> list[Interval]:
    """Interval bound propagation (IBP): bounds on every node over the box, as the network computes it."""
    first, cost = cast(graph, low, high)
    out, peaks = [first], [cost.peak]
    for i in range(1, len(graph.nodes)):
        now, cost = charged(graph, i, [out[j] for j in graph.nodes[i].inputs])
        out.append(now)
        peaks.append(cost.peak)
    lost = (~finite(graph, peaks)).unsqueeze(1)

    def all_numbers(end: Tensor, most: float) -> Tensor:
        return end.flatten(1).masked_fill(lost, most).reshape(end.shape)

    return [(all_numbers(low, -torch.inf), all_numbers(high, torch.inf)) for low, high in out]


def finite(graph: Graph, peaks: Iterable[Tensor | None]) -> Tensor:
    """Where no number that the network may meet, (B,) at each node, leaves its range: the charges say something."""
    met = torch.stack([peak for peak in peaks if peak is not None]).amax(0)
    return met <= graph.arithmetic.largest


def chunks(total: int, size: int) -> Sequence[slice]:
    """Consecutive slices of at most `size` that cover `total`."""
    return [slice(i, min(i + size, total)) for i in range(0, total, size)]


def parted(graph: Graph, flat: Tensor, nodes: Iterable[int]) -> dict[int, Tensor]:
    """Entries (N, T) of some nodes side by side -> per node (N, *event)."""
    shapes = {i: graph.nodes[i].shape for i in nodes}
    parts = torch.split(flat, [math.prod(shape) for shape in shapes.values()], 1)
    return {i: part.reshape(-1, *shapes[i]) for i, part in zip(shapes, parts, strict=True)}


def joined(parts: Mapping[int, Tensor], nodes: Iterable[int], like: Tensor) -> Tensor:
    """The other way round, also of no node: `like` (N, ...) says how many rows there are."""
    return torch.cat([like.new_zeros(len(like), 0), *(parts[i].flatten(1) for i in nodes)], 1)


def _smaller(op: Affine | Relaxed | None, keep: Tensor, outputs: bool) -> Affine | None:
    if not isinstance(op, Affine):
        return None
    return op.keep_outputs(keep) if outputs else op.keep_inputs(keep)


def pruned(graph: Graph, bounds: list[Interval], finite: Tensor) -> Graph:
    """The graph without ReLUs between dense layers whose upper bound, (1, n) in `bounds`, is not positive.

    In a trained classifier most neurons are off around any one input, so branch and bound gets several times cheaper.
    Rows and columns are only dropped, never combined, so nothing is rounded. Where the network may leave the range of
    its numbers, `finite` (1,), bounds say nothing about what a neuron gives as it runs, and all stay.
    """
    if not bool(finite.all()):
        return graph
    nodes = list(graph.nodes)
    for i, op in graph.relus.items():
        j = nodes[i].inputs[0]
        before, after = ([k for k, node in enumerate(nodes) if at in node.inputs] for at in (j, i))
        if not (op.silent and before == [i] and len(nodes[i].shape) == 1) or graph.output in (i, j):
            continue
        keep = (~(bounds[j][1][0] <= 0)).nonzero().squeeze(1)  # what is not a number stays
        smaller = {k: _smaller(nodes[k].op, keep, outputs=k == j) for k in (j, *after)}
        if 0 < len(keep) < nodes[i].shape[0] and None not in smaller.values():
            for k, part in smaller.items():
                nodes[k] = replace(nodes[k], op=part)
            for k in (i, j):
                nodes[k] = replace(nodes[k], shape=(len(keep),))
    return replace(graph, nodes=tuple(nodes))


@contextmanager
def one_thread_if_small(graph: Graph | None) -> Iterator[None]:
    """Run on one thread while the tensors are small, then restore the setting.

    A proof is thousands of short operations. On a busy two-core machine, threads that wait for each other at every
    one of them made the 500 CollisionDetection proofs take over 60 s; on one thread they took 3 s.
    """
    before = torch.get_num_threads()
    if graph is not None and graph.widest <= SMALL and before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
