"""The attacker: climb the score from many starts among the inputs, each towards one way to fail."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.evidence import Evidence, Found, Searched
from rarely.core.input_model import InputModel
from rarely.core.rng import Rng
from rarely.core.spend import GRADIENT, Exhausted
from rarely.core.witnesses import Witnesses, gather_each, no_witnesses
from rarely.methods.base import Progress, Run, progress

_NAME = "attack"
_FAR = 6.0  # standard deviations around unbounded inputs that are looked at
_LONGEST, _SHORTEST = 0.25, 0.0005  # first and last step, in widths of the region: far corners, and slivers nearby
_FIRM = 1e-4  # of the scores' usual size: higher than this no other arithmetic turns a violation around


@dataclass(frozen=True)
class Attack:
    """`points` at random, of which the best `starts` climb for `steps` signed gradient steps, shorter and shorter.

    Networks are nearly linear in pieces, so that their extremes lie on the faces of a box: every coordinate of a point
    is at one of its bounds with probability two thirds. A black box is only looked at. What is found violates; nothing
    found says nothing about p.
    """

    points: int = 64
    starts: int = 16  # at least; one for each way to fail
    steps: int = 10

    @property
    def at_once(self) -> int:
        return max(self.points, self.starts)

    def forecast(self, log_prob: float) -> float:
        return self.points + GRADIENT * self.starts * self.steps

    def run(self, batch: Batch, rng: Rng) -> Run:
        before = batch.calls()
        found = [no_witnesses()] * len(batch)
        tried = [0] * len(batch)
        with suppress(Exhausted):
            yield from self._search(batch, found, tried, rng)
        yield progress(_NAME, batch, [0.0] * len(batch), 0)
        spent = (batch.calls() - before).tolist()
        return [_evidence(*three) for three in zip(found, tried, spent, strict=True)]

    def _search(
        self, batch: Batch, found: list[Witnesses], tried: list[int], rng: Rng
    ) -> Generator[Progress, None, None]:
        region = _Region(batch)
        points = region.points(self.points, rng)
        x = region.inputs(points)
        parts = batch.parts(x)
        score = _possible(region, x, parts.amax(-1))
        firm = _FIRM * score.abs().nanmedian(1).values
        _keep(found, tried, x, score)
        yield progress(_NAME, batch, [0.0] * len(batch), len(batch))
        if not batch.network.differentiable:
            return
        points, way = self._starts(points, parts, score)
        for step in range(self.steps):
            score, slope = batch.gradient_ways(points, way, region.normal)
            x = region.inputs(points)
            score = _possible(region, x, score)
            _keep(found, tried, x, score)
            if bool((score.amax(1) > firm).all()):
                return
            length = _LONGEST * (_SHORTEST / _LONGEST) ** (step / max(1, self.steps - 1))
            points = region.moved(points, length, slope)
            yield progress(_NAME, batch, [0.0] * len(batch), len(batch))
        x = region.inputs(points)
        _keep(found, tried, x, _possible(region, x, batch.score(x)))

    def _starts(self, points: Tensor, parts: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """For each way to fail the point that comes nearest to it, and the best of the others; the way of each."""
        b, n, ways = parts.shape
        best = score.topk(min(n, max(0, self.starts - ways)), 1).indices
        order = torch.cat([parts.argmax(1), best], 1)
        own = torch.arange(ways, device=parts.device).expand(b, ways)
        aim = torch.cat([own, parts.argmax(-1).gather(1, best)], 1)
        row = torch.arange(b, device=parts.device).unsqueeze(1)
        return points[row, order], aim


class _Region:
    """Where to look: the bounds of the inputs, or of the normals behind inputs that do not fill a box."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        support = batch.inputs.support
        bounded = support is not None and all(bool(torch.isfinite(side).all()) for side in support)
        # Between the numbers of words there is nothing, whatever bounds they have.
        self.normal = batch.network.whole or not bounded or not _has_density(batch.inputs)
        if self.normal:
            d = batch.inputs.normal_dim
            if d is None:
                raise Exhausted  # neither bounds nor normals: nowhere to start
            self.low, self.high = (torch.full((len(batch), 1, d), s * _FAR, device=batch.device) for s in (-1, 1))
        else:
            assert support is not None
            shape = (len(batch), 1, *batch.inputs.event_shape)
            self.low, self.high = (side.to(batch.device).expand(shape) for side in support)
        self.low, self.high = self.low.to(batch.dtype), self.high.to(batch.dtype)

    def points(self, n: int, rng: Rng) -> Tensor:
        place = rng.uniform((len(self.low), n, *self.low.shape[2:]), self.low.dtype).mul(3).sub(1).clamp(0, 1)
        place[:, 0] = 0.5
        return self._inside(torch.addcmul(self.low, place, self.high - self.low))

    def moved(self, points: Tensor, length: float, slope: Tensor) -> Tensor:
        return self._inside(points + length * (self.high - self.low) * slope.sign())

    def inputs(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return self.batch.inputs.from_normal(points) if self.normal else points

    def _inside(self, points: Tensor) -> Tensor:
        points = points.clamp(self.low, self.high)
        project = getattr(self.batch.inputs, "project", None)
        return project(points) if project is not None and not self.normal else points


def _has_density(inputs: InputModel) -> bool:
    """Whether an input model can tell what it draws from what only lies between its bounds, as a picture may do."""
    try:
        inputs.log_density(inputs.center)
    except InputError:
        return False
    return True


def _possible(region: _Region, x: Tensor, score: Tensor) -> Tensor:
    """Scores with -inf for what the input model cannot draw: linear constraints across inputs cut their box."""
    if region.normal:
        return score
    return torch.where(region.batch.inputs.log_density(x) > -torch.inf, score, -torch.inf)


def _keep(found: list[Witnesses], tried: list[int], x: Tensor, score: Tensor) -> None:
    """Of each problem the violating inputs of the last look that met any: later ones score higher."""
    n = score.shape[1]
    tried[:] = [before + n for before in tried]
    hit = (score >= 0).any(1).nonzero().squeeze(1)
    if not len(hit):
        return
    best, order = score[hit].sort(dim=1, descending=True)
    owner = torch.arange(len(hit), device=hit.device).repeat_interleave(n)
    some = gather_each(x[hit.unsqueeze(1), order].flatten(0, 1), best.flatten(), owner, len(hit))
    for row, own in zip(hit.tolist(), some, strict=True):
        found[row] = own


def _evidence(found: Witnesses, tried: int, calls: int) -> list[Evidence]:
    if len(found):
        return [Found(_NAME, found, calls)]
    return [Searched(_NAME, f"no violation at {tried:,} points, climbing", calls)]
