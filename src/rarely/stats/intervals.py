"""Exact and approximate confidence intervals, in pure Python (no scipy in the core)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by Lentz's continued fraction."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on this side only
        return 1.0 - incomplete_beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny, c, f = 1e-300, 1.0, 1.0
    d = 0.0
    for i in range(2000):
        m = i // 2
        if i == 0:
            numerator = 1.0
        elif i % 2 == 0:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / (1.0 + numerator * d or tiny)
        c = 1.0 + numerator / c or tiny
        f *= c * d
        if abs(1 - c * d) < 1e-13:
            break
    return math.exp(front) * (f - 1.0) / a


def _solve(increasing: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(200):
        mid = 0.5 * (low + high)
        low, high = (mid, high) if increasing(mid) < target else (low, mid)
    return 0.5 * (low + high)


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Exact two-sided interval (log low, log high) for a probability seen `hits` times in `trials`.

    It stays valid, a little wide, when sampling stopped at a number of hits (inverse binomial sampling).
    """
    tail = 0.5 * (1 - confidence)
    low = -math.inf
    if hits > 0:
        low = _solve(lambda v: incomplete_beta(hits, trials - hits + 1, math.exp(v)), tail, -745.0, 0.0)
    return low, (0.0 if hits == trials else log_upper_bound(hits, trials, 1 - tail))


def log_upper_bound(hits: int, trials: int, confidence: float) -> float:
    """One-sided exact upper bound on log p."""
    if hits == trials:
        return 0.0
    if hits == 0:
        return math.log(-math.expm1(math.log1p(-confidence) / trials))
    return _solve(lambda v: incomplete_beta(hits + 1, trials - hits, math.exp(v)), confidence, -745.0, 0.0)


def normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


@lru_cache(maxsize=256)
def student_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t, for probabilities of at least one half."""

    def cdf(t: float) -> float:
        return 1.0 - 0.5 * incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t))

    return _solve(cdf, probability, 0.0, 1e4)


def log_mean_exp(values: Sequence[float]) -> float:
    top = max(values)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(v - top) for v in values) / len(values))


def replicate_interval(log_values: Sequence[float], confidence: float) -> tuple[float, float, float, float]:
    """(log mean, standard deviation of it, low, high) from independent unbiased estimates of one probability.

    Estimates of a product of many factors are close to lognormal, so the interval for their mean is Cox's:
    mu + s^2/2 -+ t sqrt(s^2/n + s^4/(2(n-1))), moved to the unbiased arithmetic mean. When some replicates are zero
    the lognormal does not apply and the interval is Student's on p itself, whose lower end may be zero.
    """
    n = len(log_values)
    centre = log_mean_exp(log_values)
    if n < 2 or centre == -math.inf:
        return centre, math.inf, -math.inf, 0.0
    t = student_quantile(0.5 + 0.5 * confidence, n - 1)
    if min(log_values) == -math.inf:
        std = _relative_error(log_values, centre)
        low = centre + math.log1p(-t * std) if t * std < 1 else -math.inf
        return centre, std, low, min(0.0, centre + math.log1p(t * std))
    mean = sum(log_values) / n
    variance = sum((v - mean) ** 2 for v in log_values) / (n - 1)
    std = math.sqrt(variance / n + variance**2 / (2 * (n - 1)))
    return centre, std, centre - t * std, min(0.0, centre + t * std)


def mean_upper_bound(log_values: Sequence[float], confidence: float) -> float:
    """One-sided bound on the log of the mean of what `log_values` estimate, by Student's t on the values themselves.

    For estimates of different quantities, as of P(score > level) at levels that differ: their logs may lie far apart,
    and Cox's interval, which takes that for noise of one lognormal, would say nothing.
    """
    centre = log_mean_exp(log_values)
    if len(log_values) < 2 or centre == -math.inf:
        return 0.0
    t = student_quantile(confidence, len(log_values) - 1)
    return min(0.0, centre + math.log1p(t * _relative_error(log_values, centre)))


def _relative_error(log_values: Sequence[float], centre: float) -> float:
    """Standard error of the mean of exp(log_values), over that mean."""
    n = len(log_values)
    return math.sqrt(sum((math.exp(v - centre) - 1) ** 2 for v in log_values) / (n - 1) / n)


MODEL_ERROR = 0.05  # of log p: roots, rounding, and regions too small for any check to notice


def modelled_interval(log_values: Sequence[float], confidence: float) -> tuple[float, float, float, float, float]:
    """(log mean, std, low, high, upper bound) for methods that see only what their model of the region covers.

    Their replicates can agree to the last digit and still all miss a few percent of p, so `MODEL_ERROR` is added.
    """
    log_prob, std, low, high = replicate_interval(log_values, confidence)
    upper = replicate_interval(log_values, 2 * confidence - 1)[3]
    model = MODEL_ERROR * normal_quantile(0.5 + 0.5 * confidence)
    low = log_prob - math.hypot(log_prob - low, model)
    high, upper = (min(0.0, log_prob + math.hypot(end - log_prob, model)) for end in (high, upper))
    return log_prob, math.hypot(std, MODEL_ERROR), low, high, upper
