"""Product laws whose mass in a box, and in a box cut by a plane, can be bounded rigorously."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.operators import TINY, gamma
from rarely.bounds.tails import LEAST
from rarely.bounds.volume import EXACT, fraction_above
from rarely.core.errors import InputError

# Standard deviations around a Gaussian's mean that bound the search; what lies beyond the first has mass below 4e-33
# a coordinate. The narrower ones trade that tail against tighter bounds inside when no box can be split.
REACHES = (12.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0)
_LEAST_MASS = -200.0  # nats that a truncation may leave: what is divided by must not underflow
Frame = tuple[Tensor, Tensor, float]


class Measure(Protocol):
    """A probability law with independent coordinates.

    `shape` is that of an event; `flat` gives the law on R^n in float64, which is what the other methods need.
    `frames` are boxes (n,) with an upper bound on the mass outside; the first is the one to search. The fields of a law
    may also be (B, n), one law for each of the boxes that `mass` and `above` are asked about.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def flat(self) -> Measure: ...

    def frames(self) -> list[Frame]: ...

    def mass(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]: ...

    def above(self, A: Tensor, b: Tensor, low: Tensor, high: Tensor, *, upper: bool) -> Tensor: ...


def _normal_cdf(x: Tensor) -> Tensor:
    """Through erfc, which keeps its relative precision in the left tail; torch.special.ndtr does not."""
    tail: Tensor = torch.special.erfc(-x / math.sqrt(2))
    return tail / 2


def _flat(t: Tensor) -> Tensor:
    return t.detach().to(torch.float64).flatten()


