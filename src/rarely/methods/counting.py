"""A probability by sampling only where bounds leave room for a violation.

Branch and bound leaves boxes, each cut by planes above which its violations must lie. The masses of these parts are
known; let U be their sum. Inputs drawn from the parts alone violate with probability p / U instead of p, so counting
them is plain Monte Carlo that starts from a proved upper bound: unbiased whatever the network does, with an exact
interval, and nothing that a population can lose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.graphs import Graphs
from rarely.bounds.laws import measure_of
from rarely.bounds.measure import UniformMeasure
from rarely.bounds.placing import worthwhile
from rarely.bounds.probability import Cuts, Search
from rarely.bounds.spec import Polytope, polytopes
from rarely.bounds.trace import CHECKED
from rarely.core.batch import Batch
from rarely.core.evidence import COUNTS, Bracket, Evidence, Found, Number, Searched
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.stacking import place
from rarely.core.thresholds import SEARCHED, WEIGHTS_SHARE
from rarely.core.witnesses import FAIR, Witnesses, gather_each, join_witnesses
from rarely.methods.base import Run, progress
from rarely.stats.statistic import Binomial

COUNTING = "counting where bounds leave room"
_SHARE = 0.4  # of the seconds that are left, at most, where there is a limit
_GAP = 1.0  # log U - log p up to which counting is cheaper than more bounds
_RULED_OUT = 0.99  # share of the inputs that bounds must rule out for all this to pay
_GROWN = 64  # boxes that bounds of a problem grow to, about: those of 172 properties on a CPU took 7 s, on an H200 2
_FIRST, _CHUNK = 100, 10_000  # inputs drawn at a time
_TRIES = 2  # candidates at a time for each input, as many in all where fewer wait: one in six lies in its part, or more
_ROUNDS = 100  # of them; who waits any longer has no part


class Parts:
    """Inputs from the parts of boxes above their planes, of several problems."""

    def __init__(self, laws: Sequence[UniformMeasure], cuts: Sequence[Cuts]) -> None:
        self.cuts = Cuts(*(torch.cat([getattr(own, name) for own in cuts]) for name in ("low", "high", "A", "b")))
        _, self.planes, n = self.cuts.A.shape
        counts = [len(own.low) * self.planes for own in cuts]
        self.owner = torch.arange(len(cuts)).repeat_interleave(torch.tensor(counts)).to(self.cuts.b.device)
        self.last = torch.tensor(counts).cumsum(0).to(self.owner.device) - 1
        ends = (torch.stack([getattr(own, k) for own in laws]).to(self.owner.device) for k in ("low", "high"))
        law = UniformMeasure(*(side[self.owner] for side in ends))
        self.low, self.high = (side.repeat_interleave(self.planes, 0) for side in (self.cuts.low, self.cuts.high))
        self.A, self.b = self.cuts.A.reshape(-1, n), self.cuts.b.reshape(-1)
        least, self.mass = (law.above(self.A, self.b, self.low, self.high, upper=side) for side in (False, True))
        self.slack = self._summed(self.mass - least)  # how much of the total is rounding
        self._shrink()
        self.total = self._summed(self.mass)

    def _summed(self, values: Tensor) -> Tensor:
        """Over the parts of each problem, (P,)."""
        return values.new_zeros(len(self.last)).index_add_(0, self.owner, values)

    def _shrink(self) -> None:
        """From each box to the smallest box around its part, of which the part is at least 1 / n!."""
        best = torch.where(self.A > 0, self.high, self.low)
        top = (self.A * best).sum(1) + self.b
        self.mass = torch.where(top >= 0, self.mass, 0.0)
        reach = top.clamp(min=0).unsqueeze(1) / self.A.abs() * (1 + 1e-9)  # inf or NaN where a slope is 0
        self.low = torch.where(self.A > 0, torch.maximum(self.low, self.high - reach), self.low)
        self.high = torch.where(self.A < 0, torch.minimum(self.high, self.low + reach), self.high)

    def draw(self, trials: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        """Inputs (at most sum of trials (P,), n), and whose they are.

        A trial gives one input with density 1 / `total` wherever there is a part, or none: a point in c parts of its
        box would come up c times as often, and is kept with probability 1 / c.
        """
        shares = (self.mass / self.total[self.owner]).nan_to_num(0.0).cumsum(0)
        who = torch.arange(len(trials), device=shares.device).repeat_interleave(trials.to(shares.device))
        first = torch.cat([self.last.new_zeros(1), self.last[:-1] + 1])
        start = torch.where(first > 0, shares[first - 1], 0.0)
        place = start[who] + rng.uniform(who.shape, torch.float64) * (shares[self.last] - start)[who]
        chosen = torch.searchsorted(shares, place, right=True).clamp(first[who], self.last[who])
        pieces = [self._inside(some, rng) for some in torch.split(chosen, _CHUNK)]
        x, kept = (torch.cat(both) for both in zip(*pieces, strict=True))
        box = chosen // self.planes
        above = ((self.cuts.A[box] * x.unsqueeze(1)).sum(2) + self.cuts.b[box] >= 0).sum(1).clamp(min=1)
        kept &= rng.uniform(who.shape, torch.float64) * above < 1
        return x[kept], who[kept]

    def _inside(self, chosen: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        """A point (n,) of each chosen part, and whether there was one: parts that only rounding left have none.

        Candidates v are distances from the best corner, in widths of the box: a . v <= 1 is the part.
        """
        x = torch.empty(len(chosen), self.low.shape[1], dtype=torch.float64, device=chosen.device)
        corner, toward = torch.where(self.A > 0, self.high, self.low), torch.where(self.A > 0, -1.0, 1.0)
        toward = toward * (self.high - self.low)
        fall = (self.A * toward).abs()
        a = (fall / ((self.A * corner).sum(1) + self.b).clamp(min=0).unsqueeze(1)).masked_fill(fall == 0, 0.0)
        parts = corner, toward, a, _steep(a), self.A, self.b.unsqueeze(1)
        waiting = torch.arange(len(chosen), device=chosen.device)
        for _ in range(_ROUNDS):
            if not len(waiting):
                break
            corner, toward, a, steep, A, b = (t[chosen[waiting]].unsqueeze(1) for t in parts)
            tries = _TRIES * len(chosen) // len(waiting)
            u = 1 - rng.uniform((len(waiting), tries, x.shape[1] + 1), torch.float64)
            gaps = -u.log()  # of a Poisson process: as shares of their sum they are uniform in a simplex
            total = (gaps[..., :-1] * steep).sum(2, keepdim=True) + gaps[..., -1:]
            v = torch.where(steep, gaps[..., :-1] / (a * total), u[..., :-1])
            candidates = corner + toward * v
            inside = ((candidates * A).sum(2, keepdim=True) + b >= 0).squeeze(2) & (v <= 1).all(2)
            found = inside.any(1)
            hit = found.nonzero().squeeze(1)
            x[waiting[hit]] = candidates[hit, inside[hit].to(torch.uint8).argmax(1)]
            waiting = waiting[~found]
        return x, torch.ones_like(chosen, dtype=torch.bool).index_fill_(0, waiting, False)


def _steep(a: Tensor) -> Tensor:
    """Of each {v in the unit cube: a . v <= 1}, a (K, n) <= 1, the coordinates of the smallest prism around it.

    A prism is the simplex a . v <= 1 in k coordinates, of volume 1 / (k! prod a), and all of the others. Up to eight
    coordinates at least 0.17 of it is in the cube and under the plane: the least is met where a is 1, 1/2, ..., 1/8.
    """
    size, order = a.sort(dim=1, descending=True)
    rank = torch.arange(1, a.shape[1] + 1, device=a.device)
    volume = torch.cat([torch.zeros_like(a[:, :1]), -(size * rank).log().cumsum(1)], 1)
    return torch.zeros_like(a, dtype=torch.bool).scatter(1, order, rank <= volume.argmin(1, keepdim=True))


def _readable(problem: Problem) -> tuple[UniformMeasure, list[Polytope]]:
    """A problem that can be counted, or Unprovable."""
    law = measure_of(problem.inputs)
    if not isinstance(law, UniformMeasure) or law.low.numel() > SEARCHED:
        raise Unprovable("bounds count only in few dimensions and for uniform inputs")
    return law, polytopes(problem.property, problem.outputs)


@dataclass(frozen=True)
class Counting:
    """Bounds for `seconds`, or `boxes`, then counting in what they leave: up to eight uniform inputs, a torch module.

    Says nothing for other inputs, for networks that cannot be bounded, and where a violation cannot be ruled out almost
    everywhere.
    """

    seconds: float = 10.0
    boxes: int | None = None
    target_error: float = 0.1
    calls: int = 500_000  # at most, for counting

    @property
    def at_once(self) -> int:
        return _CHUNK

    def forecast(self, log_prob: float) -> float:
        return _CHUNK

    def run(self, batch: Batch, rng: Rng) -> Run:
        found: list[list[Evidence]] = [[] for _ in range(len(batch))]
        groups: dict[tuple[object, ...], list[int]] = {}
        questions: dict[int, tuple[UniformMeasure, list[Polytope]]] = {}
        graphs = Graphs()
        for row, number in enumerate(batch.rows.tolist()):
            problem = batch.problems[number]
            try:
                questions[row] = _readable(problem)
            except Unprovable as reason:
                found[row] = [Searched(COUNTING, str(reason))]
                continue
            law, outputs = questions[row]
            groups.setdefault((id(problem.network), law.shape, tuple(A.shape for A, _ in outputs)), []).append(row)
        begun = time.monotonic()
        for number, rows in enumerate(groups.values()):
            left = (self.seconds - (time.monotonic() - begun)) / (len(groups) - number)
            seconds = min(left, _SHARE * batch.spend.left_seconds)
            part, some = batch.take(torch.tensor(rows)), [questions[row] for row in rows]
            learnt = self._group(part, some, graphs, seconds, rng)
            for row, own in zip(rows, learnt, strict=True):
                found[row] = own
            yield progress("counting", batch, [0.0] * len(batch), len(groups) - number - 1)
        return found

    def _group(
        self,
        part: Batch,
        questions: Sequence[tuple[UniformMeasure, list[Polytope]]],
        graphs: Graphs,
        seconds: float,
        rng: Rng,
    ) -> list[list[Evidence]]:
        """Bounds for all of them at once, then a count for each."""
        laws, outputs = zip(*questions, strict=True)
        problem = part.problems[int(part.rows[0])]
        try:
            module = graphs.module(problem)
            part.spend.charge(part.rows[:1], CHECKED)
            with problem.adapted.evaluating():
                graph = graphs.of(module, laws[0].shape)
        except (Unprovable, Exhausted) as reason:
            broke = isinstance(reason, Exhausted)
            return [[Searched(COUNTING, str(reason) or "the budget is spent", broke=broke)]] * len(part)
        stacked = [tuple(torch.stack([own[p][k] for own in outputs]) for k in (0, 1)) for p in range(len(outputs[0]))]
        here = worthwhile(part.device, graph, _GROWN * len(part))
        bounds_of = [(A, b) for A, b in stacked]
        search = Search(laws, bounds_of, graphs.on(here, graph), planes=True, device=here)
        *_, last = search.tighten(seconds, _GAP, self.boxes)
        learnt: list[list[Evidence]] = []
        for row, bounds in enumerate(last):
            proof = f"bounds over {bounds.boxes:,} boxes"
            calls = 0 if row else CHECKED  # of the network, to compare the graph with it
            learnt.append([Bracket(bounds.log_lower, bounds.log_upper, proof, bounds.boxes, calls)])
        rows = [row for row, bounds in enumerate(last) if math.log1p(-_RULED_OUT) > bounds.log_upper > -math.inf]
        cuts = [place(own, part.device, torch.float64) for own in search.cuts()]
        rows = [row for row in rows if len(cuts[row].low)]
        if rows:
            parts = Parts([laws[row].flat() for row in rows], [cuts[row] for row in rows])
            counted = self._counted(part.take(torch.tensor(rows)), parts, laws[0].shape, rng)
            for row, own in zip(rows, counted, strict=True):
                learnt[row] += own
        return learnt

    def _counted(self, part: Batch, parts: Parts, shape: tuple[int, ...], rng: Rng) -> list[list[Evidence]]:
        enough = math.ceil(1 / (WEIGHTS_SHARE * self.target_error) ** 2)
        counts, own = [_Count(total) for total in parts.total.tolist()], Rng(rng.seed(), part.device)
        with suppress(Exhausted):  # a round that is not paid for to the end says nothing
            while any(wanted := self._wanted(part, counts, enough)):
                x, who = parts.draw(torch.tensor(wanted), own)
                x = x.reshape(-1, 1, *shape).to(part.dtype)
                scores = [torch.zeros(0, dtype=part.dtype, device=part.device)]
                for start in range(0, len(who), _CHUNK):
                    some = slice(start, start + _CHUNK)
                    scores.append(part.take(who[some]).score(x[some]).squeeze(1))
                    for k, n in enumerate(torch.bincount(who[some], minlength=len(counts)).tolist()):
                        counts[k].spent += n
                every = torch.cat(scores)
                hits = torch.bincount(who[every >= 0], minlength=len(counts)).tolist()
                found = gather_each(x.squeeze(1), every, who, len(counts))
                for count, *seen in zip(counts, wanted, hits, found, strict=True):
                    count.add(*seen)
        return [count.evidence(slack) for count, slack in zip(counts, parts.slack.tolist(), strict=True)]

    def _wanted(self, part: Batch, counts: Sequence[_Count], enough: int) -> list[int]:
        """Trials of each problem: a few, then as many as the share of hits among them asks for."""
        wanted = []
        for count, paid in zip(counts, part.left_each(), strict=True):
            more = _FIRST
            if count.trials:
                more = math.ceil(1.1 * (enough - count.hits) * count.trials / (count.hits or 1))
            left = min(self.calls - count.spent, paid)
            wanted.append(int(max(0, min(more, _CHUNK, left))) if count.hits < enough and count.total else 0)
        return wanted


@dataclass
class _Count:
    """The count of one problem in what bounds leave of it."""

    total: float  # mass of what they leave
    trials: int = 0
    spent: int = 0
    hits: int = 0
    witnesses: list[Witnesses] = field(default_factory=list)

    def add(self, trials: int, hits: int, witnesses: Witnesses) -> None:
        self.trials, self.hits = self.trials + trials, self.hits + hits
        self.witnesses.append(witnesses)

    def evidence(self, slack: float) -> list[Evidence]:
        if not self.total:
            return []
        if not self.hits:
            return [Searched(COUNTING, f"no violation among {self.spent:,} inputs where bounds leave room", self.spent)]
        statistic = Binomial(self.hits, self.trials, math.log(self.total), slack)
        note = f"{self.hits:,} of {self.trials:,} inputs drawn where bounds leave room violate"
        number = Number(COUNTING, COUNTS, statistic, self.spent, note=note)
        return [number, Found(COUNTING, join_witnesses(self.witnesses), drawn=FAIR)]
