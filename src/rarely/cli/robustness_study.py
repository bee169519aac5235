"""The problems of `rarely robustness`, one per image and radius, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rarely.cli.output import as_data as estimate_data
from rarely.core.errors import InputError
from rarely.core.problem import Problem
from rarely.core.properties import Misclassification
from rarely.inputs import LpBall
from rarely.io.formats.images import load_images
from rarely.io.networks import load_network
from rarely.io.normalised import normalised
from rarely.questions.result import Estimate


@dataclass
class Row:
    """One image at one radius."""

    name: str
    label: int
    predicted: int
    eps: float
    problem: Problem | None  # None when the image is misclassified without any noise
    estimate: Estimate | None = None

    @property
    def misclassified(self) -> bool:
        return self.label != self.predicted


@dataclass(frozen=True)
class Summary:
    """All images at one radius. Misclassified ones are counted apart."""

    eps: float
    images: int
    misclassified: int
    quartiles: tuple[float, float, float]  # of log p; -inf below the floor, NaN without images
    share_below_floor: float


def open_network(path: str, mean: Any, std: Any, *, architecture: str | None, trust_pickle: bool) -> Any:
    """The network, with its normalisation inside when one is given."""
    return normalised(load_network(path, architecture=architecture, trust_pickle=trust_pickle), mean, std)


def plan(
    network: Any,
    inputs: Path,
    labels: Path | None,
    radii: Sequence[float],
    norm: str,
    clip: tuple[float, float] | None,
) -> list[Row]:
    """A row for every image and radius, checked before any long work."""
    if any(not (0 < eps < math.inf) for eps in radii):
        raise InputError("--eps must be positive numbers")
    shape = getattr(network, "input_shape", None)
    images = load_images(inputs, None if shape is None else tuple(shape), labels)
    if clip is not None and (images.inputs.min() < clip[0] or images.inputs.max() > clip[1]):
        raise InputError(
            f"pixels lie in [{images.inputs.min():g}, {images.inputs.max():g}], outside --clip {clip[0]:g} {clip[1]:g}"
        )
    predicted = _predict(network, images.inputs)
    rows = []
    for i, (image, name) in enumerate(zip(torch.from_numpy(images.inputs), images.names, strict=True)):
        label = int(predicted[i]) if images.labels is None else int(images.labels[i])
        for eps in radii:
            row = Row(name, label, int(predicted[i]), eps, None)
            if not row.misclassified:
                ball = LpBall(image, eps, norm if norm == "inf" else float(norm), clip)
                row.problem = Problem(network, Misclassification(label), ball, f"{name} eps {eps:g}")
            rows.append(row)
    return rows


def _predict(network: Any, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    dtype = next((p.dtype for p in network.parameters()), None) if isinstance(network, nn.Module) else None
    pieces = torch.from_numpy(images).tensor_split(1 + len(images) // 256)
    with torch.no_grad():
        try:
            answers = [network(piece.to(dtype)).flatten(1).argmax(1) for piece in pieces]
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(f"the network fails on images of shape {images.shape[1:]}: {error}") from error
    return np.asarray(torch.cat(answers))


def summarise(rows: Sequence[Row], radii: Sequence[float]) -> list[Summary]:
    summaries = []
    for eps in radii:
        here = [row for row in rows if row.eps == eps]
        values = [row.estimate.log_prob for row in here if row.estimate is not None]
        # No interpolation: between a number and "below the floor" there is nothing.
        cuts = np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf").tolist() if values else [math.nan] * 3
        below = sum(value == -math.inf for value in values) / len(values) if values else math.nan
        summaries.append(Summary(eps, len(values), sum(row.misclassified for row in here), (*cuts,), below))
    return summaries


def as_data(
    rows: Sequence[Row], summaries: Sequence[Summary], norm: str, clip: tuple[float, float] | None
) -> dict[str, Any]:
    return {
        "schema": 1,
        "norm": norm,
        "clip": None if clip is None else list(clip),
        "rows": [
            {
                "image": row.name,
                "label": row.label,
                "predicted": row.predicted,
                "eps": row.eps,
                "misclassified": row.misclassified,
                "estimate": None if row.estimate is None else estimate_data(row.estimate),
            }
            for row in rows
        ],
        "summary": [
            {
                "eps": s.eps,
                "images": s.images,
                "misclassified": s.misclassified,
                "log_prob_quartiles": [v if math.isfinite(v) else repr(v) for v in s.quartiles],
                "share_below_floor": None if math.isnan(s.share_below_floor) else s.share_below_floor,
            }
            for s in summaries
        ],
    }


def draw_curve(rows: Sequence[Row], file: Path) -> None:
    from rarely.report.figures import plot_curve, save

    found = [row for row in rows if row.estimate is not None]
    radii = sorted({row.eps for row in found})
    curves = [[row.estimate.log_prob for row in found if row.eps == eps and row.estimate] for eps in radii]
    save(plot_curve(radii, curves), file)
