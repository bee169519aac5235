"""Rare events whose probability is known: plain ones, and traps for methods that see only part of a region."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from rarely import Box, Gaussian, Problem


@dataclass(frozen=True)
class Exact:
    problem: Problem
    log_prob: float


def identity(x: Tensor) -> Tensor:
    return x


def tail(b: float) -> float:
    """log P(Z > b)."""
    return float(stats.norm.logsf(b))


def normal_event(d: int, score: Callable[[Tensor], Tensor], log_prob: float) -> Exact:
    return Exact(Problem(identity, lambda x, y: score(y), Gaussian(torch.zeros(d), 1.0)), log_prob)


def half_space(d: int, log_prob: float) -> Exact:
    threshold = float(stats.norm.isf(math.exp(log_prob)))
    return normal_event(d, lambda x: x.sum(1) / math.sqrt(d) - threshold, log_prob)


def opposite_modes(d: int, a: float, b: float) -> Exact:
    """z_0 > a or z_0 < -b: no input near the one shows the other."""
    exact = float(np.logaddexp(tail(a), tail(b)))
    return normal_event(d, lambda x: torch.maximum(x[:, 0] - a, -x[:, 0] - b), exact)


def orthogonal_modes(d: int, thresholds: list[float], steepness: list[float] | None = None) -> Exact:
    """Some z_i > b_i: the union of independent events. A steep score is not the near one."""
    b = torch.tensor(thresholds)
    k = torch.ones(len(b)) if steepness is None else torch.tensor(steepness)
    log_prob = math.log(-math.expm1(sum(math.log1p(-math.exp(tail(t))) for t in thresholds)))
    return normal_event(d, lambda x: (k * (x[:, : len(b)] - b)).amax(1), log_prob)


def shell(d: int, log_prob: float) -> Exact:
    """|z| > r: every direction is as good as any other, and none is."""
    r = math.sqrt(float(stats.chi2.isf(math.exp(log_prob), d)))
    return normal_event(d, lambda x: x.norm(dim=1) - r, log_prob)


def box_corner(d: int, side: float) -> Exact:
    problem = Problem(identity, lambda x, y: (y - (1 - side)).amin(1), Box(torch.zeros(d), torch.ones(d)))
    return Exact(problem, d * math.log(side))


def step(d: int, b: float) -> Exact:
    """A plateau with a cliff: the score says nothing on the way."""
    return normal_event(d, lambda x: torch.where(x[:, 0] > b, 1.0, -1.0), tail(b))


def staircase(d: int, b: float) -> Exact:
    """Ties at every level, and gradients that are zero everywhere."""
    return normal_event(d, lambda x: torch.floor(2 * (x[:, 0] - b)) / 2, tail(b))


def channel(d: int, b: float, width: float) -> Exact:
    """z_0 > b in a channel |z_1| < width, which the score shows only once inside half of it."""
    inside = math.log(float(stats.norm.cdf(width) - stats.norm.cdf(-width)))
    return normal_event(d, lambda x: torch.minimum(x[:, 0] - b, (width - x[:, 1].abs()) / width), tail(b) + inside)


def away(d: int, b: float, cap: float) -> Exact:
    """Scores rise towards z_0 = +inf and stop at -cap there; the violations are at z_0 < -b."""

    def score(x: Tensor) -> Tensor:
        return torch.maximum((x[:, 0] - b).clamp_max(-cap), -3 * (x[:, 0] + b))

    return normal_event(d, score, tail(b))


def away_cliff(d: int, b: float) -> Exact:
    """As `away`, but nothing at all leads to the violations."""

    def score(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] < -b, torch.ones_like(x[:, 0]), (x[:, 0] - 3).clamp_max(-0.2))

    return normal_event(d, score, tail(b))


def parabola(d: int, b: float, curvature: float) -> Exact:
    """z_0 > b + curvature |z_1..19|^2: positive curves away from the origin, negative around it."""
    law = stats.chi2(19)
    q = np.linspace(law.ppf(1e-13), law.ppf(1 - 1e-13), 200_001)
    log_prob = float(np.log(np.trapezoid(np.exp(stats.norm.logsf(b + curvature * q)) * law.pdf(q), q)))
    return normal_event(d, lambda x: x[:, 0] - b - curvature * x[:, 1:20].square().sum(1), log_prob)


PLAIN = {
    "half-space d=2": half_space(2, math.log(1e-5)),
    "half-space d=100": half_space(100, math.log(1e-6)),
    "half-space d=1024": half_space(1024, math.log(1e-12)),
    "box corner d=6": box_corner(6, 0.05),
    "parabola away d=30": parabola(30, 5.0, 0.05),
    "parabola around d=30": parabola(30, 5.0, -0.05),
}
TRAPS = {
    "two opposite modes d=10": opposite_modes(10, 4.0, 4.3),
    "two orthogonal modes d=50": orthogonal_modes(50, [5.0, 5.2], [1.0, 1.5]),
    "four modes d=20": orthogonal_modes(20, [4.0, 4.2, 4.4, 4.1]),
    "shell d=20": shell(20, math.log(1e-6)),
    "shell d=100": shell(100, math.log(1e-8)),
    "plateau d=3": step(3, 3.7),
    "staircase d=5": staircase(5, 4.0),
    "channel d=5": channel(5, 4.0, 0.02),
    "away d=5": away(5, 4.0, 0.1),
    "away, cliff d=3": away_cliff(3, 3.8),
}
ALL = {**PLAIN, **TRAPS}
