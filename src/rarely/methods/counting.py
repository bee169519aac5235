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
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.measure import UniformMeasure
from rarely.bounds.probability import Cuts, Search
from rarely.bounds.problems import measurable
from rarely.bounds.spec import Polytope
from rarely.bounds.trace import CHECKED, build
from rarely.core.batch import Batch
from rarely.core.evidence import (
    COUNTS,
    Bracket,
    Evidence,
    Found,
    Number,
    Searched,
    Witnesses,
    gather_witnesses,
    join_witnesses,
)
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import COUNTED_SHARE, SEARCHED
from rarely.methods.base import Run, progress
from rarely.stats.statistic import Binomial

COUNTING = "counting where bounds leave room"
_SHARE = 0.4  # of the seconds that are left, at most, where there is a limit
_GAP = 1.0  # log U - log p up to which counting is cheaper than more bounds
_RULED_OUT = 0.99  # share of the inputs that bounds must rule out for all this to pay
_FIRST, _CHUNK = 100, 10_000  # inputs drawn at a time
_TRIES = 64  # candidates drawn at a time for each input
_ROUNDS = 40_000  # of them: 60 times what the smallest part of a box with eight sides, 1 / 8! of it, needs


class Parts:
    """Inputs from the parts of boxes above their planes."""

    def __init__(self, law: UniformMeasure, cuts: Cuts) -> None:
        _, planes, n = cuts.A.shape
        self.cuts, self.planes = cuts, planes
        self.low, self.high = (side.repeat_interleave(planes, 0) for side in (cuts.low, cuts.high))
        self.A, self.b = cuts.A.reshape(-1, n), cuts.b.reshape(-1)
        least, self.mass = law.above(self.A, self.b, self.low, self.high)
        self.slack = float((self.mass - least).sum())  # how much of the total is rounding
        self._shrink()
        self.total = float(self.mass.sum())

    def _shrink(self) -> None:
        """From each box to the smallest box around its part, of which the part is at least 1 / n!."""
        best = torch.where(self.A > 0, self.high, self.low)
        top = (self.A * best).sum(1) + self.b
        self.mass = torch.where(top >= 0, self.mass, 0.0)
        reach = top.clamp(min=0).unsqueeze(1) / self.A.abs() * (1 + 1e-9)  # inf or NaN where a slope is 0
        self.low = torch.where(self.A > 0, torch.maximum(self.low, self.high - reach), self.low)
        self.high = torch.where(self.A < 0, torch.minimum(self.high, self.low + reach), self.high)

    def draw(self, trials: int, rng: Rng) -> Tensor:
        """Inputs (at most `trials`, n): a trial gives one with density 1 / `total` wherever there is a part, or none.

        A point in c parts of its box would come up c times as often, and is kept with probability 1 / c.
        """
        shares = self.mass.cumsum(0)
        chosen = torch.searchsorted(shares, rng.uniform((trials,), torch.float64) * shares[-1], right=True)
        chosen = chosen.clamp(max=len(shares) - 1)
        x = torch.empty(trials, self.low.shape[1], dtype=torch.float64)
        waiting = torch.arange(trials)
        for _ in range(_ROUNDS):
            if not len(waiting):
                break
            part = chosen[waiting]
            low, high, A, b = (t[part].unsqueeze(1) for t in (self.low, self.high, self.A, self.b))
            u = rng.uniform((len(waiting), _TRIES, x.shape[1]), torch.float64)
            candidates = low + u * (high - low)
            inside = (candidates * A).sum(2) + b >= 0
            found, first = inside.any(1), inside.to(torch.uint8).argmax(1)
            x[waiting[found]] = candidates[found, first[found]]
            waiting = waiting[~found]
        x, chosen = _without(waiting, x, chosen)  # parts that only rounding left: no input lies in them
        box = chosen // self.planes
        above = ((self.cuts.A[box] * x.unsqueeze(1)).sum(2) + self.cuts.b[box] >= 0).sum(1).clamp(min=1)
        return x[rng.uniform((len(x),), torch.float64) * above < 1]


