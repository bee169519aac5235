"""Branch and bound on the signs of ReLU inputs: beta-CROWN (Wang et al. 2021), for many input dimensions.

A domain fixes some signs. Its intermediate bounds are recomputed with them, with the slopes optimised at the root,
and intersected with its parent's; the split constraints also enter the final bound as Lagrange multipliers. Slopes,
multipliers and row weights start from the parent's.

Where to split. A ReLU i costs the final bound gap_i times the negative part of its coefficient lambda_i, which is
what takes the chord. By widening the range of a later ReLU k it also costs |lambda_k| (gap_k / range_k) gap_i times
the negative parts of its coefficients in the two bounds of k: the rule of `inputsplit`, one level up. Without the
second term the early neurons, on which everything hangs, look harmless.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from rarely.bounds.backward import LinearBound, Propagated, backward
from rarely.bounds.crown import propagate, room, signed_rows
from rarely.bounds.graph import Graph, chunks, joined, parted, pruned
from rarely.bounds.ledger import Ledger
from rarely.bounds.region import BallRegion, Bounded, BoxRegion, Region
from rarely.bounds.slopes import Freedom, ascend, first_slopes
from rarely.bounds.spec import Spec

_PATIENCE = 256  # domains that may be split, at least, for a proof that holds in more than real arithmetic


@dataclass(frozen=True)
class Domains:
    """N sub-problems; T counts the ReLUs of the network."""

    signs: Tensor  # (N, T) in {-1, 0, 1}
    low: Tensor  # (N, T) bounds on the ReLU inputs, the signs included
    high: Tensor
    slopes: Tensor  # (N, T)
    multipliers: Tensor  # (N, T)
    logits: Tensor  # (N, m)
    polytope: Tensor  # (N,)
    lower: Tensor  # (N,) proven lower bound on the weighted rows
    real: Tensor  # (N,) the same in real arithmetic
    cuts: Tensor  # (N,) the ReLU to split next, -1 when none is left

    def pick(self, index: Tensor | slice) -> Domains:
        return Domains(*(getattr(self, f.name)[index] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.lower)


@dataclass(frozen=True)
class Root:
    """One problem: its bounds before any split, and where each ReLU sits in a flat vector of all."""

    state: Propagated  # batch 1
    spec: Spec  # batch 1

    @property
    def graph(self) -> Graph:
        return self.state.graph

    def source(self, i: int) -> int:
        return self.graph.nodes[i].inputs[0]

    def parted(self, flat: Tensor) -> dict[int, Tensor]:
        """(N, T) -> per ReLU node (N, *event)."""
        return parted(self.graph, flat, self.graph.relus)

    def joined(self, parts: dict[int, Tensor]) -> Tensor:
        return joined(parts, self.graph.relus, next(iter(parts.values())))

    def first(self) -> Domains:
        """One unsplit domain per polytope."""
        count, device = self.spec.count, self.spec.owner.device
        start = first_slopes(self.state, self.graph.output + 1, 1)
        slopes = self.joined({i: a.squeeze(1) for i, a in start.items()}).repeat(count, 1)
        low, high = (
            self.joined({i: self.state.bounds[self.source(i)][k] for i in self.graph.relus}).repeat(count, 1)
            for k in (0, 1)
        )
        return Domains(
            torch.zeros(slopes.shape, dtype=torch.int8, device=device),
            low,
            high,
            slopes,
            torch.zeros_like(slopes),
            torch.zeros(count, self.spec.C.shape[1], dtype=slopes.dtype, device=device),
            torch.arange(count, device=device),
            *(torch.full((count,), -torch.inf, dtype=slopes.dtype, device=device),) * 2,
            torch.full((count,), -1, device=device),
        )

    @torch.no_grad()
    def bounded(self, domains: Domains) -> tuple[Domains, Propagated, dict[int, tuple[Tensor, dict[int, Tensor]]]]:
        """Recompute the bounds on ReLU inputs; also gives the coefficients met on the way, for branching."""
        graph = self.graph
        lows, highs = self.parted(domains.low), self.parted(domains.high)
        region = _repeated(self.state.region, len(domains))
        relaxations = dict(self.state.relaxations)
        state = replace(self.state, region=region, relaxations=relaxations, lines={}, slopes={})
        met: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        for i, op in graph.relus.items():
            j = self.source(i)
            low, high = lows[i].flatten(1), highs[i].flatten(1)
            if j in self.state.slopes:
                index, slopes = self.state.slopes[j]
                open_ = ((low < 0) & (high > 0)).any(0)[index].nonzero().squeeze(1)
                cols = index[open_]
                if len(cols):
                    both = torch.cat([open_, open_ + len(index)])
                    rows = signed_rows(low.shape[1], cols, low).reshape(1, -1, *graph.nodes[j].shape)
                    seen: dict[int, Tensor] = {}
                    found = backward(state, j, rows, {r: a[:, both] for r, a in slopes.items()}, seen=seen).lower
                    low, high = low.clone(), high.clone()
                    low[:, cols] = torch.fmax(low[:, cols], found[:, : len(cols)])
                    high[:, cols] = torch.fmin(high[:, cols], -found[:, len(cols) :])
                    met[i] = (cols, seen)
            lows[i], highs[i] = low.reshape(lows[i].shape), high.reshape(highs[i].shape)
            relaxations[i] = op.relax((lows[i], highs[i]))
        return replace(domains, low=self.joined(lows), high=self.joined(highs)), state, met

    def improved(self, domains: Domains, steps: int) -> tuple[Domains, LinearBound]:
        """The domains with better bounds, multipliers and slopes, and with the neuron to split next."""
        domains, state, met = self.bounded(domains)
        free = Freedom(
            {i: t.unsqueeze(1) for i, t in self.parted(domains.slopes).items()},
            {i: t.unsqueeze(1) for i, t in self.parted(domains.multipliers).items()},
            domains.logits.unsqueeze(1),
        )
        member = (self.spec.owner == domains.polytope.unsqueeze(1)).unsqueeze(1)
        signs = self.parted(domains.signs)
        bound, free, seen = ascend(state, self.spec.C, self.spec.d, member, free, steps, signs, 0.1)
        slopes, multipliers = ({i: t.squeeze(1) for i, t in d.items()} for d in (free.slopes, free.multipliers))
        # Contradictory bounds mean that no input has these signs.
        empty = (domains.low > domains.high).any(1)
        found = ((bound.lower, domains.lower), (bound.real, domains.real))
        lower, real = (torch.fmax(a.squeeze(1), b).masked_fill(empty, torch.inf) for a, b in found)
        domains = replace(
            domains,
            slopes=self.joined(slopes),
            multipliers=self.joined(multipliers),
            logits=free.logits.squeeze(1),
            lower=lower,
            real=real,
        )
        return replace(domains, cuts=self._cuts(domains, seen, met)), bound

    @torch.no_grad()
    def _cuts(
        self, domains: Domains, seen: dict[int, Tensor], met: dict[int, tuple[Tensor, dict[int, Tensor]]]
    ) -> Tensor:
        n = len(domains)
        lows, highs = self.parted(domains.low), self.parted(domains.high)
        size = {i: seen[i].squeeze(1).abs().expand(n, *seen[i].shape[2:]).flatten(1) for i in self.graph.relus}
        total = {i: (-seen[i].squeeze(1)).clamp(min=0).expand(n, *seen[i].shape[2:]).flatten(1) for i in size}
        for k, (cols, coefficients) in met.items():
            loss = self.graph.relus[k].influence((lows[k], highs[k]), size[k].reshape(lows[k].shape))
            weight = loss.flatten(1)[:, cols]
            for i, a in coefficients.items():
                if i in total:
                    both = (-a.flatten(2)).clamp(min=0).reshape(a.shape[0], 2, len(cols), -1).sum(1)
                    total[i] = total[i] + torch.einsum("bk,bki->bi", weight, both.expand(n, -1, -1))
        gap = self.joined({i: op.gap((lows[i], highs[i])) for i, op in self.graph.relus.items()})
        open_ = (domains.low < 0) & (domains.high > 0)
        value, where = torch.where(open_, self.joined(total) * gap, -1.0).max(1)
        return torch.where(value >= 0, where, -1)


def _repeated(region: Bounded, count: int) -> Region:
    if isinstance(region, BallRegion):
        return BallRegion(region.centre.expand(count, *region.centre.shape[1:]), region.radius.expand(count))
    return BoxRegion(region.low.expand(count, *region.low.shape[1:]), region.high.expand(count, *region.high.shape[1:]))


def halved(signs: Tensor, low: Tensor, high: Tensor, cut: Tensor, entry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Signs and intervals of domains that come in pairs, the cut ReLU's input >= 0 in the first and <= 0 in the second.

    `cut` (N,) is its place among the signs, `entry` (N,) that of its input among the intervals.
    """
    cut, entry = cut.unsqueeze(1), entry.unsqueeze(1)
    up = torch.arange(len(cut), device=cut.device).unsqueeze(1) % 2 == 0
    below, above = low.gather(1, entry), high.gather(1, entry)
    return (
        signs.scatter(1, cut, torch.where(up, 1, -1).to(signs.dtype)),
        low.scatter(1, entry, torch.where(up, below.clamp(min=0), below)),
        high.scatter(1, entry, torch.where(up, above, above.clamp(max=0))),
    )


