"""How sub-problems of branch and bound on the signs of ReLU inputs are bounded.

A domain fixes some signs. They enter the final bound as Lagrange multipliers (beta-CROWN, Wang et al. 2021); slopes,
multipliers and row weights start from the parent's and climb in float32, and what they reach is evaluated in float64.
Bounds on the ReLU inputs are those of the root, which `refine` works on beforehand.

Where to split. A ReLU i costs the final bound gap_i times the negative part of its coefficient, which is what takes the
chord. Of the few that cost most, both halves of each are bounded once, without any ascent, and the best halves win
(filtered smart branching, De Palma et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.backward import LinearBound, Propagated
from rarely.bounds.compact import Compact, compacted
from rarely.bounds.graph import Graph, chunks, joined, parted
from rarely.bounds.operators import Interval
from rarely.bounds.placing import domains_at_once
from rarely.bounds.region import BoxRegion, Region, repeated
from rarely.bounds.single import rough
from rarely.bounds.slopes import Freedom, climb, first_slopes, weighted
from rarely.bounds.spec import Spec
from rarely.bounds.splits import Domains, children

_TRIED = 4  # ReLUs whose halves are bounded before one is chosen
_RATE = 0.1
_DENSE = 2**24  # coefficients of a compact network up to which it is faster than the graph
_AT_ONCE = 256  # domains that are bounded together on a CPU where nothing is kept for gradients

# Lower bounds (N,), coefficients met at the outputs of unsettled ReLUs (N, U), and at the network's input (N, n).
Found = tuple[Tensor, Tensor, Tensor]
Finder = Callable[[Domains], Found]


@dataclass(frozen=True)
class Root:
    """One problem: its bounds before any split."""

    state: Propagated  # batch 1
    spec: Spec  # batch 1
    single: Graph | None = None  # the graph in float32

    @property
    def graph(self) -> Graph:
        return self.state.graph

    @property
    def _at_once(self) -> int:
        return domains_at_once(self.graph, self.state.region.low, _AT_ONCE)

    def source(self, i: int) -> int:
        return self.graph.nodes[i].inputs[0]

    @cached_property
    def _ends(self) -> Interval:
        """Bounds on all ReLU inputs, (1, T)."""
        low, high = (
            joined(
                {i: self.state.bounds[self.source(i)][k] for i in self.graph.relus},
                self.graph.relus,
                self.state.region.low,
            )
            for k in (0, 1)
        )
        return low, high

    @cached_property
    def places(self) -> Tensor:
        """Which of them are unsettled, (U,)."""
        low, high = self._ends
        return (~((low >= 0) | (high <= 0)))[0].nonzero().squeeze(1)

    def spread(self, some: Tensor, base: Tensor | None = None) -> dict[int, Tensor]:
        """Entries of unsettled ReLUs (N, U) -> per ReLU node (N, *event); those of `base` (1, T), or 0, elsewhere."""
        whole = some.new_zeros(1, self._ends[0].shape[1]) if base is None else base.to(some.dtype)
        whole = whole.expand(len(some), -1).index_copy(1, self.places, some)
        return parted(self.graph, whole, self.graph.relus)

    def gathered(self, parts: dict[int, Tensor]) -> Tensor:
        """The other way round."""
        return joined(parts, self.graph.relus, next(iter(parts.values())))[:, self.places]

    def first(self) -> Domains:
        """One unsplit domain per polytope."""
        count, device = self.spec.count, self.spec.owner.device
        start = first_slopes(self.state, self.graph.output + 1, 1)
        slopes = self.gathered({i: a.squeeze(1) for i, a in start.items()}).repeat(count, 1)
        low, high = (end[:, self.places].repeat(count, 1) for end in self._ends)
        return Domains(
            torch.zeros(slopes.shape, dtype=torch.int8, device=device),
            low,
            high,
            slopes,
            torch.zeros_like(slopes),
            torch.zeros(self._rows[1].shape, dtype=slopes.dtype, device=device),
            torch.arange(count, device=device),
            *(torch.full((count,), -torch.inf, dtype=slopes.dtype, device=device),) * 3,
            torch.full((count,), -1, device=device),
        )

    def _state(self, domains: Domains) -> Propagated:
        """These domains with the root's bounds and their signs."""
        lows, highs = self.spread(domains.low, self._ends[0]), self.spread(domains.high, self._ends[1])
        lines = {i: op.relax((lows[i], highs[i])) for i, op in self.graph.relus.items()}
        region = repeated(self.state.region, len(domains))
        return replace(self.state, region=region, relaxations={**self.state.relaxations, **lines}, lines={})

    def _quick(self, domains: Domains) -> Propagated:
        """The same to climb in: in float32, where nothing is charged, if there is such a graph."""
        if self.single is None:
            return self._state(domains)
        lows, highs = (
            self.spread(t.float(), end) for t, end in zip((domains.low, domains.high), self._ends, strict=True)
        )
        lines = {i: op.relax((lows[i], highs[i])) for i, op in self.single.relus.items()}
        return rough(self.state, self.single, self._single_region, len(domains), lines)

    @cached_property
    def _single_region(self) -> Region:
        region = self.state.region
        assert isinstance(region, BoxRegion)
        return BoxRegion(region.low.float(), region.high.float())

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """The rows of each polytope, (P, r), and which of these places hold one."""
        owner, count = self.spec.owner, self.spec.count
        sizes = torch.bincount(owner, minlength=count)
        holds = torch.arange(int(sizes.max()), device=owner.device) < sizes.unsqueeze(1)
        rows = torch.zeros(holds.shape, dtype=torch.long, device=owner.device)
        rows[holds] = owner.argsort(stable=True)
        return rows, holds

    @cached_property
    def _leaks(self) -> Tensor:
        """Slopes of the unsettled ReLUs below zero, (U,)."""
        like, relus = self.state.region.low, self.graph.relus
        return self.gathered({i: like.new_full((1, *self.graph.nodes[i].shape), op.leak) for i, op in relus.items()})[0]

    @cached_property
    def compact(self) -> Compact | None:
        """The network as its unsettled ReLUs see it, where there are any and that is small."""
        total, n = len(self.places), self.state.region.low[0].numel()
        if not 0 < total * (total + n) <= _DENSE or len(self.graph.relus) < len(self.graph.relaxed):
            return None
        mask = torch.zeros_like(self._ends[0], dtype=torch.bool).index_fill_(1, self.places, True)
        open_ = {i: at[0].flatten() for i, at in parted(self.graph, mask, self.graph.relus).items()}
        return compacted(self.state, {i: at.nonzero().squeeze(1) for i, at in open_.items()}, self.spec)

    def _finder(self, domains: Domains) -> Finder:
        """What bounds these domains roughly, for some of their free parameters."""
        compact = self.compact
        if compact is None:
            return lambda free: self._by_graph(self._quick(domains), free)
        lines = compact.lines(domains.low, domains.high)
        rows, holds = (t[domains.polytope] for t in self._rows)

        def find(free: Domains) -> Found:
            weights = torch.where(holds, free.logits.float(), -torch.inf).softmax(-1)
            push = -free.multipliers.float() * free.signs
            return compact.bound(lines, free.slopes.float(), push, compact.goal(rows, weights))

        return find

    def _by_graph(self, state: Propagated, free: Domains) -> Found:
        seen: dict[int, Tensor] = {}
        found = self._bound(state, free, seen)
        met = {i: seen[i].squeeze(1).expand(len(free), *seen[i].shape[2:]) for i in self.graph.relus}
        return found.lower.squeeze(1), self.gathered(met), found.A.squeeze(1)

    def _bound(
        self, state: Propagated, domains: Domains, seen: dict[int, Tensor] | None = None, real: bool = False
    ) -> LinearBound:
        """Bounds of the weighted rows, (N, 1), in the precision of the state; `real` as in `backward`."""
        dtype = state.region.low.dtype
        base = self._first_slopes.to(dtype)
        free = Freedom(
            {i: t.unsqueeze(1) for i, t in self.spread(domains.slopes.to(dtype), base).items()},
            {i: t.unsqueeze(1) for i, t in self.spread(domains.multipliers.to(dtype)).items()},
            domains.logits.to(dtype).unsqueeze(1),
        )
        rows, holds = (t[domains.polytope] for t in self._rows)
        C, d = (t[0].to(dtype)[rows] for t in (self.spec.C, self.spec.d))
        return weighted(state, C, d, holds.unsqueeze(1), free, self.spread(domains.signs), seen, real)

    @cached_property
    def _first_slopes(self) -> Tensor:
        start = first_slopes(self.state, self.graph.output + 1, 1)
        return joined({i: a.squeeze(1) for i, a in start.items()}, self.graph.relus, self.state.region.low)

    def _climbed(self, find: Finder, domains: Domains, steps: int) -> Domains:
        wide = (domains.slopes, domains.multipliers, domains.logits)
        slopes, multipliers, logits = (t.detach().float().clone().requires_grad_() for t in wide)
        logits.requires_grad_(logits.shape[1] > 1)  # a row alone has all the weight, whatever its logit
        free = replace(domains, slopes=slopes, multipliers=multipliers, logits=logits)
        groups = [
            ([slopes], _RATE, (0.0, 1.0)),
            ([multipliers], _RATE / 2, (0.0, torch.inf)),
            ([logits], 4 * _RATE, (-torch.inf, torch.inf)),
        ]

        def bound(last: bool) -> LinearBound:
            lower = find(free)[0].unsqueeze(1)
            return LinearBound(lower.unsqueeze(2), lower, lower, lower)

        _, kept = climb(bound, groups, steps)
        slopes, multipliers, logits = (t.to(domains.low.dtype) for t in kept)
        return replace(domains, slopes=slopes, multipliers=multipliers, logits=logits)

    def improved(self, domains: Domains, steps: int) -> tuple[Domains, Tensor]:
        """The domains with better bounds, multipliers and slopes, and with the neuron to split next.

        Also where their linear bounds are least, (N, *event).
        """
        find = self._finder(domains)
        domains = self._climbed(find, domains, steps)
        with torch.no_grad():
            lower, met, A = find(domains)
            domains = self._proved(replace(domains, rough=lower.to(domains.lower.dtype)))
            domains = replace(domains, cuts=self._cuts(domains, met))
            points = repeated(self.state.region, len(domains)).minimiser(A.unsqueeze(1))
        return domains, points.reshape(len(domains), *self.graph.input_shape)

    def _proved(self, domains: Domains) -> Domains:
        """With the bounds that are proved. What is found roughly is only a hint which domains can be closed."""
        some = ((domains.rough > 0) | (domains.lower == -torch.inf)).nonzero().squeeze(1)
        return self.proved(domains, some)

    @torch.no_grad()
    def proved(self, domains: Domains, some: Tensor) -> Domains:
        """The domains, `some` of them with bounds evaluated in float64, everything charged."""
        lower, real = domains.lower.clone(), domains.real.clone()
        for part in chunks(len(some), self._at_once):
            at = some[part]
            these = domains.pick(at)
            sure = self._bound(self._state(these), these, real=True)
            lower[at] = torch.fmax(lower[at], sure.lower.squeeze(1))
            real[at] = torch.fmax(real[at], sure.real.squeeze(1))
        lower, real = (t.masked_fill(domains.empty, torch.inf) for t in (lower, real))
        return replace(domains, lower=lower, real=real)

    def _cuts(self, domains: Domains, met: Tensor) -> Tensor:
        """The ReLU to split next of those that are open still, and -1 where nothing is left to split."""
        best = torch.full_like(domains.cuts, -1)
        if not met.shape[1]:
            return best
        low, high = domains.low.clamp(max=0), domains.high.clamp(min=0)
        gap = (1 - self._leaks) * high * (-low / (high - low).clamp(min=torch.finfo(low.dtype).tiny))
        cost = torch.where((low < 0) & (high > 0), (-met).clamp(min=0) * gap, -1.0)
        value, where = cost.topk(min(_TRIED, cost.shape[1]), 1)
        best = torch.where(value[:, 0] >= 0, where[:, 0], -1)
        todo = (domains.lower <= 0).nonzero().squeeze(1)
        if len(todo) and value.shape[1] > 1:
            best[todo] = self._tried(domains.pick(todo), value[todo], where[todo])
        return best

    def _tried(self, domains: Domains, value: Tensor, where: Tensor) -> Tensor:
        """The best of some ReLUs `where` (N, k) to split, by a bound of both halves each."""
        n, k = value.shape
        some = domains.pick(torch.arange(n, device=value.device).repeat_interleave(k))
        some = children(replace(some, cuts=where.flatten()))
        parts = [some.pick(part) for part in chunks(len(some), self._at_once)]
        lower = torch.cat([self._finder(part)(part)[0] for part in parts]).reshape(n, k, 2).double()
        worth = lower.clamp(max=0).sum(2) + 1e-3 * lower.amin(2)  # what is closed is no more than closed
        pick = worth.masked_fill(value < 0, -torch.inf).argmax(1, keepdim=True)
        return torch.where(value[:, 0] >= 0, where.gather(1, pick).squeeze(1), -1)
