"""How far an input lies from the middle of its law, in the law's own terms.

A uniform ball is measured in its norm, in radii; a box by its sides; a normal law in standard deviations. What is made
of normals otherwise is measured among these, and a law that has only a density by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.input_model import InputModel
from rarely.inputs.box import Box
from rarely.inputs.constrained import Constrained
from rarely.inputs.gaussian import Gaussian, TruncatedGaussian
from rarely.inputs.lp_ball import LpBall
from rarely.inputs.mixture import Mixture
from rarely.methods.roots import unit

_MOST = 1e4  # the size up to which the nearest point of a half-space is looked for


@dataclass(frozen=True)
class Ruler:
    """The measure of R problems. Its points (R, N, *shape) are offsets of inputs in their law's units, or normals."""

    unit: str  # a key of `core.evidence.DISTANCES`
    norm: float
    batch: Batch
    center: Tensor | None = None  # (R, 1, *event) that of which points are offsets; None: they are normals
    scale: Tensor | None = None  # (R, 1, *event) what a unit is in each coordinate
    low: Tensor | None = None  # (R, 1, *event) offsets that are possible, from here
    high: Tensor | None = None  # and up to here

    def take(self, index: Tensor) -> Ruler:
        def rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index.to(value.device)]

        sides = (rows(value) for value in (self.center, self.scale, self.low, self.high))
        return Ruler(self.unit, self.norm, self.batch.take(index), *sides)

    @property
    def climbs(self) -> bool:
        """Whether gradients lead to the nearest points of half-spaces here."""
        return self.batch.network.differentiable and not math.isnan(self.norm)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch.inputs.normal_dim or 0,) if self.center is None else tuple(self.center.shape[2:])

    def middle(self) -> Tensor:
        """The point (R, 1, *shape) from which distances are measured."""
        rows, kind = len(self.batch), self.batch
        return self.possible(torch.zeros(rows, 1, *self.shape, dtype=kind.dtype, device=kind.device))

    def possible(self, points: Tensor) -> Tensor:
        return points if self.low is None else points.clamp(self.low, self.high)

    def inputs(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            if self.center is None or self.scale is None:
                return self.batch.inputs.from_normal(points)
            x = torch.addcmul(self.center, self.scale, points)
            support = self.batch.inputs.support
            return x if support is None else x.clamp(*(side.to(x) for side in support))  # rounding only

    def offsets(self, x: Tensor) -> Tensor:
        """The points of inputs (R, N, *event), or of the normals that they are made of where those are measured."""
        if self.center is None or self.scale is None:
            return x
        return torch.where(self.scale > 0, (x - self.center) / self.scale.clamp_min(1e-30), torch.zeros_like(x))

    def size(self, points: Tensor) -> Tensor:
        """How far (R, N) points lie from the middle; inf where the law has no inputs."""
        if math.isnan(self.norm):
            law = self.batch.inputs
            return (law.log_density(self.inputs(self.middle())) - law.log_density(self.inputs(points))).double()
        size: Tensor = torch.linalg.vector_norm(points.flatten(2).double(), self.norm, dim=2)
        if self.unit == "radius":
            size = torch.where(size <= 1 + 1e-5, size, torch.inf)
        if any(isinstance(self.batch.problems[row].inputs, Constrained) for row in self.batch.rows.tolist()):
            size = torch.where(self.batch.inputs.log_density(self.inputs(points)) > -torch.inf, size, torch.inf)
        return size

    def drawn_in(self, points: Tensor, share: Tensor) -> Tensor:
        """The points (R, N, *shape) moved inwards, to `share` (R, N) of their distance."""
        factor = share.to(points.dtype).reshape(*share.shape, *(1,) * len(self.shape))
        if self.norm == math.inf:
            most = factor * points.abs().flatten(2).amax(2).reshape(factor.shape)
            return self.possible(points.clamp(-most, most))
        middle = self.middle()
        return torch.lerp(middle.expand_as(points), points, factor)

    def gradient(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (R, 1) at points, for batches of one way to fail, and how they rise there (R, 1, *shape)."""
        way = torch.zeros(points.shape[:2], dtype=torch.long, device=points.device)
        if self.center is None or self.scale is None:
            return self.batch.gradient_ways(points, way, normal=True)
        score, slope = self.batch.gradient_ways(self.inputs(points), way, normal=False)
        return score, slope * self.scale

    def nearest(self, direction: Tensor, slope: Tensor, level: Tensor) -> Tensor:
        """The least point (R, 1, *shape) in a direction at which slope . point reaches level (R, 1).

        Along a slope itself this is the nearest point of a half-space in this norm. Between the sizes at which a
        coordinate sets out or comes to its end slope . point is linear.
        """
        rate, start, length = (part.double() for part in self._pieces(direction))
        gain = slope.flatten(2).double() * rate
        knots, order = torch.cat([start, start + length], 2).clamp_max(_MOST).sort(2)
        steep = torch.cat([gain, -gain], 2).gather(2, order).cumsum(2)
        ends = torch.cat([knots[..., 1:], torch.full_like(knots[..., :1], _MOST)], 2)
        first = (slope * self.middle()).flatten(2).sum(2, dtype=torch.float64, keepdim=True)
        rise = steep * (ends - knots)
        reached = knots + (level.unsqueeze(2) - first - rise.cumsum(2) + rise).clamp_min(0.0) / steep.clamp_min(1e-30)
        size = torch.where((steep > 0) & (reached <= ends), reached, _MOST).amin(2)
        return self.along(direction, size)

    def along(self, direction: Tensor, size: Tensor) -> Tensor:
        """The points of these sizes (R, N) that go farthest in a direction (R, 1, *shape), within what is possible."""
        rate, start, length = self._pieces(direction)
        size = size.to(direction.dtype) if self.norm == 2 else size.to(direction.dtype).clamp_max(1.0)
        moved = rate * (size.unsqueeze(2) - start).clamp_min(0.0).minimum(length)
        return self.possible(self.middle() + moved.reshape(*moved.shape[:2], *self.shape))

    def _pieces(self, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each coordinate (R, 1, d) of a point that grows: how fast it moves, from which size on, and for how long.

        In l1 each goes to its end before the next sets out, the steepest first.
        """
        flat, middle = direction.flatten(2), self.middle().flatten(2)
        rate = unit(flat) if self.norm == 2 else flat.sign()
        far = rate * torch.inf
        if self.low is not None and self.high is not None:
            far = torch.where(rate > 0, self.high.flatten(2), self.low.flatten(2))
        still = rate == 0
        length = ((far - middle) / rate).masked_fill(still, 0.0)
        start = (middle / rate).clamp_min(0.0).masked_fill(still, 0.0)  # where the law ends before its own centre
        if self.norm == 1:
            order = flat.abs().argsort(2, descending=True)
            taken = length.gather(2, order)
            start = torch.zeros_like(flat).scatter(2, order, taken.cumsum(2) - taken)
        return rate, start, length


def rulers(batch: Batch) -> list[tuple[list[int], Ruler]]:
    """Rows of a batch that are measured alike, and their ruler; rows that cannot be measured are left out."""
    kinds: dict[tuple[str, float, bool], list[int]] = {}
    for row, place in enumerate(batch.rows.tolist()):
        kind = _kind(batch.problems[place].inputs)
        if kind is not None:
            kinds.setdefault(kind, []).append(row)
    return [(rows, _ruler(batch.take(torch.tensor(rows)), *kind)) for kind, rows in kinds.items()]


def _kind(law: InputModel) -> tuple[str, float, bool] | None:
    """Unit, norm, and whether it is taken of normals."""
    whole = law.base if isinstance(law, Constrained) else law
    if isinstance(whole, LpBall):
        return "radius", whole.norm, False
    if isinstance(whole, Box):
        return "box", math.inf, False
    if isinstance(whole, TruncatedGaussian) or (isinstance(whole, Gaussian) and whole.independent):
        return "sigma", 2.0, False
    if law.normal_dim is not None and not isinstance(law, Mixture):
        return "sigma" if isinstance(law, Gaussian) else "normal", 2.0, True
    try:
        law.log_density(law.center.unsqueeze(0))
    except InputError:
        return None
    return "log-density", math.nan, False


def _ruler(batch: Batch, unit: str, norm: float, normal: bool) -> Ruler:
    if normal:
        return Ruler(unit, norm, batch)
    measures = [_measure(batch.problems[row].inputs) for row in batch.rows.tolist()]
    stacked = (torch.stack(list(own)).unsqueeze(1).to(batch.device, batch.dtype) for own in zip(*measures, strict=True))
    center, scale, low, high = stacked
    ends = [torch.where(scale > 0, (side - center) / scale, torch.zeros_like(center)) for side in (low, high)]
    return Ruler(unit, norm, batch, center, scale, *ends)


def _measure(law: InputModel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where offsets begin, what their unit is in each coordinate, and the bounds of the inputs."""
    law = law.base if isinstance(law, Constrained) else law
    if isinstance(law, Box):
        return law.center, 0.5 * (law.high - law.low), law.low, law.high
    if isinstance(law, LpBall):
        return law.center, law.radius.expand(law.low.shape), law.low, law.high
    center = law.mean if isinstance(law, TruncatedGaussian) else law.center
    scale = law.std if isinstance(law, Gaussian | TruncatedGaussian) else torch.ones_like(center)
    low, high = law.support or (torch.full_like(center, -torch.inf), torch.full_like(center, torch.inf))
    return center, scale, low.expand(center.shape), high.expand(center.shape)
