"""A probability by sampling only where bounds leave room for a violation.

Branch and bound leaves boxes, each cut by planes above which its violations must lie. The masses of these parts are
known; let U be their sum. Inputs drawn from the parts alone violate with probability p / U instead of p, so counting
them is plain Monte Carlo that starts from a proved upper bound: unbiased whatever the network does, with an exact
interval, and nothing that a population can lose.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.measure import UniformMeasure
from rarely.bounds.probability import Cuts, ProbabilityBounds, Search
from rarely.bounds.problems import SEARCHED, measurable
from rarely.bounds.trace import build
from rarely.bounds.volume import log_or_ninf
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.methods.base import gather_witnesses, join_witnesses
from rarely.questions.result import Estimate, Interval, MethodReport, Outcome, Witnesses
from rarely.stats.intervals import clopper_pearson, log_upper_bound

_GAP = 3.0  # log U - log p from which counting is cheaper than more bounds
_RULED_OUT = 0.99  # share of the inputs that bounds must rule out for all this to pay
_CALLS = 500_000  # at most, for counting
_CHUNK = 10_000
_TRIES = 64  # candidates drawn at a time for each input
_ROUNDS = 40_000  # of them: 60 times what the smallest part of a box with eight sides, 1 / 8! of it, needs
_HITS = 20  # fewer violations make no number


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


def sample_open(
    problem: Problem, old: Estimate, seconds: float, boxes: int | None, target_error: float, calls: float, rng: Rng
) -> Estimate:
    """Another answer for a problem that sampling did not answer well: bounds for `seconds`, or `boxes`, then counting.

    The old answer comes back where bounds say too little: in many dimensions, for inputs that are not uniform in a
    box, for networks that cannot be bounded, and where a violation cannot be ruled out almost everywhere.
    """
    if calls < _CHUNK or not seconds:
        return old
    try:
        law, module, outputs = measurable(problem)
        if not isinstance(law, UniformMeasure) or law.low.numel() > SEARCHED:
            return old
        search = Search(law, outputs, build(module, law.shape), planes=True)
    except Unprovable:
        return old
    with problem.adapted.evaluating():
        *_, bounds = search.tighten(seconds, _GAP, boxes)
    if not math.log1p(-_RULED_OUT) > bounds.log_upper > -math.inf:
        return old
    parts = Parts(law.flat(), search.cuts())
    if not parts.total:
        return old
    enough = math.ceil(1 / (0.75 * target_error) ** 2)
    trials = hits = spent = 0
    found: list[Witnesses] = []
    while hits < enough and spent + _CHUNK <= min(calls, _CALLS):
        x = parts.draw(_CHUNK, rng).reshape(-1, *law.shape).to(problem.adapted.dtype)
        scores = problem.score(x)
        trials, spent, hits = trials + _CHUNK, spent + len(x), hits + int((scores >= 0).sum())
        found.append(gather_witnesses(x, scores))
    return _answer(old, bounds, parts, hits, trials, spent, found)


def _answer(
    old: Estimate, bounds: ProbabilityBounds, parts: Parts, hits: int, trials: int, spent: int, found: list[Witnesses]
) -> Estimate:
    room, confidence = math.log(parts.total), old.interval.confidence
    upper = min(bounds.log_upper, room + log_upper_bound(hits, trials, confidence))
    log_prob = room + math.log(hits / trials) if hits else -math.inf
    std = math.sqrt((1 - hits / trials) / hits) if hits else math.inf
    report = MethodReport("counting where bounds leave room", log_prob, std, spent, "" if hits >= _HITS else "few hits")
    old = replace(old, evaluations=old.evaluations + spent, methods=(*old.methods, report))
    if hits < _HITS:
        # The proof alone: the smaller of two bounds of 95 % would be one of 90 %.
        return replace(old, upper_bound=min(old.upper_bound, bounds.log_upper))
    low, high = (room + end for end in clopper_pearson(hits, trials, confidence))
    low = log_or_ninf(max(math.exp(low) - parts.slack, math.exp(bounds.log_lower)))
    proof = (
        f"bounds over {bounds.boxes:,} boxes prove {math.exp(bounds.log_lower):.2g} <= p <= "
        f"{math.exp(bounds.log_upper):.2g}; {hits:,} of {trials:,} inputs drawn where they leave room violate"
    )
    return replace(
        old, outcome=Outcome.VIOLATED, log_prob=log_prob, log_prob_std=std, upper_bound=upper,
        interval=Interval(confidence, low, min(high, bounds.log_upper)), witnesses=join_witnesses(found),
        notes=(proof,),
    )  # fmt: skip