def _without(rows: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    keep = torch.ones(len(values[0]), dtype=torch.bool)
    keep[rows] = False
    return tuple(value[keep] for value in values)


def _readable(problem: Problem) -> tuple[UniformMeasure, nn.Module, list[Polytope]]:
    """A problem that can be counted, or Unprovable."""
    law, module, outputs = measurable(problem)
    if not isinstance(law, UniformMeasure) or law.low.numel() > SEARCHED:
        raise Unprovable("bounds count only in few dimensions and for uniform inputs")
    return law, module, outputs


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
        questions: dict[int, tuple[UniformMeasure, nn.Module, list[Polytope]]] = {}
        for row, number in enumerate(batch.rows.tolist()):
            try:
                questions[row] = _readable(batch.problems[number])
            except Unprovable as reason:
                found[row] = [Searched(COUNTING, str(reason))]
                continue
            law, module, outputs = questions[row]
            groups.setdefault((module, law.shape, tuple(A.shape for A, _ in outputs)), []).append(row)
        begun = time.monotonic()
        for number, rows in enumerate(groups.values()):
            left = (self.seconds - (time.monotonic() - begun)) / (len(groups) - number)
            seconds = min(left, _SHARE * batch.spend.left_seconds)
            learnt = self._group(batch.take(torch.tensor(rows)), [questions[row] for row in rows], seconds, rng)
            for row, own in zip(rows, learnt, strict=True):
                found[row] = own
            yield progress("counting", batch, [0.0] * len(batch), len(groups) - number - 1)
        return found

    def _group(
        self,
        part: Batch,
        questions: Sequence[tuple[UniformMeasure, nn.Module, list[Polytope]]],
        seconds: float,
        rng: Rng,
    ) -> list[list[Evidence]]:
        """Bounds for all of them at once, then a count for each."""
        laws, (module, *_), outputs = zip(*questions, strict=True)
        try:
            part.spend.charge(part.rows[:1], CHECKED)
            with part.network.evaluating():
                graph = build(module, laws[0].shape)
        except (Unprovable, Exhausted) as reason:
            broke = isinstance(reason, Exhausted)
            return [[Searched(COUNTING, str(reason) or "the budget is spent", broke=broke)]] * len(part)
        stacked = [tuple(torch.stack([own[p][k] for own in outputs]) for k in (0, 1)) for p in range(len(outputs[0]))]
        search = Search(laws, [(A, b) for A, b in stacked], graph, planes=True)
        *_, last = search.tighten(seconds, _GAP, self.boxes)
        learnt = []
        for row, bounds in enumerate(last):
            proof = f"bounds over {bounds.boxes:,} boxes"
            calls = 0 if row else CHECKED  # of the network, to compare the graph with it
            own: list[Evidence] = [Bracket(bounds.log_lower, bounds.log_upper, proof, bounds.boxes, calls)]
            if math.log1p(-_RULED_OUT) > bounds.log_upper > -math.inf:
                parts = Parts(laws[row].flat(), search.cuts(row))
                if parts.total:
                    own += self._counted(part.take(torch.tensor([row])), parts, laws[row].shape, rng)
            learnt.append(own)
        return learnt

    def _counted(self, part: Batch, parts: Parts, shape: tuple[int, ...], rng: Rng) -> list[Evidence]:
        enough = math.ceil(1 / (COUNTED_SHARE * self.target_error) ** 2)
        trials = hits = spent = 0
        found: list[Witnesses] = []
        own = Rng(rng.seed())
        with suppress(Exhausted):
            while hits < enough and spent < self.calls:
                more = _FIRST if not trials else math.ceil(1.1 * (enough - hits) * trials / max(hits, 1))
                n = min(more, _CHUNK, self.calls - spent)
                x = parts.draw(n, own).reshape(1, -1, *shape).to(part.device, part.dtype)
                scores = part.score(x)[0]
                trials, spent, hits = trials + n, spent + len(scores), hits + int((scores >= 0).sum())
                found.append(gather_witnesses(x[0], scores))
        if not hits:
            return [Searched(COUNTING, f"no violation among {spent:,} inputs where bounds leave room", spent)]
        statistic = Binomial(hits, trials, math.log(parts.total), parts.slack)
        note = f"{hits:,} of {trials:,} inputs drawn where bounds leave room violate"
        return [Number(COUNTING, COUNTS, statistic, spent, note=note), Found(COUNTING, join_witnesses(found))]
