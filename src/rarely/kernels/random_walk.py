"""The paper's own kernel: a Metropolis random walk on the inputs, one radius per chain (appendix B)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.special import ndtr

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.input_model import event_dims
from rarely.core.rng import Rng
from rarely.gpu.chip import Chip, chip_for
from rarely.kernels.base import State, passes
from rarely.stats import fused
from rarely.stats.normal import truncated_quantile


@dataclass(frozen=True)
class RandomWalk:
    """Uniform or Gaussian steps, cut to the support's bounding box, with the Hastings correction for the cut.

    A radius is relative to the width of the support in each coordinate (to the spread of a first sample where the
    support is unbounded). After the M steps of a level a chain's radius is halved when its acceptance was under
    `target` and multiplied by 1.02 when above; a clone inherits it.
    """

    proposal: Literal["uniform", "gaussian"] = "uniform"
    radius: float = 0.5
    target: float = 0.234  # Roberts et al. 1997, as the paper says

    space: Literal["input"] = "input"
    adapts: Literal["level"] = "level"
    cost: int = 1

    def __post_init__(self) -> None:
        if self.proposal not in ("uniform", "gaussian"):
            raise InputError(f"proposal must be 'uniform' or 'gaussian', got {self.proposal!r}")
        if not self.radius > 0:
            raise InputError(f"radius must be positive, got {self.radius}")

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        x = batch.sample(n, rng)
        low, high = _support(batch, x)
        width = (high - low).expand(len(batch), 1, *x.shape[2:])
        spread = x.std(dim=1, keepdim=True)
        unit = torch.where(torch.isfinite(width), width, spread)
        scale = x.new_full(x.shape[:2], self.radius)
        density = batch.inputs.log_density(x)
        return State(x, batch.score(x), scale, log_density=density, unit=unit, own_scale=True)

    def fit(self, state: State) -> State:
        return state

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        assert state.log_density is not None
        assert state.unit is not None
        x, dims = state.position, event_dims(state.position, batch.inputs.event_shape)
        low, high = _support(batch, x)
        scale = state.scale.reshape(*state.scale.shape, *([1] * len(dims)))
        # q(x | y) / q(y | x): each is uniform over (or normal cut to) what the box leaves of the step, so the densities
        # are one over the length (or mass) of that piece.
        if self.proposal == "uniform":
            y, ratio = _uniform(x, scale, state.unit, low, high, rng)
        else:
            r = scale * state.unit
            y = _gaussian(x, r, low, high, rng, bounded=batch.inputs.support is not None)
            forward, backward = _gaussian_mass(x, r, low, high), _gaussian_mass(y, r, low, high)
            fixed = r == 0
            y = torch.where(fixed, x, y)
            ratio = torch.where(fixed, torch.zeros_like(x), torch.log(forward) - torch.log(backward))
        score, density = batch.score(y), batch.inputs.log_density(y)
        log_ratio = density - state.log_density + ratio.sum(dims)
        accept = torch.log(rng.uniform(score.shape, score.dtype)) < log_ratio
        ok = passes(score, level, strict) & accept
        return state.accept(State(y, score, state.scale, log_density=density), ok), ok

    def chip(self, batch: Batch) -> Chip | None:
        """Many steps at once, where a GPU can hold all they need."""
        return chip_for(batch, normal=False) if self.proposal == "uniform" else None

    def adapt(self, state: State, accepted: Tensor) -> State:
        factor = torch.where(accepted.to(state.scale.dtype) < self.target, 0.5, 1.02)
        return replace(state, scale=(state.scale * factor).clamp(1e-6, 1.0))


def _support(batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
    support = batch.inputs.support
    if support is None:
        return x.new_full((), -torch.inf), x.new_full((), torch.inf)
    return support[0].to(x.device, x.dtype), support[1].to(x.device, x.dtype)


def _uniform(x: Tensor, scale: Tensor, unit: Tensor, low: Tensor, high: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
    """A point of the step, and the log of the length that the box leaves of the step there over that of the step back.

    A fixed coordinate (unit = 0) stays, and both lengths are the same smallest one.
    """
    u = rng.uniform(x.shape, x.dtype)
    whole = fused.walk(x, u, scale, unit, low, high)
    if whole is not None:
        return whole
    r = scale * unit
    a, b = _cut(x, r, low, high)
    y = torch.clamp(torch.lerp(a, b, u, out=u), a, b, out=u)
    return y, _uniform_length(a, b).div_(_uniform_length(*_cut(y, r, low, high))).log_()


def _cut(x: Tensor, r: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x - r, x + r
    return torch.maximum(a, low, out=a), torch.minimum(b, high, out=b)


def _uniform_length(a: Tensor, b: Tensor) -> Tensor:
    return b.sub_(a).clamp_min_(1e-30)


def _gaussian(x: Tensor, r: Tensor, low: Tensor, high: Tensor, rng: Rng, bounded: bool) -> Tensor:
    z = rng.normal(x.shape, x.dtype)
    if not bounded:
        return x + r * z
    a, b = ((low - x) / r).expand(x.shape), ((high - x) / r).expand(x.shape)
    y = x + r * truncated_quantile(z, a, b).to(x.dtype)
    return torch.minimum(torch.maximum(y, low), high)


def _gaussian_mass(x: Tensor, r: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.sub(ndtr((high - x) / r), ndtr((low - x) / r)).clamp_min(1e-30)