def _children(domains: Domains) -> Domains:
    """Both halves of each domain side by side."""
    twice = domains.pick(torch.arange(len(domains), device=domains.cuts.device).repeat_interleave(2))
    signs, low, high = halved(twice.signs, twice.low, twice.high, twice.cuts, twice.cuts)
    return replace(twice, signs=signs, low=low, high=high)


def _push(stack: list[Domains], domains: Domains) -> int:
    """Put what can be split on the stack, and tell how many cannot."""
    live = domains.cuts >= 0
    if bool(live.any()):
        stack.append(domains.pick(live))
    return int((~live).sum())


def _decide_one(graph: Graph, ledger: Ledger, problem: int, deadline: float, plain: float, steps: int) -> str:
    """Branch and bound on one problem; `plain` is how many seconds unoptimised bounds take.

    Domains that are closed in real arithmetic only wait until nothing else is left. Then they are split as well, but no
    longer than everything before them took.
    """
    who = torch.tensor([problem], device=ledger.open.device)
    half = (deadline - time.monotonic()) / 2
    effort = 12 if 3 * 12 * plain < half else 0
    region = ledger.region.pick(who)
    graph = pruned(graph, propagate(graph, region, deadline=time.monotonic() + half / 2).bounds)
    root = Root(propagate(graph, region, steps=effort, deadline=time.monotonic() + half), ledger.spec.pick(who))
    fresh, effort, stuck, batch = root.first(), 2 * steps, 0, 16
    stack: list[Domains] = []
    waiting: list[Domains] = []
    most = math.inf  # sub-problems, once only those are left
    while True:
        begin = time.monotonic()
        fresh, bound = root.improved(fresh, effort)
        effort = steps
        owner = who.expand(len(fresh))
        ledger.count(owner)
        done = fresh.lower > 0
        ledger.close(owner[done], -fresh.lower[done])
        points = region.minimiser(bound.A).reshape(-1, *graph.input_shape)
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
        fresh = _children(top)
    if most < math.inf and (stuck or stack):
        return ""
    if stuck:
        return f"{stuck} sub-problems with every ReLU split remain undecided"
    ledger.proved(problem)
    return ""


