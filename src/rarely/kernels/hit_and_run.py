"""Hit-and-run on ellipses: every step looks for a point on a random ellipse through z, at no tuning at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.kernels.base import State, normal_init, passes


@dataclass(frozen=True)
class HitAndRun:
    """Elliptical slice sampling (Murray et al. 2010) with {score > level} as the slice.

    Points z cos a + xi sin a with a drawn from a bracket that shrinks towards 0 at each miss. Each path of shrinkages
    is as likely back as forth, so giving up after `tries` and staying is correct too. A step costs `tries` calls.
    """

    tries: int = 4

    space: Literal["normal"] = "normal"
    adapts: Literal["level"] = "level"

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise InputError(f"HitAndRun needs at least one try, got {self.tries}")

    @property
    def cost(self) -> int:
        return self.tries

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        return normal_init(batch, n, rng, 1.0)

    def fit(self, state: State) -> State:
        return state

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        xi = rng.normal(state.position.shape, state.position.dtype)
        angle = 2 * math.pi * rng.uniform(state.score.shape, state.score.dtype)
        low, high = angle - 2 * math.pi, angle
        moved = torch.zeros_like(state.score, dtype=torch.bool)
        result, chance = state, batch.log_kept(state.position)
        if chance is not None:  # part of the slice: a height under the chance of the start, that all points must reach
            chance = chance + torch.log(rng.uniform(chance.shape, chance.dtype))
        for _ in range(self.tries):
            a = angle.unsqueeze(-1)
            z = state.position * torch.cos(a) + xi * torch.sin(a)
            score, own = batch.score_normal(z), batch.log_kept(z)
            ok = passes(score, level, strict) & ~moved
            if own is not None and chance is not None:
                ok &= own >= chance
            result, moved = result.accept(State(z, score, state.scale, log_density=own), ok), moved | ok
            low, high = torch.where(angle < 0, angle, low), torch.where(angle >= 0, angle, high)
            angle = low + rng.uniform(angle.shape, angle.dtype) * (high - low)
        return result, moved

    def adapt(self, state: State, accepted: Tensor) -> State:
        return state
