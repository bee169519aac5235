"""Two campaigns, or two files of results, side by side: the same problems on another network, epoch or version."""

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
from typing import Any, Protocol

from rarely.campaign.store import Record, Store
from rarely.campaign.trouble import explained
from rarely.core.errors import InputError
from rarely.questions.result import Outcome
from rarely.stats.intervals import incomplete_beta, student_quantile
from rarely.stats.statistic import Interval


@dataclass(frozen=True)
class Pair:
    """One problem on both sides, A and B. `difference` is log p in B minus log p in A, where both have a number."""

    name: str
    a: Record
    b: Record
    difference: float | None
    low: float | None  # interval of the difference, from those of the two estimates
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether the two differ by more than their intervals explain."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

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
            return 4 if self.clear else 3, abs(self.difference)
        return 2 if "only" in self.verdict else 0 if "either" in self.verdict else 1, 0.0


@dataclass(frozen=True)
class Spread:
    """A number over all problems with its interval."""

    value: float
    low: float
    high: float


class Matches(Protocol):
    """Which problems the two sides share."""

    @property
    def count(self) -> int: ...

    @property
    def only_a(self) -> int:
        """Problems that the other side does not have."""
        ...

    @property
    def only_b(self) -> int: ...

    def pairs(self) -> Iterator[Pair]:
        """Those that are done on both sides, in the order of A."""
        ...


@dataclass(frozen=True)
class StoreMatches:
    """Of two stores, as places in their plans: sixteen bytes a problem."""

    a: Store
    b: Store
    places: tuple[array[int], array[int]]
    only_a: int
    only_b: int

    @property
    def count(self) -> int:
        return len(self.places[0])

    def pairs(self) -> Iterator[Pair]:
        """Read from the stores one at a time."""
        for one, other in zip(*self.places, strict=True):
            pair = _pair(self.a.at(one), self.b.at(other))
            if pair is not None:
                yield pair


@dataclass(frozen=True)
class RecordMatches:
    """Of two lists of results."""

    both: tuple[tuple[Record, Record], ...]
    only_a: int
    only_b: int
    by_place: bool = False  # no name is on both sides, so that the first stands beside the first

    @property
    def count(self) -> int:
        return len(self.both)

    def pairs(self) -> Iterator[Pair]:
        return (pair for one, other in self.both if (pair := _pair(one, other)) is not None)


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
        return self.matches.count - self.done


_LARGE = 700.0  # log of what floats can hold
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
    return _compared(_matches(a, b), shown)


def compare_records(a: Sequence[Record], b: Sequence[Record], shown: int = 20) -> Comparison:
    """Match problems by name, replicates of one name in their order.

    Where not a single name is on both sides, and both have as many, they stand beside each other as they come.
    """
    waiting: dict[str, list[Record]] = {}
    for record in reversed(b):
        waiting.setdefault(record.name, []).append(record)
    both = [(record, waiting[record.name].pop()) for record in a if waiting.get(record.name)]
    if both:
        return _compared(RecordMatches(tuple(both), len(a) - len(both), len(b) - len(both)), shown)
    if len(a) != len(b):
        raise InputError(
            f"no problem has the same name in both, and there are {len(a)} and {len(b)} of them, so that it cannot be "
            "said which belong together"
        )
    return _compared(RecordMatches(tuple(zip(a, b, strict=True)), 0, 0, by_place=True), shown)


def _compared(matches: Matches, shown: int) -> Comparison:
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
        raise InputError(f"the two sides have intervals of confidence {sorted(confidences)}; compare needs one")
    confidence, done = confidences.pop() if confidences else 0.95, verdicts.total()
    return Comparison(
        matches, confidence, done, done - len(differences), dict(verdicts.most_common()), tuple(largest),
        _mean(differences, confidence), _median(differences, confidence),
    )  # fmt: skip


def in_a_sentence(found: Comparison) -> str:
    """What was compared, as plain text."""
    matches = found.matches
    how = (
        ", by their place, since no name is the same,"
        if isinstance(matches, RecordMatches) and matches.by_place
        else ""
    )
    return (
        f"{found.done:,} problem{'s' * (found.done != 1)} matched{how} and done in both; "
        f"{found.unfinished:,} matched but not done; {matches.only_a:,} only in A, {matches.only_b:,} only in B"
    )


def _matches(a: Store, b: Store) -> StoreMatches:
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
    return StoreMatches(a, b, places, sizes[0] - len(places[0]), sizes[1] - len(places[0]))


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
    found = difference(x.log_prob, x.interval, y.log_prob, y.interval)
    return Pair(name, a, b, *(found or (None, None, None)))


def difference(x: float, x_interval: Interval, y: float, y_interval: Interval) -> tuple[float, float, float] | None:
    """log p of the second minus that of the first with its interval; None where one has no number.

    Zou and Donner (2008): each side of the interval from the sides of the two that are in question.
    """
    if not (math.isfinite(x) and math.isfinite(y)):
        return None
    below = math.hypot(y - y_interval.low, x_interval.high - x)
    above = math.hypot(y_interval.high - y, x - x_interval.low)
    return y - x, y - x - below, y - x + above


def ratio(log_ratio: float) -> str:
    """How many times as probable, from a difference of log p."""
    if math.isinf(log_ratio):
        return "0" if log_ratio < 0 else "inf"
    if abs(log_ratio) < _LARGE:
        return f"{math.exp(log_ratio):.3g}"
    exponent = math.floor(log_ratio / math.log(10))
    return f"{10 ** (log_ratio / math.log(10) - exponent):.3g}e{exponent:+d}"


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
