"""Input regions over which linear functions can be minimised in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from rarely.bounds.operators import gamma


class Bounded(Protocol):
    """A batch of regions with their bounding boxes, low and high (B, *event): all that bounds need."""

    @property
    def low(self) -> Tensor: ...

    @property
    def high(self) -> Tensor: ...

    def minimum(self, A: Tensor, blur: Tensor) -> tuple[Tensor, Tensor]:
        """Lower bounds (B, m) of A x for A (B, m, n), rounding included, and |A| blur for some blur (B or 1, n) of x.

        Both at once, since reading A is what takes the time.
        """
        ...


class Region(Bounded, Protocol):
    """One in which a violation can be looked for."""

    def minimiser(self, A: Tensor) -> Tensor: ...

    def pick(self, index: Tensor) -> Region: ...


@dataclass(frozen=True)
class BoxRegion:
    """low <= x <= high."""

    low: Tensor  # (B, *event)
    high: Tensor

    def minimum(self, A: Tensor, blur: Tensor) -> tuple[Tensor, Tensor]:
        centre, reach = self._middle
        fall = torch.bmm(A.abs(), torch.cat([reach, blur.expand(len(reach), -1).unsqueeze(-1)], -1))
        return torch.bmm(A, centre).squeeze(-1) - fall[..., 0], fall[..., 1]

    @cached_property
    def _middle(self) -> tuple[Tensor, Tensor]:
        """Centre and half width, rounding included, as columns (B, n, 1)."""
        low, high = self.low.flatten(1), self.high.flatten(1)
        centre, reach = (low + high) / 2, (high - low) / 2
        reach = reach + gamma(low.shape[1], low.dtype) * (centre.abs() + reach)
        return centre.unsqueeze(-1), reach.unsqueeze(-1)

    def minimiser(self, A: Tensor) -> Tensor:
        """Where A x is least: (B, m, n), always a corner."""
        return torch.where(A > 0, self.low.flatten(1).unsqueeze(1), self.high.flatten(1).unsqueeze(1))

    def pick(self, index: Tensor) -> BoxRegion:
        return BoxRegion(self.low[index], self.high[index])


@dataclass(frozen=True)
class BallRegion:
    """|x - centre|_2 <= radius."""

    centre: Tensor  # (B, *event)
    radius: Tensor  # (B,)

    def _reach(self) -> Tensor:
        wide = self.radius.reshape(-1, *(1,) * (self.centre.ndim - 1))
        return wide + gamma(1, wide.dtype) * (self.centre.abs() + wide)

    @property
    def low(self) -> Tensor:
        return self.centre - self._reach()

    @property
    def high(self) -> Tensor:
        return self.centre + self._reach()

    def minimum(self, A: Tensor, blur: Tensor) -> tuple[Tensor, Tensor]:
        """A c - r |A|_2, by Cauchy-Schwarz, less the rounding."""
        centre = self.centre.flatten(1).unsqueeze(-1)
        margin = gamma(centre.shape[1], centre.dtype)
        fall: Tensor = torch.linalg.vector_norm(A, dim=-1) * self.radius.unsqueeze(-1) * (1 + margin)
        sizes = A.abs() @ torch.cat([centre.abs(), blur.expand(len(centre), -1).unsqueeze(-1)], -1)
        return (A @ centre).squeeze(-1) - margin * sizes[..., 0] - fall, sizes[..., 1]

    def minimiser(self, A: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(A, dim=-1, keepdim=True).clamp(min=torch.finfo(A.dtype).tiny)
        return self.centre.flatten(1).unsqueeze(1) - A / norm * self.radius.reshape(-1, 1, 1)

    def pick(self, index: Tensor) -> BallRegion:
        return BallRegion(self.centre[index], self.radius[index])


def repeated(region: Bounded, count: int) -> Region:
    """One region so many times."""
    if isinstance(region, BallRegion):
        return BallRegion(region.centre.expand(count, *region.centre.shape[1:]), region.radius.expand(count))
    return BoxRegion(region.low.expand(count, *region.low.shape[1:]), region.high.expand(count, *region.high.shape[1:]))
