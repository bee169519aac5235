"""Scenes of two signs with their boxes and pixel classes: what the demo's detector and segmentation learn from.

numpy only, like the signs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rarely.demo.data import Floats, sign_distance

SCENE_SIGNS = ("disc", "square", "triangle")
SCENE_SIZE = 32


@dataclass(frozen=True)
class Scenes:
    """Pictures with two signs each. Boxes are in pixels: the first pixel goes from (0, 0) to (1, 1)."""

    images: NDArray[np.float32]  # (count, 1, 32, 32)
    boxes: NDArray[np.float32]  # (count, 2, 4): x1, y1, x2, y2
    labels: NDArray[np.int64]  # (count, 2), into SCENE_SIGNS
    classes: NDArray[np.int64]  # (count, 32, 32): 0 is background, 1 + label is a sign


def draw_scenes(count: int, seed: int = 0, *, noise: float = 0.05) -> Scenes:
    """Draw scenes: two signs of different kinds that do not touch, on a background that gets lighter to one side."""
    rng = np.random.default_rng(seed)
    labels = rng.permuted(np.tile(np.arange(len(SCENE_SIGNS)), (count, 1)), axis=1)[:, :2]
    radius = rng.uniform(4.5, 6.0, (count, 2))
    center = _places(rng, radius)
    tilt = rng.uniform(-0.2, 0.2, (count, 2))
    axis = np.arange(SCENE_SIZE) + 0.5
    across, down = rng.uniform(-0.1, 0.1, (2, count, 1, 1))
    images = rng.uniform(0.15, 0.35, (count, 1, 1)) + across * (axis / 16 - 1) + down * (axis[:, None] / 16 - 1)
    classes = np.zeros((count, SCENE_SIZE, SCENE_SIZE), dtype=np.int64)
    boxes = np.empty((count, 2, 4))
    for k in range(2):
        light = rng.uniform(0.35, 0.55, (count, 1, 1))
        cover = _cover(labels[:, k], radius[:, k], center[:, k], tilt[:, k])
        images = images + light * cover
        inside = cover > 0.5
        classes[inside] = np.broadcast_to(1 + labels[:, k, None, None], inside.shape)[inside]
        for side, (first, last) in enumerate((_ends(inside, 1), _ends(inside, 2))):
            boxes[:, k, side], boxes[:, k, 2 + side] = first, last + 1
    images = images + rng.normal(0.0, noise, images.shape)
    images = np.round(np.clip(images, 0.0, 1.0) * 255) / 255
    return Scenes(images[:, None].astype(np.float32), boxes.astype(np.float32), labels.astype(np.int64), classes)


def _places(rng: np.random.Generator, radius: Floats) -> Floats:
    """Centers (count, 2, 2) of two signs inside the scene, drawn again until they do not touch."""
    low = 1.2 * radius[..., None]
    center = rng.uniform(low, SCENE_SIZE - low, (*radius.shape, 2))
    while (near := np.hypot(*(center[:, 0] - center[:, 1]).T) < 1.2 * radius.sum(1) + 1).any():
        center[near] = rng.uniform(low[near], SCENE_SIZE - low[near], (near.sum(), 2, 2))
    return center


def _cover(labels: NDArray[np.int64], radius: Floats, center: Floats, tilt: Floats) -> Floats:
    """The share of every pixel that a sign covers, (count, 32, 32)."""
    axis = np.arange(SCENE_SIZE) + 0.5
    px, py = axis[None, None, :] - center[:, 0, None, None], axis[None, :, None] - center[:, 1, None, None]
    cos, sin, scale = (v[:, None, None] for v in (np.cos(tilt), np.sin(tilt), radius))
    x, y = (cos * px + sin * py) / scale, (cos * py - sin * px) / scale
    distance = np.empty(x.shape)
    for index, sign in enumerate(SCENE_SIGNS):
        of_class = labels == index
        distance[of_class] = sign_distance(sign, x[of_class], y[of_class], np.full((of_class.sum(), 1, 1), 0.45))
    return np.asarray(np.clip(0.5 - distance * scale, 0.0, 1.0))


def _ends(inside: NDArray[np.bool_], axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last place (count,) along the other axis of masks (count, 32, 32) where there is any True."""
    there = np.logical_or.reduce(inside, axis)
    return there.argmax(1), SCENE_SIZE - 1 - there[:, ::-1].argmax(1)
