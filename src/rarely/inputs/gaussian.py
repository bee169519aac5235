"""Gaussian inputs, whole and truncated."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from rarely.core.coordinates import Coordinates
from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, array, assign, event_dims, inside, tensor
from rarely.core.words import ranges, span
from rarely.inputs.common import as_matrix, one_each, sample_normals, scale_like
from rarely.stats.normal import truncated_quantile


@dataclass(frozen=True, init=False)
class Gaussian:
    """N(mean, diag(std^2)) or N(mean, covariance); a zero std fixes a coordinate."""

    mean: Tensor  # (*event)
    std: Tensor  # (*event)
    factor: Tensor  # (d, d) lower Cholesky factor, or empty when the coordinates are independent
    event_shape: Shape
    independent: bool
    normal_dim = property(one_each)
    center = property(attrgetter("mean"))
    support = None
    sample = sample_normals

    def __init__(self, mean: ArrayLike, std: ArrayLike | None = None, covariance: ArrayLike | None = None) -> None:
        center = tensor(mean, "mean")
        if (std is None) == (covariance is None):
            raise InputError("give a Gaussian exactly one of std and covariance")
        factor = center.new_zeros(0)
        if std is not None:
            scale = scale_like(std, center, "the mean")
        else:
            assert covariance is not None
            given, d = tensor(covariance, "covariance"), center.numel()
            if given.shape != (d, d):
                raise InputError(f"covariance has shape {tuple(given.shape)}, expected {(d, d)} for {d} coordinates")
            if not torch.allclose(given, given.T, rtol=1e-4, atol=1e-6 * float(given.abs().max())):
                raise InputError("covariance is not symmetric")
            lower, info = torch.linalg.cholesky_ex(given.double())
            if int(info):
                raise InputError("covariance is not positive definite; add a small multiple of the identity")
            factor, scale = lower.to(center.dtype), given.diagonal().sqrt().reshape(center.shape).to(center.dtype)
        shape, independent = tuple(center.shape), covariance is None
        assign(self, mean=center, std=scale, factor=factor, event_shape=shape, independent=independent)

    @property
    def words(self) -> str:
        related = "" if self.independent else ", and correlations"
        around = f"normal around an input of {self.mean.numel():,} numbers"
        return f"{around}, with standard deviation {span(self.std)}{related}"

    @property
    def coordinates(self) -> Coordinates | None:
        return Coordinates(False, self.mean, self.std) if self.independent else None

    def log_density(self, x: Tensor) -> Tensor:
        offset = x - self.mean
        if self.independent:
            fixed = self.std == 0
            scaled = torch.where(fixed, torch.zeros_like(offset), offset / torch.where(fixed, 1.0, self.std))
            off = (fixed & (offset != 0)).sum(event_dims(x, self.event_shape)) > 0
            return torch.where(off, -torch.inf, -0.5 * (scaled**2).sum(event_dims(x, self.event_shape)))
        flat = offset.flatten(x.ndim - len(self.event_shape))
        white: Tensor = torch.linalg.solve_triangular(as_matrix(self.factor), flat.mT, upper=False)
        return white.square().sum(-2).mul(-0.5)

    def from_normal(self, z: Tensor) -> Tensor:
        if self.independent:
            return torch.addcmul(self.mean, z.reshape(*z.shape[:-1], *self.event_shape), self.std)
        return self.mean + (z @ as_matrix(self.factor).mT).reshape(*z.shape[:-1], *self.event_shape)


@dataclass(frozen=True, init=False)
class TruncatedGaussian:
    """Independent N(mean, std^2) coordinates, each conditioned on low <= x <= high."""

    mean: Tensor  # (*event)
    std: Tensor  # (*event)
    low: Tensor  # (*event), may be -inf
    high: Tensor  # (*event), may be inf
    event_shape: Shape
    normal_dim = property(one_each)
    support = property(attrgetter("low", "high"))
    sample = sample_normals

    def __init__(self, mean: ArrayLike, std: ArrayLike, low: ArrayLike, high: ArrayLike) -> None:
        center = tensor(mean, "mean")
        try:
            bounds = (array(v, name).to(center.dtype) for v, name in ((low, "low"), (high, "high")))
            lower, upper = (bound.expand(center.shape).contiguous() for bound in bounds)
        except RuntimeError as error:
            raise InputError(f"low and high must have the shape of the mean, {tuple(center.shape)}: {error}") from error
        if bool(torch.isnan(lower).any() | torch.isnan(upper).any()):
            raise InputError("low or high contains NaN")
        if bool((lower > upper).any()):
            raise InputError(f"low > high in {int((lower > upper).sum())} coordinate(s); swap the bounds")
        scale = scale_like(std, center, "the mean")
        if bool((scale <= 0).any()):
            raise InputError("std must be positive; fix a coordinate by low == high instead")
        assign(self, mean=center, std=scale, low=lower, high=upper, event_shape=tuple(center.shape))

    @property
    def words(self) -> str:
        return f"normal with standard deviation {span(self.std)}, conditioned on {ranges(self.low, self.high)}"

    @property
    def center(self) -> Tensor:
        return self.mean.clamp(self.low, self.high)

    def log_density(self, x: Tensor) -> Tensor:
        quadratic = -0.5 * (((x - self.mean) / self.std) ** 2).sum(event_dims(x, self.event_shape))
        return torch.where(inside(x, self.low, self.high, self.event_shape), quadratic, -torch.inf)

    def from_normal(self, z: Tensor) -> Tensor:
        z = z.reshape(*z.shape[:-1], *self.event_shape)
        a, b = (self.low - self.mean) / self.std, (self.high - self.mean) / self.std
        a, b = a.expand(z.shape), b.expand(z.shape)
        x = self.mean + self.std * truncated_quantile(z, a, b).to(z.dtype)
        return x.clamp(self.low, self.high)


def centred(low: Tensor, high: Tensor, std: float) -> TruncatedGaussian:
    """Around the middle of a box and truncated to it."""
    return TruncatedGaussian(0.5 * (low + high), std, low, high)
