"""Langevin moves: pCN pushed along the gradient of the score, with a Metropolis correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.kernels.base import State, allowed, normal_init, nudge, passes


@dataclass(frozen=True)
class Langevin:
    """z' = rho z + beta (xi + drift beta n(z)), rho^2 + beta^2 = 1, n the unit gradient of the score.

    Inside {score > level} the log-density of the target has no slope but the normal's, which pCN follows already; what
    stops a step is the boundary. The drift leans away from it, and the Metropolis ratio of the two proposal densities
    (the infinity-MALA ratio of Cotter et al. 2013) makes any drift correct.
    """

    scale: float = 0.3
    target: float = 0.5
    rate: float = 0.4
    drift: float = 1.0  # in units of the step, so that small steps are accepted

    space: Literal["normal"] = "normal"
    adapts: Literal["step"] = "step"
    cost: int = 3

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        return normal_init(batch, n, rng, self.scale, gradient=True)

    def fit(self, state: State) -> State:
        return state

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        assert state.gradient is not None
        beta = state.scale.unsqueeze(-1)
        rho = torch.sqrt(1 - beta * beta)
        push = self.drift * beta * _unit(state.gradient)
        noise = rng.normal(state.position.shape, state.position.dtype) + push
        z = rho * state.position + beta * noise
        score, gradient = batch.gradient_normal(z)
        back_push, back_noise = self.drift * beta * _unit(gradient), (state.position - rho * z) / beta
        # log q(z | z') - log q(z' | z) against the normal reference.
        log_ratio = _tilt(back_push, back_noise) - _tilt(push, noise)
        proposal = State(z, score, state.scale, gradient=gradient, log_density=batch.log_kept(z))
        ok = allowed(batch, state, proposal, passes(score, level, strict), rng, log_ratio)
        return state.accept(proposal, ok), ok

    def adapt(self, state: State, accepted: Tensor) -> State:
        return nudge(state, accepted, self.target, self.rate, 0.99)


def _unit(gradient: Tensor) -> Tensor:
    return torch.nan_to_num(gradient / gradient.norm(dim=-1, keepdim=True).clamp_min(1e-30))


def _tilt(push: Tensor, noise: Tensor) -> Tensor:
    return (push * noise).sum(-1) - 0.5 * (push * push).sum(-1)
