"""Hamiltonian moves: exact rotations of the normal law, reflected where they leave the region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.kernels.base import State, allowed, normal_init, nudge, passes


@dataclass(frozen=True)
class HMC:
    """`leaps` rotations of (z, v) by an angle; outside the region the velocity is reflected on the score's gradient.

    The Hamiltonian |z|^2/2 + |v|^2/2 has the exact flow (z cos t + v sin t, v cos t - z sin t), so there is no
    discretisation error to correct. Reflecting at the outside point (Galilean Monte Carlo; Skilling 2012, Betancourt
    2011) makes the path its own reverse, so the end is accepted exactly when it passes the level. A leap costs one
    gradient.
    """

    scale: float = 0.5  # angle of a leap
    leaps: int = 3
    target: float = 0.7
    rate: float = 0.4

    space: Literal["normal"] = "normal"
    adapts: Literal["step"] = "step"

    def __post_init__(self) -> None:
        if self.leaps < 1:
            raise InputError(f"HMC needs at least one leap, got {self.leaps}")

    @property
    def cost(self) -> int:
        return 3 * (self.leaps - 1) + 1

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        return normal_init(batch, n, rng, self.scale)

    def fit(self, state: State) -> State:
        return state

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        z, v = state.position, rng.normal(state.position.shape, state.position.dtype)
        cos, sin = torch.cos(state.scale).unsqueeze(-1), torch.sin(state.scale).unsqueeze(-1)
        score = state.score
        for leap in range(self.leaps):
            z, v = z * cos + v * sin, v * cos - z * sin
            if leap == self.leaps - 1:
                score = batch.score_normal(z)  # the end is kept or not; nothing reflects there
                break
            score, gradient = batch.gradient_normal(z)
            outside = ~passes(score, level, strict)
            normal = gradient / gradient.norm(dim=-1, keepdim=True).clamp_min(1e-30)
            reflected = v - 2 * (v * normal).sum(-1, keepdim=True) * normal
            v = torch.where(outside.unsqueeze(-1), reflected, v)
        end = State(z, score, state.scale, log_density=batch.log_kept(z))
        ok = allowed(batch, state, end, passes(score, level, strict), rng)
        return state.accept(end, ok), ok

    def adapt(self, state: State, accepted: Tensor) -> State:
        return nudge(state, accepted, self.target, self.rate, 1.5)
