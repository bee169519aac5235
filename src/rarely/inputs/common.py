"""What input models have in common. A class takes what fits it by name, in its body: `sample = sample_normals`."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, leading, tensor
from rarely.core.rng import TORCHS, Rng


class _Shaped(Protocol):
    @property
    def event_shape(self) -> Shape: ...


class _Mapped(Protocol):
    @property
    def normal_dim(self) -> int: ...

    @property
    def center(self) -> Tensor: ...

    def from_normal(self, z: Tensor) -> Tensor: ...


def one_each(self: _Shaped) -> int:
    """As many normals as an input has numbers."""
    return math.prod(self.event_shape)


def sample_normals(self: _Mapped, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
    """Independent inputs, (*shape, *event), made of normals."""
    return self.from_normal(rng.normal((*leading(shape), self.normal_dim), self.center.dtype))


def no_density(self: object, x: Tensor) -> Tensor:
    """Refused: this law has none."""
    raise InputError(f"{type(self).__name__} has no density; use a method or kernel on normals, such as PCN")


def uniform_between(low: Tensor, high: Tensor, shape: Shape, rng: Rng) -> Tensor:
    u = rng.uniform(shape, low.dtype)
    return torch.addcmul(low, u, high - low).clamp(low, high)


def scale_like(std: ArrayLike, center: Tensor, what: str) -> Tensor:
    """A standard deviation for every number of `center`, which errors call `what`."""
    scale = tensor(std, "std").to(center.dtype)
    if bool((scale < 0).any()):
        raise InputError("std must not be negative")
    try:
        return scale.expand(center.shape).contiguous()
    except RuntimeError as error:
        raise InputError(f"std has shape {tuple(scale.shape)}, {what} {tuple(center.shape)}") from error


def as_matrix(factor: Tensor) -> Tensor:
    """(d, d) of one problem as it is, (B, 1, d, d) of stacked ones as (B, d, d), which products with (B, N, d) take."""
    return factor.reshape(*factor.shape[:-3], *factor.shape[-2:])
