"""Figures of a trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from rarely.core.errors import InputError
from rarely.display.figures import ACCENT, INK, SERIES, WARNING, clean, new_figure
from rarely.io.files import save_figure
from rarely.systems.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SWEPT = 100.0  # signals of one kind whose ranges differ by more than this get axes of their own
_MOST = 6  # curves in one panel


def plot_trajectory(trajectory: Trajectory, path: str | Path | None = None) -> Figure:
    """A panel for each kind of signal, and one for what is left until the formula breaks."""
    names, panels = trajectory.names, []
    for kind, some in (("state", names.states), ("action", names.actions), ("disturbance", names.disturbances)):
        panels += [(kind, group) for group in _groups(some, trajectory)]
    count = len(panels) + (trajectory.formula is not None)
    figure = new_figure(7.2, 0.6 + 1.5 * count)
    plots = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    times = trajectory.times.numpy()
    for axes, (kind, some) in zip(plots, panels, strict=False):
        for name, color in zip(some, SERIES, strict=False):
            if kind == "state":
                axes.plot(times, trajectory[name].numpy(), color=color, label=name, linewidth=1.4)
            else:  # held from one moment to the next
                axes.step(times, trajectory[name].numpy(), color=color, label=name, where="post", linewidth=1.2)
        axes.set_ylabel(some[0] if len(some) == 1 else kind)
        _tidy(axes, len(some))
    if trajectory.formula is not None:
        _margins(plots[-1], times, trajectory.margins)
        verdict = "breaks" if trajectory.robustness <= 0 else "keeps"
        text = f"{verdict} {trajectory.formula.text} by {abs(trajectory.robustness):.3g}"
        figure.suptitle(text.replace("$", r"\$"), fontsize=10, color=INK, x=0.01, ha="left", wrap=True)
    plots[-1].set_xlabel("step" if trajectory.step == 1 else "time")
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_film(trajectory: Trajectory, path: str | Path | None, pictures: int) -> Figure:
    if not trajectory.pictures:
        raise InputError("there are no pictures; ask for them: system.replay(x, formula, pictures=True)")
    chosen = np.unique(np.linspace(0, len(trajectory.pictures) - 1, max(1, pictures)).round().astype(int))
    height, width = trajectory.pictures[0].shape[:2]
    figure = new_figure(1.6 * len(chosen), 0.3 + 1.6 * height / width)
    for axes, index in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        axes.imshow(trajectory.pictures[index])
        axes.set_title(f"{index * trajectory.step:g}", fontsize=9, color=INK)
        axes.set_axis_off()
    if path is not None:
        save_figure(figure, path)
    return figure


def _margins(axes: Axes, times: Any, margins: dict[str, Tensor]) -> None:
    """What each part of the formula has left; what is broken lies in the shade below zero."""
    lowest = 0.0
    for (text, margin), color in zip(margins.items(), SERIES, strict=False):
        values = margin.numpy()
        shown = np.where(np.isfinite(values), values, np.nan)
        axes.plot(times, shown, color=color, label=text.replace("$", r"\$"), linewidth=1.4)
        lowest = min(lowest, float(values[np.isfinite(values)].min(initial=0.0)))
    axes.axhline(0, color=WARNING, linewidth=1)
    if lowest < 0:
        axes.axhspan(1.1 * lowest, 0, color=WARNING, alpha=0.08, linewidth=0)
    axes.set_ylabel("margin")
    _tidy(axes, 2)  # a margin is named by its formula, which is no label for an axis


def _groups(names: tuple[str, ...], trajectory: Trajectory) -> list[tuple[str, ...]]:
    """Signals that share a panel: neighbours that change, and whose ranges are alike."""
    groups: list[list[str]] = []
    moving = [name for name in names if float(trajectory[name].max() - trajectory[name].min())]
    for name in moving or names[:1]:  # what never changes says nothing
        size = float(trajectory[name].abs().max()) or 1.0
        if groups and len(groups[-1]) < _MOST:
            other = float(trajectory[groups[-1][0]].abs().max()) or size
            if 1 / _SWEPT < size / other < _SWEPT:
                groups[-1].append(name)
                continue
        groups.append([name])
    return [tuple(group) for group in groups]


def _tidy(axes: Axes, curves: int) -> None:
    clean(axes)
    axes.yaxis.label.set_color(ACCENT if curves == 1 else INK)
    if curves > 1:  # above, so that long names leave the curves their width
        axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=3, borderpad=0.1)
