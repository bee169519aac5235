"""Exact intervals for counts, and the quantiles behind approximate ones, in pure Python (no scipy in the core)."""

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
    while high - low > 1e-13 * (1 + abs(low)):
        mid = 0.5 * (low + high)
        if not low < mid < high:
            break
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
