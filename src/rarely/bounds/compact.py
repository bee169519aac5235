"""A network as its unsettled ReLUs see it: what branch and bound searches in, and claims nothing about.

ReLUs that are settled at the root are affine, so that the input of each unsettled one, and each row of the property, is
an affine function of the unsettled ones before it and of the network's input. A bound is then a handful of dense
products for a whole batch of domains, with nothing of the size of a layer in between. Weights are combined and nothing
is charged for rounding: what is found here is only a hint, and evaluated with the graph itself in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated, backward
from rarely.bounds.graph import chunks
from rarely.bounds.operators import Elementwise, Relaxation
from rarely.bounds.placing import room
from rarely.bounds.region import BallRegion, Bounded, BoxRegion, Region
from rarely.bounds.single import uncharged
from rarely.bounds.spec import Spec

# Of affine functions: coefficients of the unsettled ReLUs' outputs and of the network's input, and constants.
Parts = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Lines:
    """Lines below and above the U unsettled ReLUs in N domains, each (N, U)."""

    lower: Tensor  # slope below, through the origin, where it is not free
    upper: Tensor  # slope above
    shift: Tensor  # of the line above
    free: Tensor  # where the slope below may be anything from the leak to one


@dataclass(frozen=True)
class Compact:
    """U unsettled ReLUs, layer by layer, and m rows of a property, over a region of n inputs."""

    sizes: tuple[int, ...]  # unsettled ReLUs in each layer
    leak: Tensor  # (U,)
    among: Tensor  # (U, U): what a unit of an earlier ReLU's output adds to the input of a later one
    inputs: Tensor  # (U, n): what a unit of the network's input adds
    shift: Tensor  # (U,)
    rows: Parts  # (m, U), (m, n), (m,)
    region: Region  # batch 1

    def lines(self, low: Tensor, high: Tensor) -> Lines:
        """From bounds (N, U) on the inputs of the ReLUs."""
        low, high = low.to(self.shift.dtype), high.to(self.shift.dtype)
        free, on = (low < 0) & (high > 0), low >= 0
        fixed = torch.where(on, 1.0, self.leak)
        chord = torch.where(free, (high - self.leak * low) / (high - low).clamp(min=1e-30), fixed)
        return Lines(fixed, chord, torch.where(free, (1 - chord) * high, 0.0), free)

    def goal(self, rows: Tensor, weights: Tensor) -> Parts:
        """Weighted sums of some `rows` (N, r)."""
        if rows.shape[1] == 1:
            return self.rows[0][rows[:, 0]], self.rows[1][rows[:, 0]], self.rows[2][rows[:, 0]]
        whole = weights.new_zeros(len(rows), len(self.rows[2])).scatter_add(1, rows, weights)
        return whole @ self.rows[0], whole @ self.rows[1], whole @ self.rows[2]

    def bound(self, lines: Lines, slopes: Tensor, push: Tensor, goal: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """Lower bounds (N,) of weighted rows, with `push` (N, U) added to the coefficients of inputs of ReLUs.

        Also the coefficients (N, U) met at the outputs of ReLUs, and those of the network's input, (N, n).
        """
        lower = torch.where(lines.free, self.leak + (1 - self.leak) * slopes, lines.lower)
        left, direct, bias = goal
        met, entering = [], []
        for size in reversed(self.sizes):
            start = left.shape[1] - size
            part = slice(start, start + size)
            here = left[:, part]
            below = here.clamp(max=0)
            enter = (here - below) * lower[:, part] + below * lines.upper[:, part] + push[:, part]
            bias = bias + (below * lines.shift[:, part]).sum(1) + enter @ self.shift[part]
            left = left[:, :start] + enter @ self.among[part, :start]
            met.append(here)
            entering.append(enter)
        A = torch.addmm(direct, torch.cat(entering[::-1], 1), self.inputs)
        least, _ = self.region.minimum(A.unsqueeze(0), A.new_zeros(1, A.shape[1]))
        return least[0] + bias, torch.cat(met[::-1], 1), A


def compacted(state: Propagated, places: dict[int, Tensor], spec: Spec) -> Compact:
    """What the bounds of a root (batch 1) leave unsettled: `places` has the entries, by the nodes of their ReLUs."""
    graph, like = state.graph, state.region.low
    total = sum(len(at) for at in places.values())
    among, inputs = like.new_zeros(total, total), like.new_zeros(total, like[0].numel())
    shift, leak = like.new_zeros(total), like.new_zeros(total)
    settled, begin = _without(state, places), 0
    for i, at in places.items():
        node = graph.nodes[i].inputs[0]
        leak[begin : begin + len(at)] = graph.relus[i].leak
        for part in chunks(len(at), max(1, room(like) // graph.widest)):
            cols = at[part]
            rows = like.new_zeros(len(cols), math.prod(graph.nodes[node].shape))
            rows[torch.arange(len(cols), device=like.device), cols] = 1
            here = slice(begin, begin + len(cols))
            among[here], inputs[here], shift[here] = _through(settled, node, rows, places)
            begin += len(cols)
    left, A, b = _through(settled, graph.output, spec.C[0], places)
    goals = (left.float(), A.float(), (b + spec.d[0]).float())
    sizes, region = tuple(len(at) for at in places.values()), _lowered(state.region)
    return Compact(sizes, leak.float(), among.float(), inputs.float(), shift.float(), goals, region)


def _without(state: Propagated, places: dict[int, Tensor]) -> Propagated:
    """The network with these ReLUs at zero, uncharged."""
    lines: dict[int, Relaxation] = {}
    for i, op in state.graph.relus.items():
        low = state.bounds[state.graph.nodes[i].inputs[0]][0]
        slope = torch.where(low >= 0, torch.ones_like(low), op.leak).flatten(1)
        slope = slope.index_fill(1, places[i], 0.0).reshape(low.shape)
        lines[i] = Elementwise(slope, slope, slope * 0, slope * 0, None, 0.0)
    return uncharged(replace(state, relaxations=lines))


def _through(state: Propagated, node: int, rows: Tensor, places: dict[int, Tensor]) -> Parts:
    """Rows (m, size of the node) of a node's value."""
    seen: dict[int, Tensor] = {}
    found = backward(state, node, rows.reshape(1, len(rows), *state.graph.nodes[node].shape), seen=seen)
    none = rows.new_zeros(len(rows), 1)
    left = [seen[i][0].flatten(1)[:, at] if i in seen else none.expand(-1, len(at)) for i, at in places.items()]
    return torch.cat(left, 1), found.A[0], found.b[0]


def _lowered(region: Bounded) -> Region:
    if isinstance(region, BallRegion):
        return BallRegion(region.centre.float(), region.radius.float())
    return BoxRegion(region.low.float(), region.high.float())
