"""Exact intervals for counts, and the quantiles behind approximate ones, in pure Python (no scipy in the core)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np


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


def _solve(
    increasing: Callable[[float], float], target: float, low: float, high: float, precision: float = 1e-13
) -> float:
    """Where a function between `low` and `high` reaches the target, by Chandrupatla's method (1997).

    Inverse quadratic steps where the last three points allow them, halves elsewhere: a third of bisection's calls.
    """
    a, b = low, high
    fa, fb = increasing(a) - target, increasing(b) - target
    if fa >= 0 or fb <= 0:
        return a if fa >= 0 else b
    step = 0.5
    while True:
        x = a + step * (b - a)
        f = increasing(x) - target
        if (f > 0) == (fa > 0):
            c, fc = a, fa
        else:
            c, fc, b, fb = b, fb, a, fa
        a, fa = x, f
        best = a if abs(fa) < abs(fb) else b
        limit = 0.5 * precision * (1 + abs(best)) / max(abs(b - a), 1e-300)
        if fa == 0 or limit >= 0.5 or not min(a, b) < 0.5 * (a + b) < max(a, b):
            return best
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        step = 0.5
        if phi * phi < xi and (1 - phi) ** 2 < 1 - xi:
            step = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        step = min(1 - limit, max(limit, step))


@lru_cache(maxsize=4096)
def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Exact two-sided interval (log low, log high) for a probability seen `hits` times in `trials`.

    It stays valid, a little wide, when sampling stopped at a number of hits (inverse binomial sampling).
    """
    tail = 0.5 * (1 - confidence)
    low = -math.inf
    if hits > 0:
        low = _solve(lambda v: incomplete_beta(hits, trials - hits + 1, math.exp(v)), tail, -745.0, 0.0)
    return low, (0.0 if hits == trials else log_upper_bound(hits, trials, 1 - tail))


@lru_cache(maxsize=4096)
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


@lru_cache(maxsize=4096)
def lognormal_mean_quantile(mean: float, variance: float, n: int, zeros: int, probability: float) -> float:
    """A quantile of the generalised pivot of the log-mean of a lognormal, seen n times, that is zero now and then.

    mean - Z sqrt(v / n) + v / 2 + log B with v = variance (n - 1) / U, U chi-squared with n - 1 degrees of freedom
    (Krishnamoorthy and Mathew 2003) and B the share that is not zero, Beta(n + 1/2, zeros + 1/2); B = 1 without zeros.
    Intervals from it hold for any n and variance: 94 to 97 per cent for 95 at n = 8 and standard deviations up to 2.
    """
    v, weights = _spreads(n)
    v = v * variance
    shift, blur = np.zeros(1), np.zeros(1)
    if zeros:
        shift, blur, shares = _shares(n, zeros)
        weights = np.outer(weights, shares).ravel()
        v, shift, blur = np.repeat(v, len(shares)), np.tile(shift, len(v)), np.tile(blur, len(v))
    centre, sd = mean + 0.5 * v + shift, np.sqrt(v / n + blur) + 1e-12 * (1 + abs(mean))

    def below(t: float) -> float:
        return float(weights @ _normal_cdf((t - centre) / sd))

    step = math.sqrt(variance / n) + variance + 1e-6
    low, high = mean - step, mean + step
    while below(low) > probability:
        low -= (step := 2 * step)
    while below(high) < probability:
        high += (step := 2 * step)
    return _solve(below, probability, low, high, 1e-7)


@lru_cache(maxsize=64)
def _spreads(n: int) -> tuple[Any, Any]:
    """(n - 1) / U on a grid of log U, and the probability of each point."""
    df = n - 1
    u = np.linspace(-56.0 / df, math.log(2 + 60.0 / df), 100) + math.log(df)  # from e^-28 of the peak to e^-28
    weights = np.exp(0.5 * df * (u - math.log(df)) - 0.5 * (np.exp(u) - df))
    return df * np.exp(-u), weights / weights.sum()


@lru_cache(maxsize=64)
def _shares(n: int, zeros: int) -> tuple[Any, Any, Any]:
    """log B on a grid of its log-odds, the variance of log B within each point's cell, and the probability of it."""
    a, b = n + 0.5, zeros + 0.5
    peak, wide = math.log(a / b), 5.3 * math.sqrt(1 / a + 1 / b)
    odds = np.linspace(peak - wide - 14 / a, peak + wide + 14 / b, 90)  # from e^-14 of the peak to e^-14
    log_b, log_rest = -np.log1p(np.exp(-odds)), -np.log1p(np.exp(odds))
    weights = np.exp(a * (log_b - log_b.max()) + b * (log_rest - log_rest.max()))
    return log_b, np.gradient(log_b) ** 2 / 12, weights / weights.sum()


def _normal_cdf(x: Any) -> Any:
    """Phi for arrays, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(x))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * np.minimum(x * x, 1400.0)) / math.sqrt(2 * math.pi) * series
    return np.where(x < 0, tail, 1 - tail)


def log_mean_exp(values: Sequence[float]) -> float:
    top = max(values)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(v - top) for v in values) / len(values))
