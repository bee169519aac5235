"""A classifier under random noise or corruptions: images at several radii, and what they say together.

Not a stored campaign: a handful of images starts at once, runs as one batch in this process, and leaves no folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rarely.campaign.noise import Noise
from rarely.core.errors import InputError
from rarely.core.network import Network, adapt_network
from rarely.core.problem import Problem
from rarely.core.properties import Misclassification
from rarely.io.files import one_line
from rarely.io.formats.images import Images
from rarely.questions.result import Estimate
from rarely.questions.showing import numbers

ROW_COLUMNS = (
    "image", "label", "predicted", "eps", "outcome", "log_prob", "log_prob_std", "low", "high", "upper_bound", "calls",
)  # fmt: skip
_AT_ONCE = 256  # images that the network is asked about in one call


@dataclass(frozen=True)
class Curve:
    """Natural logs of p at each radius, one per problem; -inf where no violation was found."""

    name: str
    radii: Sequence[float]
    log_probs: Sequence[ArrayLike]
    axis: str = "radius ε"  # what the radii are

    def quartiles(self) -> NDArray[Any]:
        """(radii, 3), NaN where there is no problem."""
        return np.array([_quartiles(np.asarray(column, dtype=float)) for column in self.log_probs]).reshape(-1, 3)


def _quartiles(values: NDArray[Any]) -> NDArray[Any]:
    # No interpolation: between a number and "no violation found" there is nothing.
    return np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf") if len(values) else np.full(3, math.nan)


@dataclass
class Row:
    """One image at one radius."""

    image: str
    label: int
    predicted: int
    eps: float
    problem: Problem | None  # None when the image is misclassified without any noise
    estimate: Estimate | None = None

    @property
    def misclassified(self) -> bool:
        return self.label != self.predicted

    def flat(self) -> dict[str, Any]:
        """The values of ROW_COLUMNS."""
        state = "misclassified" if self.misclassified else "not finished"
        known = {"outcome": state} if self.estimate is None else numbers(self.estimate)
        return {name: known.get(name, getattr(self, name, "")) for name in ROW_COLUMNS}


def plan_rows(network: Any, images: Images, radii: Sequence[float], noise: Noise) -> list[Row]:
    """A row for every image and radius, with its problem; without labels the network's own answers are kept."""
    predicted, labels = answers(network, images)
    rows = []
    for i, (image, label, answer) in enumerate(zip(images.names, labels, predicted, strict=True)):
        for eps in radii:
            row = Row(image, int(label), int(answer), eps, None)
            if not row.misclassified:
                row.problem = pose(network, images, i, row.label, eps, noise)
            rows.append(row)
    return rows


def pose(network: Any, images: Images, i: int, label: int, eps: float, noise: Noise) -> Problem:
    """How often does image `i`, changed as `noise` says, get another class than `label`?"""
    inputs = noise.around(images, i, eps)
    return Problem(network, Misclassification(label), inputs, f"{images.names[i]} eps {eps:g}")


def answers(network: Any, images: Images) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The class that the network gives every image, and the label of each: the same where there is no other."""
    predicted, outputs = _predicted(network, images)
    images.check_labels(outputs)
    return predicted, predicted if images.labels is None else images.labels


def _predicted(network: Any, images: Images) -> tuple[NDArray[np.int64], int]:
    """The class that the network gives every image, and how many classes it knows."""
    try:
        adapted, first = adapt_network(network, torch.from_numpy(images.rows(0, 1)))
        outputs = math.prod(first.shape[1:])
        if outputs < 2:
            raise InputError(
                f"the network turned one image into {tuple(first.shape)}: a classifier gives a score for each class"
            )
        with torch.no_grad(), adapted.evaluating():
            found = [_classes(adapted, torch.from_numpy(block)) for block in images.blocks()]
    except InputError:
        raise
    except Exception as error:  # the user's network may raise anything
        raise InputError(f"the network fails on images of shape {images[0].shape}: {one_line(error)}") from error
    return np.concatenate(found), outputs


def _classes(network: Network, images: torch.Tensor) -> NDArray[np.int64]:
    pieces = images.to(network.dtype).tensor_split(1 + len(images) // _AT_ONCE)
    return np.concatenate([network.call(piece).flatten(1).argmax(1).cpu().numpy() for piece in pieces])


@dataclass(frozen=True)
class Summary:
    """All images at one radius. Misclassified ones are counted apart."""

    eps: float
    images: int
    misclassified: int
    log_prob_quartiles: tuple[float, ...]  # -inf below the floor, NaN without images
    share_below_floor: float | None


def summarise(rows: Sequence[Row], radii: Sequence[float]) -> list[Summary]:
    curve, found = curve_of(rows, radii), []
    for eps, column, cuts in zip(radii, curve.log_probs, curve.quartiles().tolist(), strict=True):
        values = np.asarray(column, dtype=float)
        count, below = len(values), int(np.isneginf(values).sum())
        failed = sum(row.misclassified for row in rows if row.eps == eps)
        found.append(Summary(eps, count, failed, tuple(cuts), below / count if count else None))
    return found


def curve_of(rows: Sequence[Row], radii: Sequence[float], axis: str = Curve.axis) -> Curve:
    """log p of what is known at each of `radii`, which are what `axis` says."""
    known = [(row.eps, row.estimate.log_prob) for row in rows if row.estimate is not None]
    return Curve("", radii, [[log_prob for at, log_prob in known if at == eps] for eps in radii], axis)