def decide_by_relus(graph: Graph, ledger: Ledger, deadline: float, *, steps: int = 12) -> str:
    """Plain bounds on all open problems, then branch and bound on each, sharing out the time that is left."""
    who = ledger.open.nonzero().squeeze(1)
    size = max(1, room(ledger.closed) // (graph.widest * min(2 * graph.widest, 4096)))
    plain = 0.0
    for part in chunks(len(who), size):
        if time.monotonic() > deadline:
            return "out of time"
        begin = time.monotonic()
        problem = who[part]
        spec = ledger.spec.pick(problem)
        with torch.no_grad():
            state = propagate(graph, ledger.region.pick(problem), deadline=deadline)
            best = spec.by_polytope(backward(state, graph.output, spec.C).shifted(spec.d).lower)
        reach = -best.amin(1)
        sure = reach < 0
        ledger.count(problem)
        ledger.hope(problem, reach)
        ledger.close(problem[sure], reach[sure])
        for p in problem[sure].tolist():
            ledger.proved(p)
        plain = (time.monotonic() - begin) / len(problem)
    todo = ledger.open.nonzero().squeeze(1).tolist()
    if not graph.relus:
        return "there is no ReLU to split"
    reason = ""
    for k, p in enumerate(todo):
        share = (deadline - time.monotonic()) / (len(todo) - k)
        if share <= 0:
            return "out of time"
        reason = _decide_one(graph, ledger, p, time.monotonic() + share, plain, steps) or reason
    return reason
