"""What a sample says of a log-probability: a number, its error, and an interval at any confidence. Small values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rarely.stats.intervals import clopper_pearson, log_mean_exp, log_upper_bound, normal_quantile, student_quantile


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
        return math.sqrt((1 - self.hits / self.trials) / self.hits) if self.hits else math.inf

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

    Estimates of a product of many factors are close to lognormal, so the interval for their mean is Cox's:
    mu + s^2/2 -+ t sqrt(s^2/n + s^4/(2(n-1))), moved to the unbiased arithmetic mean. When some replicates are zero
    the lognormal does not apply and the interval is Student's on p itself, whose lower end may be zero.
    """

    log_values: tuple[float, ...]
    model_error: float = 0.0  # of log p that all replicates may share: what the method's model of the region misses

    @property
    def log_prob(self) -> float:
        return min(0.0, log_mean_exp(self.log_values))

    @property
    def std(self) -> float:
        return math.hypot(self._spread()[0], self.model_error)

    def interval(self, confidence: float) -> Interval:
        two_sided = 0.5 + 0.5 * confidence
        return Interval(confidence, self.lower(two_sided), self.upper(two_sided))

    def upper(self, confidence: float) -> float:
        return min(0.0, self.log_prob + self._reach(confidence, +1))

    def lower(self, confidence: float) -> float:
        return self.log_prob - self._reach(confidence, -1)

    def _reach(self, confidence: float, side: int) -> float:
        """Distance from the number to one end."""
        std, lognormal = self._spread()
        if std == math.inf:
            return math.inf
        own = student_quantile(confidence, len(self.log_values) - 1) * std
        if not lognormal:
            own = math.log1p(own) if side > 0 else -math.log1p(-own) if own < 1 else math.inf
        return math.hypot(own, self.model_error * normal_quantile(confidence))

    def _spread(self) -> tuple[float, bool]:
        """Standard deviation of the log of the mean, and whether the replicates pass for lognormal."""
        n, centre = len(self.log_values), log_mean_exp(self.log_values)
        if n < 2 or centre == -math.inf:
            return math.inf, True
        if min(self.log_values) == -math.inf:
            return relative_error(self.log_values), False
        mean = sum(self.log_values) / n
        variance = sum((v - mean) ** 2 for v in self.log_values) / (n - 1)
        return math.sqrt(variance / n + variance**2 / (2 * (n - 1))), True


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


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Binomial, Replicates, LogNormal, Exceeded)}


def to_data(value: Any) -> dict[str, Any]:
    """A statistic as plain data."""
    return {"kind": type(value).__name__, **asdict(value)}


def from_data(data: dict[str, Any]) -> Any:
    """What `to_data` made."""
    fields = {key: tuple(map(float, v)) if isinstance(v, list) else v for key, v in data.items() if key != "kind"}
    numbers = {key: float(v) if isinstance(v, str) else v for key, v in fields.items()}
    return _KINDS[data["kind"]](**numbers)
