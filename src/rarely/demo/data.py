"""What the two demo networks learn from, made here: drawn road signs and a cruise controller's expert law.

numpy only, so that examples and tests can draw fresh data without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

SIGNS = ("disc", "ring", "square", "triangle", "cross", "star")
SIZE = 20


def _polygon(x: Floats, y: Floats, corners: Floats) -> Floats:
    """Signed distance to a closed polygon, negative inside. x, y: (n, S, S); corners: (K, 2)."""
    distance = np.full(x.shape, np.inf)
    inside = np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        ex, ey = bx - ax, by - ay
        t = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0.0, 1.0)
        distance = np.minimum(distance, np.hypot(x - ax - t * ex, y - ay - t * ey))
        if ay != by:  # even-odd rule; a horizontal edge is never crossed by a horizontal ray
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) * ex / ey)
    return np.where(inside, -distance, distance)


def _regular(corners: int, inner: float | None = None) -> Floats:
    """Corners of a regular polygon of circumradius 1, or of a star when an inner radius is given."""
    count = corners if inner is None else 2 * corners
    angle = -np.pi / 2 + 2 * np.pi * np.arange(count) / count
    radius = np.ones(count)
    if inner is not None:
        radius[1::2] = inner
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def sign_distance(sign: str, x: Floats, y: Floats, stroke: Floats) -> Floats:
    """Signed distance to a sign of radius about 1; stroke (n, 1, 1) is the thickness of ring and cross."""
    match sign:
        case "disc":
            return np.hypot(x, y) - 0.95
        case "ring":
            return np.abs(np.hypot(x, y) - (1.0 - stroke / 2)) - stroke / 2
        case "square":
            return np.maximum(np.abs(x), np.abs(y)) - 0.8
        case "triangle":
            return _polygon(x, y - 0.2, 1.15 * _regular(3))
        case "cross":
            ax, ay = np.abs(x), np.abs(y)
            bar = 0.6 * stroke
            return np.minimum(np.maximum(ax - 1.0, ay - bar), np.maximum(ay - 1.0, ax - bar))
        case "star":
            return _polygon(x, y, 1.15 * _regular(5, inner=0.42))
    raise ValueError(f"unknown sign {sign!r}; known: {', '.join(SIGNS)}")


def draw_images(
    count: int, seed: int = 0, *, noise: float = 0.1, size: int = SIZE
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw `count` grayscale signs, anti-aliased, with random place, size, tilt, contrast and pixel noise.

    Returns images (count, 1, size, size) with the 8-bit values k/255, and labels (count,) into `SIGNS`.
    Classes are balanced and shuffled.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % len(SIGNS))
    radius = rng.uniform(0.25, 0.4, count) * size
    room = size / 2 - 1.1 * radius
    offset = rng.uniform(-1.0, 1.0, (2, count)) * np.maximum(room, 0.0)
    tilt = rng.uniform(-0.25, 0.25, count)
    stroke = rng.uniform(0.35, 0.55, count)
    dark = rng.uniform(0.0, 0.3, count)
    contrast = rng.uniform(0.4, 0.7, count)

    def column(values: Floats) -> Floats:
        return values[:, None, None]

    axis = np.arange(size) - (size - 1) / 2
    px = axis[None, None, :] - column(offset[0])
    py = axis[None, :, None] - column(offset[1])
    cos, sin = column(np.cos(tilt)), column(np.sin(tilt))
    x = (cos * px + sin * py) / column(radius)
    y = (cos * py - sin * px) / column(radius)

    ink = np.empty((count, size, size))
    for index, sign in enumerate(SIGNS):
        of_class = labels == index
        distance = sign_distance(sign, x[of_class], y[of_class], column(stroke[of_class]))
        # One pixel of ramp around the outline: the area of the pixel that the sign covers, nearly.
        ink[of_class] = np.clip(0.5 - distance * column(radius[of_class]), 0.0, 1.0)
    images = column(dark) + column(contrast) * ink + rng.normal(0.0, noise, ink.shape)
    images = np.round(np.clip(images, 0.0, 1.0) * 255) / 255
    return images[:, None].astype(np.float32), labels.astype(np.int64)


@dataclass(frozen=True)
class Quantity:
    """One input of the controller; the network sees it mapped from [low, high] to [0, 1]."""

    name: str
    unit: str
    low: float
    high: float

    def normalise(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


CONTROL_INPUTS = (
    Quantity("gap", "m", 0.0, 100.0),
    Quantity("speed", "m/s", 0.0, 40.0),
    Quantity("closing speed", "m/s", -20.0, 30.0),
    Quantity("acceleration of the car ahead", "m/s²", -6.0, 3.0),
    Quantity("set speed", "m/s", 10.0, 40.0),
    Quantity("road slope", "%", -8.0, 8.0),
)


def physical(inputs: ArrayLike) -> Floats:
    """Network inputs in [0, 1], shape (..., 6), to the physical units of `CONTROL_INPUTS`."""
    low = np.array([quantity.low for quantity in CONTROL_INPUTS])
    high = np.array([quantity.high for quantity in CONTROL_INPUTS])
    return np.asarray(low + np.asarray(inputs, dtype=np.float64) * (high - low))


def expert_acceleration(inputs: ArrayLike) -> Floats:
    """The law the controller imitates: commanded acceleration in m/s², for network inputs (..., 6) in [0, 1].

    The Intelligent Driver Model (Treiber, Hennecke and Helbing, 2000) plus feed-forward of the car ahead's
    acceleration and of the slope, limited to what brakes and engine can do.
    """
    gap, speed, closing, ahead, target, slope = np.moveaxis(physical(inputs), -1, 0)
    comfortable, braking, headway, standstill = 1.5, 2.5, 1.4, 3.0
    wanted = standstill + np.maximum(0.0, speed * headway + speed * closing / (2 * np.sqrt(comfortable * braking)))
    interaction = (wanted / np.maximum(gap, 1.0)) ** 2
    cruise = 1.0 - (speed / target) ** 4
    near = np.exp(-gap / 40.0)
    command = comfortable * (np.maximum(cruise, -2.0) - interaction) + 0.5 * near * ahead + 0.0981 * slope
    return np.asarray(np.clip(command, -8.0, 3.0))
