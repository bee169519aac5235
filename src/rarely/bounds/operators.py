"""What an operator of a network must offer to be bounded, and the parts that several layers share.

An operator is `Affine`, or `Relaxed`: put between linear functions. It works on tensors with the batch first. The
operators themselves, and how torch's become them, are in `layers`, one file for each family.

Rounding, of two kinds. Ours: a sum of n products evaluated in float64, in any order, is off by at most n u times the
sum of the absolute products (Higham 2002, sec. 3.1; u is the unit roundoff, half of `finfo.eps`, and terms of order u^2
are covered below). With `Terms`, the sum of absolute products |W| H + |b| for H >= |x| over the region, an operator
says once what that takes; the charge is gamma times it, gamma = (n + 8) eps = 2 (n + 8) u: twice the worst case, with
eight more roundings for what surrounds the sum. What underflows is lost whole: each product up to 2^-1075, and a sum of
10^20 of them less than `tiny`, which is charged for every value, and for every coefficient times its value.

The network's own: it computes every value in its `Arithmetic`, float32 as a rule, so what an operator gives is its
exact result on the *computed* inputs, off by at most a charge of the same form. A bound that pays this charge at every
value and in every backward step therefore holds for the network as it runs, and for real arithmetic, where every
charge is zero, as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

Interval = tuple[Tensor, Tensor]
TINY = 1e-300  # in float64
EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Terms:
    """What an operator adds up, all that a charge for rounding needs."""

    size: Tensor  # per output entry, the sum of the absolute products for inputs of magnitude H
    ahead: int  # how many products that are, or roundings; 0 where entries only move
    back: int = 0  # how many coefficients a backward step adds up


@dataclass(frozen=True)
class Arithmetic:
    """The numbers that a network runs in."""

    name: str
    eps: float
    tiny: float  # the smallest normal number
    largest: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Arithmetic:
        info = torch.finfo(dtype)
        return cls(str(dtype).removeprefix("torch."), info.eps, info.tiny, info.max)

    def charge(self, terms: Terms) -> Tensor | None:
        """How far the network's own value may be off, per output entry; none where it is exact.

        The n products and the n sums may each underflow or be flushed to zero, and the result when it is read: less
        than 2 n + 1 times `tiny`, which later roundings grow by less than a half (`peak` sees to n u < 1/2).
        """
        if not terms.ahead:
            return None
        return terms.size * ((terms.ahead + 8) * self.eps) + 4 * (terms.ahead + 1) * self.tiny

    def peak(self, terms: Terms) -> Tensor:
        """Partial results, (B,), that may not exceed `largest`; infinite where there are too many terms to charge.

        Four times n times the sum of absolute products: a mean may be divided after it was summed.
        """
        if (terms.ahead + 8) * self.eps >= 1:
            return torch.full_like(terms.size.flatten(1)[:, 0], torch.inf)
        return terms.size.flatten(1).amax(1) * (4 * max(1, terms.ahead))

    def cast(self, x: Tensor) -> Tensor:
        """How far from a real number x its cast to this arithmetic may be: half an ulp, or all of what is denormal."""
        return x.abs() * (self.eps / 2 * (1 + 1e-9)) + self.tiny


def tiny(dtype: torch.dtype) -> float:
    """What underflow is charged; in float32, 10^8 products of up to 2^-126 each, should they be flushed to zero."""
    return TINY if dtype == torch.float64 else 1e-30


def gamma(n: int, dtype: torch.dtype) -> float:
    """Relative error charged to a sum of n products, in units of the sum of absolute products."""
    return (n + 8) * torch.finfo(dtype).eps


def magnitude(bounds: Interval) -> Tensor:
    """The largest absolute value inside an interval."""
    return torch.maximum(bounds[0].abs(), bounds[1].abs())


def contract(A: Tensor, t: Tensor) -> Tensor:
    """Sum over the event of A (B or 1, m, *event) times t (B, *event) -> (B, m)."""
    flat = t.expand(t.shape[0], *A.shape[2:]).flatten(1)
    if A.shape[0] == 1:
        return flat @ A[0].flatten(1).mT
    return torch.bmm(A.flatten(2), flat.unsqueeze(-1).expand(A.shape[0], -1, -1)).squeeze(-1)


class Operator(ABC):
    """What every operator offers; be `Affine` or `Relaxed`."""

    @abstractmethod
    def forward(self, *xs: Tensor) -> Tensor:
        """The value, computed in the precision of its inputs."""

    @abstractmethod
    def interval(self, *xs: Interval) -> Interval:
        """Bounds on each output entry from bounds on the inputs.

        A relaxed operator rounds them outward. For an affine one the charge that follows from its terms is enough.
        """

    @abstractmethod
    def terms(self, *H: Tensor) -> Terms | None:
        """What it adds up for inputs of magnitude H, or none where the network computes it without rounding.

        Of a relaxed operator: the size of its result, whose magnitude it is given after that of its input, and how many
        roundings of that size the network makes.
        """


class Affine(Operator):
    """An affine map of one or several inputs, which backward propagation passes through exactly."""

    entrywise: ClassVar[bool] = False  # every output entry reads a single input entry

    @abstractmethod
    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        """Coefficients A (B, m, *out) of linear functions of the output to those of each input, (B, m, *in)."""

    @abstractmethod
    def constant(self) -> Tensor | None:
        """The output at zero, broadcasting to its shape, where that is not zero."""

    def keep_outputs(self, index: Tensor) -> Affine | None:
        """The operator with these entries of a flat output alone, where that makes it smaller."""
        return None

    def keep_inputs(self, index: Tensor) -> Affine | None:
        """The operator with the other entries of a flat input taken as zero and left out, where it can do that."""
        return None


class Relaxed(Operator):
    """A map of one input that backward propagation puts between linear functions, given bounds on that input."""

    @abstractmethod
    def relax(self, x: Interval) -> Relaxation:
        """Linear functions below and above it that hold on the interval."""

    @abstractmethod
    def unsettled(self, x: Interval) -> Tensor:
        """Which input entries deserve tighter bounds."""

    @abstractmethod
    def influence(self, x: Interval, size: Tensor) -> Tensor:
        """Guides branching: what a bound loses per unit of width of each input entry.

        `size` is that of the bound's coefficients at the output.
        """


@dataclass(frozen=True)
class Along:
    """A value beside linear functions of the inputs: |z - middle - slope w| <= off, w from the centre of the inputs."""

    slope: Tensor  # (B, *event, n)
    middle: Tensor  # (B, *event)
    off: Tensor  # (B, *event)
    reach: Tensor  # (B, n), at least |w|


class Joint(Relaxed):
    """One that gains from knowing how the entries of its input depend on those of the network together."""

    @abstractmethod
    def relax(self, x: Interval, along: Along | None = None) -> Relaxation: ...


class Kinked(Relaxed):
    """Convex, zero at zero, of slope one above and `leak` below: a line of any slope between lies below it.

    A fixed sign of its input settles it.
    """

    leak: float

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether it is zero wherever its input is negative."""

    @abstractmethod
    def gap(self, x: Interval) -> Tensor:
        """The largest gap between the function and the chord above it."""

    @abstractmethod
    def relax(self, x: Interval) -> Elementwise: ...


