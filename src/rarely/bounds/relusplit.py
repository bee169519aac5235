"""Branch and bound on the signs of ReLU inputs, for many input dimensions: the search. `domains` bounds its parts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated, backward
from rarely.bounds.crown import propagate
from rarely.bounds.domains import Domains, Root, children
from rarely.bounds.graph import Graph, chunks, pruned
from rarely.bounds.ledger import Ledger
from rarely.bounds.operators import Interval
from rarely.bounds.region import BoxRegion, Region
from rarely.bounds.single import lowered

_PATIENCE = 256  # domains that may be split, at least, for a proof that holds in more than real arithmetic
_TOGETHER = 2**22  # coefficients of problems that are bounded in one batch
_FORMS = 32  # inputs up to which affine forms are carried ahead


def _push(stack: list[Domains], domains: Domains) -> int:
    """Put what can be split on the stack, and tell how many cannot."""
    live = domains.cuts >= 0
    if bool(live.any()):
        stack.append(domains.pick(live))
    return int((~live).sum())


def bounds_at_root(
    graph: Graph, region: Region, deadline: float, *, steps: int = 0, known: Mapping[int, Interval] | None = None
) -> Propagated:
    """Bounds on every node by all means; what is `known` already is not looked for again."""
    box = isinstance(region, BoxRegion)
    return propagate(
        graph,
        region,
        steps=steps,
        within=known,
        ahead=box and region.low[0].numel() <= _FORMS,
        single=lowered(graph) if box and graph.widest > 1024 else None,
        deadline=deadline,
    )


def _root(
    graph: Graph, ledger: Ledger, problem: int, deadline: float, plain: float, steps: int, first: Propagated | None
) -> Root:
    """The root of one problem, its bounds optimised where time allows; those of `first` took `plain` seconds."""
    who = torch.tensor([problem], device=ledger.open.device)
    region, left = ledger.region.pick(who), deadline - time.monotonic()
    if first is None:
        first = bounds_at_root(graph, region, time.monotonic() + left / 4)
    smaller = pruned(graph, first.bounds, first.finite)
    known = {i: first.bounds[i] for i, node in enumerate(smaller.nodes) if node.shape == graph.nodes[i].shape}
    effort = steps if 4 * plain < left / 2 else 0
    if effort or len(known) < len(graph.nodes):
        first = bounds_at_root(smaller, region, time.monotonic() + left / 2, steps=effort, known=known)
    single = lowered(smaller) if isinstance(region, BoxRegion) else None
    return Root(first, ledger.spec.pick(who), single)


def _decide_one(ledger: Ledger, problem: int, deadline: float, root: Root, steps: int) -> str:
    """Branch and bound on one problem.

    Domains that are closed in real arithmetic only wait until nothing else is left. Then they are split as well, but no
    longer than everything before them took.
    """
    who = torch.tensor([problem], device=ledger.open.device)
    graph = root.graph
    fresh, effort, stuck, batch = root.first(), 2 * steps, 0, 16
    stack: list[Domains] = []
    waiting: list[Domains] = []
    most = math.inf  # sub-problems, once only those are left
    while True:
        begin = time.monotonic()
        fresh, points = root.improved(fresh, effort)
        effort = steps
        owner = who.expand(len(fresh))
        ledger.count(owner)
        done = fresh.lower > 0
        ledger.close(owner[done], -fresh.lower[done])
        with torch.no_grad():
            score = root.spec.score(graph(points).unsqueeze(0)).squeeze(0)
        ledger.offer(owner, points, score)
        if not bool(ledger.open[problem]):
            return ""
        later = ~done & (fresh.real > 0) & (most == math.inf)
        if bool(later.any()):
            waiting.append(fresh.pick(later))
            done = done | later
        stuck += _push(stack, fresh.pick(~done))
        if not stack and waiting and not stuck:
            ledger.proved_in_reals(problem, -float(torch.cat([w.real for w in waiting]).min()))
            most = 2 * int(ledger.boxes[problem]) + _PATIENCE
            stuck, waiting = sum(_push(stack, domains) for domains in waiting), []
        if not stack or int(ledger.boxes[problem]) >= most:
            break
        took = time.monotonic() - begin
        if time.monotonic() + took > deadline:
            least = torch.cat([s.lower for s in (*stack, *waiting)])
            if not stuck:
                ledger.hope(who.expand(len(least)), -least)
            return "out of time"
        # Batches as large as pays off, but short enough to stop in time.
        batch = max(1, batch // 2) if took > 1 else min(512, 2 * batch) if took < 0.3 else batch
        top = stack.pop()
        if len(top) > batch:
            stack.append(top.pick(slice(batch, None)))
            top = top.pick(slice(0, batch))
        fresh = children(top)
    if most < math.inf and (stuck or stack):
        return ""
    if stuck:
        return f"{stuck} sub-problems with every ReLU split remain undecided"
    ledger.proved(problem)
    return ""


def decide_from(
    graph: Graph, ledger: Ledger, problem: int, deadline: float, plain: float, steps: int, first: Propagated | None
) -> str:
    """Branch and bound on one problem, whose bounds `first` took `plain` seconds."""
    return _decide_one(ledger, problem, deadline, _root(graph, ledger, problem, deadline, plain, steps, first), steps)


@torch.no_grad()
def proved_plainly(ledger: Ledger, problem: Tensor, state: Propagated) -> bool:
    """Close the problems that bounds without any split prove; whether those were all."""
    spec, graph = ledger.spec.pick(problem), state.graph
    reach = -spec.by_polytope(backward(state, graph.output, spec.C).shifted(spec.d).lower).amin(1)
    sure = reach < 0
    ledger.count(problem)
    ledger.hope(problem, reach)
    ledger.close(problem[sure], reach[sure])
    for p in problem[sure].tolist():
        ledger.proved(p)
    return bool(sure.all())


def decide_by_relus(graph: Graph, ledger: Ledger, deadline: float, *, steps: int = 12) -> str:
    """Plain bounds on all open problems, then branch and bound on each, sharing out the time that is left."""
    who = ledger.open.nonzero().squeeze(1)
    size = max(1, _TOGETHER // (graph.widest * min(2 * graph.widest, 4096)))
    plain, state = 0.0, None
    for part in chunks(len(who), size):
        if time.monotonic() > deadline:
            return "out of time"
        begin = time.monotonic()
        problem = who[part]
        state = bounds_at_root(graph, ledger.region.pick(problem), deadline)
        proved_plainly(ledger, problem, state)
        plain = (time.monotonic() - begin) / len(problem)
    todo = ledger.open.nonzero().squeeze(1).tolist()
    if not graph.relus:
        return "there is no ReLU to split"
    reason = ""
    for k, p in enumerate(todo):
        share = (deadline - time.monotonic()) / (len(todo) - k)
        if share <= 0:
            return "out of time"
        until = time.monotonic() + share
        reason = decide_from(graph, ledger, p, until, plain, steps, state if len(who) == 1 else None) or reason
    return reason