@dataclass(frozen=True)
class UniformMeasure:
    """Uniform on the box low <= x <= high, event-shaped; a coordinate with low = high is fixed."""

    low: Tensor
    high: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.low.shape)

    def flat(self) -> UniformMeasure:
        if self.low.shape != self.high.shape or not bool((self.low <= self.high).all()):
            raise InputError("a uniform law needs low <= high of equal shape")
        return UniformMeasure(_flat(self.low), _flat(self.high))

    def frames(self) -> list[Frame]:
        return [(self.low, self.high, 0.0)]

    def mass(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds on the mass of boxes (B, n) -> (B,)."""
        full = self.high - self.low
        ratio = torch.where(full > 0, (high - low) / full, 1.0).prod(1)
        # Two differences, a quotient and a product of each coordinate round once: 4 n u, half of what is charged.
        margin = 4 * low.shape[1] * torch.finfo(ratio.dtype).eps
        return (ratio * (1 - margin) - TINY).clamp(min=0), ratio * (1 + margin) + TINY

    def above(self, A: Tensor, b: Tensor, low: Tensor, high: Tensor, *, upper: bool) -> Tensor:
        """An upper or a lower bound on the mass of {x in box : A x + b >= 0}."""
        return self.mass(low, high)[upper] * fraction_above(A, b, low, high, upper=upper)


@dataclass(frozen=True)
class GaussianMeasure:
    """Independent normals, event-shaped mean and std, truncated to [low, high] where those are given."""

    mean: Tensor
    std: Tensor
    low: Tensor | None = None
    high: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mean.shape)

    def flat(self) -> GaussianMeasure:
        if self.mean.shape != self.std.shape or not bool((self.std > 0).all()):
            raise InputError("a Gaussian needs positive std of the shape of its mean")
        ends = (None if t is None else _flat(t.expand(self.shape)) for t in (self.low, self.high))
        law = GaussianMeasure(_flat(self.mean), _flat(self.std), *ends)
        low, high = law._ends()
        reach = REACHES[0] * law.std
        if bool(((law.mean + reach < low) | (law.mean - reach > high) | (low >= high)).any()):
            raise InputError("a Gaussian truncated to where it has no mass")
        return law

    def usable(self) -> GaussianMeasure:
        """Itself, or Unprovable where the product of what it is normalised by, or a square, would underflow."""
        try:
            law = self.flat()
        except InputError as reason:
            raise Unprovable(str(reason)) from reason
        low, high = law._ends()
        if bool((high <= low).any()) or float(law._raw(low, high)[0].log().sum()) < _LEAST_MASS:
            raise Unprovable("a normal law truncated to next to nothing")
        if not bool(((law.std > 1e-100) & (law.std < 1e100)).all()):
            raise Unprovable("a normal law with a deviation beyond the range of its squares")
        return self

    def _ends(self) -> tuple[Tensor, Tensor]:
        low = self.low if self.low is not None else torch.full_like(self.mean, -torch.inf)
        high = self.high if self.high is not None else torch.full_like(self.mean, torch.inf)
        return low, high

    def frames(self) -> list[Frame]:
        low, high = self._ends()
        out: list[Frame] = []
        for reach in REACHES:
            inner_low = torch.maximum(low, self.mean - reach * self.std)
            inner_high = torch.minimum(high, self.mean + reach * self.std)
            if bool((inner_low >= inner_high).any()):
                break
            sides = int((inner_low > low).sum()) + int((inner_high < high).sum())
            tail = sides * math.erfc(reach / math.sqrt(2)) / 2
            out.append((inner_low, inner_high, tail / max(float(self._normaliser()[0]), 1e-300) * (1 + 1e-9)))
        return out

    def _normaliser(self) -> tuple[Tensor, Tensor]:
        least, most = self._raw(*self._ends())
        return least.prod(-1), most.prod(-1)

    def _raw(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the untruncated mass per coordinate, (B, n)."""
        u, v = (low - self.mean) / self.std, (high - self.mean) / self.std
        # Mirror intervals on the right to the left, where the distribution function keeps relative precision.
        flip = u + v > 0
        u, v = torch.where(flip, -v, u), torch.where(flip, -u, v)
        at_u, at_v = _normal_cdf(u), _normal_cdf(v)
        # The argument of erfc is off by 4 u of itself: a difference, two quotients, and the root of 2. As phi(v) is at
        # most (1 + |v|) Phi(v) for v <= 0 (Mills), that is 4 u (|v| + v^2) <= 7e-16 (1 + v^2) of Phi; erfc itself is
        # taken to be good to 8 ulps, 1.8e-15 of it. At u it is no more, since Phi(u) (1 + u^2) rises up to 0. Together
        # 5e-15, half of what is charged. Below 1e-300 Phi is denormal and charged whole.
        error = 1e-14 * at_v * (1 + v.abs().nan_to_num(posinf=0.0).clamp(max=40) ** 2) + 1e-300
        return (at_v - at_u - error).clamp(min=0), at_v - at_u + error

    def mass(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds on the mass of boxes (B, n) -> (B,)."""
        least, most = self._raw(low, high)
        peak, foot = self._density(low, high)
        width = high - low
        least = torch.maximum(least, foot * width * (1 - 1e-12))
        most = torch.minimum(most, peak * width * (1 + 1e-12))
        z_least, z_most = self._normaliser()
        # A product over n coordinates rounds n times, and so does a normaliser: 2 n u < 1e-12 up to n = 4000. What the
        # product loses to underflow is charged before it is divided.
        least, most = (least.prod(1) - TINY).clamp(min=0), most.prod(1) + TINY
        return least / z_most * (1 - 1e-12), most / z_least.clamp(min=1e-300) * (1 + 1e-12)

    def _density(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Largest and smallest untruncated density per coordinate."""
        u, v = (low - self.mean) / self.std, (high - self.mean) / self.std
        near = torch.clamp(u * 0, u, v)
        far = torch.maximum(u.abs(), v.abs())
        scale = 1 / (self.std * math.sqrt(2 * math.pi))
        # The exponent is off by 6 u of itself, far^2 / 2; exp and the scale by a few ulps.
        slack = 1 + 1e-13 * (1 + far * far)
        return torch.exp(-near * near / 2) * scale * slack, torch.exp(-far * far / 2) * scale / slack

    def above(self, A: Tensor, b: Tensor, low: Tensor, high: Tensor, *, upper: bool) -> Tensor:
        """An upper or a lower bound on the mass of {x in box : A x + b >= 0}.

        The best of: the box's mass; the half-space of the untruncated law, a normal tail; the Chernoff bound with
        the box's own moment generating function; and, in few dimensions, volume times extreme density.
        """
        least, most = self.mass(low, high)
        z_least, z_most = (z.clamp(min=1e-300) for z in self._normaliser())
        sign = 1 if upper else -1
        best = torch.minimum(most, self._half_space(sign * A, sign * b, low, high) / z_least)
        best = best if upper else least - best
        if A.shape[1] <= EXACT:
            peak, foot = self._density(low, high)
            share = fraction_above(A, b, low, high, upper=upper)
            part = share * ((peak if upper else foot) * (high - low)).prod(1)
            if upper:
                best = torch.fmin(best, torch.where(share == 0, 0.0, part + TINY) / z_least * (1 + 1e-12))
            else:
                best = torch.fmax(best, (part - TINY) / z_most * (1 - 1e-12))
        return best.clamp(min=0)

    def _half_space(self, A: Tensor, b: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Upper bound on the untruncated mass of {x in box : A x + b >= 0}."""
        centre = (A * self.mean).sum(1) + b
        blur = gamma(A.shape[1], A.dtype) * ((A * self.mean).abs().sum(1) + b.abs())
        # The spread, a root of a sum of n squares, is good to n u < 1e-12, and Phi of what remains as in `_raw`.
        spread = torch.linalg.vector_norm(A * self.std, dim=1) + LEAST
        tail = _normal_cdf((centre + blur) / spread * torch.where(centre + blur > 0, 1 + 1e-12, 1 - 1e-12))
        tail = torch.where(spread > 1e20 * LEAST, tail, torch.ones_like(tail))  # squares have underflowed
        best: Tensor = (tail * (1 + 1e-10) + 1e-300).log()
        # E[exp(s (A x + b)); box] with s in units of the best tilt of the untruncated law, centre / spread^2.
        tilt = (-centre / spread**2).clamp(min=0)
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
            s = (factor * tilt).unsqueeze(1)
            shift = s * A * self.std**2
            raw = self._raw(low - shift, high - shift)[1].clamp(min=1e-300).log()
            exponent = s * A * self.mean + (s * A * self.std) ** 2 / 2
            total = (raw + exponent).sum(1) + s.squeeze(1) * b
            # Any s will do, but the box must move by what the exponent says: that is off by 3 u of the shift, which
            # `_raw` feels by (1 + |v|) |shift| / std times it, and |v| <= 12 + |shift| / std. The sums round n times.
            size = exponent.abs().sum(1) + raw.abs().sum(1) + (s.squeeze(1) * b).abs()
            best = torch.minimum(best, total + 1e-12 * size + 1e-12)
        return best.exp()
