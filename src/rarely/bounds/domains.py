"""Sub-problems of branch and bound on the signs of ReLU inputs, and how they are bounded.

A domain fixes some signs. They enter the final bound as Lagrange multipliers (beta-CROWN, Wang et al. 2021); slopes,
multipliers and row weights start from the parent's and climb in float32, and what they reach is evaluated in float64.
Bounds on the ReLU inputs are those of the root. In a small network they are recomputed with the signs, with the slopes
optimised at the root, and intersected with the parent's, which costs more for each domain and takes fewer of them.

Where to split. A ReLU i costs the final bound gap_i times the negative part of its coefficient lambda_i, which is
what takes the chord. By widening the range of a later ReLU k it also costs |lambda_k| (gap_k / range_k) gap_i times
the negative parts of its coefficients in the two bounds of k: the rule of `inputsplit`, one level up. Without the
second term the early neurons, on which everything hangs, look harmless. Of the few that promise most, both halves of
each are bounded once, without any ascent, and the best halves win (filtered smart branching, De Palma et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.backward import LinearBound, Propagated, backward
from rarely.bounds.crown import signed_rows
from rarely.bounds.graph import Graph, joined, parted
from rarely.bounds.operators import Interval
from rarely.bounds.region import BoxRegion, Region, repeated
from rarely.bounds.single import rough
from rarely.bounds.slopes import Freedom, climb, first_slopes, weighted
from rarely.bounds.spec import Spec

Met = dict[int, tuple[Tensor, dict[int, Tensor]]]  # ReLU -> entries, coefficients met while its bounds were recomputed
_TRIED = 4  # ReLUs whose halves are bounded before one is chosen
_RATE = 0.1


@dataclass(frozen=True)
class Domains:
    """N sub-problems; U counts the ReLUs of the network that are unsettled at the root."""

    signs: Tensor  # (N, U) in {-1, 0, 1}
    low: Tensor  # (N, U) bounds on the ReLU inputs, the signs included
    high: Tensor
    slopes: Tensor  # (N, U)
    multipliers: Tensor  # (N, U)
    logits: Tensor  # (N, m)
    polytope: Tensor  # (N,)
    lower: Tensor  # (N,) proven lower bound on the weighted rows
    real: Tensor  # (N,) the same in real arithmetic
    cuts: Tensor  # (N,) the ReLU to split next, -1 when none is left

    def pick(self, index: Tensor | slice) -> Domains:
        return Domains(*(getattr(self, f.name)[index] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def empty(self) -> Tensor:
        """Contradictory bounds mean that no input has these signs."""
        return (self.low > self.high).any(1)


@dataclass(frozen=True)
class Root:
    """One problem: its bounds before any split."""

    state: Propagated  # batch 1
    spec: Spec  # batch 1
    single: Graph | None = None  # the graph in float32

    @property
    def graph(self) -> Graph:
        return self.state.graph

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
            torch.zeros(count, self.spec.C.shape[1], dtype=slopes.dtype, device=device),
            torch.arange(count, device=device),
            *(torch.full((count,), -torch.inf, dtype=slopes.dtype, device=device),) * 2,
            torch.full((count,), -1, device=device),
        )

    def _state(self, domains: Domains) -> Propagated:
        """These domains with the root's bounds and their signs."""
        lows, highs = self.spread(domains.low, self._ends[0]), self.spread(domains.high, self._ends[1])
        lines = {i: op.relax((lows[i], highs[i])) for i, op in self.graph.relus.items()}
        region = repeated(self.state.region, len(domains))
        return replace(self.state, region=region, relaxations={**self.state.relaxations, **lines}, lines={}, slopes={})

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

    def _gaps(self, domains: Domains) -> Tensor:
        lows, highs = self.spread(domains.low, self._ends[0]), self.spread(domains.high, self._ends[1])
        return self.gathered({i: op.gap((lows[i], highs[i])) for i, op in self.graph.relus.items()})

    @torch.no_grad()
    def _renewed(self, domains: Domains) -> tuple[Domains, Met]:
        """Bounds on ReLU inputs recomputed; also the coefficients met on the way, for branching."""
        graph, met = self.graph, {}
        state = replace(self._state(domains), relaxations=dict(self.state.relaxations))
        lows, highs = self.spread(domains.low, self._ends[0]), self.spread(domains.high, self._ends[1])
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
            state.relaxations[i] = op.relax((lows[i], highs[i]))
        return replace(domains, low=self.gathered(lows), high=self.gathered(highs)), met

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
        member = (self.spec.owner == domains.polytope.unsqueeze(1)).unsqueeze(1)
        signs = self.spread(domains.signs)
        return weighted(state, self.spec.C.to(dtype), self.spec.d.to(dtype), member, free, signs, seen, real)

    @cached_property
    def _first_slopes(self) -> Tensor:
        start = first_slopes(self.state, self.graph.output + 1, 1)
        return joined({i: a.squeeze(1) for i, a in start.items()}, self.graph.relus, self.state.region.low)

    def _climbed(self, state: Propagated, domains: Domains, steps: int) -> Domains:
        dtype = state.region.low.dtype
        slopes, multipliers, logits = (
            t.detach().to(dtype).clone().requires_grad_() for t in (domains.slopes, domains.multipliers, domains.logits)
        )
        shared = bool((self.spec.member.sum(-1) > 1).any())  # a row alone has all the weight, whatever its logit
        logits.requires_grad_(shared)
        free = replace(domains, slopes=slopes, multipliers=multipliers, logits=logits)
        groups = [
            ([slopes], _RATE, (0.0, 1.0)),
            ([multipliers], _RATE / 2, (0.0, torch.inf)),
            ([logits], 4 * _RATE, (-torch.inf, torch.inf)),
        ]
        _, kept = climb(lambda last: self._bound(state, free), groups, steps)
        slopes, multipliers, logits = (t.to(domains.low.dtype) for t in kept)
        return replace(domains, slopes=slopes, multipliers=multipliers, logits=logits)

    def improved(self, domains: Domains, steps: int) -> tuple[Domains, Tensor]:
        """The domains with better bounds, multipliers and slopes, and with the neuron to split next.

        Also where their linear bounds are least, (N, *event).
        """
        domains, met = self._renewed(domains) if self.state.slopes else (domains, {})
        quick = self._quick(domains)
        domains = self._climbed(quick, domains, steps)
        seen: dict[int, Tensor] = {}
        with torch.no_grad():
            found = self._bound(quick, domains, seen, real=self.single is None)
            domains = self._proved(domains, found)
            domains = replace(domains, cuts=self._cuts(domains, seen, met))
            points = repeated(self.state.region, len(domains)).minimiser(found.A)
        return domains, points.reshape(len(domains), *self.graph.input_shape)

    def _proved(self, domains: Domains, found: LinearBound) -> Domains:
        """With the bounds that are proved. What is found in float32 is only a hint which domains can be closed."""
        lower, real = domains.lower.clone(), domains.real.clone()
        some = ((found.lower.squeeze(1) > 0) | (lower == -torch.inf)).nonzero().squeeze(1)
        if len(some):
            if self.single is not None:
                part = domains.pick(some)
                found = self._bound(self._state(part), part, real=True)
            else:
                found = LinearBound(*(getattr(found, f.name)[some] for f in fields(found)))
            lower[some] = torch.fmax(lower[some], found.lower.squeeze(1))
            real[some] = torch.fmax(real[some], found.real.squeeze(1))
        lower, real = (t.masked_fill(domains.empty, torch.inf) for t in (lower, real))
        return replace(domains, lower=lower, real=real)

    def _cuts(self, domains: Domains, seen: dict[int, Tensor], met: Met) -> Tensor:
        """The ReLU to split next of those that are open still, and -1 where nothing is left to split.

        Where bounds on ReLU inputs are recomputed none are tried: with those bounds as they are that misjudges the
        early neurons, and with new ones it halves the tree of mnistfc at five times the cost of each domain.
        """
        score = self._scores(domains, seen, met)
        if not score.shape[1]:
            return torch.full_like(domains.cuts, -1)
        value, where = score.topk(1 if met else min(_TRIED, score.shape[1]), 1)
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
        lower = self._bound(self._quick(some), some).lower.reshape(n, k, 2).double()
        worth = lower.clamp(max=0).sum(2) + 1e-3 * lower.amin(2)  # what is closed is no more than closed
        pick = worth.masked_fill(value < 0, -torch.inf).argmax(1, keepdim=True)
        return torch.where(value[:, 0] >= 0, where.gather(1, pick).squeeze(1), -1)

    def _scores(self, domains: Domains, seen: dict[int, Tensor], met: Met) -> Tensor:
        n = len(domains)
        lows, highs = self.spread(domains.low, self._ends[0]), self.spread(domains.high, self._ends[1])
        size = {i: seen[i].squeeze(1).abs().expand(n, *seen[i].shape[2:]).flatten(1) for i in self.graph.relus}
        total = {i: (-seen[i].squeeze(1)).clamp(min=0).expand(n, *seen[i].shape[2:]).flatten(1) for i in size}
        for k, (cols, coefficients) in met.items():
            loss = self.graph.relus[k].influence((lows[k], highs[k]), size[k].reshape(lows[k].shape))
            weight = loss.flatten(1)[:, cols]
            for i, a in coefficients.items():
                if i in total:
                    both = (-a.flatten(2)).clamp(min=0).reshape(a.shape[0], 2, len(cols), -1).sum(1)
                    total[i] = total[i] + torch.einsum("bk,bki->bi", weight, both.expand(n, -1, -1))
        open_ = (domains.low < 0) & (domains.high > 0)
        return torch.where(open_, self.gathered(total) * self._gaps(domains), -1.0)


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


def children(domains: Domains) -> Domains:
    """Both halves of each domain side by side."""
    twice = domains.pick(torch.arange(len(domains), device=domains.cuts.device).repeat_interleave(2))
    signs, low, high = halved(twice.signs, twice.low, twice.high, twice.cuts, twice.cuts)
    return replace(twice, signs=signs, low=low, high=high)
