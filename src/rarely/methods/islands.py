"""From the islands of one problem to its estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rarely.core.problem import Batch
from rarely.methods.base import MAX_WITNESSES, Budget, make_estimate
from rarely.questions.result import Estimate, Outcome, Witnesses
from rarely.stats.intervals import (
    clopper_pearson,
    log_upper_bound,
    mean_upper_bound,
    normal_quantile,
    replicate_interval,
)

_POOR_MIXING = 0.8  # correlation of scores before and after the moves of a level
_FEW = 0.75  # share of islands that must arrive for their mean to be believed


@dataclass
class Island:
    """The history of one population."""

    log_prob: float = 0.0
    levels: list[float] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)
    correlation: list[float] = field(default_factory=list)
    variance: list[float] = field(default_factory=list)  # (1 - P) / (P N) of each level
    clones: list[float] = field(default_factory=list)  # particles per survivor
    ended: Literal["violated", "floor", "stalled", "budget"] | None = None
    witnesses: Witnesses | None = None
    survivors: Tensor | None = None  # (n, d) positions of violating particles at the end
    waiting: int = 0
    drawn: int = 0  # independent draws from p(x) that it started from
    hits: int = 0  # violations among them
    steps: int = 0

    def climb(self, level: float, log_increment: float, survivors: int, n: int) -> None:
        self.levels.append(level)
        # Rounds without progress sampled the same conditional law: the fraction is over all of them.
        self._add(log_increment - math.log1p(self.waiting), survivors, n * (1 + self.waiting))
        self.waiting = 0

    def wait(self, patience: int) -> None:
        self.waiting += 1
        if self.waiting >= patience:
            self.ended = "stalled"

    def finish(self, log_increment: float, hits: int, n: int, survivors: Tensor, witnesses: Witnesses) -> None:
        self.levels.append(0.0)
        self.survivors = survivors
        self._add(log_increment - math.log1p(self.waiting), hits, n * (1 + self.waiting))
        self.ended, self.witnesses = "violated", witnesses

    def _add(self, log_increment: float, survivors: int, n: int) -> None:
        self.log_prob += log_increment
        fraction = survivors / n
        self.variance.append((1 - fraction) / (fraction * n))
        self.clones.append(1 / fraction)

    def moved(self, acceptance: float, correlation: float, steps: int) -> None:
        self.acceptance.append(acceptance)
        self.correlation.append(correlation)
        self.steps += steps

    def single_run_std(self) -> float:
        """Standard deviation of log p from one population, through the correlation that its moves left.

        Clones of one survivor keep the squared correlation r^2 of their scores with it, which inflates the variance
        of the next fraction by 1 + (clones - 1) r^2 (Au and Beck 2001, eq. 29, for full moves); levels i and j share
        r^|i-j| of their errors.
        """
        r = [0.0, *(max(0.0, c) for c in self.correlation)]
        m = [1.0, *self.clones]
        sd = [math.sqrt(v * (1 + (m[k] - 1) * r[k] ** 2)) for k, v in enumerate(self.variance)]
        total = sum(s * s for s in sd)
        for i in range(len(sd)):
            shared = 1.0
            for j in range(i + 1, len(sd)):
                shared *= r[j]
                total += 2 * sd[i] * sd[j] * shared
        return math.sqrt(total)


def combine(batch: Batch, row: int, islands: Sequence[Island], confidence: float, budget: Budget) -> Estimate:
    """Average the islands. Their mean is unbiased when every island is, whatever the correlation inside them."""
    arrived = [island for island in islands if island.ended == "violated"]
    first = (arrived or islands)[0]
    poor = _poor_mixing(islands)
    notes = (poor,) if poor else ()
    if not arrived:
        return _nothing_found(batch, row, islands, confidence, budget, notes)
    log_prob, std, low, high, upper = _interval(islands, confidence)
    if len(arrived) < len(islands):
        notes = (*notes, f"{len(islands) - len(arrived)} of {len(islands)} islands found no violation")
    few = len(arrived) < _FEW * len(islands)
    if few:  # what most islands lost they cannot bound: the first draws can
        bound = _first_draws(islands, confidence)
        high, upper = max(high, bound), max(upper, bound)
    trusted = not few and not poor
    return make_estimate(
        batch, row, budget, confidence, Outcome.VIOLATED if trusted else Outcome.STALLED,
        log_prob, std, low, high, upper, _merge(arrived), tuple(first.levels), tuple(first.acceptance), notes,
    )  # fmt: skip


def _interval(islands: Sequence[Island], confidence: float) -> tuple[float, float, float, float, float]:
    if all(island.levels == [0.0] for island in islands):  # the first, independent draws answered: this is Monte Carlo
        trials, hits = _drawn(islands)
        low, high = clopper_pearson(hits, trials, confidence)
        std = math.sqrt((1 - hits / trials) / hits)
        return math.log(hits / trials), std, low, high, log_upper_bound(hits, trials, confidence)
    if len(islands) == 1:
        log_prob, std = islands[0].log_prob, islands[0].single_run_std()
        z, one = normal_quantile(0.5 + 0.5 * confidence), normal_quantile(confidence)
        return log_prob, std, log_prob - z * std, min(0.0, log_prob + z * std), min(0.0, log_prob + one * std)
    values = [island.log_prob if island.ended == "violated" else -math.inf for island in islands]
    log_prob, std, low, high = replicate_interval(values, confidence)
    return log_prob, std, low, high, replicate_interval(values, 2 * confidence - 1)[3]


def _nothing_found(
    batch: Batch, row: int, islands: Sequence[Island], confidence: float, budget: Budget, notes: tuple[str, ...]
) -> Estimate:
    """No island saw a violation: P(score > last level) bounds p from above, and islands estimate that without bias."""
    values, first = [island.log_prob for island in islands], _first_draws(islands, confidence)
    if not any(values):
        upper = first
    elif len(values) > 1:
        upper = mean_upper_bound(values, confidence)
    else:
        upper = min(0.0, values[0] + normal_quantile(confidence) * islands[0].single_run_std())
    endings = {island.ended for island in islands}
    if "budget" in endings:
        outcome = Outcome.OUT_OF_BUDGET
    elif "stalled" in endings:
        # The islands climbed a hill that ends below 0. Had they all lost the way to another one, the share that they
        # see above their last level would say nothing about it: only the first draws bound p.
        outcome = Outcome.STALLED
        note = f"the levels stopped rising below 0, where log p = {upper:.1f} is left at most by what the islands saw"
        upper, notes = max(upper, first), (*notes, note)
    else:
        outcome = Outcome.BELOW_FLOOR
    return make_estimate(
        batch, row, budget, confidence, outcome, -math.inf, math.inf, -math.inf, upper, upper,
        levels=tuple(islands[0].levels), acceptance=tuple(islands[0].acceptance), notes=notes,
    )  # fmt: skip


def _first_draws(islands: Sequence[Island], confidence: float) -> float:
    """The bound that the first, independent draws give."""
    drawn, hits = _drawn(islands)
    return log_upper_bound(hits, drawn, confidence) if drawn else 0.0


def _drawn(islands: Sequence[Island]) -> tuple[int, int]:
    """The first, independent draws of all islands, and the violations among them."""
    return sum(island.drawn for island in islands), sum(island.hits for island in islands)


def _poor_mixing(islands: Sequence[Island]) -> str:
    """A sentence when populations hardly moved in most levels: then islands may agree and still be wrong together."""
    kept = [c for island in islands for c in island.correlation]
    poor = sum(c > _POOR_MIXING for c in kept)
    if kept and poor > 0.5 * len(kept):
        return f"poor mixing: scores stay correlated in {poor} of {len(kept)} level moves; use more steps"
    return ""


def _merge(islands: Sequence[Island]) -> Witnesses:
    found = [island.witnesses for island in islands if island.witnesses is not None and len(island.witnesses)]
    each = max(1, MAX_WITNESSES // max(1, len(found)))
    return Witnesses(torch.cat([w.inputs[:each] for w in found]), torch.cat([w.scores[:each] for w in found]))
