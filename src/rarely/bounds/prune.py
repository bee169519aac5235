"""Leave out neurons that are off on the whole region: the same function there, from smaller matrices.

In a trained classifier most neurons are off around any one input, so branch and bound gets several times cheaper.
Rows and columns are only dropped, never combined, so nothing is rounded.
"""

from __future__ import annotations

from dataclasses import replace

from rarely.bounds.graph import Graph
from rarely.bounds.linear import Dense, Interval
from rarely.bounds.relax import LeakyReLU


def pruned(graph: Graph, bounds: list[Interval]) -> Graph:
    """The graph without ReLUs between dense layers whose upper bound, (1, n) in `bounds`, is not positive."""
    nodes = list(graph.nodes)
    readers: dict[int, list[int]] = {i: [] for i in range(len(nodes))}
    for i, node in enumerate(nodes):
        for j in node.inputs:
            readers[j].append(i)
    for i in graph.relus:
        j = nodes[i].inputs[0]
        layer, op = nodes[j].op, nodes[i].op
        flat = len(nodes[i].shape) == 1 and isinstance(op, LeakyReLU) and op.leak == 0
        dense = all(isinstance(nodes[k].op, Dense) for k in readers[i])
        if not (flat and dense and readers[i] and readers[j] == [i] and isinstance(layer, Dense)):
            continue
        keep = (bounds[j][1][0] > 0).nonzero().squeeze(1)
        if not 0 < len(keep) < nodes[i].shape[0]:
            continue
        shape = (len(keep),)
        nodes[j] = replace(nodes[j], op=Dense(layer.weight[keep], layer.bias[keep]), shape=shape)
        nodes[i] = replace(nodes[i], shape=shape)
        for k in readers[i]:
            after = nodes[k].op
            assert isinstance(after, Dense)
            nodes[k] = replace(nodes[k], op=Dense(after.weight[:, keep], after.bias))
    return Graph(tuple(nodes), graph.output)
