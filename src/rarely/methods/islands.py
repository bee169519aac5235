"""The islands of one problem: their history, and the evidence that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rarely.core.evidence import SPLITTING, Draws, Evidence, Found, Levels, Number
from rarely.core.witnesses import WEIGHED, Witnesses, no_witnesses, share_witnesses
from rarely.methods.evening import UPRIGHT, Lean
from rarely.stats.statistic import Exceeded, LogNormal, Replicates, Statistic

_ASSUMES = "the populations lost no part of the violating region"
_POOR_MIXING = 0.8  # correlation of scores before and after the moves of a level
_FEW = 0.75  # share of islands that must arrive for their mean to be believed


@dataclass
class Island:
    """The history of one population."""

    log_climbed: float = 0.0  # of the law that it climbs from
    lean: Lean = UPRIGHT  # of that law from the one asked about
    levels: list[float] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)
    correlation: list[float] = field(default_factory=list)
    variance: list[float] = field(default_factory=list)  # (1 - P) / (P N) of each level
    clones: list[float] = field(default_factory=list)  # particles per survivor
    ended: Literal["violated", "floor", "stalled", "budget"] | None = None
    witnesses: Witnesses | None = None
    survivors: Tensor | None = None  # (n, d) positions of violating particles at the end
    slope: Tensor | None = None  # (d,) summed over levels, where it was asked for
    waiting: int = 0
    drawn: int = 0  # independent draws from p(x) that it started from; 0 where from another law
    hits: int = 0  # violations among them
    flat: bool = False  # their scores take at most two values
    steps: int = 0

    @property
    def log_prob(self) -> float:
        return self.log_climbed + self.lean.log_mean

    def begin(self, drawn: int, hits: int, flat: bool) -> None:
        self.drawn, self.hits, self.flat = drawn, hits, flat

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
        self.log_climbed += log_increment
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
        own = [*self.variance[:-1], *(last + self.lean.variance for last in self.variance[-1:])]
        sd = [math.sqrt(v * (1 + (m[k] - 1) * r[k] ** 2)) for k, v in enumerate(own)]
        total = sum(s * s for s in sd)
        for i in range(len(sd)):
            shared = 1.0
            for j in range(i + 1, len(sd)):
                shared *= r[j]
                total += 2 * sd[i] * sd[j] * shared
        return math.sqrt(total)


def survivors_of(islands: Sequence[Island]) -> list[Tensor]:
    """What each of the islands has found, nothing where it did not arrive."""
    some = next((i.survivors for i in islands if i.survivors is not None), torch.zeros(0))
    return [some[:0] if island.survivors is None else island.survivors for island in islands]


def evidence_of(new: Sequence[Island], method: str, calls: int, before: Sequence[Island] = ()) -> list[Evidence]:
    """What the islands of one problem have learnt, together with others of their size from before.

    Their mean is unbiased when every island is, whatever the correlation inside them, and their first populations are
    independent draws that assume nothing.
    """
    islands = [*before, *new]
    arrived = [island for island in islands if island.ended == "violated"]
    drawn, hits = sum(island.drawn for island in new), sum(island.hits for island in new)
    flat = all(island.flat for island in islands)
    doubt = _poor_mixing(islands)
    learnt: list[Evidence] = []
    climbs = tuple(tuple(island.levels) for island in islands)
    if not arrived:
        levels, acceptance = tuple(islands[0].levels), tuple(islands[0].acceptance)
        learnt.append(Levels(method, _left(islands), _ending(islands), calls, doubt, levels, acceptance, climbs))
        calls = 0
    elif not drawn or any(island.levels != [0.0] for island in islands):  # else independent draws have answered
        away = len(islands) - len(arrived)
        note = f"{away} of {len(islands)} islands found no violation" if away else ""
        if len(arrived) < _FEW * len(islands):
            doubt = "; ".join(filter(None, (doubt, note)))
        levels, acceptance = tuple(arrived[0].levels), tuple(arrived[0].acceptance)
        number = Number(
            method, SPLITTING, _statistic(islands), calls, _ASSUMES, doubt, note, levels, acceptance, climbs=climbs
        )
        learnt.append(number)
        calls = 0
    own = [island.witnesses or no_witnesses() for island in arrived]
    witnesses = share_witnesses(own, [island.log_prob for island in arrived])
    if len(witnesses):
        learnt.append(Found(method, witnesses, drawn=WEIGHED))
    first = [Draws(drawn, hits, calls, "first populations", flat)] if drawn or not learnt else []
    return [*first, *learnt]


def _statistic(islands: Sequence[Island]) -> Statistic:
    if len(islands) == 1:
        return LogNormal(islands[0].log_prob, islands[0].single_run_std())
    return Replicates(tuple(island.log_prob if island.ended == "violated" else -math.inf for island in islands))


def _left(islands: Sequence[Island]) -> Exceeded:
    """P(score > last level) of each island bounds p from above, and islands estimate that without bias."""
    alone = islands[0].single_run_std() if len(islands) == 1 else 0.0
    return Exceeded(tuple(island.log_prob for island in islands), alone)


def _ending(islands: Sequence[Island]) -> Literal["floor", "stalled", "budget"]:
    endings = {island.ended for island in islands}
    return "budget" if "budget" in endings else "stalled" if "stalled" in endings else "floor"


def _poor_mixing(islands: Sequence[Island]) -> str:
    """A sentence when populations hardly moved in most levels: then islands may agree and still be wrong together."""
    kept = [c for island in islands for c in island.correlation]
    poor = sum(c > _POOR_MIXING for c in kept)
    if kept and poor > 0.5 * len(kept):
        return f"poor mixing: scores stay correlated in {poor} of {len(kept)} level moves; use more steps"
    return ""
