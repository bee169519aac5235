"""Ever tighter proved bounds on P(violation) by half-spaces, from above and from below: `leaves` on a schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import torch

from rarely.bounds.crown import propagate
from rarely.bounds.graph import Graph, one_thread_if_small
from rarely.bounds.leaves import Leaves, Tree, log_added
from rarely.bounds.likely import Likely
from rarely.bounds.probability import ProbabilityBounds
from rarely.bounds.slopes import optimise
from rarely.bounds.spec import Polytope
from rarely.bounds.tails import Tails

_FIRST, _GROWTH, _LEAST = 5.0, 1.6, 2.0  # targets, where none is given
_SHORT = 4.0  # nats by which a target may be missed: beyond it smaller ones are tried, from which to go up
_PATIENCE = 0.5  # share of the time left that one of them may take
_ROUNDS = 4  # of tilted intervals before the first split: on MNIST the fifth gains less than 0.1 nats
_AT_ONCE, _WIDTHS = 256, 12_000  # leaves split at a time, at most, and times the widest layer: 15 on MNIST
_STALLED, _GAIN = 8, 0.02  # splits in a row that gain less than this end a tree, if it has gained anything
_LEVELS = (1.5, 3.0, 5.0, 7.0)  # nats below the bound that one failure of a lower bound costs
_MARGIN = 4.0  # nats by which the half-space of a lower bound is widened, so that what it cuts off is little


def half_space_bounds(
    graph: Graph,
    law: Tails,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    gap: float = 0.05,
    target: float | None = None,
    most: int | None = None,
) -> Iterator[ProbabilityBounds]:
    """Bounds on P(the output lies in any polytope {A y <= b}), x drawn from `law`, each as tight as the one before.

    `target` is the -log p that one hopes to prove; the best is -log p itself, and without one it is searched for.
    `most` ends the work after so many visits of leaves.
    """
    begin = time.monotonic()
    low, high, visited, full = -math.inf, 0.0, 0, False
    aims = _aims(target)
    aim = next(aims)
    with one_thread_if_small(graph):
        while (left := begin + timeout - time.monotonic()) > 0:
            tree = Tree(graph, law, outputs, aim, time.monotonic() + _PATIENCE * left)
            for reached in _grown(tree):
                high, visited = min(high, reached), visited + tree.visits
                yield ProbabilityBounds(low, high, visited, time.monotonic() - begin)
                full = most is not None and visited >= most
                if high - low <= gap or full or time.monotonic() > tree.deadline:
                    break
            low = max(low, min(high, from_below(tree)))
            yield ProbabilityBounds(low, high, visited, time.monotonic() - begin)
            if full or high - low <= gap:
                return
            try:
                aim = aims.send(-tree.total)
            except StopIteration:
                return


def _aims(target: float | None) -> Generator[float, float, None]:
    """What to hope for, one after the other; each is answered by what was proved."""
    if target is not None:
        proved = yield target
        if proved > target - _SHORT:
            return
    aim, best = _FIRST, 0.0
    while aim >= _LEAST and (target is None or aim < target):
        proved = yield aim
        best = max(best, proved)
        if proved >= max(1.0, aim - 2):
            aim *= _GROWTH
        elif best >= 1:
            break
        else:
            aim /= 2
    if best >= 1:
        yield best + 1  # failures were made dearer than they need to be


def _grown(tree: Tree) -> Iterator[float]:
    """What a tree proves, after each step."""
    for _ in range(_ROUNDS):
        tree.first = tree.leaves = tree.visit(tree.leaves)
        yield tree.total
    best, idle = tree.total, 0
    many = max(4, min(_AT_ONCE, _WIDTHS // tree.graph.widest))
    while idle < _STALLED and best > 0.1 - tree.target and tree.split(many):
        total = tree.total
        idle = 0 if total < best - _GAIN or best > -_GAIN else idle + 1
        best = min(best, total)
        yield total


def from_below(tree: Tree) -> float:
    """A lower bound on log P(violation), from the likeliest way to violate that is a single half-space of outputs."""
    spec, first = tree.spec, tree.first
    alone = torch.bincount(spec.owner, minlength=spec.count) == 1
    mass = torch.where(alone[first.polytope], first.mass, -torch.inf)
    leaf = first.pick(mass.argsort(descending=True)[:1])
    if not float(mass.max()) > -math.inf or time.monotonic() > tree.deadline:
        return -math.inf
    # Failures at a lower level cost more and leave tighter intervals: the best of a few.
    return max(_under(tree, leaf, max(tree.target, -float(leaf.mass)) + more) for more in _LEVELS)


@torch.no_grad()
def _under(tree: Tree, leaf: Leaves, level: float) -> float:
    """The lower bound for failures of exp(-level) each.

    On the half-space H' = {T x + c + margin >= 0} of an upper bound, failures aside, a linear function w x + v lies
    below the score. So P(violation) >= P(w x + v >= 0) - P(w x + v >= 0 and not H') - P(failures).
    """
    spec, law, graph = tree.spec, tree.law, tree.graph
    room = (level + leaf.exponent + _MARGIN).clamp(min=0.1)
    region = Likely(law, graph.input_shape, leaf.tilt, room)
    within = {i: tree.root.bounds[i] for i in graph.bounded}
    state = propagate(graph, region, within=within, deadline=tree.deadline)
    failures = log_added(tree.first_exits, math.log(int(state.asked) + 1) - level)
    row = (spec.owner == leaf.polytope).nonzero().squeeze(1)
    point = replace(state, region=Likely(law, graph.input_shape, leaf.tilt, torch.full_like(room, 1e-9)))
    with torch.enable_grad():
        bound = optimise(point, graph.output, -spec.C[:, row], 20).shifted(-spec.d[:, row])
    A, b = bound.A.squeeze(1), bound.b.squeeze(1)
    inside, tilt = float(law.least_above(A, b)), law.chernoff(A, b)[1]
    # Both planes are nearly parallel: tilting along one and back along the other gains r times the margin.
    there, back = tilt.unsqueeze(1) * A, leaf.tilt
    size = float(((back.abs() + there.abs()) * (1 + law.centre.abs())).sum() + leaf.shift.abs() + (tilt * b).abs())
    apart = min(
        float(law.exponent((1 + r) * there - r * back, (1 + r) * tilt * b - r * (leaf.shift + _MARGIN)))
        + (1 + r) * size * 1e-13
        for r in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    )
    lost = log_added(failures, min(apart, 0.0)) - inside
    return inside + math.log1p(-math.exp(lost)) - 1e-9 if lost < 0 and math.isfinite(inside) else -math.inf
