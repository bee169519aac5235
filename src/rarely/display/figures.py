"""Figures of estimates, drawn with matplotlib without a window. Each function returns a Figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from rarely.questions.result import Estimate

INK, ACCENT, FAINT, WARNING = "#22303c", "#1f6f8b", "#b8c4cc", "#c8553d"
SERIES = (ACCENT, "#c98a1b", "#7a5aa6", "#5b8c5a", "#a34a6d", "#5f6b76")  # curves side by side
LN10 = math.log(10)
_LONGEST = 44  # characters of a name in a legend; a headline has room for twice as many


def plot_estimate(estimate: Estimate, size: tuple[float, float] = (6.4, 5.2)) -> Figure:
    """The levels that the sampler climbed, all islands thin, and how often its kernel moved on each."""
    levels = np.array([level for level in estimate.levels if math.isfinite(level)])
    if len(levels) == 0:  # no levels: Monte Carlo, or a method that does not climb
        return plot_probabilities([estimate])
    figure = new_figure(*size)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = np.arange(1, len(levels) + 1)
    _mark_violation(top, 1, 0)
    for climb in estimate.climbs:
        others = np.array([level for level in climb if math.isfinite(level)])
        top.plot(np.arange(1, len(others) + 1), others, color=ACCENT, linewidth=0.8, alpha=0.4, zorder=1)
    top.plot(steps, levels, color=ACCENT, marker="o", markersize=4)
    top.margins(y=0.15)
    top.set_ylabel("level (score)")
    top.set_title(_headline(estimate), fontsize=10, loc="left")
    acceptance = np.array(estimate.acceptance)
    bottom.bar(np.arange(1, len(acceptance) + 1), acceptance, color=FAINT, width=0.7)
    bottom.set_ylim(0, 1)
    bottom.set_ylabel("acceptance")
    bottom.set_xlabel("level number")
    whole_numbers(bottom.xaxis)
    clean(top, bottom)
    return figure


def plot_probabilities(estimates: Sequence[Estimate]) -> Figure:
    """The probability of each problem with its interval; an arrow where only an upper bound is known."""
    figure = new_figure(7.2, 1.3 + 0.34 * len(estimates))
    axes = figure.subplots()
    rows = np.arange(len(estimates))[::-1]
    for y, estimate in zip(rows, estimates, strict=True):
        if estimate.upper_bound == -math.inf:
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
    axes.set_yticks(rows, [literal(estimate.name) or "problem" for estimate in estimates])
    axes.set_ylim(-0.6, len(estimates) - 0.4)
    axes.set_xlabel(f"log10 of the probability, {estimates[0].interval.confidence:.0%} intervals")
    axes.grid(axis="x", color=FAINT, linewidth=0.5, alpha=0.6)
    clean(axes)
    return figure


def plot_levels(estimates: Sequence[Estimate], size: tuple[float, float] = (7.2, 4.2)) -> Figure:
    """How each sampler climbed: its levels as a share of the way from the first level to the violation."""
    figure = new_figure(*size)
    axes = figure.subplots()
    _mark_violation(axes, 0, 1)
    climbs = [(e, np.array([level for level in e.levels if math.isfinite(level)])) for e in estimates]
    shown = [(estimate, levels) for estimate, levels in climbs if len(levels) > 1 and levels[0] < 0]
    for i, (estimate, levels) in enumerate(shown):
        for climb in estimate.climbs:
            others = np.array([level for level in climb if math.isfinite(level)])
            if len(others) > 1 and others[0] < 0:
                share = 1 - others / others[0]
                axes.plot(np.arange(len(share)), share, color=SERIES[i % len(SERIES)], linewidth=0.6, alpha=0.35)
        style: dict[str, Any] = {
            "color": SERIES[i % len(SERIES)],
            "marker": ".",
            "linestyle": "-" if i < len(SERIES) else "--",
        }
        axes.plot(np.arange(len(levels)), 1 - levels / levels[0], label=literal(estimate.name) or "problem", **style)
    axes.set_xlabel("level number")
    axes.set_ylabel("share of the way to a violation")
    whole_numbers(axes.xaxis)
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=8)
    clean(axes)
    return figure


def _headline(estimate: Estimate) -> str:
    """The one-line summary without its costs, the name on a line of its own."""
    text = str(estimate).rpartition(" (")[0].removeprefix(f"{estimate.name}: ")
    return f"{literal(estimate.name, 2 * _LONGEST)}\n{text}" if estimate.name else text


def literal(text: str, longest: int = _LONGEST) -> str:
    """A name as it is, or its end: matplotlib would read what stands between dollar signs as mathematics."""
    shown = text if len(text) <= longest else f"…{text[1 - longest :]}"
    return shown.replace("$", r"\$")


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _mark_violation(axes: Axes, left: float, height: float) -> None:
    axes.axhline(height, color=WARNING, linewidth=1)
    axes.annotate("violation", (left, height), xytext=(0, 4), textcoords="offset points", color=WARNING, fontsize=9)


def clean(*plots: Axes) -> None:
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(color=FAINT, labelcolor=INK)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(INK)


def whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
