"""Tails of other laws with independent coordinates; see `tails`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.bounds.fourier import uniform_cumulant, uniform_mean
from rarely.bounds.operators import EPS, Interval, gamma
from rarely.bounds.tails import LEAST, Tails, length
from rarely.stats.normal import LOG_SQRT_2PI


def log_mass(u: Tensor, v: Tensor, off: Tensor | float = 0.0) -> Interval:
    """Bounds on log P(u < Z < v), of ends that may be off by so much each.

    log Phi is good to a few eps of itself, its difference to less; what is off moves the mass by density times that.
    """
    flip = u + v > 0
    u, v = torch.where(flip, -v, u), torch.where(flip, -u, v)
    low, high = log_ndtr(u), log_ndtr(v)
    share = -torch.expm1(low - high)
    size = 1 + high.abs() + torch.where(low > -torch.inf, low.abs(), torch.zeros_like(low))
    # phi / Phi <= |v| + 1 on the left, where v <= |u|; at a v > 0 it is at most 1.
    error = 32 * EPS * size + 2 * off * (1 + v.clamp(max=0).abs()) + off
    return high + (share - error).clamp(min=0).log(), high + (share + error).log()


@dataclass(frozen=True)
class _Normals(Tails):
    """What the two laws made of a normal with ends have in common."""

    location: Tensor  # (n,)
    std: Tensor
    low: Tensor
    high: Tensor

    @cached_property
    def centre(self) -> Tensor:  # type: ignore[override]
        return self.location.clamp(self.low, self.high)

    @property
    def _varies(self) -> Tensor:
        return self.high > self.low

    def _between(self, T: Tensor) -> tuple[Interval, Interval]:
        """Bounds on log E[exp(T (x - centre)); inside], and the mean there with a bound on its error."""
        ends = [(end - self.location) / self.std for end in (self.low, self.high)]
        shift = self.std * T
        off = 4 * EPS * (shift.abs() + sum(e.abs().nan_to_num(posinf=0.0) for e in ends))
        u, v = (e - shift for e in ends)
        least, most = log_mass(u, v, off)
        away = (self.location - self.centre) * T
        lift = away + shift**2 / 2
        blur = 16 * EPS * (away.abs() + shift**2)
        mass = torch.where(least > -torch.inf, least, most)
        left, right = (torch.exp((-0.5 * e * e - LOG_SQRT_2PI - mass).clamp(max=700.0)) for e in (u, v))
        middle = self.location + self.std * shift + self.std * (left - right)
        wobble = self.std * (left + right) * (64 * EPS + 2 * (most - least) + 2 * off * (1 + u.abs().clamp(max=1e9)))
        wobble = wobble + 16 * EPS * (middle.abs() + self.location.abs())
        middle = torch.where(self._varies, middle.clamp(self.low, self.high), self.low)
        wobble = torch.where(self._varies, torch.fmin(wobble, self.high - self.low), 0.0)
        return (lift + least - blur, lift + most + blur), (middle, wobble)

    def box(self, tilt: Tensor, level: Tensor) -> Interval:
        """Every tilted law is subgaussian about its mean, as `deviation` says of each coordinate."""
        mean, error = self.mean(tilt)
        reach = (2 * level).sqrt().unsqueeze(1) * self._each() * (1 + 8 * EPS) + error + LEAST
        return torch.fmax(mean - reach, self.low), torch.fmin(mean + reach, self.high)

    @abstractmethod
    def _each(self) -> Tensor:
        """The deviation of every coordinate."""

    def deviation(self, A: Tensor) -> Tensor:
        return length(A * self._each())


@dataclass(frozen=True)
class TruncatedTails(_Normals):
    """Independent normals, each given that it lies in [low, high]; G = K.

    Every tilted law is a normal on an interval: log-concave. Its variance is at most std^2 (Brascamp and Lieb), and at
    most that of the exponential law on the interval with its mean, whose density crosses its own twice, so at most
    width^2 / 12.
    """

    def cumulant(self, T: Tensor) -> Tensor:
        (_, now), _ = self._between(T)
        (before, _), _ = self._between(torch.zeros_like(self.low))
        each = torch.where(self._varies, now - before, 0.0)
        return each.sum(-1) + each.abs().sum(-1) * gamma(T.shape[-1], T.dtype)

    def mean(self, T: Tensor) -> Interval:
        return self._between(T)[1]

    def _each(self) -> Tensor:
        return torch.fmin(self.std, (self.high - self.low) / math.sqrt(12))


@dataclass(frozen=True)
class ClippedTails(_Normals):
    """clip(location + std Z, low, high) with the location inside; G = K.

    Tilted by s > 0 and apart from the mass p at `low`, Z has a density that is log-concave with curvature at least 1,
    so x has variance at most std^2 there (Brascamp and Lieb); the two parts together have p (1 - p) m^2 more, m being
    what the mean is above `low`. With w(s) the weight of the upper part, m = (log w)' and (log w)'' <= std^2, so that
    log w(s) >= log w(0) + m^2 / (2 std^2) if m <= std^2 s, else + m s - std^2 s^2 / 2; p = Phi(a) / (Phi(a) + w) with
    a <= 0 and w(0) = Phi(-a); and m <= std^2 s + its value at s = 0. The largest p (1 - p) m^2 is then 0.546 std^2.
    """

    def _parts(self, T: Tensor) -> tuple[Tensor, Tensor, Interval]:
        """Upper bounds on the logarithms of the three parts, by how much they may be too high, and the mean inside."""
        (least, most), middle = self._between(T)
        u, v = (self.low - self.location) / self.std, (self.high - self.location) / self.std
        ends = (log_ndtr(u) + T * (self.low - self.centre), log_ndtr(-v) + T * (self.high - self.centre))
        blur = 64 * EPS * (1 + u**2 + v**2 + (T * (self.high - self.low)).abs())
        inside = torch.where(self._varies, most, -torch.inf)
        blur = blur + torch.where(self._varies & (least > -torch.inf), most - least, 0.0)
        return torch.stack([ends[0] + blur, inside, ends[1] + blur]), 2 * blur, middle

    def cumulant(self, T: Tensor) -> Tensor:
        total = self._parts(T)[0].logsumexp(0)
        each = total + 64 * EPS * (1 + total.abs())
        return each.sum(-1) + each.abs().sum(-1) * gamma(T.shape[-1], T.dtype)

    def mean(self, T: Tensor) -> Interval:
        parts, blur, (middle, slip) = self._parts(T)
        share = parts.softmax(0)
        span = self.high - self.low
        error = slip + span * torch.fmin(blur + 256 * EPS, torch.ones_like(blur))
        return share[0] * self.low + share[1] * middle + share[2] * self.high, error

    def _each(self) -> Tensor:
        return torch.fmin(self.std * math.sqrt(1.55), (self.high - self.low) / 2)


@dataclass(frozen=True)
class CellTails(Tails):
    """Every coordinate uniform in one of K cells, which are points for a list of numbers; G = K, K'' <= range^2 / 4."""

    middles: Tensor  # (n, K)
    halves: Tensor  # (n, K)
    log_weights: Tensor  # (n, K)

    @cached_property
    def low(self) -> Tensor:  # type: ignore[override]
        return (self.middles - self.halves).amin(1)

    @cached_property
    def high(self) -> Tensor:  # type: ignore[override]
        return (self.middles + self.halves).amax(1)

    @cached_property
    def centre(self) -> Tensor:  # type: ignore[override]
        return (self.low + self.high) / 2

    def _parts(self, T: Tensor) -> Tensor:
        s = T.unsqueeze(-1)
        off = self.middles - self.centre.unsqueeze(1)
        return self.log_weights + s * off + uniform_cumulant(s * self.halves)

    def cumulant(self, T: Tensor) -> Tensor:
        each = self._parts(T).logsumexp(-1)
        size = 1 + each.abs() + (T * (self.high - self.low)).abs()
        return each.sum(-1) + size.sum(-1) * gamma(T.shape[-1] + 64, T.dtype)

    def mean(self, T: Tensor) -> Interval:
        cells = self.middles + self.halves * uniform_mean(T.unsqueeze(-1) * self.halves)
        span = self.high - self.low
        weights = torch.where(self.log_weights > -torch.inf, self.log_weights.abs(), 0.0).amax(1)
        error = span * (1e-12 + 64 * EPS * ((T * span).abs() + weights)) + self.centre.abs() * 1e-14
        return (self._parts(T).softmax(-1) * cells).sum(-1), error

    def deviation(self, A: Tensor) -> Tensor:
        return length(A * (self.high - self.low) / 2)


@dataclass(frozen=True)
class OneHotTails(Tails):
    """One of n coordinates is 1 and the others are 0; G = K, and a linear function A varies by max A - min A."""

    log_weights: Tensor  # (n,)

    @cached_property
    def low(self) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(self.log_weights)

    @cached_property
    def high(self) -> Tensor:  # type: ignore[override]
        return torch.ones_like(self.log_weights)

    @cached_property
    def centre(self) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(self.log_weights)

    def cumulant(self, T: Tensor) -> Tensor:
        total = (self.log_weights + T).logsumexp(-1)
        return total + (1 + total.abs() + 2 * T.abs().amax(-1)) * gamma(T.shape[-1] + 8, T.dtype)

    def mean(self, T: Tensor) -> Interval:
        share = (self.log_weights + T).softmax(-1)
        weights = torch.where(self.log_weights > -torch.inf, self.log_weights.abs(), 0.0).amax()
        return share, (1e-13 + 64 * EPS * (T.abs().amax(-1, keepdim=True) + weights)).expand_as(share)

    def deviation(self, A: Tensor) -> Tensor:
        return (A.amax(-1) - A.amin(-1)) / 2 * (1 + 8 * EPS)


@dataclass(frozen=True)
class SeveralTails(Tails):
    """Coordinates side by side, each block with a law of its own; cumulants add up."""

    parts: Sequence[Tails]

    @cached_property
    def low(self) -> Tensor:  # type: ignore[override]
        return torch.cat([part.low for part in self.parts])

    @cached_property
    def high(self) -> Tensor:  # type: ignore[override]
        return torch.cat([part.high for part in self.parts])

    @cached_property
    def centre(self) -> Tensor:  # type: ignore[override]
        return torch.cat([part.centre for part in self.parts])

    def _each(self, T: Tensor) -> list[tuple[Tails, Tensor]]:
        pieces = torch.split(T, [part.low.numel() for part in self.parts], -1)
        return list(zip(self.parts, pieces, strict=True))

    def cumulant(self, T: Tensor) -> Tensor:
        each = torch.stack([part.cumulant(t) for part, t in self._each(T)])
        return each.sum(0) + each.abs().sum(0) * gamma(len(self.parts), T.dtype)

    def mean(self, T: Tensor) -> Interval:
        means, errors = zip(*(part.mean(t) for part, t in self._each(T)), strict=True)
        return torch.cat(means, -1), torch.cat(errors, -1)

    def deviation(self, A: Tensor) -> Tensor:
        each = torch.stack([part.deviation(a) for part, a in self._each(A)], -1)
        return length(each)

    def box(self, tilt: Tensor, level: Tensor) -> Interval:
        lows, highs = zip(*(part.box(t, level) for part, t in self._each(tilt)), strict=True)
        return torch.cat(lows, -1), torch.cat(highs, -1)
