"""Segmentation: pixels that are given another class than theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, assign
from rarely.core.labels import as_label
from rarely.core.properties import Composable


@dataclass(frozen=True, init=False)
class WrongPixels(Composable):
    """At least `count` of some pixels get another class than `label`, for outputs (n, classes, height, width).

    `pixels` is one pixel (row, column) or a mask (height, width). The score of one pixel is that of Misclassification
    there; the score of several is the `count`-th highest of theirs. A single channel is the logit of class 1.
    """

    label: Tensor  # ()
    pixels: Tensor  # (k, 2): rows and columns
    count: int

    def __init__(self, label: int | Tensor, pixels: ArrayLike, count: int = 1) -> None:
        places = _places(pixels)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(places):
            raise InputError(f"count must be a whole number from 1 to the {len(places)} pixels, got {count!r}")
        assign(self, label=as_label(label, "label"), pixels=places, count=count)

    @property
    def words(self) -> str:
        some = "a pixel" if len(self.pixels) == 1 else f"at least {self.count} of {len(self.pixels)} pixels"
        return f"{some} of class {int(self.label)} get another class"

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        margins = self._margins(y)
        if margins.shape[-2] == 1:
            return margins.squeeze(-2)
        return margins.amax(-1).topk(self.count, -1).values[..., -1:]

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return self.parts(x, y).amax(-1)

    def _margins(self, y: Tensor) -> Tensor:
        """By how much each class beats the label at each pixel, (B, N, k, classes); -inf for the label itself."""
        if y.ndim != 5:
            shape = ", ".join(map(str, y.shape[2:]))
            raise InputError(f"a segmentation must be (n, classes, height, width), got (n, {shape})")
        if y.shape[2] == 1:
            y = torch.cat([torch.zeros_like(y), y], 2)
        classes, height, width = y.shape[2:]
        self._check(y, classes, height, width)
        place = self.pixels[..., 0] * width + self.pixels[..., 1]
        place = place.unsqueeze(-2).expand(*y.shape[:3], -1)
        there = y.flatten(3).gather(-1, place).mT  # (B, N, k, classes)
        label = self.label[..., None, None].expand(*there.shape[:-1], 1)
        return (there - there.gather(-1, label)).scatter(-1, label, -torch.inf)

    def _check(self, y: Tensor, classes: int, height: int, width: int) -> None:
        if not y.is_cpu:  # looking at numbers would wait for the device, and every problem is posed on the CPU first
            return
        if int(self.label.max()) >= classes:
            raise InputError(f"label {int(self.label.max())} is out of range: every pixel has {classes} classes")
        row, column = self.pixels.flatten(0, -2).amax(0).tolist()
        if row >= height or column >= width:
            raise InputError(f"pixel ({row}, {column}) lies outside the segmentation of {height} x {width} pixels")


def _places(pixels: Any) -> Tensor:
    """Rows and columns (k, 2) of one pixel or of a mask."""
    given = torch.as_tensor(pixels).cpu()
    if given.dtype == torch.bool and given.ndim == 2:
        given = given.nonzero()
    elif given.shape == (2,) and not given.is_floating_point() and given.dtype != torch.bool:
        given = given[None]
    else:
        raise InputError(
            f"pixels must be one pixel (row, column) or a mask (height, width) of True and False, "
            f"got shape {tuple(given.shape)} of {given.dtype}"
        )
    if not len(given) or bool((given < 0).any()):
        raise InputError("pixels must name at least one pixel, and rows and columns from 0")
    return given.long()
