"""Figures of estimates, drawn with matplotlib without a window. Each function returns a Figure; `save` writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rarely.campaign.robustness import Curve
from rarely.core.errors import InputError
from rarely.questions.result import Estimate, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, ACCENT, FAINT, WARNING = "#22303c", "#1f6f8b", "#b8c4cc", "#c8553d"
SERIES = (ACCENT, "#c98a1b", "#7a5aa6", "#5b8c5a", "#a34a6d", "#5f6b76")  # curves side by side
_MARKERS = "osD^vP"
MAX_POINTS = 2000  # more become a smear, and a large file
_LONGEST = 44  # characters of a name in a legend; a headline has room for twice as many
LN10 = math.log(10)
_FORMATS = (".svg", ".png", ".pdf")


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure; its kind is the ending of the name."""
    ending = Path(path).suffix.lower()
    if ending not in _FORMATS:
        raise InputError(f"{path}: a figure is written as {', '.join(_FORMATS)}")
    import matplotlib

    # Text stays text in an SVG, and the same figure gives the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rarely"}):
        figure.savefig(path, dpi=160, metadata={"Date": None} if ending == ".svg" else None)


def plot_estimate(estimate: Estimate, size: tuple[float, float] = (6.4, 5.2)) -> Figure:
    """The levels that the sampler climbed, and how often its kernel moved on each."""
    levels = np.array([level for level in estimate.levels if math.isfinite(level)])
    if len(levels) == 0:  # no levels: Monte Carlo, or a method that does not climb
        return plot_probabilities([estimate])
    figure = _figure(*size)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = np.arange(1, len(levels) + 1)
    _mark_violation(top, 1, 0)
    top.plot(steps, levels, color=ACCENT, marker="o", markersize=4)
    top.margins(y=0.15)
    top.set_ylabel("level (score)")
    top.set_title(_headline(estimate), fontsize=10, loc="left")
    acceptance = np.array(estimate.acceptance)
    bottom.bar(np.arange(1, len(acceptance) + 1), acceptance, color=FAINT, width=0.7)
    bottom.set_ylim(0, 1)
    bottom.set_ylabel("acceptance")
    bottom.set_xlabel("level number")
    _whole_numbers(bottom.xaxis)
    _clean(top, bottom)
    return figure


def plot_probabilities(estimates: Sequence[Estimate]) -> Figure:
    """The probability of each problem with its interval; an arrow where only an upper bound is known."""
    figure = _figure(7.2, 1.3 + 0.34 * len(estimates))
    axes = figure.subplots()
    rows = np.arange(len(estimates))[::-1]
    for y, estimate in zip(rows, estimates, strict=True):
        if estimate.outcome is Outcome.PROVED_SAFE:
            axes.annotate(
                "proved safe", (1.0, y), xycoords=("axes fraction", "data"), ha="right", va="center", color=INK
            )
        elif estimate.log_prob == -math.inf:
            bound = estimate.upper_bound / LN10
            axes.plot(bound, y, marker="|", color=FAINT, markersize=10)
            axes.annotate(
                "",
                (bound, y),
                xytext=(-28, 0),
                textcoords="offset points",
                arrowprops={"arrowstyle": "<-", "color": FAINT},
            )
        else:
            centre = estimate.log_prob / LN10
            low = estimate.interval.low / LN10 if math.isfinite(estimate.interval.low) else centre
            color = ACCENT if estimate.outcome.trusted else WARNING
            axes.plot([low, estimate.interval.high / LN10], [y, y], color=color, linewidth=2)
            axes.plot(centre, y, marker="o", color=color, markersize=5)
    axes.set_yticks(rows, [_literal(estimate.name) or "problem" for estimate in estimates])
    axes.set_ylim(-0.6, len(estimates) - 0.4)
    axes.set_xlabel(f"log10 of the probability, {estimates[0].interval.confidence:.0%} intervals")
    axes.grid(axis="x", color=FAINT, linewidth=0.5, alpha=0.6)
    _clean(axes)
    return figure


def plot_levels(estimates: Sequence[Estimate], size: tuple[float, float] = (7.2, 4.2)) -> Figure:
    """How each sampler climbed: its levels as a share of the way from the first level to the violation."""
    figure = _figure(*size)
    axes = figure.subplots()
    _mark_violation(axes, 0, 1)
    climbs = [(e, np.array([level for level in e.levels if math.isfinite(level)])) for e in estimates]
    shown = [(estimate, levels) for estimate, levels in climbs if len(levels) > 1 and levels[0] < 0]
    for i, (estimate, levels) in enumerate(shown):
        style: dict[str, Any] = {
            "color": SERIES[i % len(SERIES)],
            "marker": ".",
            "linestyle": "-" if i < len(SERIES) else "--",
        }
        axes.plot(np.arange(len(levels)), 1 - levels / levels[0], label=_literal(estimate.name) or "problem", **style)
    axes.set_xlabel("level number")
    axes.set_ylabel("share of the way to a violation")
    _whole_numbers(axes.xaxis)
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=8)
    _clean(axes)
    return figure


