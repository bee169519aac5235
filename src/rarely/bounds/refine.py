"""Bounds on the inputs of ReLUs by branch and bound of their own.

Everything rests on these bounds, and in a deep network what one layer misses grows in each that follows. So for each
entry that is unsettled the network is cut off there, and a few splits of the ReLUs before it bound it from below and
from above: what no half of the splits reaches is out of reach. An entry that keeps its sign is settled for good. On
mnistfc (six layers of 256) this takes a bound from -118 to above zero in three seconds, which no tree of splits under
the loose bounds does.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated
from rarely.bounds.crown import signed_rows
from rarely.bounds.domains import Root
from rarely.bounds.graph import Charges, Node
from rarely.bounds.layers.move import Gather
from rarely.bounds.operators import Interval
from rarely.bounds.spec import Spec
from rarely.bounds.splits import Domains, children

_ROWS = 2**24  # entries of the rows that pick out what is unsettled, up to which it is refined
_KEPT = 2**24  # signs of leaves that are kept at most


def _until(state: Propagated, node: int) -> Propagated:
    """The network up to a node, whose value is its flat output."""
    shape = state.graph.nodes[node].shape
    count = math.prod(shape)
    flat = Gather(torch.arange(count, device=state.region.low.device), (shape,), True, None)
    low, high = state.bounds[node]
    part = replace(state.graph, nodes=(*state.graph.nodes[: node + 1], Node(flat, (node,), (count,))), output=node + 1)
    return replace(
        state,
        graph=part,
        bounds=[*state.bounds[: node + 1], (low.flatten(1), high.flatten(1))],
        charges=[*state.charges[: node + 1], Charges(None, None, None)],
        relaxations={i: line for i, line in state.relaxations.items() if i <= node},
    )


def refined(state: Propagated, node: int, rounds: int, steps: int, deadline: float) -> Interval:
    """Bounds (1, *event) on a node that ReLUs read, each by at most so many rounds of splits."""
    low, high = (end.flatten(1).clone() for end in state.bounds[node])
    index = ((low < 0) & (high > 0))[0].nonzero().squeeze(1)
    if len(index) * low.shape[1] > _ROWS:
        return state.bounds[node]
    rows = signed_rows(low.shape[1], index, low)
    count = rows.shape[1]
    owner = torch.arange(count, device=low.device)
    root = Root(_until(state, node), Spec(rows, low.new_zeros(1, count), owner, count))
    if not (count and root.compact):
        return state.bounds[node]
    least = low.new_full((count,), math.inf)
    leaves, _ = root.improved(root.first(), 2 * steps)
    for _ in range(rounds):
        done = leaves.lower > 0
        least, leaves = _least(least, leaves.pick(done)), leaves.pick(~done)
        worst = _worst(leaves, count)
        if time.monotonic() > deadline or not bool(worst.any()) or leaves.signs.numel() > _KEPT:
            break
        halves, _ = root.improved(children(leaves.pick(worst)), steps)
        leaves = leaves.pick(~worst).joined([halves])
    least = _least(least, root.proved(leaves, torch.arange(len(leaves), device=low.device)))
    k = len(index)
    low[:, index] = torch.fmax(low[:, index], least[:k])
    high[:, index] = torch.fmin(high[:, index], -least[k:])
    return low.reshape(state.bounds[node][0].shape), high.reshape(state.bounds[node][1].shape)


def _least(least: Tensor, leaves: Domains) -> Tensor:
    """The least proved bound of each row, with those of more leaves; none of them is NaN."""
    return least.scatter_reduce(0, leaves.polytope, leaves.lower, "amin")


def _worst(leaves: Domains, count: int) -> Tensor:
    """Of each row the open leaf that bounds it, where that can be split."""
    least = leaves.rough.new_full((count,), math.inf).scatter_reduce(0, leaves.polytope, leaves.rough, "amin")
    return (leaves.rough == least[leaves.polytope]) & (leaves.cuts >= 0)
