"""What the tilted populations of one problem say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from rarely.core.evidence import TILTING, Draws, Evidence, Found, Levels, Number, Searched
from rarely.core.witnesses import WEIGHED, Witnesses, no_witnesses
from rarely.methods.ladder import bennett
from rarely.methods.rungs import Chains, Walked, raised
from rarely.stats.intervals import log_mean_exp
from rarely.stats.statistic import Exceeded, Replicates, log_sum

METHOD = "tilting"
_LATE = "a score that rises late hides its violations from every temperature before"
_ASSUMES = "the populations lost no part of the violating region"
_SCATTER = 0.6  # standard deviation of log p between replicates above which their mean is not believed
_UNSETTLED, _MOVES = 0.2, 6  # share of the time in which chains come to rest, and moves that are enough for it
_RESTLESS = 2.5  # standard errors by which later states may say otherwise than earlier ones
_POOR_MIXING = 0.8  # correlation of scores before and after the moves of a temperature
_REFUSED = 0.3  # acceptance of moves below which steps are too large for the landscape, however small they get


@dataclass
class Rung:
    """One temperature of one problem: all scores that were met there, and where its chains stand."""

    b: float
    scores: Tensor  # (replicates, K, C) float64, in the order of time
    shares: Tensor  # (replicates, K, C) of a state that each counts for
    last: Chains | None = None  # none of independent draws
    step: float = 0.0
    rate: float = 1.0  # acceptance of the first moves
    left: float = 0.0  # correlation of scores before and after them

    @property
    def hits(self) -> float:
        """Share of the states that violate."""
        return float((self.shares * (self.scores >= 0)).sum() / self.shares.sum())

    def extend(self, scores: Tensor, shares: Tensor) -> None:
        self.scores, self.shares = torch.cat([self.scores, scores], 1), torch.cat([self.shares, shares], 1)

    def go_on(self, walked: Walked, own: slice, group: int) -> None:
        self.extend(walked.scores[own], walked.shares[own])
        self.last, self.step = walked.last.rows(own), float(walked.step[group])

    def part(self, since: float = 0.0, until: float = 1.0) -> tuple[Tensor, Tensor]:
        """Scores and logs of their shares, (replicates, n), of some of the time; independent draws have no time."""
        scores, shares = self.scores, self.shares
        if self.last is not None:
            some = slice(*(round(share * scores.shape[1]) for share in (since, until)))
            scores, shares = scores[:, some], shares[:, some]
        return scores.flatten(1), shares.clamp_min(1e-300).log().flatten(1)


@dataclass
class TiltedRegion:
    """The ladder of one problem."""

    soft: float = 1.0  # of u(s), in units of the score
    flat: bool = False  # scores say no more than whether an input violates
    rungs: list[Rung] = field(default_factory=list)
    ended: Literal["violated", "floor", "stalled", "budget"] = "budget"
    reached: tuple[float, ...] = ()  # log Z of the last temperature, which bounds log p, of each replicate
    moves: int = 0  # of each chain, at every temperature
    kept: tuple[Tensor, Tensor] | None = None  # the last states (replicates, n, d) and scores of the last temperature
    values: tuple[float, ...] = ()  # log p of each replicate
    looks: list[float] = field(default_factory=list)  # variance between replicates times moves, at each look
    drift: float = 0.0  # of log p from earlier states to later ones, in standard errors
    witnesses: Witnesses = field(default_factory=no_witnesses)

    @property
    def log_prob(self) -> float:
        return Replicates(self.values).log_prob if self.values else -math.inf

    @property
    def std(self) -> float:
        return Replicates(self.values).std if self.values else math.inf

    @property
    def log_reached(self) -> float:
        return log_sum(self.reached) - math.log(len(self.reached)) if self.reached else 0.0

    @property
    def answered(self) -> bool:
        """Whether there is a number that independent draws have not given already."""
        return self.ended == "violated" and len(self.rungs) > 1

    @property
    def rises(self) -> bool:
        """Whether the last scores leave anything to climb."""
        last = self.rungs[-1]
        return self.soft > 0 and bool(last.scores.max() > last.scores.min()) and math.isfinite(last.b)

    @property
    def restless(self) -> bool:
        return not abs(self.drift) < _RESTLESS

    @property
    def violating(self) -> Tensor | None:
        """Violating points (n, d) of z-space at which the last temperature stands."""
        if not self.answered or self.kept is None:
            return None
        z, score = self.kept
        return z[score >= 0]

    def climb(self, b: float, walked: Walked, own: slice, group: int, more: Sequence[float]) -> None:
        """A new temperature, at which log Z has grown by `more`."""
        rung = Rung(b, walked.scores[own], walked.shares[own], walked.last.rows(own), float(walked.step[group]))
        rung.rate, rung.left = float(walked.rate[group]), float(walked.left[group])
        self.rungs.append(rung)
        self.reached = tuple(old + change for old, change in zip(self.reached, more, strict=True))
        self.kept = walked.z[own], walked.score[own]

    def weigh(self) -> None:
        """Take stock: what each replicate says, and whether that still moves.

        Bennett's ratios are nearly unbiased by their logs, whose mean is lower than the log of their mean. Replicates
        tell the error, and all states together the number. An error that ends a run is more often too small than too
        large; it is no less than what all looks at them let expect: 95 % of intervals cover then, and 94 % before.
        """
        since = min(_UNSETTLED, _MOVES / max(1, self.moves))
        middle = 0.5 * (1 + since)
        whole, first, later = (self._log_probs(*pair) for pair in ((since, 1.0), (since, middle), (middle, 1.0)))
        whole = self._widened(whole) if bool(torch.isfinite(whole).all()) else whole
        centre = float(self._log_probs(since, 1.0, pooled=True)) - log_mean_exp(whole.tolist())
        self.values = tuple((whole + centre).tolist())
        change = later - first
        error = float(change.std()) / math.sqrt(len(change))
        self.drift = float(change.mean()) / error if error > 0 else 0.0

    def _widened(self, values: Tensor) -> Tensor:
        """Replicates that scatter as much as all looks at them let expect, this one included, or more."""
        self.looks.append(float(values.var()) * self.moves)
        seen = self.looks[1:] or self.looks  # the first chains are short, which is another matter
        expected = sum(seen) / len(seen)
        wider = math.sqrt(max(1.0, expected / self.looks[-1])) if self.looks[-1] > 0 else 1.0
        return values.mean() + wider * (values - values.mean())

    def _log_probs(self, since: float, until: float, pooled: bool = False) -> Tensor:
        """log p of each replicate, (replicates,), or of all together, by eq. 14 of Shirts and Chodera.

        Its constants come from pairs of neighbours.
        """
        parts = [rung.part(since, until) for rung in self.rungs]
        if pooled:
            parts = [(scores.reshape(1, -1), counts.reshape(1, -1)) for scores, counts in parts]
        soft = parts[0][0].new_tensor(self.soft)
        heights = [raised(scores, soft) for scores, _ in parts]
        log_z = [parts[0][0].new_zeros(len(parts[0][0]))]
        for k in range(1, len(parts)):
            change, lower = self.rungs[k].b - self.rungs[k - 1].b, parts[k - 1][1]
            guess = (change * heights[k - 1] + lower).logsumexp(1) - lower.logsumexp(1)
            ratio = bennett(change * heights[k - 1], change * heights[k], guess, (lower, parts[k][1]))
            log_z.append(log_z[-1] + ratio)
        together = torch.cat(heights, 1)
        mixed = torch.full_like(together, -torch.inf)
        for rung, (_, counts), constant in zip(self.rungs, parts, log_z, strict=True):
            own = counts.logsumexp(1) - constant
            mixed = torch.logaddexp(mixed, rung.b * together + own.unsqueeze(1))
        scores, counts = (torch.cat([part[i] for part in parts], 1) for i in (0, 1))
        return torch.where(scores >= 0, counts - mixed, -torch.inf).logsumexp(1).cpu()

    def weakness(self) -> str:
        """Why the number should not be believed, if there is a reason."""
        spread = float(torch.tensor(self.values).std())
        if not spread < _SCATTER:
            return f"replicates scatter by {spread:.1f} in log p"
        if self.restless:
            return "its chains have not come to rest: later states say otherwise than earlier ones"
        moved = self.rungs[1:]
        poor = sum(rung.left > _POOR_MIXING or rung.rate < _REFUSED for rung in moved)
        return f"poor mixing at {poor} of {len(moved)} temperatures" if poor > 0.5 * len(moved) else ""

    def evidence(self, calls: int, unseen: str = "") -> list[Evidence]:
        """What it amounts to; its first states are independent draws. `unseen` says what a check found missing."""
        if not self.rungs:
            return [Searched(METHOD, "the budget does not reach for it", calls, broke=True)]
        first = self.rungs[0].scores
        draws = Draws(first.numel(), int((first >= 0).sum()), calls, "first populations", self.flat)
        if self.answered:
            number = Number(
                METHOD, TILTING, Replicates(self.values), calls, _ASSUMES,
                "; ".join(filter(None, (self.weakness(), unseen))), f"{len(self.rungs)} temperatures",
            )  # fmt: skip
            found = [Found(METHOD, self.witnesses, drawn=WEIGHED)] if len(self.witnesses) else []
            return [replace(draws, calls=0), number, *found]
        if self.ended == "violated":  # the first, independent draws have answered
            return [draws]
        doubt = _LATE if self.ended == "floor" else ""
        return [replace(draws, calls=0), Levels(METHOD, Exceeded(self.reached), self.ended, calls, doubt)]