def plot_curves(curves: Sequence[Curve], size: tuple[float, float] = (6.4, 4.2)) -> Figure:
    """Median and quartiles of log10 p over the radius, a curve for each group; points too where there is one group.

    Problems without a violation have no number. They stand in a strip of their own below the scale, which no line
    enters: between a number and none there is nothing.
    """
    columns = [np.asarray(column, dtype=float) for curve in curves for column in curve.log_probs]
    edge, nothing = _strip(columns)
    figure = _figure(*size)
    axes = figure.subplots()
    if len(curves) == 1 and sum(np.size(column) for column in columns) <= MAX_POINTS:
        for radius, column in zip(curves[0].radii, curves[0].log_probs, strict=True):
            points = _in_strip(np.asarray(column, dtype=float) / LN10, nothing)
            axes.plot(np.full(len(points), radius), points, ls="", marker=".", color=FAINT, markersize=5, zorder=1)
    for i, curve in enumerate(curves):
        color, marker = SERIES[i % len(SERIES)], _MARKERS[i % len(_MARKERS)]
        low, middle, high = curve.quartiles().T / LN10
        known = np.isfinite(middle)
        band = {"alpha": 0.2, "label": "quartiles"} if len(curves) == 1 else {"alpha": 0.1}
        axes.fill_between(curve.radii, np.maximum(low, edge), high, where=known, color=color, linewidth=0, **band)
        name = _literal(curve.name) if len(curves) > 1 else "median"
        axes.plot(curve.radii, np.where(known, middle, np.nan), color=color, marker=marker, markersize=5, label=name)
        hollow: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "markersize": 5,
            "markerfacecolor": "none",
            "linestyle": "",
        }
        axes.plot(curve.radii, np.where(np.isneginf(middle), nothing, np.nan), **hollow)
    if any(np.isneginf(column).any() for column in columns):
        _mark_strip(axes, edge, nothing)
    axes.set_xlabel("radius ε")
    axes.set_ylabel("log10 of the probability of a mistake")
    axes.legend(frameon=False)
    _whole_numbers(axes.yaxis)
    _clean(axes)
    return figure


def plot_distribution(trusted: ArrayLike, doubtful: ArrayLike = (), size: tuple[float, float] = (6.4, 3.6)) -> Figure:
    """How log10 p spreads over problems with a number; those not to be trusted stand apart."""
    edges, heights, doubts = histogram(trusted, doubtful)
    figure = _figure(*size)
    axes = figure.subplots()
    style: dict[str, Any] = {"width": np.diff(edges) * 0.9, "align": "edge"}
    axes.bar(edges[:-1], heights, color=ACCENT, label="violated", **style)
    if doubts.any():
        axes.bar(edges[:-1], doubts, bottom=heights, color=WARNING, label="not to be trusted", **style)
        axes.legend(frameon=False)
    axes.set_xlabel("log10 of the probability of a violation")
    axes.set_ylabel("problems")
    _whole_numbers(axes.xaxis)
    _whole_numbers(axes.yaxis)
    _clean(axes)
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
    figure = _figure(5.4, 0.4 + 1.85 * count)
    grid = figure.subplots(count, 3, squeeze=False)
    for row, (original, witness, (left, right)) in enumerate(zip(before, after, titles, strict=True)):
        change = (witness - original).mean(0)
        largest = float(np.abs(change).max()) or 1.0
        for axes, image, title in ((grid[row, 0], original, left), (grid[row, 1], witness, right)):
            axes.imshow(_picture(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(_literal(title), fontsize=9)
        grid[row, 2].imshow(change, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        grid[row, 2].set_title(f"difference (±{largest:.2g})", fontsize=9)
        for axes in grid[row]:
            axes.set_axis_off()
    return figure


def _headline(estimate: Estimate) -> str:
    """The one-line summary without its costs, the name on a line of its own."""
    text = str(estimate).rpartition(" (")[0].removeprefix(f"{estimate.name}: ")
    return f"{_literal(estimate.name, 2 * _LONGEST)}\n{text}" if estimate.name else text


def _literal(text: str, longest: int = _LONGEST) -> str:
    """A name as it is, or its end: matplotlib would read what stands between dollar signs as mathematics."""
    shown = text if len(text) <= longest else f"…{text[1 - longest :]}"
    return shown.replace("$", r"\$")


def _picture(image: NDArray[Any]) -> NDArray[Any]:
    return image[0] if image.shape[0] == 1 else np.moveaxis(image, 0, -1).clip(0, 1)


def _strip(log_probs: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """On the scale of log10 p: the upper edge of the strip of those without a number, and where they stand in it."""
    every = np.concatenate([column.ravel() for column in log_probs])
    finite = every[np.isfinite(every)] / LN10
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 0.0)
    step = max(0.5, 0.06 * (high - low))
    return low - step, low - 2 * step


def _in_strip(values: NDArray[Any], nothing: float) -> NDArray[Any]:
    placed: NDArray[Any] = np.where(np.isneginf(values), nothing, values)
    return placed


def _mark_strip(axes: Axes, edge: float, nothing: float) -> None:
    """Shade the strip, say what it is, and take the numbers of the scale away from it."""
    from matplotlib.ticker import FuncFormatter

    bottom = 2 * nothing - edge
    axes.axhspan(bottom, edge, color=FAINT, alpha=0.35, linewidth=0, zorder=0, label="no violation found")
    axes.set_ylim(bottom=bottom)
    shown = FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−") if value > edge else "")
    axes.yaxis.set_major_formatter(shown)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _mark_violation(axes: Axes, left: float, height: float) -> None:
    axes.axhline(height, color=WARNING, linewidth=1)
    axes.annotate("violation", (left, height), xytext=(0, 4), textcoords="offset points", color=WARNING, fontsize=9)


def _clean(*plots: Axes) -> None:
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(color=FAINT, labelcolor=INK)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(INK)


def _whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
