"""Branch and bound by halving input boxes: complete in few dimensions, for any operator we can relax.

Where to cut decides everything: on ACAS Xu the rule below needs up to 200 times fewer boxes than the usual "largest
slope times width". Halving coordinate j shrinks the range of a pre-activation z_i by |dz_i/dx_j| w_j / 2, and with it
the gap of its relaxation, which enters the final bound with the coefficient lambda_i that the backward pass met
there. So coordinate j scores w_j (sum_r |A_rj| + 2 sum_i |lambda_i| (gap_i / range_i) |dz_i/dx_j|).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated, backward
from rarely.bounds.boxes import Boxes, Rest, halves
from rarely.bounds.clip import clipped
from rarely.bounds.crown import propagate
from rarely.bounds.graph import Graph, chunks
from rarely.bounds.ledger import Ledger
from rarely.bounds.operators import TINY
from rarely.bounds.placing import boxes_at_once
from rarely.bounds.region import BoxRegion
from rarely.bounds.slopes import Freedom, ascend, first_slopes
from rarely.bounds.spec import Spec

_ROOM = 1024  # of the largest score in a box, what is cut off stays below zero by such a part
_PATIENCE = 256  # boxes that may be halved, at least, for a proof that holds in more than real arithmetic
CROWDED = "more boxes are open than it was asked to halve"


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


@dataclass
class Ascents:
    """Whether optimising slopes closes boxes that plain bounds leave open: it costs as much as `steps` of those."""

    steps: int
    tried: int = 0
    won: int = 0
    asked: int = 0
    again: int = 0

    def worth(self) -> bool:
        """Of chunks after which that did not pay, ever fewer are tried."""
        self.asked += 1
        return self.steps > 0 and (self.tried < 256 or 16 * self.won >= self.tried or self.asked >= self.again)

    def count(self, before: Tensor, after: Tensor) -> None:
        """A chunk's boxes that were open, and those that are still; all of the chunk have cost."""
        self.tried += len(before)
        self.won += int((before & ~after).sum())
        self.again = 2 * self.asked


@dataclass(frozen=True)
class Bounds:
    """What is known of a chunk of boxes: of each polytope the largest row value that is proved, also in the reals."""

    best: Tensor  # (B, P)
    real: Tensor  # (B, P)
    low: Tensor  # (B, n), of the part that may hold a violation
    high: Tensor
    room: Tensor  # (B,), the score outside of that part is less than its negative
    cuts: Tensor  # (B, n), how much halving each coordinate promises
    A: Tensor  # (B, m, n), slopes of the rows


@torch.no_grad()
def bound_boxes(graph: Graph, box: BoxRegion, spec: Spec, live: Tensor, ascents: Ascents, deadline: float) -> Bounds:
    """Bounds for those polytopes of each box that are `live` (B, P); of others nothing is asked."""
    state = propagate(graph, box, lines=True, deadline=deadline)
    seen: dict[int, Tensor] = {}
    C, d, which = spec.distinct
    plain = backward(state, graph.output, C, seen=seen, real=True).shifted(d)
    rows = plain.lower[:, which]
    best, real = (spec.by_polytope(r).masked_fill(~live, torch.inf) for r in (rows, plain.real[:, which]))
    room = (-best.amin(1) / _ROOM).clamp(min=TINY).nan_to_num(torch.inf, torch.inf)
    owned = torch.zeros(spec.count, C.shape[1], dtype=torch.bool, device=C.device)
    owned[spec.owner, which] = True
    low, high = box.low.flatten(1), box.high.flatten(1)
    least, most = clipped(low, high, plain.A, plain.b, owned, room)
    lost = (least == torch.inf).all(2)
    best, real = (torch.where(lost, torch.fmax(t, room.unsqueeze(1)), t) for t in (best, real))
    hard = ~(best > 0).all(1)
    if bool(hard.any()) and graph.relus and ascents.worth():
        spread = rows.std(1, keepdim=True, correction=0) + 1e-9
        logits = (2 * (rows - rows.amax(1, keepdim=True)) / spread).unsqueeze(1)
        free = Freedom(first_slopes(state, graph.output, spec.count), {}, logits.repeat(1, spec.count, 1))
        found, _, _ = ascend(state, spec.C, spec.d, spec.member, free, ascents.steps)
        best, real = torch.fmax(best, found.lower), torch.fmax(real, found.real)
        ascents.count(hard, ~(best > 0).all(1))
    gone = (best > 0).unsqueeze(2)
    least, most = least.masked_fill(gone, torch.inf).amin(1), most.masked_fill(gone, -torch.inf).amax(1)
    cuts = cut_scores(state, plain.A, seen) * ((most - least) / (high - low)).nan_to_num(0.0)
    return Bounds(best, real, least, most, room, cuts, plain.A)


def decide_by_inputs(
    graph: Graph,
    ledger: Ledger,
    deadline: float,
    *,
    steps: int = 8,
    boxes: int | None = None,
    open_boxes: float = math.inf,
) -> str:
    """Halve boxes, breadth first over all open problems at once, until all are decided or time or boxes are spent.

    Boxes that are closed in real arithmetic only wait until nothing else is left. Then they are halved as well, but no
    longer than everything before them took. Returns why problems are still open, or nothing; the ledger knows the rest.
    """
    start, waiting = _begun(ledger)
    most = math.inf if boxes is None else boxes * len(ledger.boxes)
    ascents = Ascents(steps)
    told = _halve(graph, ledger, start, ascents, deadline, most, open_boxes, waiting)
    later = start.pick(slice(0)).joined(waiting)
    later = later.pick(ledger.open[later.owner] & (ledger.in_reals[later.owner] < 0))
    if len(later):
        most = min(most, 2 * int(ledger.boxes.sum()) + _PATIENCE)
        _halve(graph, ledger, later, ascents, deadline, most, math.inf, None)
    return told


