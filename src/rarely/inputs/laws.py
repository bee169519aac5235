"""The law of one number, or of one column of a table, as a map of one standard normal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, assign, tensor
from rarely.stats.normal import Span

_KNOTS = 257  # quantiles that an empirical law keeps at most


class Law(Protocol):
    """One standard normal becomes `width` numbers; (..., 1) in, (..., width) out, one problem or stacked."""

    @property
    def width(self) -> int: ...

    @property
    def center(self) -> Tensor:
        """A typical value, (width,)."""
        ...

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        """Least and largest value, (width,), perhaps infinite."""
        ...

    def from_normal(self, z: Tensor) -> Tensor: ...


@dataclass(frozen=True, init=False)
class Uniform:
    """Anything between low and high, equally likely."""

    low: Tensor  # (1,)
    high: Tensor  # (1,)
    width = 1
    support = property(attrgetter("low", "high"))

    def __init__(self, low: float, high: float) -> None:
        lower, upper = _number(low, "low"), _number(high, "high")
        if bool(lower > upper):
            raise InputError(f"low {low:g} > high {high:g}; swap the bounds")
        assign(self, low=lower, high=upper)

    @property
    def center(self) -> Tensor:
        return 0.5 * (self.low + self.high)

    def from_normal(self, z: Tensor) -> Tensor:
        return Span(self.low, self.high).at(z)


@dataclass(frozen=True, init=False)
class Normal:
    """The bell curve."""

    mean: Tensor  # (1,)
    std: Tensor  # (1,)
    width = 1
    center = property(attrgetter("mean"))

    def __init__(self, mean: float, std: float) -> None:
        if not std >= 0:
            raise InputError(f"std must be at least 0, got {std}")
        assign(self, mean=_number(mean, "mean"), std=_number(std, "std"))

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return torch.full_like(self.mean, -torch.inf), torch.full_like(self.mean, torch.inf)

    def from_normal(self, z: Tensor) -> Tensor:
        return torch.addcmul(self.mean, z, self.std)


@dataclass(frozen=True, init=False)
class Fixed:
    """Always the same."""

    value: Tensor  # (1,)
    width = 1
    center = property(attrgetter("value"))
    support = property(attrgetter("value", "value"))

    def __init__(self, value: float) -> None:
        assign(self, value=_number(value, "value"))

    def from_normal(self, z: Tensor) -> Tensor:
        return self.value + torch.zeros_like(z)

    def coded(self, code: Tensor) -> Tensor:
        return self.value.expand(code.shape)


@dataclass(frozen=True, init=False)
class Empirical:
    """As in the data: their quantiles, joined by straight lines. Nothing lies beyond the values seen."""

    knots: Tensor  # (K,) quantiles at equally spaced probabilities from 0 to 1
    width = 1

    def __init__(self, data: ArrayLike) -> None:
        values = tensor(data, "data").double().flatten()
        if values.numel() < 2:
            raise InputError("an empirical law needs at least two values")
        at = torch.linspace(0, 1, min(_KNOTS, values.numel()), dtype=torch.float64)
        ordered, place = values.sort().values, at * (values.numel() - 1)
        below = place.floor().long().clamp_max(values.numel() - 2)
        knots = torch.lerp(ordered[below], ordered[below + 1], place - below)
        assign(self, knots=knots.to(torch.get_default_dtype()))

    @property
    def center(self) -> Tensor:
        middle = self.knots.shape[-1] // 2
        return self.knots[..., middle : middle + 1]

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return self.knots[..., :1], self.knots[..., -1:]

    def from_normal(self, z: Tensor) -> Tensor:
        last = self.knots.shape[-1] - 1
        place = Span(z.new_zeros(()), z.new_tensor(float(last))).at(z)
        below = place.detach().floor().long().clamp(0, last - 1)
        knots = self.knots.expand(*z.shape[:-1], last + 1)
        return torch.lerp(knots.gather(-1, below), knots.gather(-1, below + 1), place - below)


def category_chances(law: Law) -> Tensor | None:
    """Probability of each of the categories of a law, (K,) in float64, for its `coded`; None where it has none."""
    if isinstance(law, Fixed):
        return torch.ones(1, dtype=torch.float64)
    if not isinstance(law, Choice | OneHot):
        return None
    low, high = _ends(law.edges.double())
    low, high = torch.where(low > 0, -high, low), torch.where(low > 0, -low, high)  # the lower tail keeps its digits
    chances: Tensor = torch.special.ndtr(high) - torch.special.ndtr(low)
    return chances


def _at_zero(self: Any) -> Tensor:
    """The value of the middle of the normal, of a law with edges."""
    made: Tensor = self.from_normal(self.edges.new_zeros(*self.edges.shape[:-1], 1))
    return made


@dataclass(frozen=True, init=False)
class Choice:
    """One of a list of numbers, such as an integer, or of texts, which are numbered in their order from 0."""

    values: Tensor  # (K,)
    edges: Tensor  # (K - 1,) of the normal: below the first is the first value
    names: tuple[str, ...]  # of values that are texts
    width = 1
    center = property(_at_zero)

    def __init__(self, values: ArrayLike | Sequence[str], probabilities: ArrayLike | None = None) -> None:
        given = np.asarray(values)
        names = tuple(str(name) for name in given.tolist()) if given.dtype.kind in "OUS" and given.ndim == 1 else ()
        numbers = tensor(np.arange(len(names)) if names else values, "values").flatten()
        assign(self, values=numbers, edges=_edges(numbers.numel(), probabilities), names=names)

    @classmethod
    def integers(cls, low: int, high: int) -> Choice:
        """low, low + 1, ..., high, equally likely."""
        if low > high:
            raise InputError(f"low {low} > high {high}; swap the bounds")
        return cls(torch.arange(low, high + 1))

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return self.values.amin(-1, keepdim=True), self.values.amax(-1, keepdim=True)

    def from_normal(self, z: Tensor) -> Tensor:
        return (_member(z, self.edges) * self.values).sum(-1, keepdim=True)

    def coded(self, code: Tensor) -> Tensor:
        return self.values.expand(*code.shape[:-1], self.values.shape[-1]).gather(-1, code)


@dataclass(frozen=True, init=False)
class OneHot:
    """One of several categories, as a column for each that is 1 where the others are 0."""

    edges: Tensor  # (K - 1,) of the normal
    names: tuple[str, ...]
    width: int
    center = property(_at_zero)

    def __init__(self, probabilities: ArrayLike, names: Sequence[str] = ()) -> None:
        share = tensor(probabilities, "probabilities").flatten()
        count = share.numel()
        if names and len(names) != count:
            raise InputError(f"there are {len(names)} names for {count} categories")
        labels = tuple(str(name) for name in names) or tuple(str(k) for k in range(count))
        assign(self, edges=_edges(count, share), names=labels, width=count)

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.center), torch.ones_like(self.center)

    def from_normal(self, z: Tensor) -> Tensor:
        return _member(z, self.edges)

    def coded(self, code: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(code.squeeze(-1), self.width).to(self.edges.dtype)


def with_slope(value: Tensor, smooth: Tensor) -> Tensor:
    """`value`, with the gradient of `smooth`.

    A step has no slope, and searches that follow gradients would stand still. They need a direction, not a derivative:
    roots and Metropolis ratios are of the steps themselves, so the slope of a curve through them changes what a method
    costs and not what it says.
    """
    return value.detach() + (smooth - smooth.detach()) if smooth.requires_grad else value


def _member(z: Tensor, edges: Tensor) -> Tensor:
    """Which of the K intervals between edges (..., K - 1) holds z (..., 1), one-hot (..., K).

    The slope is that of the probability of each interval when z is blurred by another standard normal.
    """
    ends = _ends(edges)
    hot = ((z >= ends[0]) & (z < ends[1])).to(z.dtype)
    if not z.requires_grad:
        return hot
    return with_slope(hot, torch.special.ndtr(ends[1] - z) - torch.special.ndtr(ends[0] - z))


def _ends(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Where each of the K intervals between edges (..., K - 1) begins and ends."""
    return (
        torch.nn.functional.pad(edges, (1, 0), value=-torch.inf),
        torch.nn.functional.pad(edges, (0, 1), value=torch.inf),
    )


def _edges(count: int, probabilities: ArrayLike | None) -> Tensor:
    """Where the normal is cut so that its pieces have these probabilities."""
    share = tensor([1.0] * count if probabilities is None else probabilities, "probabilities").double().flatten()
    if share.numel() != count or count == 0:
        raise InputError(f"there are {share.numel()} probabilities for {count} values")
    if bool((share < 0).any()) or not float(share.sum()) > 0:
        raise InputError("probabilities must be at least 0 and have a positive sum")
    share = share / share.sum()
    below, above = share.cumsum(0)[:-1], share.flip(0).cumsum(0).flip(0)[1:]
    # From whichever side is the smaller, so that a category of 1e-12 at the end keeps its digits.
    low = below < 0.5
    return torch.where(low, torch.special.ndtri(below), -torch.special.ndtri(above)).to(torch.get_default_dtype())


def _number(value: float, name: str) -> Tensor:
    result = tensor(value, name).to(torch.get_default_dtype())
    if result.numel() != 1 or not math.isfinite(float(result)):
        raise InputError(f"{name} must be one number")
    return result.reshape(1)
