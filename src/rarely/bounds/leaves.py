"""Proved bounds on P(violation) in any number of dimensions: CROWN on events, tilted, with ReLUs split.

Let E be the event that the input of every neuron lies in an interval. On E linear functions of the inputs bound the
output (CROWN), so {violation} and E together lie in a half-space {T x + c >= 0}, whose probability is known, and

    P(violation) <= P(not E) + P(T x + c >= 0).

The intervals come from the inputs' law, one neuron after the other (see `likely`). They are first those of all inputs.
Then, again and again, those of the inputs in the half-space just found: a failure of a neuron's interval matters only
together with a violation. A ReLU that is still unsettled can be split: `leaf` is the event that some have given signs.
Leaves are disjoint, so their bounds add up, and so do those of the ways to violate.

Everything is paid: `exits` is the sum of the probabilities of all failures that were ever allowed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated
from rarely.bounds.crown import propagate
from rarely.bounds.graph import Graph, joined, parted, pruned
from rarely.bounds.likely import Likely
from rarely.bounds.operators import Elementwise
from rarely.bounds.rows import Rows
from rarely.bounds.slopes import Freedom, ascend, first_slopes
from rarely.bounds.spec import Polytope, Spec, spec_of
from rarely.bounds.splits import halved
from rarely.bounds.tails import Tails

_SPARE = 3.0  # nats below the target that the failures of the first intervals cost, and those of all leaves
_SIDES = 10_000  # failures that all leaves are expected to pay for
_STEPS = 12  # of slopes, at each visit
_LITTLE = 7.0  # nats below all of it from which a leaf is not worth a split
_SHARP = 15.0  # nats below the largest bound down to which bounds are made sharp


@dataclass(frozen=True)
class Leaves(Rows):
    """N leaves. T counts the ReLUs, R the entries that feed any operator that is not affine."""

    polytope: Tensor  # (N,) the way to violate
    signs: Tensor  # (N, T) in {-1, 0, 1}
    low: Tensor  # (N, R)
    high: Tensor
    slopes: Tensor  # (N, T)
    multipliers: Tensor  # (N, T)
    logits: Tensor  # (N, m)
    tilt: Tensor  # (N, n): T of a half-space {T x + c >= 0} that holds the leaf's violations
    shift: Tensor  # (N,): its c
    exponent: Tensor  # (N,) its log-probability, at most: bound (1)
    mass: Tensor  # (N,) the same, as sharp as is known
    cut: Tensor  # (N,) the ReLU to split next, -1 where none is left
    node: Tensor  # (N,) in the tree


def log_added(a: float, b: float) -> float:
    """log(exp(a) + exp(b)), rounded up; what is not a number stays none, which `max` would drop."""
    if math.isnan(a) or math.isnan(b):
        return math.nan
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high)) + 4e-16 * (1 + abs(high))


class Tree:
    """The leaves of one problem for one `target`, the -log p that one hopes to prove."""

    def __init__(self, graph: Graph, law: Tails, outputs: Sequence[Polytope], target: float, deadline: float) -> None:
        self.law, self.target, self.deadline = law, target, deadline
        self.spec: Spec = spec_of(outputs, graph.classes, 1, law.low.device)
        sides = 2 * sum(math.prod(graph.nodes[i].shape) for i in graph.bounded)
        level = target + math.log(1 + sides) + _SPARE
        start = law.low.new_zeros(1, law.low.numel())
        region = Likely(law, graph.input_shape, start, start.new_full((1,), level))
        root = propagate(graph, region, deadline=deadline)
        self.graph = pruned(graph, root.bounds, root.finite)
        again = propagate(self.graph, region, deadline=deadline)
        self.log_exits = math.log(2 + int(root.asked) + int(again.asked)) - level
        self.first_exits = self.log_exits
        self.level = target + math.log(_SIDES) + _SPARE
        self.root, self.first = again, self._first(again)
        self.leaves = self.first
        self.visits = 0  # of leaves, at the last step
        self.parents = [-1] * len(self.leaves)  # of every node there ever was
        self.masses = [0.0] * len(self.leaves)
        self.total, self.weights = 0.0, list(self.masses)  # proved: log P(violation) <= total

    def _settle(self) -> None:
        """What the tree proves, and what each node has to do with it.

        Halves of a leaf may be bounded worse than the whole: of both bounds the better one counts, at every node. The
        weight of a node is its bound, less what was saved above it.
        """
        below = [math.inf] * len(self.parents)  # sums over the halves of each node that has them
        values = list(self.masses)
        for i in range(len(self.parents) - 1, -1, -1):  # children come after their parents
            values[i], parent = min(values[i], below[i]), self.parents[i]
            if parent >= 0:
                below[parent] = values[i] if below[parent] == math.inf else log_added(values[i], below[parent])
        weights = list(values)
        for i, parent in enumerate(self.parents):
            if parent >= 0 and below[parent] > -math.inf:
                weights[i] += weights[parent] - below[parent]
        roots = [v for v, parent in zip(values, self.parents, strict=True) if parent < 0]
        self.total, self.weights = min(0.0, functools.reduce(log_added, roots, self.log_exits) + 1e-12), weights

    def _intervals(self, state: Propagated, like: Tensor) -> tuple[Tensor, Tensor]:
        """Low and high (N, R)."""
        low, high = ({i: state.bounds[i][k] for i in self.graph.bounded} for k in (0, 1))
        return joined(low, low, like), joined(high, high, like)

    def _first(self, state: Propagated) -> Leaves:
        """One leaf for each way to violate, all with the intervals of the root."""
        count, like = self.spec.count, state.region.low.flatten(1)
        start = {i: a.squeeze(1) for i, a in first_slopes(state, self.graph.output + 1, 1).items()}
        slopes = joined(start, self.graph.relus, like)
        low, high = self._intervals(state, like)
        tall = slopes.repeat(count, 1)
        nothing, numbers = like.new_zeros(count), torch.arange(count, device=like.device)
        return Leaves(
            numbers, torch.zeros_like(tall, dtype=torch.int8),
            low.repeat(count, 1), high.repeat(count, 1), tall, torch.zeros_like(tall),
            like.new_zeros(count, self.spec.C.shape[1]), like.new_zeros(count, like.shape[1]),
            nothing, nothing, nothing, torch.full_like(numbers, -1), numbers,
        )  # fmt: skip

    def visit(self, leaves: Leaves) -> Leaves:
        """Visit every leaf that may matter: one rarer than the failures that a visit costs is left as it is."""
        worth = leaves.exponent > -self.level
        self.visits = int(worth.sum())
        if self.visits:
            leaves = self._visit(leaves.pick(worth)).joined([leaves.pick(~worth)])
        self._settle()
        return leaves

    def _visit(self, leaves: Leaves) -> Leaves:
        """Intervals of the inputs where each leaf is violated, then the best half-space that follows from them."""
        graph = self.graph
        region = Likely(self.law, graph.input_shape, leaves.tilt, (self.level + leaves.exponent).clamp(min=0.1))
        bounded = graph.bounded
        lows, highs = parted(graph, leaves.low, bounded), parted(graph, leaves.high, bounded)
        state = propagate(graph, region, within={i: (lows[i], highs[i]) for i in bounded}, deadline=self.deadline)
        paid = math.log(float((state.asked + 1).sum())) - self.level
        self.log_exits = log_added(self.log_exits, paid)
        low, high = self._intervals(state, leaves.low)
        level = Likely(self.law, graph.input_shape, torch.zeros_like(leaves.tilt), (-leaves.exponent).clamp(min=1.0))
        relus = graph.relus
        free = Freedom(
            {i: t.unsqueeze(1) for i, t in parted(graph, leaves.slopes, relus).items()},
            {i: t.unsqueeze(1) for i, t in parted(graph, leaves.multipliers, relus).items()},
            leaves.logits.unsqueeze(1),
        )
        member = (self.spec.owner == leaves.polytope.unsqueeze(1)).unsqueeze(1)
        signs = parted(graph, leaves.signs, relus)
        bound, free, seen = ascend(
            replace(state, region=level), self.spec.C, self.spec.d, member, free, _STEPS, signs, 0.1
        )
        A, b = -bound.A.squeeze(1), -bound.b.squeeze(1)
        exponent, tilt = self.law.chernoff(A, b)
        mass = exponent.clone()
        near = exponent > max(float(exponent.max()), -self.target) - _SHARP
        mass[near] = self.law.sharpened(A[near], b[near], exponent[near], tilt[near])
        empty = (low > high).any(1)  # no input has these signs
        won = exponent < leaves.exponent
        grown = replace(
            leaves, low=low, high=high,
            slopes=joined({i: t.squeeze(1) for i, t in free.slopes.items()}, relus, low),
            multipliers=joined({i: t.squeeze(1) for i, t in free.multipliers.items()}, relus, low),
            logits=free.logits.squeeze(1),
            tilt=torch.where(won.unsqueeze(1), tilt.unsqueeze(1) * A, leaves.tilt),
            shift=torch.where(won, tilt * b, leaves.shift),
            exponent=torch.where(won, exponent, leaves.exponent).masked_fill(empty, -torch.inf),
            mass=torch.fmin(mass, leaves.mass).masked_fill(empty, -torch.inf),
        )  # fmt: skip
        for node, value in zip(grown.node.tolist(), grown.mass.tolist(), strict=True):
            self.masses[node] = value
        return replace(grown, cut=self._cuts(grown, state, seen))

    @torch.no_grad()
    def _cuts(self, leaves: Leaves, state: Propagated, seen: dict[int, Tensor]) -> Tensor:
        """The ReLU whose lines lose most at the likeliest violation, of each leaf.

        With a negative coefficient a ReLU is replaced by the chord above it, with a positive one by the line below.
        """
        graph = self.graph
        x = self.law.mean(leaves.tilt)[0].reshape(-1, *graph.input_shape)
        values = graph.values(x)
        slopes = parted(graph, leaves.slopes, graph.relus)
        lost: dict[int, Tensor] = {}
        for i in graph.relus:
            line, before = state.relaxations[i], graph.nodes[i].inputs[0]
            assert isinstance(line, Elementwise)
            low, high = state.bounds[before]
            z = torch.clamp(values[before], low, high)
            f = graph.relus[i].forward(z)
            above = line.upper_slope * z + line.mid_shift - line.half_shift - f
            floor = line.floor + (1 - line.floor) * slopes[i]
            below = f - torch.where(line.free, floor, line.lower_slope) * z if line.free is not None else above * 0
            A = seen[i].squeeze(1)
            loss = (-A).clamp(min=0) * above + A.clamp(min=0) * below
            lost[i] = torch.where((low < 0) & (high > 0), loss.clamp(min=0), -1.0)
        if not lost:
            return torch.full_like(leaves.cut, -1)
        value, where = joined(lost, graph.relus, leaves.low).max(1)
        return torch.where(value > 0, where, -1)

    def split(self, count: int) -> bool:
        """Split the `count` leaves with the largest mass that can be; False where none can."""
        leaves = self.leaves
        weight = leaves.mass.new_tensor(self.weights)[leaves.node]
        rank = torch.where(leaves.cut >= 0, weight, -torch.inf)
        order = rank.argsort(descending=True)[:count]
        order = order[rank[order] > self.total - _LITTLE]
        if not len(order):
            return False
        rest = torch.ones_like(leaves.cut, dtype=torch.bool).index_fill_(0, order, False)
        self.leaves = leaves.pick(rest).joined([self.visit(self._children(leaves.pick(order)))])
        return True

    def _children(self, leaves: Leaves) -> Leaves:
        """Both halves of each leaf side by side."""
        twice = leaves.pick(torch.arange(len(leaves), device=leaves.cut.device).repeat_interleave(2))
        fresh = range(len(self.parents), len(self.parents) + len(twice))
        self.parents += twice.node.tolist()
        self.masses += twice.mass.tolist()
        entry = self._inputs[twice.cut]
        signs, low, high = halved(twice.signs, twice.low, twice.high, twice.cut, entry)
        node = torch.tensor(fresh, device=twice.cut.device)
        return replace(twice, signs=signs, low=low, high=high, node=node)

    @property
    def _inputs(self) -> Tensor:
        """For each ReLU entry the place of its input among the entries that feed operators: (T,)."""
        place, at = {}, 0
        for i in self.graph.bounded:
            place[i], at = at, at + math.prod(self.graph.nodes[i].shape)
        ranges = [
            torch.arange(math.prod(node.shape), device=self.law.low.device) + place[node.inputs[0]]
            for node in (self.graph.nodes[i] for i in self.graph.relus)
        ]
        return torch.cat(ranges)