def _begun(ledger: Ledger) -> tuple[Boxes, list[Boxes]]:
    """The boxes of all problems to be decided, and those that wait, going on where an earlier attempt stopped."""
    owner = ledger.todo.nonzero().squeeze(1)
    low, high = ledger.region.low[owner].flatten(1), ledger.region.high[owner].flatten(1)
    whole = Boxes.whole(owner, low, high, ledger.spec.count)
    rests = {
        p: rest for p in owner.tolist() if (rest := ledger.rests[p]) is not None and rest.concerns(_about(ledger, p))
    }
    fresh = torch.tensor([p not in rests for p in owner.tolist()], dtype=torch.bool, device=owner.device)
    todo, waiting = list[Boxes](), list[Boxes]()
    for p, rest in rests.items():
        ledger.closed[p] = max(float(ledger.closed[p]), rest.closed)
        ledger.boxes[p] += rest.boxes
        for some, boxes in ((todo, rest.todo), (waiting, rest.waiting)):
            some.append(replace(boxes, owner=torch.full_like(boxes.owner, p)))
    return whole.pick(fresh).joined(todo), waiting


def _about(ledger: Ledger, problem: int) -> tuple[Tensor, ...]:
    """What a problem is told by beside its network."""
    spec = ledger.spec.pick(torch.tensor([problem], device=ledger.open.device))
    return ledger.region.low[problem], ledger.region.high[problem], spec.C, spec.d, spec.owner


def _pause(ledger: Ledger, todo: Boxes, waiting: Sequence[Boxes] | None) -> None:
    """Keep what is left of the problems that are open; nothing of those that are proved in real arithmetic already."""
    if waiting is None:
        return
    later = todo.pick(slice(0)).joined(waiting)
    for p in set(todo.owner.tolist()):
        if bool(ledger.open[p]):
            own = todo.pick(todo.owner == p), later.pick(later.owner == p)
            ledger.rests[p] = Rest(*own, float(ledger.closed[p]), int(ledger.boxes[p]), _about(ledger, p))


def _halve(
    graph: Graph,
    ledger: Ledger,
    work: Boxes,
    ascents: Ascents,
    deadline: float,
    most: float,
    open_boxes: float,
    waiting: list[Boxes] | None,
) -> str:
    """Bound boxes and halve those left open; `waiting` receives what is closed in real arithmetic only."""
    while len(work):
        parts = list[Boxes]()
        for part in chunks(len(work), boxes_at_once(graph, work.low)):
            here = work.pick(part)
            if time.monotonic() > deadline:
                _pause(ledger, work.pick(slice(part.start, None)).joined(parts), waiting)
                return "out of time"
            if bool((live := ledger.open[here.owner]).any()):
                parts.append(_process(graph, ledger, here.pick(live), ascents, deadline, waiting))
        left = work.pick(slice(0)).joined(parts)
        for problem in set(work.owner.tolist()) - set(left.owner.tolist()):
            if bool(ledger.open[problem]):
                _settle(ledger, problem, waiting or [])
        if not len(left):
            return ""
        rest = left.joined(waiting or [])
        ledger.hope(rest.owner, rest.reach)
        if int(ledger.boxes.sum()) >= most:
            _pause(ledger, left, waiting)
            return "out of boxes"
        if len(left) >= open_boxes:
            _pause(ledger, left, waiting)
            return CROWDED
        if not bool((left.high > left.low).any(1).all()):
            return "a box as small as floating point allows remains undecided"
        work = left.pick(ledger.open[left.owner])
    return ""


def _settle(ledger: Ledger, problem: int, waiting: Sequence[Boxes]) -> None:
    """All boxes of a problem are closed, but for those that wait."""
    reach = [part.real[part.owner == problem] for part in waiting]
    if any(len(part) for part in reach):
        ledger.proved_in_reals(problem, float(torch.cat(reach).max()))
    else:
        ledger.proved(problem)


def _process(
    graph: Graph, ledger: Ledger, boxes: Boxes, ascents: Ascents, deadline: float, waiting: list[Boxes] | None
) -> Boxes:
    """Bound one chunk of boxes; gives the halves of what is left of those still open."""
    owner, shape = boxes.owner, (-1, *graph.input_shape)
    box = BoxRegion(boxes.low.reshape(shape), boxes.high.reshape(shape))
    asked = boxes.live.any(0).nonzero().squeeze(1)
    spec = ledger.spec.pick(owner).only(asked)
    found = bound_boxes(graph, box, spec, boxes.live[:, asked], ascents, deadline)
    ledger.count(owner)
    _try_points(graph, ledger, owner, box, spec, found.A)
    out = found.best > 0
    reach = -found.best.amin(1)  # upper bound on the score in this box
    done = reach < 0
    # Polytopes that are out of reach are not asked about again, nor is what was cut off.
    ledger.close(owner, -found.best.masked_fill(~out, torch.inf).amin(1))
    ledger.close(owner[~done], -found.room[~done])
    live = boxes.live.index_copy(1, asked, boxes.live[:, asked] & ~out)
    keep = ~done & ledger.open[owner]
    boxes = Boxes(owner, found.low, found.high, reach, -found.real.amin(1), live)
    if waiting is not None:
        later = keep & (boxes.real < 0)
        waiting.append(boxes.pick(later))
        keep = keep & ~later
    left = boxes.pick(keep)
    axis = torch.where(left.high - left.low > 0, found.cuts[keep], -torch.inf).argmax(1)
    low, high = halves(left.low, left.high, axis)
    twice = left.pick(torch.arange(len(left), device=owner.device).repeat_interleave(2))
    return replace(twice, low=low, high=high)


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
