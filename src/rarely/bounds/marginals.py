"""Tails of other laws with independent coordinates, and which input model has which; see `tails`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.bounds.fourier import uniform_cumulant, uniform_mean
from rarely.bounds.graph import Unprovable
from rarely.bounds.operators import Interval, gamma
from rarely.bounds.tails import LEAST, NormalTails, Tails, UniformTails
from rarely.core.input_model import InputModel
from rarely.inputs import Box, Gaussian, GaussianNoise, LpBall, PixelDropout, Tabular, TruncatedGaussian
from rarely.inputs.laws import Choice, Empirical, Fixed, Law, Normal, OneHot, Uniform

_EPS = torch.finfo(torch.float64).eps
_LOG_ROOT = 0.5 * math.log(2 * math.pi)


def _log_mass(u: Tensor, v: Tensor) -> Interval:
    """log P(u < Z < v), and a bound on its error: log Phi is good to a few eps of itself, its difference to less."""
    flip = u + v > 0
    u, v = torch.where(flip, -v, u), torch.where(flip, -u, v)
    low, high = log_ndtr(u), log_ndtr(v)
    share = -torch.expm1(low - high)
    size = 1 + high.abs() + torch.where(low > -torch.inf, low.abs(), torch.zeros_like(low))
    return high + share.log(), 32 * _EPS * size / share.clamp(min=1e-300)


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

    def _ends(self, T: Tensor) -> tuple[Tensor, Tensor]:
        """The ends in deviations from the mean of the normal tilted by T."""
        moved = self.location + self.std**2 * T
        return (self.low - moved) / self.std, (self.high - moved) / self.std

    def _between(self, T: Tensor) -> tuple[Interval, Interval]:
        """log E[exp(T (x - centre)); inside] and the mean there, each with a bound on its error."""
        u, v = self._ends(T)
        mass, slip = _log_mass(u, v)
        off = (self.location - self.centre) * T + (self.std * T) ** 2 / 2
        blur = slip + 16 * _EPS * (off.abs() + ((self.location - self.centre) * T).abs() + mass.abs())
        left, right = (torch.exp((-0.5 * e * e - _LOG_ROOT - mass).clamp(max=700.0)) for e in (u, v))
        middle = self.location + self.std**2 * T + self.std * (left - right)
        wobble = self.std * (left + right) * (64 * _EPS + slip) + 16 * _EPS * (middle.abs() + self.location.abs())
        varies, span = self.high > self.low, self.high - self.low
        middle = torch.where(varies, middle.clamp(self.low, self.high), self.low)
        return (off + mass, blur), (middle, torch.where(varies, torch.fmin(wobble, span), 0.0))


@dataclass(frozen=True)
class TruncatedTails(_Normals):
    """Independent normals, each given that it lies in [low, high]; G = K.

    Every tilted law is a normal on an interval: log-concave. Its variance is at most std^2 (Brascamp and Lieb), and at
    most that of the exponential law on the interval with its mean, whose density crosses its own twice, so at most
    width^2 / 12.
    """

    def cumulant(self, T: Tensor) -> Tensor:
        (now, blur), _ = self._between(T)
        (before, slip), _ = self._between(torch.zeros_like(self.low))
        each = torch.where(self.high > self.low, now - before + blur + slip, 0.0)
        return each.sum(-1) + each.abs().sum(-1) * gamma(T.shape[-1], T.dtype)

    def mean(self, T: Tensor) -> Interval:
        return self._between(T)[1]

    def deviation(self, A: Tensor) -> Tensor:
        each = torch.fmin(self.std, (self.high - self.low) / math.sqrt(12))
        norm: Tensor = torch.linalg.vector_norm(A * each, dim=-1)
        return norm * (1 + gamma(A.shape[-1], A.dtype)) + LEAST


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
        (inside, blur), middle = self._between(T)
        u, v = self._ends(torch.zeros_like(self.low))
        ends = (log_ndtr(u) + T * (self.low - self.centre), log_ndtr(-v) + T * (self.high - self.centre))
        parts = torch.stack([ends[0], torch.where(inside.isnan(), -torch.inf, inside), ends[1]])
        return parts, blur.nan_to_num(nan=0.0), middle

    def cumulant(self, T: Tensor) -> Tensor:
        parts, blur, _ = self._parts(T)
        total = parts.logsumexp(0)
        each = total + blur + 64 * _EPS * (1 + total.abs())
        return each.sum(-1) + each.abs().sum(-1) * gamma(T.shape[-1], T.dtype)

    def mean(self, T: Tensor) -> Interval:
        parts, blur, (middle, slip) = self._parts(T)
        share = parts.softmax(0)
        span = self.high - self.low
        return share[0] * self.low + share[1] * middle + share[2] * self.high, slip + span * (blur + 256 * _EPS)

    def deviation(self, A: Tensor) -> Tensor:
        each = torch.fmin(self.std * math.sqrt(1.55), (self.high - self.low) / 2)
        norm: Tensor = torch.linalg.vector_norm(A * each, dim=-1)
        return norm * (1 + gamma(A.shape[-1], A.dtype)) + LEAST


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
        error = ((self.high - self.low + self.centre.abs()) * 1e-12).expand_as(T)
        return (self._parts(T).softmax(-1) * cells).sum(-1), error

    def deviation(self, A: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(A * (self.high - self.low) / 2, dim=-1)
        return norm * (1 + gamma(A.shape[-1], A.dtype)) + LEAST


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
        return total + (1 + total.abs()) * gamma(T.shape[-1], T.dtype)

    def mean(self, T: Tensor) -> Interval:
        share = (self.log_weights + T).softmax(-1)
        return share, torch.full_like(share, 1e-13)

    def deviation(self, A: Tensor) -> Tensor:
        return (A.amax(-1) - A.amin(-1)) / 2 * (1 + 8 * _EPS)


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
        each = torch.stack([part.deviation(a) for part, a in self._each(A)])
        norm: Tensor = torch.linalg.vector_norm(each, dim=0)
        return norm * (1 + gamma(len(self.parts), A.dtype))

    def box(self, tilt: Tensor, level: Tensor) -> Interval:
        lows, highs = zip(*(part.box(t, level) for part, t in self._each(tilt)), strict=True)
        return torch.cat(lows, -1), torch.cat(highs, -1)


def _flat(t: Tensor) -> Tensor:
    return t.detach().double().flatten()


def _normal(mean: Tensor, factor: Tensor) -> NormalTails:
    end = torch.full_like(mean, torch.inf)
    return NormalTails(mean, factor, -end, end)


def _log_weights(edges: Tensor) -> Tensor:
    """Of the pieces of a normal between edges, rounded up."""
    ends = torch.tensor([torch.inf], dtype=torch.float64, device=edges.device)
    mass, error = _log_mass(torch.cat([-ends, _flat(edges)]), torch.cat([_flat(edges), ends]))
    return mass + error


def _column(law: Law) -> Tails:
    if isinstance(law, Uniform):
        return UniformTails(_flat(law.low), _flat(law.high))
    if isinstance(law, Normal):
        return _normal(_flat(law.mean), _flat(law.std))
    if isinstance(law, Fixed):
        return UniformTails(_flat(law.value), _flat(law.value))
    if isinstance(law, Empirical):
        knots = _flat(law.knots)
        middle, half = (knots[1:] + knots[:-1]) / 2, (knots[1:] - knots[:-1]) / 2 * (1 + 4 * _EPS)
        return CellTails(middle[None], half[None], torch.full_like(middle, -math.log(len(middle)))[None])
    if isinstance(law, Choice):
        values = _flat(law.values)
        return CellTails(values[None], torch.zeros_like(values)[None], _log_weights(law.edges)[None])
    if isinstance(law, OneHot):
        return OneHotTails(_log_weights(law.edges))
    raise Unprovable(f"no cumulant is known for a column of kind {type(law).__name__}")


def tails_of(model: InputModel) -> Tails:
    """The tails of an input model, or Unprovable."""
    if isinstance(model, Box) or (isinstance(model, LpBall) and model.norm == math.inf):
        return UniformTails(_flat(model.low), _flat(model.high))
    if isinstance(model, LpBall) and model.norm == 2 and not model.cut:
        return NormalTails.ball(_flat(model.middle), float(model.radius))
    if isinstance(model, Gaussian):
        return _normal(_flat(model.mean), _flat(model.std) if model.independent else model.factor.double())
    if isinstance(model, TruncatedGaussian):
        return TruncatedTails(*map(_flat, (model.mean, model.std, model.low, model.high)))
    if isinstance(model, GaussianNoise) and bool((model.std > 0).all()):
        return ClippedTails(*map(_flat, (model.image, model.std, model.low, model.high)))
    if isinstance(model, PixelDropout) and model.edge.shape == model.image.shape:
        sides = torch.stack([_flat(model.image), _flat(model.value)], 1)
        edge = _flat(model.edge)
        weights = torch.stack([log_ndtr(edge), log_ndtr(-edge)], 1) + 1e-13 * (1 + edge.square()).unsqueeze(1)
        return CellTails(sides, torch.zeros_like(sides), weights)
    if isinstance(model, Tabular) and bool((model.factor == torch.eye(len(model.factor))).all()):
        return SeveralTails([_column(law) for law in model.laws])
    raise Unprovable(f"no cumulant is known for inputs of kind {type(model).__name__}")
