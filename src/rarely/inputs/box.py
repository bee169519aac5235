"""Uniform inputs in a box."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import torch
from torch import Tensor

from rarely.core.coordinates import Coordinates
from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, assign, inside, leading, tensor
from rarely.core.rng import TORCHS, Rng
from rarely.core.words import ranges
from rarely.inputs.common import one_each, uniform_between
from rarely.stats.normal import Span


@dataclass(frozen=True, init=False)
class Box:
    """Uniform in low <= x <= high, coordinate by coordinate. Equal bounds fix a coordinate."""

    low: Tensor  # (*event)
    high: Tensor  # (*event)
    event_shape: Shape
    normal_dim = property(one_each)
    support = property(attrgetter("low", "high"))

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        lower = tensor(low, "low")
        upper = tensor(high, "high").to(lower.dtype)
        try:
            lower, upper = lower + torch.zeros_like(upper), upper + torch.zeros_like(lower)
        except RuntimeError as error:
            raise InputError(f"low has shape {tuple(lower.shape)} and high {tuple(upper.shape)}") from error
        wrong = int((lower > upper).sum())
        if wrong:
            first = int((lower > upper).flatten().nonzero()[0])
            raise InputError(
                f"low > high in {wrong} coordinate(s), first at flat index {first}: "
                f"{lower.flatten()[first].item():g} > {upper.flatten()[first].item():g}; swap the bounds"
            )
        assign(self, low=lower.contiguous(), high=upper.contiguous(), event_shape=tuple(lower.shape))

    @property
    def words(self) -> str:
        return f"uniform in {ranges(self.low, self.high)}"

    @property
    def coordinates(self) -> Coordinates:
        return Coordinates(True, self.low, self.high)

    @cached_property
    def _span(self) -> Span:
        return Span(self.low, self.high)

    @property
    def center(self) -> Tensor:
        return 0.5 * (self.low + self.high)

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        return uniform_between(self.low, self.high, (*leading(shape), *self.event_shape), rng)

    def log_density(self, x: Tensor) -> Tensor:
        ok = inside(x, self.low, self.high, self.event_shape)
        return torch.where(ok, 0.0, -torch.inf).to(x.dtype)

    def from_normal(self, z: Tensor) -> Tensor:
        return self._span.at(z.reshape(*z.shape[:-1], *self.event_shape))
