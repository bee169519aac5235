"""What may happen to an image, by name: noise in a ball, Gaussian noise, corruptions with their ranges.

One number, the radius, says how much: the radius of the ball, the standard deviation of Gaussian noise, or a factor of
the ranges of corruptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rarely.core.errors import InputError

if TYPE_CHECKING:
    from rarely.inputs import InputModel, Law
    from rarely.io.formats.images import Images

BALL, GAUSSIAN = "ball", "gaussian"
_NORMS = ("inf", "2", "1")
_UNIT = (0.0, 1.0)  # the range that corruptions cut pixels to, where none is given
_CHANNELS = (1, 3)
# What leaves a picture as it is, and the unit of a range.
CORRUPTIONS = {
    "rotation": (0.0, "degrees"),
    "shift_x": (0.0, "pixels"),
    "shift_y": (0.0, "pixels"),
    "scale": (1.0, "of the size"),
    "blur": (0.0, "pixels"),
    "contrast": (1.0, "of the contrast"),
    "brightness": (0.0, "in pixel units"),
}


@dataclass(frozen=True)
class Noise:
    """What happens to an image, but for how much of it."""

    name: str  # a norm for the ball, GAUSSIAN, or corruptions with their ranges
    clip: tuple[float, float] | None = None

    @classmethod
    def read(cls, text: str, norm: str | None, clip: tuple[float, float] | None) -> Noise:
        """From the words of a user; a norm belongs to the ball alone."""
        if text == BALL:
            return cls(norm or _NORMS[0], clip)
        if norm is not None:
            raise InputError(f"a norm is that of a ball, and says nothing of {text}: leave it away")
        ranges = [] if text == GAUSSIAN else _ranges(text)
        named = ",".join(kind if size == 1 else f"{kind}:{size:g}" for kind, size in ranges)
        return cls(named or GAUSSIAN, clip or (_UNIT if ranges else None))

    @property
    def norm(self) -> str:
        """Of the ball; nothing where the noise is another."""
        return self.name if self.name in _NORMS else ""

    def check(self, images: Images) -> None:
        """An InputError unless the images are such that this may happen to them."""
        if self.clip is not None:
            images.check(self.clip, f"--clip {self.clip[0]:g} {self.clip[1]:g}")
        else:
            images.check()
        if not self.norm and self.name != GAUSSIAN:
            _picture_shape(images)

    def around(self, images: Images, row: int, radius: float) -> InputModel:
        """The law of what an image becomes."""
        from rarely.inputs import Corruptions, Gaussian, GaussianNoise, LpBall

        pixels = torch.from_numpy(images[row])
        if self.norm:
            return LpBall(pixels, radius, self.norm, self.clip)
        if self.name == GAUSSIAN:
            return Gaussian(pixels, radius) if self.clip is None else GaussianNoise(pixels, radius, self.clip)
        assert self.clip is not None
        laws = {kind: _law(kind, size * radius) for kind, size in _ranges(self.name)}
        return Corruptions(pixels, **laws, clip=self.clip, shape=_picture_shape(images))


def axis_of(name: str) -> str:
    """What the radius is, for the axis of a figure; of the name of any noise, "" for that of a ball."""
    if name == GAUSSIAN:
        return "standard deviation of the noise"
    try:
        ranges = _ranges(name)
    except InputError:  # a norm, or what a file calls one
        return "radius ε"
    if len(ranges) == 1 and ranges[0][1] == 1:
        return f"largest {name.replace('_', ' in ')}, {CORRUPTIONS[name][1]}"
    return f"factor of the ranges {name.replace(',', ', ')}"


def noise_in_words(name: str, radius: float) -> str:
    """What happens to an image, and how much of it; of the name of any noise."""
    if name == GAUSSIAN:
        return f"Gaussian noise of standard deviation {radius:g}"
    if name in _NORMS:
        return f"uniform noise in a ball of radius {radius:g} (norm {name})"
    return f"{name.replace(',', ', ')} at {radius:g} of the ranges"


def _ranges(text: str) -> list[tuple[str, float]]:
    """Corruptions with their ranges, as in rotation:30,blur."""
    found = dict(_range(part.strip()) for part in text.split(","))
    if len(found) != text.count(",") + 1:
        raise InputError(f"noise {text!r} names a corruption twice")
    return list(found.items())


def _range(part: str) -> tuple[str, float]:
    kind, colon, value = part.partition(":")
    if kind not in CORRUPTIONS:
        raise InputError(f"noise {part!r} is none of {BALL}, {GAUSSIAN}, {', '.join(CORRUPTIONS)}")
    try:
        size = float(value) if colon else 1.0
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise InputError(f"noise {part!r}: a range is a positive number, as in {kind}:0.5")
    return kind, size


def _law(kind: str, reach: float) -> Law:
    """Uniform between the extremes; a blur begins at none."""
    from rarely.inputs import Uniform

    neutral = CORRUPTIONS[kind][0]
    if neutral and reach >= neutral:
        raise InputError(f"a {kind} that changes by {reach:g} leaves nothing of the picture; it must stay below 1")
    return Uniform(0.0 if kind == "blur" else neutral - reach, neutral + reach)


def _picture_shape(images: Images) -> tuple[int, ...]:
    """(C, H, W) or (H, W) of the images, which a network may take as rows of numbers."""
    for shape in (images[0].shape, images.stored[0:1].shape[1:]):
        sides = tuple(n for n in shape[:-2] if n != 1) + tuple(shape[-2:])
        if len(sides) == 2 or (len(sides) == 3 and sides[0] in _CHANNELS):
            return sides
    raise InputError(
        f"{images.source}: images of shape {images[0].shape} are no pictures, (height, width) or "
        "(1 or 3, height, width), which corruptions need"
    )
