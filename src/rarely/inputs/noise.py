"""What a sensor does to a picture, pixel by pixel: Gaussian noise, photon counts, dead pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, assign, check_range, tensor
from rarely.core.words import span
from rarely.inputs.common import no_density, one_each, sample_normals, scale_like
from rarely.inputs.laws import with_slope
from rarely.stats.normal import lower_tail

_FARTHEST = 37.0  # P(Z > 37) is the last tail that float64 holds


@dataclass(frozen=True, init=False)
class GaussianNoise:
    """clip(image + std Z): a value beyond the range is shown as the end of the range, as a sensor does.

    `TruncatedGaussian` is another law: there values beyond the range do not happen.
    """

    image: Tensor  # (*event)
    std: Tensor  # (*event)
    low: Tensor  # (*event)
    high: Tensor  # (*event)
    event_shape: Shape
    normal_dim = property(one_each)
    center = property(attrgetter("image"))
    support = property(attrgetter("low", "high"))
    sample = sample_normals
    log_density = no_density

    def __init__(self, image: ArrayLike, std: ArrayLike, clip: tuple[float, float] = (0.0, 1.0)) -> None:
        picture = tensor(image, "image")
        scale = scale_like(std, picture, "the image")
        check_range(picture, clip)
        low, high = (torch.full_like(picture, limit) for limit in clip)
        assign(self, image=picture, std=scale, low=low, high=high, event_shape=tuple(picture.shape))

    @property
    def words(self) -> str:
        limits = f"{float(self.low.min()):.4g} to {float(self.high.max()):.4g}"
        return f"an input with normal noise of standard deviation {span(self.std)} on every value, cut to {limits}"

    def from_normal(self, z: Tensor) -> Tensor:
        noisy = torch.addcmul(self.image, z.reshape(*z.shape[:-1], *self.event_shape), self.std)
        return noisy.clamp(self.low, self.high)


@dataclass(frozen=True, init=False)
class PoissonNoise:
    """Shot noise: every pixel counts photons, image * photons of them on average, and shows count / photons.

    `photons` is the count of a pixel of value 1. Counts are steps of the normals that make them; gradients are those of
    normal noise of the same size (see `with_slope`). Values are not clipped: a bright pixel may exceed 1.
    """

    rate: Tensor  # (*event) expected count
    photons: Tensor  # (*event), all alike
    event_shape: Shape
    normal_dim = property(one_each)
    sample = sample_normals
    log_density = no_density

    def __init__(self, image: ArrayLike, photons: float) -> None:
        picture = tensor(image, "image")
        if not (math.isfinite(photons) and photons > 0):
            raise InputError(f"photons must be a positive number, the count of a pixel of value 1; got {photons}")
        if bool((picture < 0).any()):
            raise InputError("the image has negative values; shot noise needs brightness of at least 0")
        per_unit = torch.full_like(picture, photons)
        assign(self, rate=picture * per_unit, photons=per_unit, event_shape=tuple(picture.shape))

    @property
    def words(self) -> str:
        return f"a picture that counts photons, {span(self.photons)} of them at a value of 1"

    @property
    def center(self) -> Tensor:
        return self.rate / self.photons

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.rate), torch.where(self.rate > 0, torch.inf, 0.0).to(self.rate.dtype)

    def from_normal(self, z: Tensor) -> Tensor:
        z = z.reshape(*z.shape[:-1], *self.event_shape)
        with torch.no_grad():
            count = poisson_quantile(z, self.rate.expand(z.shape))
        return with_slope(count, self.rate.sqrt() * z) / self.photons


@dataclass(frozen=True, init=False)
class PixelDropout:
    """Every pixel is dead with the same probability, independently, and shows `value`, in all its channels.

    A picture is (C, H, W) or (H, W); a vector is a row of pixels. Whether a pixel is dead is a step of its normal; the
    gradient is that of a fading between the two (see `with_slope`). It shows kernels a way, but no line of normals
    turns many pixels off: Auto leaves line sampling out.
    """

    smooth: ClassVar[bool] = False
    image: Tensor  # (*event)
    value: Tensor  # (*event), all alike
    edge: Tensor  # (*pixels) of the normal: a pixel whose normal exceeds it is dead
    event_shape: Shape
    center = property(attrgetter("image"))
    sample = sample_normals
    log_density = no_density

    def __init__(self, image: ArrayLike, probability: float, value: float = 0.0) -> None:
        picture = tensor(image, "image")
        if not 0 < probability < 1:
            raise InputError(f"probability must lie strictly between 0 and 1, got {probability}")
        if picture.ndim not in (1, 2, 3):
            raise InputError(f"a picture must be (d,), (H, W) or (C, H, W), got {tuple(picture.shape)}")
        edge = -torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        pixels = picture if picture.ndim < 3 else picture[0]
        assign(
            self,
            image=picture,
            value=torch.full_like(picture, value),
            edge=torch.full_like(pixels, float(edge)),
            event_shape=tuple(picture.shape),
        )

    @property
    def words(self) -> str:
        dead = torch.special.ndtr(-self.edge.double())
        return f"a picture of which every pixel is dead with probability {span(dead)} and shows {span(self.value)}"

    @property
    def normal_dim(self) -> int:
        return math.prod(self._pixels)

    @property
    def _pixels(self) -> Shape:
        return self.event_shape[-2:]

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        return torch.minimum(self.image, self.value), torch.maximum(self.image, self.value)

    def from_normal(self, z: Tensor) -> Tensor:
        z = z.reshape(*z.shape[:-1], *self._pixels)
        dead = with_slope((z > self.edge).to(z.dtype), torch.special.ndtr(z - self.edge))
        if len(self.event_shape) == 3:
            dead = dead.unsqueeze(-3)
        return self.image * (1 - dead) + self.value * dead  # exact at 0 and 1


def poisson_quantile(z: Tensor, rate: Tensor) -> Tensor:
    """The smallest k with P(Poisson(rate) <= k) >= Phi(z), exactly; z and rate of one shape.

    The expansion of Giles (2016, "Algorithm 955") is the answer wherever no integer lies within its error; only the few
    others are looked up in the distribution function.
    """
    w, mean = z.double().clamp_(-_FARTHEST, _FARTHEST), rate.double()
    root, square = mean.sqrt().clamp_min_(1e-12), w * w
    guess = mean + root * w + (2 + square) / 6 - w * (2 + square) / (72 * root)
    error = (4 + square * (2 + square)) / (80 * root * root)  # twice what Giles gives
    least, most = ((guess + side).floor_().clamp_min_(0.0).mul_(mean > 0) for side in (-error, error))
    unsure = (least < most).flatten().nonzero().squeeze(1)
    if len(unsure):
        parts = (value.flatten()[unsure] for value in (w, mean, least, most))
        most = most.contiguous()
        most.view(-1)[unsure] = _searched(*parts)
    return most.to(z.dtype)


def _searched(w: Tensor, mean: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """The quantile between `least` and `most`, by bisection in the tail that keeps its digits."""
    tail, upper, low, high = lower_tail(w), w > 0, least - 1, most
    while bool((high - low > 1).any()):
        k = ((low + high) / 2).floor_()
        # P(X > k) <= P(Z > w), or P(X <= k) >= P(Z < w)
        above, below = torch.special.gammainc(k + 1, mean), torch.special.gammaincc(k + 1, mean)
        reached = torch.where(upper, above <= tail, below >= tail)
        open_ = high - low > 1
        low, high = torch.where(open_ & ~reached, k, low), torch.where(open_ & reached, k, high)
    return high
