"""Branch and bound on the signs of ReLU inputs, for many input dimensions: the search. `domains` bounds its parts."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping

import torch
from torch import Tensor

from rarely.bounds.backward import Propagated, backward
from rarely.bounds.crown import propagate
from rarely.bounds.domains import Root
from rarely.bounds.graph import Graph, chunks, pruned
from rarely.bounds.ledger import Ledger
from rarely.bounds.operators import Interval
from rarely.bounds.placing import breadth, domains_at_once
from rarely.bounds.refine import refined
from rarely.bounds.region import BoxRegion, Region
from rarely.bounds.single import lowered
from rarely.bounds.spec import Spec
from rarely.bounds.splits import Domains, children

_PATIENCE = 256  # domains that may be split, at least, for a proof that holds in more than real arithmetic
_TOGETHER = 2**22  # coefficients of problems that are bounded in one batch on a CPU
_BATCH = 512  # domains of one problem that are bounded together on a CPU
_ROUNDS = 16  # of splits that refine the bounds on the inputs of ReLUs; four times as many each time
_SHARE = 0.125  # of the time left that they may take; twice as much where it paid
_PAYS = 0.1  # part that the bound of the root must gain for them to be refined again
_FORMS = 32  # inputs up to which affine forms are carried ahead


def bounds_at_root(
    graph: Graph,
    region: Region,
    deadline: float,
    *,
    steps: int = 0,
    known: Mapping[int, Interval] | None = None,
    only: Container[int] | None = None,
) -> Propagated:
    """Bounds on every node by all means, from what is `known` already; `only` as in `propagate`."""
    box = isinstance(region, BoxRegion)
    return propagate(
        graph,
        region,
        steps=steps,
        within=known,
        only=only,
        ahead=box and region.low[0].numel() <= _FORMS,
        single=lowered(graph) if box and graph.widest > 1024 else None,
        deadline=deadline,
    )


def _first_root(
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
    return _rooted(first, ledger.spec.pick(who))


def _rooted(state: Propagated, spec: Spec) -> Root:
    return Root(state, spec, lowered(state.graph) if isinstance(state.region, BoxRegion) else None)


def _refined(root: Root, region: Region, rounds: int, steps: int, deadline: float) -> Root:
    """With tighter bounds on the inputs of ReLUs, layer by layer, each with what is known of those before it."""
    state = root.state
    known = dict(enumerate(state.bounds))
    todo = sorted({root.source(i) for i in root.graph.relus} - root.graph.box_exact)
    for k, node in enumerate(todo):
        now = time.monotonic()
        if now > deadline:
            break
        found = refined(state, node, rounds, steps, now + (deadline - now) / (len(todo) - k))
        if all(torch.equal(new, old) for new, old in zip(found, known[node], strict=True)):
            continue
        known[node] = found
        following = range(node + 1, (*todo[1:], len(known))[k] + 1)  # the rest when its turn comes
        state = bounds_at_root(root.graph, region, deadline, steps=steps, known=known, only=following)
        known = dict(enumerate(state.bounds))
    return root if state is root.state else _rooted(state, root.spec)


class _Tree:
    """Branch and bound on one problem from its root.

    Domains that are closed in real arithmetic only wait until nothing else is left. Then they are split as well, but no
    longer than everything before them took.
    """

    def __init__(self, root: Root, ledger: Ledger, problem: int, steps: int) -> None:
        self.root, self.ledger, self.problem, self.steps = root, ledger, problem, steps
        self.stack: list[Domains] = []
        self.waiting: list[Domains] = []
        self.stuck = self.bounded = 0
        self.most = math.inf  # domains, once only those that wait are left
        self.reach = self._enter(root.first(), 2 * steps)  # the least bound of the root

    def search(self, until: float, deadline: float) -> str | None:
        """Until there is an answer, and the reason where it is none; nothing is returned where time is up."""
        ledger, batch, most = self.ledger, 16, domains_at_once(self.root.graph, self.root.state.region.low, _BATCH)
        begin = time.monotonic()
        while True:
            if not bool(ledger.open[self.problem]):
                return ""
            if not self.stack and self.waiting and not self.stuck:
                ledger.proved_in_reals(self.problem, -float(torch.cat([w.real for w in self.waiting]).min()))
                self.most, until = 2 * self.bounded + _PATIENCE, deadline
                self.stuck, self.waiting = sum(self._push(domains) for domains in self.waiting), []
            if not self.stack or self.bounded >= self.most:
                break
            took = time.monotonic() - begin
            if time.monotonic() + took > until:
                return None
            # Batches as large as pays off, but short enough to stop in time.
            batch = max(1, batch // 2) if took > 1 else min(most, 2 * batch) if took < 0.3 else batch
            top = self.stack.pop()
            if len(top) > batch:
                self.stack.append(top.pick(slice(batch, None)))
                top = top.pick(slice(0, batch))
            begin = time.monotonic()
            self._enter(children(top), self.steps)
        if self.most < math.inf and (self.stuck or self.stack):
            return ""
        if self.stuck:
            return f"{self.stuck} sub-problems with every ReLU split remain undecided"
        ledger.proved(self.problem)
        return ""

    def _enter(self, domains: Domains, steps: int) -> float:
        """Bound domains and stack what stays open; gives the least bound of them."""
        ledger, (fresh, points) = self.ledger, self.root.improved(domains, steps)
        owner = torch.full((len(fresh),), self.problem, device=ledger.open.device)
        ledger.count(owner)
        self.bounded += len(fresh)
        done = fresh.lower > 0
        ledger.close(owner[done], -fresh.lower[done])
        with torch.no_grad():
            score = self.root.spec.score(self.root.graph(points).unsqueeze(0)).squeeze(0)
        ledger.offer(owner, points, score)
        later = ~done & (fresh.real > 0) & (self.most == math.inf)
        if bool(later.any()):
            self.waiting.append(fresh.pick(later))
            done = done | later
        self.stuck += self._push(fresh.pick(~done))
        return float(fresh.rough.min())

    def _push(self, domains: Domains) -> int:
        """Put what can be split on the stack, and tell how many cannot."""
        live = domains.cuts >= 0
        if bool(live.any()):
            self.stack.append(domains.pick(live))
        return int((~live).sum())

    def give_up(self) -> None:
        if not self.stuck:
            least = torch.cat([s.lower for s in (*self.stack, *self.waiting)])
            self.ledger.hope(torch.full((len(least),), self.problem, device=least.device), -least)


def _decide_one(ledger: Ledger, problem: int, deadline: float, root: Root, steps: int, begin: float) -> str:
    """Trees on one problem, of roots whose bounds are refined in between, each as long as everything before it took.

    Where that changes nothing, the tree goes on where it stopped. Where it changes little, a tree is new all the same:
    on a network of cifar10_resnet bounds that are 4 % better took 5,700 domains in place of 18,500.
    """
    region = ledger.region.pick(torch.tensor([problem], device=ledger.open.device))
    rounds, share = _ROUNDS, _SHARE
    tree, last = _Tree(root, ledger, problem, steps), False
    while True:
        now = time.monotonic()
        reason = tree.search(deadline if last else min(deadline, 2 * now - begin), deadline)
        now = time.monotonic()
        if reason is not None:
            return reason
        if last or now >= deadline:
            tree.give_up()
            return "out of time"
        if now - begin > deadline - now:  # too late for a tree that is new
            last = True
            continue
        root = _refined(tree.root, region, rounds, steps, now + share * (deadline - now))
        if root is tree.root:
            last = True
        else:
            before, tree = tree.reach, _Tree(root, ledger, problem, steps)
            last, rounds, share = tree.reach <= (1 - _PAYS) * before, 4 * rounds, min(0.5, 2 * share)


def decide_from(
    graph: Graph, ledger: Ledger, problem: int, deadline: float, plain: float, steps: int, first: Propagated | None
) -> str:
    """Branch and bound on one problem, whose bounds `first` took `plain` seconds."""
    begin = time.monotonic() - plain
    root = _first_root(graph, ledger, problem, deadline, plain, steps, first)
    return _decide_one(ledger, problem, deadline, root, steps, begin)


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


def decide_by_relus(graph: Graph, ledger: Ledger, deadline: float, *, steps: int = 6) -> str:
    """Plain bounds on all open problems, then branch and bound on each, sharing out the time that is left."""
    who = ledger.open.nonzero().squeeze(1)
    size = max(1, _TOGETHER * breadth(ledger.region.low) // (graph.widest * min(2 * graph.widest, 4096)))
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
