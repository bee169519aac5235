"""What a sample says of a log-probability: a number, its error, and an interval at any confidence. Small values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from rarely.stats.intervals import (
    clopper_pearson,
    log_mean_exp,
    log_upper_bound,
    lognormal_mean_quantile,
    normal_quantile,
    student_quantile,
)


@dataclass(frozen=True)
class Interval:
    """A confidence interval for log p (natural logarithm)."""

    confidence: float
    low: float
    high: float

    def __contains__(self, log_prob: float) -> bool:
        return self.low <= log_prob <= self.high


class Statistic(Protocol):
    """An estimate of log p that lies in its own interval, which never exceeds 0."""

    @property
    def log_prob(self) -> float: ...

    @property
    def std(self) -> float:
        """Standard deviation of `log_prob`; the relative error of p while it is small."""
        ...

    def interval(self, confidence: float) -> Interval:
        """Two-sided."""
        ...

    def upper(self, confidence: float) -> float:
        """One-sided upper bound."""
        ...

    def lower(self, confidence: float) -> float:
        """One-sided lower bound."""
        ...


@dataclass(frozen=True)
class Binomial:
    """`hits` of `trials` independent draws, each from a part of the inputs of mass exp(log_room): exact intervals."""

    hits: int
    trials: int
    log_room: float = 0.0
    slack: float = 0.0  # how much of the room may be rounding: the low ends give it away

    @property
    def log_prob(self) -> float:
        return self.log_room + math.log(self.hits / self.trials) if self.hits else -math.inf

    @property
    def std(self) -> float:
        # One more trial that misses: a few hits without a miss are no certainty.
        return math.sqrt((1 - self.hits / (self.trials + 1)) / self.hits) if self.hits else math.inf

    def interval(self, confidence: float) -> Interval:
        if not self.trials:
            return Interval(confidence, -math.inf, 0.0)
        low, high = clopper_pearson(self.hits, self.trials, confidence)
        return Interval(confidence, self._less(low), min(0.0, self.log_room + high))

    def upper(self, confidence: float) -> float:
        if not self.trials:
            return 0.0
        return min(0.0, self.log_room + log_upper_bound(self.hits, self.trials, confidence))

    def lower(self, confidence: float) -> float:
        return self.interval(2 * confidence - 1).low

    def _less(self, low: float) -> float:
        if not self.slack:
            return self.log_room + low
        left = math.exp(self.log_room + low) - self.slack
        return math.log(left) if left > 0 else -math.inf


@dataclass(frozen=True)
class Replicates:
    """Independent unbiased estimates of one probability, by their logs.

    Estimates of a product of many factors are close to lognormal, some of them perhaps zero, and few of them are
    skewed: the ends are those of the generalised interval for such a mean, or the number itself where that lies beyond
    them. The standard deviation is Cox's, of mu + s^2/2 with variance s^2/n + s^4/(2(n-1)); with zeros that of the
    arithmetic mean.
    """

    log_values: tuple[float, ...]
    model_error: float = 0.0  # of log p that all replicates may share: what the method's model of the region misses

    @property
    def log_prob(self) -> float:
        return min(0.0, log_mean_exp(self.log_values))

    @property
    def std(self) -> float:
        return math.hypot(self._spread(), self.model_error)

    def interval(self, confidence: float) -> Interval:
        two_sided = 0.5 + 0.5 * confidence
        return Interval(confidence, self.lower(two_sided), self.upper(two_sided))

    def upper(self, confidence: float) -> float:
        return min(0.0, self.log_prob + self._reach(confidence, 1))

    def lower(self, confidence: float) -> float:
        return self.log_prob - self._reach(confidence, -1)

    def _reach(self, confidence: float, side: int) -> float:
        """Distance from the number up (side 1) or down to its end."""
        n, mean, variance = self._moments()
        if n < 2:
            return math.inf
        below = confidence if side > 0 else 1 - confidence
        end = lognormal_mean_quantile(mean, variance, n, len(self.log_values) - n, below)
        own, shared = side * (end - self.log_prob), self.model_error * normal_quantile(confidence)
        return math.hypot(max(0.0, own), max(0.0, shared))

    def _moments(self) -> tuple[int, float, float]:
        """Number, mean and variance of the logs that are finite."""
        logs = [value for value in self.log_values if value > -math.inf]
        mean = sum(logs) / len(logs) if logs else -math.inf
        return len(logs), mean, sum((v - mean) ** 2 for v in logs) / max(1, len(logs) - 1)

    def _spread(self) -> float:
        """Standard deviation of the log of the mean."""
        n, _, variance = self._moments()
        if n < 2:
            return math.inf
        if n < len(self.log_values):
            return relative_error(self.log_values)
        return math.sqrt(variance / n + variance**2 / (2 * (n - 1)))


@dataclass(frozen=True)
class LogNormal:
    """One estimate whose log has a known standard deviation."""

    log_prob: float
    std: float

    def interval(self, confidence: float) -> Interval:
        two_sided = 0.5 + 0.5 * confidence
        return Interval(confidence, self.lower(two_sided), self.upper(two_sided))

    def upper(self, confidence: float) -> float:
        return min(0.0, self.log_prob + normal_quantile(confidence) * self.std)

    def lower(self, confidence: float) -> float:
        return self.log_prob - normal_quantile(confidence) * self.std


@dataclass(frozen=True)
class Sum:
    """The sum of probabilities that were estimated apart, each with its weight.

    Its ends are those of the parts, recovered as if they were normal (Zou and Donner 2008): the distance of an end from
    the sum is the root of the summed squares of the parts' distances.
    """

    log_weights: tuple[float, ...]
    parts: tuple[Statistic, ...]

    @property
    def log_prob(self) -> float:
        return min(0.0, log_sum([w + part.log_prob for w, part in zip(self.log_weights, self.parts, strict=True)]))

    @property
    def std(self) -> float:
        total = self.log_prob
        shares = [math.exp(w + p.log_prob - total) for w, p in zip(self.log_weights, self.parts, strict=True)]
        return math.sqrt(sum((s * p.std) ** 2 for s, p in zip(shares, self.parts, strict=True) if s))

    def interval(self, confidence: float) -> Interval:
        two_sided = 0.5 + 0.5 * confidence
        return Interval(confidence, self.lower(two_sided), self.upper(two_sided))

    def upper(self, confidence: float) -> float:
        return min(0.0, log_sum([self.log_prob, self._log_reach([p.upper(confidence) for p in self.parts])]))

    def lower(self, confidence: float) -> float:
        reach = self._log_reach([p.lower(confidence) for p in self.parts]) - self.log_prob
        return self.log_prob + math.log1p(-math.exp(reach)) if reach < 0 else -math.inf

    def _log_reach(self, ends: Sequence[float]) -> float:
        """Log of the distance of an end from the sum."""
        both = [(w, *sorted((end, p.log_prob))) for w, end, p in zip(self.log_weights, ends, self.parts, strict=True)]
        gaps = [w + high + math.log(-math.expm1(low - high)) for w, low, high in both if low < high]
        return 0.5 * log_sum([2 * gap for gap in gaps])


def log_sum(values: Sequence[float]) -> float:
    return log_mean_exp(values) + math.log(len(values)) if values else -math.inf


@dataclass(frozen=True)
class Exceeded:
    """Estimates of P(score > level) at levels that differ: what they leave for violations above all of them.

    Their logs may lie far apart, and an interval that takes that for noise of one lognormal would say nothing: the
    upper bound is Student's on the probabilities themselves.
    """

    log_values: tuple[float, ...]
    single_std: float = 0.0  # of the log, where there is one value only

    def upper(self, confidence: float) -> float:
        centre, n = log_mean_exp(self.log_values), len(self.log_values)
        if n < 2:
            return min(0.0, centre + normal_quantile(confidence) * self.single_std)
        t = student_quantile(confidence, n - 1)
        return min(0.0, centre + math.log1p(t * relative_error(self.log_values)))


def relative_error(log_values: Sequence[float]) -> float:
    """Standard error of the mean of exp(log_values), over that mean."""
    n, centre = len(log_values), log_mean_exp(log_values)
    return math.sqrt(sum((math.exp(v - centre) - 1) ** 2 for v in log_values) / (n - 1) / n)


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Binomial, Replicates, LogNormal, Sum, Exceeded)}


def to_data(value: Any) -> dict[str, Any]:
    """A statistic as plain data."""
    content = {spec.name: getattr(value, spec.name) for spec in fields(value)}
    if isinstance(value, Sum):
        content["parts"] = [to_data(part) for part in value.parts]
    return {"kind": type(value).__name__, **content}


def from_data(data: dict[str, Any]) -> Any:
    """What `to_data` made."""
    content = {key: value for key, value in data.items() if key not in ("kind", "parts")}
    if "parts" in data:
        content["parts"] = tuple(from_data(part) for part in data["parts"])
    for key, value in content.items():
        if isinstance(value, list):
            content[key] = tuple(map(float, value))
        elif isinstance(value, str):
            content[key] = float(value)
    return _KINDS[data["kind"]](**content)
