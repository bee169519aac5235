"""Linear functions of random inputs: how they spread, what tilting does to them, and what lies beyond a plane.

K(T) = log E exp(T (x - centre)) is the cumulant of a law. Markov's inequality on exp(T x + c) gives Chernoff's bound

    log P(T x + c >= 0) <= K(T) + T centre + c.                                                          (1)

The law with density proportional to exp(T x) is "tilted by T"; its mean is centre + K'(T). Below, G is K itself or a
function above it, and G'' is at most a fixed quadratic form S, whatever the tilt, so that

    G(T + u A) <= G(T) + u A G'(T) + u^2 S(A) / 2.                                                       (2)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.fourier import log_share_above, uniform_cumulant, uniform_mean
from rarely.bounds.operators import EPS, gamma
from rarely.stats.normal import LOG_SQRT_2PI

_TURNS = 8  # of the secants that find the best tilt: on MNIST the third is within 1e-6 of it
LEAST = 1e-150  # squares of what is smaller underflow


def length(part: Tensor) -> Tensor:
    """The norm of (..., n), rounded up."""
    norm: Tensor = torch.linalg.vector_norm(part, dim=-1)
    return norm * (1 + gamma(part.shape[-1], part.dtype)) + LEAST


class Tails(ABC):
    """A law of inputs in R^n as its linear functions see it; all in float64, every bound rounded outward."""

    centre: Tensor  # (n,)
    low: Tensor  # (n,) nothing lies outside, perhaps infinite
    high: Tensor

    @abstractmethod
    def cumulant(self, T: Tensor) -> Tensor:
        """G (...) of T (..., n)."""

    @abstractmethod
    def mean(self, T: Tensor) -> tuple[Tensor, Tensor]:
        """centre + G'(T), (..., n), and a bound on its error."""

    @abstractmethod
    def deviation(self, A: Tensor) -> Tensor:
        """The root of S(A) (...), of A (..., n)."""

    def box(self, tilt: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """Ends (B, n) between which every coordinate lies, or does under each tilt (B, n) to within 2 n exp(-level)."""
        return self.low.expand_as(tilt), self.high.expand_as(tilt)

    def most_above(self, A: Tensor, b: Tensor) -> Tensor:
        """An upper bound on log P(A x + b >= 0), as sharp as is known; A (B, n), b (B,) -> (B,)."""
        return self.sharpened(A, b, *self.chernoff(A, b))

    def sharpened(self, A: Tensor, b: Tensor, exponent: Tensor, tilt: Tensor) -> Tensor:
        """The same from what `chernoff` says."""
        return exponent

    def least_above(self, A: Tensor, b: Tensor) -> Tensor:
        """A lower bound on log P(A x + b >= 0); A (B, n), b (B,) -> (B,)."""
        other = self.most_above(-A, -b)  # all else
        return torch.log1p(-other.exp() * (1 + 4 * EPS)).nan_to_num(nan=-torch.inf)

    def chernoff(self, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Bound (1) on log P(A x + b >= 0) (B,), and the multiple of A by which it tilts, the best one nearly."""
        spread = self.deviation(A)
        start = (A * self.mean(torch.zeros_like(A))[0]).sum(-1)
        wanted = -(start + b)  # of the tilt: to move the mean to the plane
        tilt = (wanted / spread**2).clamp(min=0).clamp(max=1e6 / spread)
        power = torch.ones_like(tilt)  # of the tilt with which the mean moves: secants of their logarithms
        before = step = torch.zeros_like(tilt)
        for _ in range(_TURNS):
            moved = ((A * self.mean(tilt.unsqueeze(-1) * A)[0]).sum(-1) - start).clamp(min=1e-300).log()
            seen = (moved - before) / step
            power = torch.where((seen > 0.02) & (seen < 1.5), seen, power)
            before, step = moved, ((wanted.clamp(min=1e-300).log() - moved) / power).clamp(-1.5, 1.5)
            tilt = (tilt * step.exp()).clamp(max=1e6 / spread)
        exponent = self.exponent(tilt.unsqueeze(-1) * A, tilt * b)
        good = (exponent < 0) & (tilt > 0)  # not where either is NaN
        ends = torch.where(A == 0, torch.zeros_like(A), A * torch.where(A > 0, self.high, self.low))
        most = ends.sum(-1) + b + (ends.abs().sum(-1) + b.abs()) * gamma(A.shape[-1], A.dtype)
        exponent = torch.where(good, exponent, torch.zeros_like(exponent)).masked_fill(most < 0, -torch.inf)
        return exponent, torch.where(good, tilt, torch.zeros_like(tilt))

    def exponent(self, T: Tensor, c: Tensor) -> Tensor:
        """Bound (1); T and c may be off by a relative eps each, which moves no G here by more than 4 eps G."""
        level, cumulant = self._level(T, c), self.cumulant(T)
        return level + cumulant + (level.abs() + cumulant.abs()) * gamma(2, T.dtype)

    def _level(self, A: Tensor, b: Tensor) -> Tensor:
        """A centre + b, rounded up."""
        terms = A * self.centre
        return terms.sum(-1) + b + (terms.abs().sum(-1) + b.abs()) * gamma(A.shape[-1], A.dtype)


@dataclass(frozen=True)
class UniformTails(Tails):
    """Uniform on the box low <= x <= high; G = K = sum_i log(sinh z_i / z_i) with z_i = T_i half_i, and K'' <= 1/3."""

    low: Tensor
    high: Tensor

    @cached_property
    def centre(self) -> Tensor:  # type: ignore[override]
        return (self.low + self.high) / 2

    @cached_property
    def half(self) -> Tensor:
        return (self.high - self.low) / 2 * (1 + 4 * EPS)

    def cumulant(self, T: Tensor) -> Tensor:
        return uniform_cumulant(T * self.half).sum(-1) * (1 + gamma(T.shape[-1] + 64, T.dtype))

    def mean(self, T: Tensor) -> tuple[Tensor, Tensor]:
        moved = self.half * uniform_mean(T * self.half)
        return self.centre + moved, (self.half * 1e-13 + self.centre.abs() * 4 * EPS).expand_as(T)

    def deviation(self, A: Tensor) -> Tensor:
        return length(A * self.half) / math.sqrt(3)

    def sharpened(self, A: Tensor, b: Tensor, exponent: Tensor, tilt: Tensor) -> Tensor:
        rare = ((tilt > 0) & (exponent > -torch.inf)).nonzero().squeeze(1)
        level = -self._level(A[rare], b[rare])
        sharp = log_share_above(A[rare].abs() * self.half, level, tilt[rare], upper=True)
        return exponent.index_copy(0, rare, torch.fmin(sharp, exponent[rare]))

    def least_above(self, A: Tensor, b: Tensor) -> Tensor:
        exponent, tilt = self.chernoff(A, b)
        rare = ((tilt > 0) & (exponent > -torch.inf)).nonzero().squeeze(1)
        level = self._level(-A[rare], -b[rare])
        inner = A[rare].abs() * self.half * (1 - 16 * EPS)
        sharp = log_share_above(inner, level, tilt[rare], upper=False)
        return super().least_above(A, b).index_copy(0, rare, sharp)


@dataclass(frozen=True)
class NormalTails(Tails):
    """N(mean, diag(std^2)), or with a factor F in place of std N(mean, F F^T): G = |T F|^2 / 2.

    Also, not `exact`, for whatever has a cumulant below that, such as the uniform law on an l2 ball in n dimensions:
    one coordinate of the unit ball has moments E u^(2k) = prod_(j<k) (2j + 1) / (n + 2 + 2j), none larger than those of
    a normal of variance 1 / (n + 2).
    """

    centre: Tensor
    factor: Tensor  # (n,) or (n, n)
    low: Tensor
    high: Tensor
    exact: bool = True

    @classmethod
    def ball(cls, centre: Tensor, radius: float) -> NormalTails:
        n = centre.numel()
        std = torch.full_like(centre, radius / math.sqrt(n + 2) * (1 + 8 * EPS))
        reach = radius * (1 + 4 * EPS)
        return cls(centre, std, centre - reach, centre + reach, exact=False)

    def _times(self, A: Tensor, factor: Tensor) -> Tensor:
        return A * factor if factor.ndim == 1 else A @ factor

    def cumulant(self, T: Tensor) -> Tensor:
        return self.deviation(T) ** 2 / 2

    def mean(self, T: Tensor) -> tuple[Tensor, Tensor]:
        turned = self.factor if self.factor.ndim == 1 else self.factor.mT
        moved = self._times(self._times(T, self.factor), turned)
        size = self._times(self._times(T.abs(), self.factor.abs()), turned.abs())
        return self.centre + moved, (size + self.centre.abs()) * gamma(2 * T.shape[-1], T.dtype)

    def deviation(self, A: Tensor) -> Tensor:
        part = self._times(A, self.factor).abs()
        if self.factor.ndim == 2:
            part = part + (A.abs() @ self.factor.abs()) * gamma(A.shape[-1], A.dtype)
        return length(part)

    def box(self, tilt: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        if not self.exact:
            return super().box(tilt, level)
        each = self.factor if self.factor.ndim == 1 else torch.linalg.vector_norm(self.factor, dim=1)
        mean, error = self.mean(tilt)
        reach = (2 * level).sqrt().unsqueeze(1) * each * (1 + gamma(len(each), each.dtype)) + error
        return mean - reach, mean + reach

    def sharpened(self, A: Tensor, b: Tensor, exponent: Tensor, tilt: Tensor) -> Tensor:
        """By Sampford's (1953) bound on Mills' ratio: P(Z > z) < 4 phi(z) / (3 z + sqrt(z^2 + 8))."""
        if not self.exact:
            return exponent
        z = (-self._level(A, b) / self.deviation(A)) * (1 - 4 * EPS)
        tail = torch.log(4 / (3 * z + torch.sqrt(z**2 + 8))) - z**2 / 2 - LOG_SQRT_2PI
        return torch.where(z > 0, tail + 16 * EPS * (1 + tail.abs()), torch.zeros_like(tail))

    def least_above(self, A: Tensor, b: Tensor) -> Tensor:
        """By Birnbaum's (1942): P(Z > z) > 2 phi(z) / (z + sqrt(z^2 + 4)), z >= 0."""
        if not self.exact or self.factor.ndim == 2:
            return super().least_above(A, b)
        margin = 4 * gamma(A.shape[-1], A.dtype)  # by which the deviation was rounded up, and more
        spread = self.deviation(A)
        z = self._level(-A, -b) / spread * (1 + margin)
        tail = torch.log(2 / (z + torch.sqrt(z**2 + 4))) - z**2 / 2 - LOG_SQRT_2PI
        rare = torch.where(spread > 1e20 * LEAST, tail - 16 * EPS * (1 + tail.abs()), -torch.inf)
        return torch.where(z > 0, rare, super().least_above(A, b))
