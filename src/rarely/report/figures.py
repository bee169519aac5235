"""Figures of campaigns and of pictures; those of estimates are in `display/figures.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rarely.campaign.robustness import Curve
from rarely.display.figures import ACCENT, FAINT, LN10, SERIES, WARNING, clean, literal, new_figure, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vP"
MAX_POINTS = 2000  # more become a smear, and a large file


def plot_curves(curves: Sequence[Curve], size: tuple[float, float] = (6.4, 4.2)) -> Figure:
    """Median and quartiles of log10 p over the radius, a curve for each group; points too where there is one group.

    "No violation found" is no number: it has a strip of its own below the scale, and no line leads there.
    """
    columns = [np.asarray(column, dtype=float) for curve in curves for column in curve.log_probs]
    edge, strip = _strip(columns)
    figure = new_figure(*size)
    axes = figure.subplots()
    if len(curves) == 1 and sum(map(len, columns)) <= MAX_POINTS:
        for radius, column in zip(curves[0].radii, columns, strict=True):
            points = np.where(np.isneginf(column), strip, column / LN10)
            axes.plot(np.full(len(points), radius), points, ls="", marker=".", color=FAINT, markersize=5, zorder=1)
    for i, curve in enumerate(curves):
        _draw_curve(axes, curve, strip, len(curves) == 1, SERIES[i % len(SERIES)], _MARKERS[i % len(_MARKERS)])
    axes.set_xlabel(" or ".join(dict.fromkeys(curve.axis for curve in curves)))
    axes.set_ylabel("log10 of the probability of a mistake")
    axes.legend(frameon=False)
    whole_numbers(axes.yaxis)
    if any(np.isneginf(column).any() for column in columns):
        _mark_strip(axes, edge, strip)
    clean(axes)
    return figure


def _draw_curve(axes: Axes, curve: Curve, strip: float, alone: bool, color: str, marker: str) -> None:
    radii, cuts = np.asarray(curve.radii, dtype=float), curve.quartiles() / LN10
    cuts[np.isneginf(cuts)] = math.nan  # lines and bands end there
    low, middle, high = cuts.T
    band = {"alpha": 0.2, "label": "quartiles"} if alone else {"alpha": 0.1}
    axes.fill_between(radii, low, high, color=color, linewidth=0, **band)
    name = "median" if alone else literal(curve.name)
    axes.plot(radii, middle, color=color, marker=marker, markersize=5, label=name)
    nothing = np.isneginf(curve.quartiles()[:, 1])
    axes.plot(radii[nothing], np.full(nothing.sum(), strip), ls="", marker=marker, mfc="none", mec=color, markersize=5)


def _strip(columns: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Where the scale of log10 p ends, and where "no violation found" stands below it."""
    finite = np.concatenate([column[np.isfinite(column)] for column in columns] or [np.zeros(0)]) / LN10
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    room = max(1.0, high - low)
    return low - 0.06 * room, low - 0.14 * room


def _mark_strip(axes: Axes, edge: float, strip: float) -> None:
    top = max(axes.get_ylim()[1], edge + 1.0)  # higher than the edge where nothing but the strip is drawn
    axes.set_ylim(2 * strip - edge, top)
    ticks = [float(tick) for tick in axes.get_yticks() if edge < tick <= min(top, 0.0)]
    axes.set_yticks([strip, *ticks], ["none found", *(f"{tick:g}" for tick in ticks)])
    axes.axhline(edge, color=WARNING, linewidth=1, linestyle="--")


def plot_distribution(trusted: ArrayLike, doubtful: ArrayLike = (), size: tuple[float, float] = (6.4, 3.6)) -> Figure:
    """How log10 p spreads over problems with a number; those not to be trusted stand apart."""
    edges, heights, doubts = histogram(trusted, doubtful)
    figure = new_figure(*size)
    axes = figure.subplots()
    style: dict[str, Any] = {"width": np.diff(edges) * 0.9, "align": "edge"}
    axes.bar(edges[:-1], heights, color=ACCENT, label="violated", **style)
    if doubts.any():
        axes.bar(edges[:-1], doubts, bottom=heights, color=WARNING, label="not to be trusted", **style)
        axes.legend(frameon=False)
    axes.set_xlabel("log10 of the probability of a violation")
    axes.set_ylabel("problems")
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    clean(axes)
    return figure


def plot_comparison(
    numbers: Sequence[tuple[float, float]], clear: Sequence[bool], size: tuple[float, float] = (5.2, 4.6)
) -> Figure:
    """log10 p in B over that in A, a point for each problem; below the line B fails less."""
    points = np.array(numbers, dtype=float).reshape(-1, 2) / LN10
    marked = np.array(clear, dtype=bool)
    figure = new_figure(*size)
    axes = figure.subplots()
    low, high = (float(points.min()), float(points.max())) if len(points) else (-1.0, 0.0)
    margin = 0.05 * (high - low) or 0.5
    ends = (low - margin, high + margin)
    axes.plot(ends, ends, color=FAINT, linewidth=1)
    for chosen, color, label in ((~marked, FAINT, "no clear difference"), (marked, ACCENT, "a clear difference")):
        if chosen.any():
            axes.plot(*points[chosen].T, ls="", marker="o", markersize=5, color=color, label=label)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.set_xlabel("log10 of p in A")
    axes.set_ylabel("log10 of p in B")
    axes.legend(frameon=False, loc="upper left")
    clean(axes)
    return figure


def histogram(trusted: ArrayLike, doubtful: ArrayLike = ()) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Edges on the scale of log10 p at round numbers, at most 31, and the counts between them. Takes natural logs."""
    numbers, doubts = (np.asarray(values, dtype=float) / LN10 for values in (trusted, doubtful))
    every = np.concatenate([numbers, doubts])
    low, high = (float(every.min()), float(every.max())) if len(every) else (-1.0, 0.0)
    step = next(s for s in (m * 10.0**k for k in range(-1, 300) for m in (1, 2, 5)) if (high - low) / s <= 28)
    # A probability of one stands at the upper end of the scale, not alone in a bin above it.
    first, last = math.floor(low / step), max(math.floor(low / step) + 1, math.ceil(high / step))
    edges = np.arange(first, last + 1) * step
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)  # rounding must lose nobody
    return edges, np.histogram(numbers, edges)[0], np.histogram(doubts, edges)[0]


def plot_witnesses(originals: ArrayLike, witnesses: ArrayLike, titles: Sequence[tuple[str, str]]) -> Figure:
    """Each original beside an input that violates and their difference. Arrays (n, C, H, W) with C 1 or 3, in [0, 1].

    titles: what the network says of the original and of the witness.
    """
    before, after = np.asarray(originals, dtype=float), np.asarray(witnesses, dtype=float)
    count = len(before)
    figure = new_figure(5.4, 0.4 + 1.85 * count)
    grid = figure.subplots(count, 3, squeeze=False)
    for row, (original, witness, (left, right)) in enumerate(zip(before, after, titles, strict=True)):
        change = (witness - original).mean(0)
        largest = float(np.abs(change).max()) or 1.0
        for axes, image, title in ((grid[row, 0], original, left), (grid[row, 1], witness, right)):
            axes.imshow(_picture(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(literal(title), fontsize=9)
        grid[row, 2].imshow(change, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        grid[row, 2].set_title(f"difference (±{largest:.2g})", fontsize=9)
        for axes in grid[row]:
            axes.set_axis_off()
    return figure


def _picture(image: NDArray[Any]) -> NDArray[Any]:
    return image[0] if image.shape[0] == 1 else np.moveaxis(image, 0, -1).clip(0, 1)
