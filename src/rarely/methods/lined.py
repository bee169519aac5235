"""What the lines of one problem say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.evidence import Evidence, Found, Number, Searched
from rarely.core.witnesses import WEIGHED, join_witnesses, share_witnesses
from rarely.methods.lines import Line
from rarely.stats.statistic import Replicates

_ASSUMES = "the lines point to every part of the violating region"
MODEL_ERROR = 0.05  # of log p: roots, rounding, and regions too small for any check to notice
_NEGLIGIBLE = 0.05  # share of p that lines may have together which are not refined
_FAINT = 0.02  # share of p that lines may have together which are given up before they have a number
_ALIVE = 0.1  # share of lines that must reach the region for the others to be told from noise
_WITHIN = 0.5  # share of lines that may lie in the region from end to end
_SCATTER = 0.45  # standard deviation of log p between replicates above which their mean is not believed
TIMES = 6  # as large as all before it a round may be: small populations are worse than their spread says
TIMES_KNOWN = 3.0  # as much of p as its share of known violations lets expect: what no line holds that is known
_SHORT = 1.0  # standard deviations before an entry at which points still belong to it
_CLOSE = 1.2  # times the error aimed at that ends it early: the error is known to a quarter
_DEARER = 2.0  # times the calls that another method is forecast to need, from which lines are given up


@dataclass
class LinedRegion:
    """The lines of one problem."""

    lines: list[Line] = field(default_factory=list)
    crowded: bool = False  # more directions than lines: no line was tried
    astray: list[Tensor] = field(default_factory=list)  # known violating points (n, d) whose slopes suit no line
    poor: bool = False  # the budget did not reach for the lines
    curved: bool = False  # known violations lie in too many directions: only what lies elsewhere got populations

    def replicates(self, some: Sequence[Line] | None = None) -> list[float]:
        """log p of each replicate, summed over lines, or over some of them."""
        live = [line.replicates() for line in (self.lines if some is None else some) if line.rounds]
        total: list[float] = torch.logsumexp(torch.stack(live), 0).tolist() if live else []
        return total

    @property
    def log_prob(self) -> float:
        values = self.replicates()
        return Replicates(tuple(values)).log_prob if values else -math.inf

    @property
    def std(self) -> float:
        values = self.replicates()
        return Replicates(tuple(values)).std if values else math.inf

    def negligible(self) -> list[Line]:
        """The least of the lines, as many as hold a small share of p together."""
        least, share, total = list[Line](), 0.0, self.log_prob
        means = [line.log_mean for line in self.lines]
        for mean, line in sorted(zip(means, self.lines, strict=True), key=lambda both: both[0]):
            share += math.exp(mean - total)
            if share > _NEGLIGIBLE:
                break
            least.append(line)
        return least

    @property
    def states(self) -> int:
        """Of each replicate, all lines that matter together."""
        least = self.negligible()
        return sum(line.states for line in self.lines if line not in least)

    @property
    def coherence(self) -> float:
        """Mean cosine of slopes at the known violations with the lines that are for them; 1 where none are known."""
        known = [line for line in self.lines if line.points is not None]
        if not known:
            return 0.0 if self.astray else 1.0
        count = [0 if line.points is None else len(line.points) for line in known]
        return sum(n * line.typical for n, line in zip(count, known, strict=True)) / sum(count)

    def claimed(self, line: Line) -> float:
        """Share of the known violations that lie in the cell of a line."""
        same = [other for other in self.lines if other.way == line.way]
        known = [other.points for other in self.lines if other.points is not None]
        own = [other.points for other in same if other.points is not None]
        claimed = self._nearest(own, same, line) + self._nearest(self.astray, self.lines, line)
        return claimed / sum(map(len, [*known, *self.astray])) if claimed else 0.0

    @staticmethod
    def _nearest(points: Sequence[Tensor], lines: Sequence[Line], line: Line) -> int:
        """How many of some points are about as far along a line as its entry, or farther, and along no other more."""
        if not points:
            return 0
        claims = torch.stack([torch.cat(list(points)) @ other.alpha - other.distance for other in lines])
        farthest, which = claims.max(0)
        return int(((which == lines.index(line)) & (farthest > -_SHORT)).sum())

    def leading(self) -> list[Line]:
        """The lines of violating points that are known; where there are none, the line to the nearest violation."""
        known = [line for line in self.lines if line.points is not None]
        return known or sorted(self.lines, key=lambda line: line.distance)[:1]

    @property
    def faintest(self) -> float:
        """log p below which lines hold a small share of p together, however many they are."""
        return self.faint_beside(max((line.log_mean for line in self.lines if line.rounds), default=-math.inf))

    def faint_beside(self, log_prob: float) -> float:
        return log_prob - math.log(len(self.lines) / _FAINT)

    def lacking(self, error: float) -> dict[Line, float]:
        """States that lines need beyond their own for this error of log p, each by its own spread (Neyman 1934)."""
        total, least = self.log_prob, self.negligible()
        spread = {
            line: math.exp(line.log_mean - total) * line.std * math.sqrt(line.states)
            for line in self.lines
            if line not in least and line.rounds
        }
        whole = sum(spread.values()) / error**2
        return {line: max(0.0, own * whole - line.states) for line, own in spread.items()}

    def further(self, error: float, most: int, spent: int, left: float, rival: float) -> dict[Line, float]:
        """States of another round for this error, up to `most` in all; none when nothing is to be done.

        `spent` calls are behind it and `left` are left; another method would take `rival` for the same error.
        """
        excess = self.std / error
        over = self.curved or not math.isfinite(excess) or excess <= _CLOSE or spent * excess**2 > _DEARER * rival
        if over or self._unreached():
            return {}
        lacking = {line: min(own, TIMES * line.states) for line, own in self.lacking(error).items() if own > 0}
        room = min(0.7 * left * self.states / max(1, spent), most - self.states)
        share = min(1.0, room / max(1e-9, sum(lacking.values())))
        return {line: share * own for line, own in lacking.items()} if share > 0 else {}

    def _unreached(self) -> bool:
        """Whether a line did not get to the known violations that it is for, more than a negligible share of them all.

        Where the score tells nothing far from the region, populations miss it, and how little they found says nothing.
        """
        own = {line: len(line.points) for line in self.lines if line.points is not None}
        some = [line for line, count in own.items() if count > _NEGLIGIBLE * sum(own.values())]
        return any(min(line.alive, default=1.0) < _ALIVE for line in some)

    def weakness(self) -> str | None:
        """Why the number should not be believed, if there is a reason."""
        if self.crowded:
            return "the violating region has more directions than lines can follow"
        if self.poor:
            return "the budget does not reach for lines"
        if self.curved:
            held = "" if self.replicates() else ", and no other line holds more"
            return f"scores rise in too many directions where splitting found violations{held}"
        if any(not line.rounds for line in self.lines):
            return "a line has no number: calls ran out, or one score does not tell where it enters the region"
        values = self.replicates()
        if not values or max(values) == -math.inf:
            return "no line reaches a violation"
        least = Replicates(tuple(values)).log_prob - 2
        large = [line for line in self.lines if line.log_mean > least]
        if any(line.within > _WITHIN for line in large):
            return "most lines lie in the violating region altogether: none of their directions leads into it"
        if any(line.beyond < 0.5 for line in large):
            return "lines cross the boundary many times"
        if self._unreached() or any(min(line.alive) < _ALIVE for line in large):
            return "few lines reach the violating region"
        spread = float(torch.tensor(values).std())
        return f"replicates scatter by {spread:.1f} in log p" if not spread < _SCATTER else None

    def evidence(self, method: str, calls: int, unseen: str = "", seen: Sequence[Line] = ()) -> list[Evidence]:
        """`unseen` says what an independent check found that the lines did not see, `seen` which lines it met."""
        weakness, values = self.weakness(), self.replicates()
        if not values or max(values) == -math.inf:
            return [Searched(method, weakness or "nothing is known", calls, broke=self.poor)]
        statistic, doubt = Replicates(tuple(values), MODEL_ERROR), "; ".join(filter(None, (weakness, unseen)))
        note = f"{len(self.lines)} line(s)"
        met = Replicates(tuple(self.replicates(seen)), MODEL_ERROR) if seen and len(seen) < len(self.lines) else None
        found: list[Evidence] = [Number(method, "lines", statistic, calls, _ASSUMES, doubt, note, seen=met)]
        live = [line for line in self.lines if line.rounds]
        shares = [line.log_mean for line in live]
        witnesses = share_witnesses([join_witnesses(line.witnesses) for line in live], shares)
        return [*found, Found(method, witnesses, drawn=WEIGHED)] if len(witnesses) else found
