"""Gaussian inputs, whole and truncated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, assign, event_dims, inside, leading, tensor
from rarely.core.rng import Rng
from rarely.stats.normal import truncated_quantile


def _scale(std: ArrayLike, mean: Tensor) -> Tensor:
    scale = tensor(std, "std").to(mean.dtype)
    if bool((scale < 0).any()):
        raise InputError("std must not be negative")
    try:
        return scale.expand(mean.shape)
    except RuntimeError as error:
        raise InputError(f"std has shape {tuple(scale.shape)}, the mean {tuple(mean.shape)}") from error


@dataclass(frozen=True, init=False)
class Gaussian:
    """N(mean, diag(std^2)) or N(mean, covariance); a zero std fixes a coordinate."""

    mean: Tensor  # (*event)
    std: Tensor  # (*event)
    factor: Tensor  # (d, d) lower Cholesky factor, or empty when the coordinates are independent
    event_shape: Shape
    independent: bool

    def __init__(self, mean: ArrayLike, std: ArrayLike | None = None, covariance: ArrayLike | None = None) -> None:
        center = tensor(mean, "mean")
        if (std is None) == (covariance is None):
            raise InputError("give a Gaussian exactly one of std and covariance")
        factor = center.new_zeros(0)
        if std is not None:
            scale = _scale(std, center)
        else:
            assert covariance is not None
            matrix, d = tensor(covariance, "covariance"), center.numel()
            if matrix.shape != (d, d):
                raise InputError(f"covariance has shape {tuple(matrix.shape)}, expected {(d, d)} for {d} coordinates")
            if not torch.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-6 * float(matrix.abs().max())):
                raise InputError("covariance is not symmetric")
            lower, info = torch.linalg.cholesky_ex(matrix.double())
            if int(info):
                raise InputError("covariance is not positive definite; add a small multiple of the identity")
            factor, scale = lower.to(center.dtype), matrix.diagonal().sqrt().reshape(center.shape).to(center.dtype)
        shape, independent = tuple(center.shape), covariance is None
        assign(self, mean=center, std=scale, factor=factor, event_shape=shape, independent=independent)

    @property
    def normal_dim(self) -> int:
        return int(torch.Size(self.event_shape).numel())

    @property
    def center(self) -> Tensor:
        return self.mean

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        return None

    def sample(self, shape: int | Shape, rng: Rng) -> Tensor:
        return self.from_normal(rng.normal((*leading(shape), self.normal_dim), self.mean.dtype))

    def log_density(self, x: Tensor) -> Tensor:
        offset = x - self.mean
        if self.independent:
            fixed = self.std == 0
            scaled = torch.where(fixed, torch.zeros_like(offset), offset / torch.where(fixed, 1.0, self.std))
            off = (fixed & (offset != 0)).sum(event_dims(x, self.event_shape)) > 0
            return torch.where(off, -torch.inf, -0.5 * (scaled**2).sum(event_dims(x, self.event_shape)))
        flat = offset.flatten(x.ndim - len(self.event_shape))
        factor = self.factor.squeeze(-3) if self.factor.ndim > 2 else self.factor
        white: Tensor = torch.linalg.solve_triangular(factor, flat.mT, upper=False)
        return white.square().sum(-2).mul(-0.5)

    def from_normal(self, z: Tensor) -> Tensor:
        if self.independent:
            return torch.addcmul(self.mean, z.reshape(*z.shape[:-1], *self.event_shape), self.std)
        factor = self.factor.squeeze(-3) if self.factor.ndim > 2 else self.factor
        return self.mean + (z @ factor.mT).reshape(*z.shape[:-1], *self.event_shape)


@dataclass(frozen=True, init=False)
class TruncatedGaussian:
    """Independent N(mean, std^2) coordinates, each conditioned on low <= x <= high."""

    mean: Tensor  # (*event)
    std: Tensor  # (*event)
    low: Tensor  # (*event), may be -inf
    high: Tensor  # (*event), may be inf
    event_shape: Shape

    def __init__(self, mean: ArrayLike, std: ArrayLike, low: ArrayLike, high: ArrayLike) -> None:
        center = tensor(mean, "mean")
        try:
            bounds = (torch.as_tensor(v, dtype=center.dtype).expand(center.shape) for v in (low, high))
            lower, upper = (bound.contiguous() for bound in bounds)
        except RuntimeError as error:
            raise InputError(f"low and high must have the shape of the mean, {tuple(center.shape)}: {error}") from error
        if bool(torch.isnan(lower).any() | torch.isnan(upper).any()):
            raise InputError("low or high contains NaN")
        if bool((lower > upper).any()):
            raise InputError(f"low > high in {int((lower > upper).sum())} coordinate(s); swap the bounds")
        scale = _scale(std, center)
        if bool((scale <= 0).any()):
            raise InputError("std must be positive; fix a coordinate by low == high instead")
        assign(self, mean=center, std=scale, low=lower, high=upper, event_shape=tuple(center.shape))

    @property
    def normal_dim(self) -> int:
        return int(torch.Size(self.event_shape).numel())

    @property
    def center(self) -> Tensor:
        return self.mean.clamp(self.low, self.high)

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return self.low, self.high

    def sample(self, shape: int | Shape, rng: Rng) -> Tensor:
        return self.from_normal(rng.normal((*leading(shape), self.normal_dim), self.mean.dtype))

    def log_density(self, x: Tensor) -> Tensor:
        quadratic = -0.5 * (((x - self.mean) / self.std) ** 2).sum(event_dims(x, self.event_shape))
        return torch.where(inside(x, self.low, self.high, self.event_shape), quadratic, -torch.inf)

    def from_normal(self, z: Tensor) -> Tensor:
        z = z.reshape(*z.shape[:-1], *self.event_shape)
        a, b = (self.low - self.mean) / self.std, (self.high - self.mean) / self.std
        a, b = a.expand(z.shape), b.expand(z.shape)
        x = self.mean + self.std * truncated_quantile(z, a, b).to(z.dtype)
        return x.clamp(self.low, self.high)
