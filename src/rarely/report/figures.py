"""Figures of estimates, drawn with matplotlib without a window. Each function returns a Figure; `save` writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rarely.errors import InputError
from rarely.result import Estimate, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, FAINT, WARNING = "#22303c", "#1f6f8b", "#b8c4cc", "#c8553d"
_LN10 = math.log(10)
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


def plot_estimate(estimate: Estimate) -> Figure:
    """The levels that the sampler climbed, and how often its kernel moved on each."""
    levels = np.array([level for level in estimate.levels if math.isfinite(level)])
    if len(levels) == 0:  # no levels: Monte Carlo, or a method that does not climb
        return plot_probabilities([estimate])
    figure = _figure(6.4, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = np.arange(1, len(levels) + 1)
    top.axhline(0.0, color=WARNING, linewidth=1)
    top.annotate("violation", (1, 0), xytext=(0, 4), textcoords="offset points", color=WARNING, fontsize=9)
    top.plot(steps, levels, color=ACCENT, marker="o", markersize=4)
    top.margins(y=0.15)
    top.set_ylabel("level (score)")
    top.set_title(_headline(estimate), fontsize=10, loc="left")
    acceptance = np.array(estimate.acceptance)
    bottom.bar(np.arange(1, len(acceptance) + 1), acceptance, color=FAINT, width=0.7)
    bottom.set_ylim(0, 1)
    bottom.set_ylabel("acceptance")
    bottom.set_xlabel("level number")
    _whole_numbers(bottom)
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
            bound = estimate.upper_bound / _LN10
            axes.plot(bound, y, marker="|", color=FAINT, markersize=10)
            axes.annotate(
                "",
                (bound, y),
                xytext=(-28, 0),
                textcoords="offset points",
                arrowprops={"arrowstyle": "<-", "color": FAINT},
            )
        else:
            centre = estimate.log_prob / _LN10
            low = estimate.interval.low / _LN10 if math.isfinite(estimate.interval.low) else centre
            color = ACCENT if estimate.outcome.trusted else WARNING
            axes.plot([low, estimate.interval.high / _LN10], [y, y], color=color, linewidth=2)
            axes.plot(centre, y, marker="o", color=color, markersize=5)
    axes.set_yticks(rows, [estimate.name or "problem" for estimate in estimates])
    axes.set_ylim(-0.6, len(estimates) - 0.4)
    axes.set_xlabel(f"log10 of the probability, {estimates[0].interval.confidence:.0%} intervals")
    axes.grid(axis="x", color=FAINT, linewidth=0.5, alpha=0.6)
    _clean(axes)
    return figure


def plot_levels(estimates: Sequence[Estimate]) -> Figure:
    """How each sampler climbed: its levels as a share of the way from the first level to the violation."""
    figure = _figure(7.2, 4.2)
    axes = figure.subplots()
    axes.axhline(1.0, color=WARNING, linewidth=1)
    axes.annotate("violation", (0, 1), xytext=(0, 4), textcoords="offset points", color=WARNING, fontsize=9)
    for estimate in estimates:
        levels = np.array([level for level in estimate.levels if math.isfinite(level)])
        if len(levels) > 1 and levels[0] < 0:
            axes.plot(np.arange(len(levels)), 1 - levels / levels[0], marker=".", label=estimate.name or "problem")
    axes.set_xlabel("level number")
    axes.set_ylabel("share of the way to a violation")
    _whole_numbers(axes)
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=8)
    _clean(axes)
    return figure


def plot_curve(radii: Sequence[float], log_probs: Sequence[ArrayLike], floor: float | None = None) -> Figure:
    """Median and quartiles of log10 p over the radius. log_probs[i]: natural logs, one per image, -inf for none."""
    floor = floor if floor is not None else _lowest(log_probs)
    values = [np.maximum(np.asarray(column, dtype=float), floor) / _LN10 for column in log_probs]
    quartiles = np.array([np.quantile(column, (0.25, 0.5, 0.75), method="inverted_cdf") for column in values])
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    for radius, column in zip(radii, values, strict=True):
        axes.plot(np.full(len(column), radius), column, linestyle="", marker=".", color=FAINT, markersize=5, zorder=1)
    axes.fill_between(radii, quartiles[:, 0], quartiles[:, 2], color=ACCENT, alpha=0.2, label="quartiles", linewidth=0)
    axes.plot(radii, quartiles[:, 1], color=ACCENT, marker="o", label="median")
    if any(np.isneginf(np.asarray(column, dtype=float)).any() for column in log_probs):
        axes.axhline(floor / _LN10, color=WARNING, linewidth=1, linestyle="--", label="no violation found")
    axes.set_xlabel("radius ε")
    axes.set_ylabel("log10 of the probability of a mistake")
    axes.legend(frameon=False)
    _clean(axes)
    return figure


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
            axes.set_title(title, fontsize=9)
        grid[row, 2].imshow(change, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        grid[row, 2].set_title(f"difference (±{largest:.2g})", fontsize=9)
        for axes in grid[row]:
            axes.set_axis_off()
    return figure


def _headline(estimate: Estimate) -> str:
    """The one-line summary without its costs, the name on a line of its own."""
    text = str(estimate).rpartition(" (")[0].removeprefix(f"{estimate.name}: ")
    return f"{estimate.name}\n{text}" if estimate.name else text


def _picture(image: NDArray[Any]) -> NDArray[Any]:
    return image[0] if image.shape[0] == 1 else np.moveaxis(image, 0, -1).clip(0, 1)


def _lowest(log_probs: Sequence[ArrayLike]) -> float:
    every = np.concatenate([np.asarray(column, dtype=float).ravel() for column in log_probs])
    finite = every[np.isfinite(every)]
    return float(finite.min()) - 1.0 if len(finite) else -1.0


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _clean(*plots: Axes) -> None:
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
