"""Two campaigns side by side: the same problems on another network, epoch or version of rarely."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from rarely.campaign.store import Record, Store
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


@dataclass(frozen=True)
class Spread:
    """A number over all problems with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    confidence: float
    pairs: tuple[Pair, ...]
    only_a: int  # problems that the other campaign does not have
    only_b: int
    unfinished: int  # pairs of which one half is waiting or failed
    mean: Spread | None  # of the differences, over problems; None with fewer than two
    median: Spread | None

    def verdicts(self) -> dict[str, int]:
        return dict(Counter(pair.verdict for pair in self.pairs).most_common())


_ONE_SIDED = {
    (True, True): "no number to compare",
    (True, False): "violation found in A only",
    (False, True): "violation found in B only",
    (False, False): "no violation found in either",
}


def compare_stores(a: Store, b: Store) -> Comparison:
    """Match problems by all but their network: item, norm, radius, replicate, and settings where a plan has several.

    Where a campaign has several networks, problems are matched by the network's name, too.
    """
    sides = [list(store.records()) for store in (a, b)]
    by_name = any(len({record.network for record in side}) > 1 for side in sides)
    left, right = ({_identity(record, by_name): record for record in side} for side in sides)
    shared = [identity for identity in left if identity in right]
    if not shared:
        raise InputError(
            f"{a.path.parent} and {b.path.parent} have no problem in common: problems are matched by item, norm, "
            f"radius and replicate{', and by the name of the network, since there are several' if by_name else ''}"
        )
    pairs = tuple(filter(None, (_pair(left[identity], right[identity]) for identity in shared)))
    confidence = _confidence(pairs)
    differences = [pair.difference for pair in pairs if pair.difference is not None]
    return Comparison(
        confidence, pairs, len(left) - len(shared), len(right) - len(shared), len(shared) - len(pairs),
        _mean(differences, confidence), _median(differences, confidence),
    )  # fmt: skip


def _identity(record: Record, by_name: bool) -> tuple[str, int]:
    """A problem's name without its network and its replicate, and these where they count."""
    words = record.name.removesuffix(f" #{record.replicate}")
    return words if by_name else words.removeprefix(f"{record.network} "), record.replicate


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


def _confidence(pairs: Sequence[Pair]) -> float:
    """That of the estimates, which is then that of the comparison."""
    found = {record.estimate.interval.confidence for pair in pairs for record in (pair.a, pair.b) if record.estimate}
    if len(found) > 1:
        raise InputError(f"the campaigns have intervals of confidence {sorted(found)}; compare needs one")
    return found.pop() if found else 0.95


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
