"""Two campaigns side by side: the same problems on another network, epoch or version of rarely."""

from __future__ import annotations

import math
import sqlite3
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import gettempdir
from typing import Any

from rarely.campaign.store import Record, Store
from rarely.campaign.trouble import explained
from rarely.core.errors import InputError
from rarely.questions.result import Outcome
from rarely.stats.intervals import incomplete_beta, student_quantile


@dataclass(frozen=True)
class Pair:
    """One problem in both campaigns, A and B. `difference` is log p in B minus log p in A, where both have a number."""

    name: str
    a: Record
    b: Record
    difference: float | None
    low: float | None  # interval of the difference, from those of the two estimates
    high: float | None

    @property
    def verdict(self) -> str:
        """What the pair says, in a word or two."""
        if self.difference is None or self.low is None or self.high is None:
            return _ONE_SIDED[_violates(self.a), _violates(self.b)]
        return "B fails more" if self.low > 0 else "B fails less" if self.high < 0 else "no clear difference"

    @property
    def weight(self) -> tuple[int, float]:
        """Clear differences by size, then those that may be chance, then what only one has, then nothing to compare."""
        if self.difference is not None:
            return 4 if "fails" in self.verdict else 3, abs(self.difference)
        return 2 if "only" in self.verdict else 0 if "either" in self.verdict else 1, 0.0


@dataclass(frozen=True)
class Spread:
    """A number over all problems with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Matches:
    """Which problems two stores share, as places in their plans: sixteen bytes a problem."""

    a: Store
    b: Store
    places: tuple[array[int], array[int]]
    only_a: int  # problems that the other campaign does not have
    only_b: int

    def pairs(self) -> Iterator[Pair]:
        """Those that are done in both, in the order of A, read from the stores one at a time."""
        for one, other in zip(*self.places, strict=True):
            pair = _pair(self.a.at(one), self.b.at(other))
            if pair is not None:
                yield pair


@dataclass(frozen=True)
class Comparison:
    """What all pairs come to; the pairs themselves are read from the stores when they are asked for."""

    matches: Matches
    confidence: float
    done: int  # pairs with an estimate on both sides
    undefined: int  # of these, those without a difference
    verdicts: dict[str, int]
    largest: tuple[Pair, ...]  # a few, by weight
    mean: Spread | None  # of the differences, over problems; None with fewer than two
    median: Spread | None

    @property
    def unfinished(self) -> int:
        """Pairs of which one half is waiting or failed."""
        return len(self.matches.places[0]) - self.done


_ONE_SIDED = {
    (True, True): "no number to compare",
    (True, False): "violation found in A only",
    (False, True): "violation found in B only",
    (False, False): "no violation found in either",
}


def compare_stores(a: Store, b: Store, shown: int = 20) -> Comparison:
    """Match problems by all but their network: item, norm, radius, replicate, and settings where a plan has several.

    Where a campaign has several networks, problems are matched by the network's name, too. Memory grows by a few
    numbers a problem.
    """
    matches = _matches(a, b)
    differences, verdicts, confidences = array("d"), Counter[str](), set[float]()

    def counted() -> Iterator[Pair]:
        for pair in matches.pairs():
            verdicts[pair.verdict] += 1
            confidences.update(record.estimate.interval.confidence for record in (pair.a, pair.b) if record.estimate)
            if pair.difference is not None:
                differences.append(pair.difference)
            yield pair

    largest = nlargest(shown, counted(), key=lambda pair: pair.weight)
    if len(confidences) > 1:
        raise InputError(f"the campaigns have intervals of confidence {sorted(confidences)}; compare needs one")
    confidence, done = confidences.pop() if confidences else 0.95, verdicts.total()
    return Comparison(
        matches, confidence, done, done - len(differences), dict(verdicts.most_common()), tuple(largest),
        _mean(differences, confidence), _median(differences, confidence),
    )  # fmt: skip


def _matches(a: Store, b: Store) -> Matches:
    """By a table of SQLite's own, which goes to disk where it is large."""
    by_name = any(len({row[3] for row in store.rows()}) > 1 for store in (a, b))
    places = array("q"), array("q")
    with explained(Path(gettempdir())), closing(sqlite3.connect("")) as tables:
        sizes = []
        for side, store in (("a", a), ("b", b)):
            tables.execute(
                f"CREATE TABLE {side} (words TEXT, replicate INTEGER, place INTEGER, PRIMARY KEY (words, replicate)) "
                "WITHOUT ROWID"
            )
            rows = (_identity(row, by_name) for row in store.rows())
            tables.executemany(f"INSERT OR REPLACE INTO {side} VALUES (?, ?, ?)", rows)
            sizes.append(tables.execute(f"SELECT count(*) FROM {side}").fetchone()[0])
        shared = "SELECT a.place, b.place FROM a JOIN b USING (words, replicate) ORDER BY a.place"
        for found in tables.execute(shared):
            for column, place in zip(places, found, strict=True):
                column.append(place)
    if not places[0]:
        raise InputError(
            f"{a.path.parent} and {b.path.parent} have no problem in common: problems are matched by item, norm, "
            f"radius and replicate{', and by the name of the network, since there are several' if by_name else ''}"
        )
    return Matches(a, b, places, sizes[0] - len(places[0]), sizes[1] - len(places[0]))


def _identity(row: tuple[Any, ...], by_name: bool) -> tuple[str, int, int]:
    """A problem's name without its network and its replicate, these where they count, and its place."""
    place, _, name, network, *_, replicate = row[:9]
    words = name.removesuffix(f" #{replicate}")
    return words if by_name else words.removeprefix(f"{network} "), replicate, place


def _pair(a: Record, b: Record) -> Pair | None:
    """None where one of the two has no estimate."""
    x, y = a.estimate, b.estimate
    if x is None or y is None:
        return None
    name = a.name.removeprefix(f"{a.network} ")
    if not (math.isfinite(x.log_prob) and math.isfinite(y.log_prob)):
        return Pair(name, a, b, None, None, None)
    difference = y.log_prob - x.log_prob
    # Zou and Donner (2008): each side of the interval from the sides of the two that are in question.
    below = math.hypot(y.log_prob - y.interval.low, x.interval.high - x.log_prob)
    above = math.hypot(y.interval.high - y.log_prob, x.log_prob - x.interval.low)
    return Pair(name, a, b, difference, difference - below, difference + above)


def _violates(record: Record) -> bool:
    estimate = record.estimate
    return estimate is not None and (math.isfinite(estimate.log_prob) or estimate.outcome is Outcome.VIOLATED)


def _mean(values: Sequence[float], confidence: float) -> Spread | None:
    """By Student's t over problems, which are taken as a sample of those one could ask."""
    if len(values) < 2:
        return None
    middle = fmean(values)
    reach = student_quantile(0.5 + confidence / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Spread(middle, middle - reach, middle + reach)


def _median(values: Sequence[float], confidence: float) -> Spread | None:
    """Between order statistics, which holds for any distribution; unbounded where there are too few problems."""
    if len(values) < 2:
        return None
    ordered, n = sorted(values), len(values)
    rank = bisect_right(range(1, n // 2 + 1), (1 - confidence) / 2, key=lambda k: _fewer(k, n))
    if not rank:
        return Spread(median(ordered), -math.inf, math.inf)
    return Spread(median(ordered), ordered[rank - 1], ordered[n - rank])


def _fewer(k: int, n: int) -> float:
    """P(Binomial(n, 1/2) < k)."""
    return incomplete_beta(n - k + 1, k, 0.5)