class Relaxation(Protocol):
    """One step of backward propagation: coefficients of the output to those of the input, and a constant.

    `alpha` (B, m or 1, *event) in [0, 1] chooses among the lower slopes that are free, from the least to the steepest.
    """

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Elementwise:
    """lower_slope x + lower_shift <= f(x) <= upper_slope x + upper_shift, entry by entry.

    A positive coefficient takes the lower line and a negative one the upper: with A+ = (A + |A|) / 2 and
    A- = (A - |A|) / 2 that is A (l + u) / 2 + |A| (l - u) / 2, for slopes and shifts alike. The rounding charge
    |A| slack rides on the second term.
    """

    lower_slope: Tensor  # (B, *event)
    upper_slope: Tensor
    mid_shift: Tensor
    half_shift: Tensor  # less the slack
    free: Tensor | None  # where the lower slope may be any value in [floor, 1]
    floor: float

    @classmethod
    def lines(
        cls, x: Interval, lower: Interval, upper: Interval, free: Tensor | None = None, floor: float = 0.0
    ) -> Elementwise:
        """From the slope and shift of a line below and of one above, for inputs in x; charges their rounding."""
        H = magnitude(x)
        steepest = torch.maximum(lower[0].abs(), upper[0].abs())
        if free is not None:
            steepest = torch.where(free, torch.ones_like(steepest), steepest)
        shifts = lower[1].abs() + upper[1].abs()
        slack = steepest * H * gamma(16, H.dtype) + shifts * gamma(H[0].numel(), H.dtype) + tiny(H.dtype)
        mid, half = (lower[1] + upper[1]) / 2, (lower[1] - upper[1]) / 2 - slack
        return cls(lower[0], upper[0], mid, half, free, floor)

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        size = A.abs()
        lower, upper = self.lower_slope.unsqueeze(1), self.upper_slope.unsqueeze(1)
        if alpha is not None and self.free is not None:
            slope = self.floor + (1 - self.floor) * alpha if self.floor else alpha
            lower = torch.where(self.free.unsqueeze(1), slope, lower)
        bias = contract(A, self.mid_shift) + contract(size, self.half_shift)
        return torch.addcmul(A * ((lower + upper) / 2.0), size, (lower - upper) / 2.0), bias
