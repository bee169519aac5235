"""Branch and bound by halving input boxes: complete in few dimensions, for any operator we can relax.

Where to cut decides everything: on ACAS Xu the rule below needs up to 200 times fewer boxes than the usual "largest
slope times width". Halving coordinate j shrinks the range of a pre-activation z_i by |dz_i/dx_j| w_j / 2, and with it
the gap of its relaxation, which enters the final bound with the coefficient lambda_i that the backward pass met
there. So coordinate j scores w_j (sum_r |A_rj| + 2 sum_i |lambda_i| (gap_i / range_i) |dz_i/dx_j|).
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated, backward
from rarely.bounds.crown import propagate
from rarely.bounds.graph import Graph, chunks
from rarely.bounds.ledger import Ledger
from rarely.bounds.region import BoxRegion
from rarely.bounds.slopes import Freedom, ascend, first_slopes
from rarely.bounds.spec import Spec


def cut_scores(state: Propagated, A: Tensor, seen: dict[int, Tensor], slope: float = 1.0) -> Tensor:
    """How much halving each coordinate promises, (B, n), from slopes A (B, m, n) and coefficients `seen`.

    `slope` weighs the first term, which does not matter to those who can integrate a linear function exactly.
    """
    graph = state.graph
    total = slope * A.abs().sum(1)
    for i, op in graph.relaxed.items():
        source = graph.nodes[i].inputs[0]
        if i in seen and source in state.lines:
            size = seen[i].abs().sum(1).expand(state.batch, *graph.nodes[i].shape)
            index, lines = state.lines[source]
            weight = op.influence(state.bounds[source], size).flatten(1)[:, index]
            total = total + 2 * torch.einsum("bk,bkj->bj", weight, lines)
    return total * (state.region.high - state.region.low).flatten(1)


def halves(low: Tensor, high: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Both halves of each flat box (N, n) along its axis (N,): (2 N, n), the halves of a box side by side."""
    middle = ((low + high) / 2).gather(1, axis.unsqueeze(1))
    tops = torch.stack([high.scatter(1, axis.unsqueeze(1), middle), high], 1)
    bottoms = torch.stack([low, low.scatter(1, axis.unsqueeze(1), middle)], 1)
    return bottoms.flatten(0, 1), tops.flatten(0, 1)


@torch.no_grad()
def bound_boxes(graph: Graph, box: BoxRegion, spec: Spec, steps: int, deadline: float) -> tuple[Tensor, Tensor, Tensor]:
    """Per box: the largest proven row value of each polytope (B, P), cut scores (B, n), linear slopes (B, m, n)."""
    state = propagate(graph, box, lines=True, deadline=deadline)
    seen: dict[int, Tensor] = {}
    plain = backward(state, graph.output, spec.C, seen=seen).shifted(spec.d)
    rows = plain.lower
    best = spec.by_polytope(rows)
    hard = ~(best > 0).all(1)
    if steps and bool(hard.any()) and graph.relus:
        spread = rows.std(1, keepdim=True, correction=0) + 1e-9
        logits = (2 * (rows - rows.amax(1, keepdim=True)) / spread).unsqueeze(1)
        free = Freedom(first_slopes(state, graph.output, spec.count), {}, logits.repeat(1, spec.count, 1))
        found, _, _ = ascend(state, spec.C, spec.d, spec.member, free, steps)
        best = torch.maximum(best, found.lower)
    return best, cut_scores(state, plain.A, seen), plain.A


def decide_by_inputs(
    graph: Graph, ledger: Ledger, deadline: float, *, steps: int = 8, room: int = 2**20, boxes: int | None = None
) -> str:
    """Halve boxes, breadth first over all open problems at once, until all are decided or time or boxes are spent.

    Returns why problems are still open, or nothing.
    """
    owner = ledger.open.nonzero().squeeze(1)
    low, high = ledger.region.low[owner].flatten(1), ledger.region.high[owner].flatten(1)
    # Coefficients of one chunk should stay in the cache of a CPU; a GPU wants them large.
    size = max(16, room * (64 if low.is_cuda else 1) // (2 * graph.widest * min(graph.widest, 512)))
    while len(owner):
        parts = []
        for part in chunks(len(owner), size):
            live = ledger.open[owner[part]]
            if time.monotonic() > deadline:
                return "out of time"
            if bool(live.any()):
                done = _process(graph, ledger, owner[part][live], low[part][live], high[part][live], steps, deadline)
                parts.append(done)
        left = torch.cat([p[0] for p in parts]) if parts else owner[:0]
        for problem in set(owner.tolist()) - set(left.tolist()):
            if bool(ledger.open[problem]):
                ledger.proved(problem)
        if not len(left):
            return ""
        ledger.hope(left, torch.cat([p[3] for p in parts]))
        low, high = torch.cat([p[1] for p in parts]), torch.cat([p[2] for p in parts])
        if boxes is not None and int(ledger.boxes.sum()) >= boxes * len(ledger.boxes):
            return "out of boxes"
        if not bool((high > low).any(1).all()):
            return "a box as small as floating point allows remains undecided"
        live = ledger.open[left]
        owner, low, high = left[live], low[live], high[live]
    return ""


def _process(
    graph: Graph, ledger: Ledger, owner: Tensor, low: Tensor, high: Tensor, steps: int, deadline: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bound one chunk of boxes; gives owner, low, high and score bound of the halves of those left open."""
    box = BoxRegion(low.reshape(-1, *graph.input_shape), high.reshape(-1, *graph.input_shape))
    spec = ledger.spec.pick(owner)
    best, cuts, A = bound_boxes(graph, box, spec, steps, deadline)
    ledger.count(owner)
    _try_points(graph, ledger, owner, box, spec, A)
    reach = -best.amin(1)  # upper bound on the score in this box
    done = reach < 0
    ledger.close(owner[done], reach[done])
    keep = ~done & ledger.open[owner]
    owner, low, high = owner[keep], low[keep], high[keep]
    axis = torch.where(high - low > 0, cuts[keep], -torch.inf).argmax(1)
    low, high = halves(low, high, axis)
    return owner.repeat_interleave(2), low, high, reach[keep].repeat_interleave(2)


@torch.no_grad()
def _try_points(graph: Graph, ledger: Ledger, owner: Tensor, box: BoxRegion, spec: Spec, A: Tensor) -> None:
    """Score the centre of each box and the corners that its linear bounds suggest."""
    centre = ((box.low + box.high) / 2).unsqueeze(1)
    corners = box.minimiser(A).reshape(len(owner), -1, *graph.input_shape)
    points = torch.cat([centre, corners], 1)
    score = spec.score(graph(points.flatten(0, 1)).reshape(*points.shape[:2], -1))
    best, where = score.max(1)
    rows = torch.arange(len(owner), device=owner.device)
    ledger.offer(owner, points[rows, where], best)
