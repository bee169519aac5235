"""Inputs that are pictures, as small PNGs inside a page or a notebook."""

from __future__ import annotations

import base64
import io
import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MAX_SIDE = 96  # pixels; larger pictures are scaled down, so that fifty of them stay small
_SMALLEST_SIDE = 8  # what is narrower is a table of numbers, not a picture
_FLAT = 256  # values from which a flat input with a square number of them is taken for a picture


def as_picture(values: Array) -> Array | None:
    """(H, W) or (H, W, 3), if that is what the input looks like."""
    shape = tuple(n for n in values.shape if n != 1)
    values = values.reshape(shape)
    if len(shape) == 3 and shape[0] == 3:
        values = np.moveaxis(values, 0, -1)
    elif len(shape) == 1 and shape[0] >= _FLAT and math.isqrt(shape[0]) ** 2 == shape[0]:
        values = values.reshape(math.isqrt(shape[0]), -1)
    is_picture = values.ndim == 2 or (values.ndim == 3 and values.shape[-1] == 3)
    return values if is_picture and min(values.shape[:2]) >= _SMALLEST_SIDE else None


def value_range(pictures: list[Array]) -> tuple[float, float]:
    low, high = float(min(p.min() for p in pictures)), float(max(p.max() for p in pictures))
    return (0.0, 1.0) if low >= 0 and 0.1 < high <= 1 else (low, high)


def shades(values: Array, low: float, high: float) -> Array:
    width = (high - low) or 1.0
    return np.nan_to_num((values - low) / width * 255).clip(0, 255).round().astype(np.uint8)


def png(shades: Array, *, signed: bool = False) -> str:
    from PIL import Image

    image = Image.fromarray(shades)
    if max(image.size) > MAX_SIDE:
        shrink = MAX_SIDE / max(image.size)
        width, height = (max(1, round(side * shrink)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    if signed:
        image = Image.fromarray(np.asarray(image), mode="P")
        image.putpalette(_blue_to_red())
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")


@cache
def _blue_to_red() -> bytes:
    import matplotlib

    colors = matplotlib.colormaps["RdBu_r"](np.linspace(0, 1, 256))[:, :3]
    return bytes((colors * 255).round().astype(np.uint8).ravel())
