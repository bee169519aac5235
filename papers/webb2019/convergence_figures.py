"""Figures of `convergence`: the rows of the paper's Fig. 2, all images, and what a run costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from papers.webb2019 import common, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Point:
    eps: float
    log_prob: float
    error: float  # standard error of log_prob
    runs: int

    @property
    def doubtful(self) -> bool:
        """No better than a factor of e: one of several runs outweighs the others, or a run says so itself."""
        return self.error > 0.95


def figures(table: Path, out: Path, network: str = "") -> list[Path]:
    """`network` stands before the names of the data sets in titles."""
    rows = largest(common.read(table))
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    if not datasets:
        common.stop(f"{table} holds nothing to draw yet")
    first, axes = drawing.panels(
        "Webb et al. (2019), figure 2. ± 3 s.e.; hollow, without bars: s.e. > 1", 2, len(datasets), squeeze=False
    )
    for (left, right), name in zip(axes, datasets, strict=True):
        mine = [row for row in rows if row["dataset"] == name]
        shown = _shown(mine)
        image = shown[0]["image"]
        _curves(left, shown, f"{network}{name}, test image {image}{_size(shown)}")
        _differences(right, shown, f"{network}{name}: difference from the default")
    second, axes = drawing.panels(
        "Webb et al. (2019), section 6.3: ten test images, and what a run costs", 2, len(datasets), squeeze=False
    )
    for (left, right), name in zip(axes, datasets, strict=True):
        mine = [row for row in rows if row["dataset"] == name]
        _all_images(left, mine, f"{network}{name}, {len({row['image'] for row in mine})} test images")
        _calls(right, mine, f"{network}{name}: what a run costs")
    summary = out / "summary.md"
    summary.write_text("\n\n".join(_summary(rows, name) for name in datasets) + "\n", encoding="utf-8")
    return [*drawing.save(first, out, "convergence"), *drawing.save(second, out, "all-images"), summary]


def largest(rows: Rows) -> Rows:
    """Of the paper's setting only the runs with the largest N for an image and an M: means over two N say nothing."""
    most: dict[tuple[str, ...], int] = {}
    for row in rows:
        most[_setting(row)] = max(most.get(_setting(row), 0), int(row["particles"]))
    return [row for row in rows if row["method"] != "paper" or int(row["particles"]) == most[_setting(row)]]


def _setting(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("dataset", "image", "method", "steps"))


def _shown(rows: Rows) -> Rows:
    """Those of the image of the figure: it has every M, the others have one."""
    images = dict.fromkeys(row["image"] for row in rows)
    image = max(images, key=lambda i: len({row["steps"] for row in rows if row["image"] == i}))
    return [row for row in rows if row["image"] == image]


def curve(rows: Rows, method: str, steps: int = 0) -> list[Point]:
    """One point per eps: the log of the mean of p over the runs.

    The scatter of a few runs can be small by chance, and of two it is never above 1: no error is less than what the
    runs say of themselves. Rounds of plain Monte Carlo are one run.
    """
    mine = _of(rows, method, steps)
    points = []
    for eps in sorted({float(row["eps"]) for row in mine}):
        here = [row for row in mine if float(row["eps"]) == eps]
        if method == "plain":
            points += _counted(eps, here)
            continue
        value, error = common.log_mean([float(row["log_prob"]) for row in here])
        own = [float(row["std"]) for row in here if math.isfinite(float(row["log_prob"]))]
        if own:
            points.append(Point(eps, value, max(error, math.sqrt(sum(s * s for s in own)) / len(own)), len(here)))
    return points


def _counted(eps: float, rounds: Rows) -> list[Point]:
    samples = [int(row["particles"]) for row in rounds]
    hits = sum(n * math.exp(float(row["log_prob"])) for n, row in zip(samples, rounds, strict=True))
    share = hits / sum(samples)
    return [Point(eps, math.log(share), math.sqrt((1 - share) / hits), 1)] if hits else []


def _of(rows: Rows, method: str, steps: int) -> list[dict[str, str]]:
    return [row for row in rows if row["method"] == method and int(row["steps"]) == steps]


def _step_counts(rows: Rows) -> list[int]:
    return sorted({int(row["steps"]) for row in rows if row["method"] == "paper"})


def _size(rows: Rows) -> str:
    sizes = sorted({int(row["particles"]) for row in rows if row["method"] == "paper"})
    return f", N = {sizes[0]}" if len(sizes) == 1 else ""


def _methods(rows: Rows) -> list[tuple[str, str, str, int]]:
    """Colour, name, method and M of each series, the largest M last."""
    walks = [
        (colour, f"random walk, M = {steps}", "paper", steps)
        for colour, steps in zip((*drawing.SERIES[1:5], "#7d8c93"), _step_counts(rows), strict=False)
    ]
    return [(drawing.OURS, "rarely's default", "auto", 0), (drawing.INK, "plain Monte Carlo", "plain", 0), *walks]


def _summary(rows: Rows, dataset: str) -> str:
    """The image of the figure in numbers: log p ± standard error (runs; mean calls of a run) by eps and method."""
    shown = _shown([row for row in rows if row["dataset"] == dataset])
    methods = _methods(shown)
    lines = []
    for eps in sorted({float(row["eps"]) for row in shown}):
        here = [row for row in shown if float(row["eps"]) == eps]
        lines.append([f"{eps:g}", *(_cell(here, method, steps) for _, _, method, steps in methods)])
    header = [f"{dataset}, image {shown[0]['image']}: eps", *(name for _, name, _, _ in methods)]
    return common.markdown(header, lines)


def _cell(rows: Rows, method: str, steps: int) -> str:
    mine, points = _of(rows, method, steps), curve(rows, method, steps)
    if not mine:
        return "–"
    runs = 1 if method == "plain" else len(mine)
    calls = sum(_calls_of(row) for row in mine) / runs
    value = _value(mine, points[0]) if points else mine[0]["outcome"]
    doubt = " (stalled)" if points and any(row["outcome"] == "stalled" for row in mine) else ""
    return f"{value}{doubt} ({runs}; {calls:.1e})"


def _value(rows: Rows, point: Point) -> str:
    if not point.doubtful:
        return f"{point.log_prob:.2f} ± {point.error:.2f}"
    runs = sorted(float(row["log_prob"]) for row in rows)
    return f"{point.log_prob:.0f} ± {point.error:.0f}" + (f", runs {runs[0]:.1f} to {runs[-1]:.1f}" * (len(runs) > 1))


def _calls_of(row: dict[str, str]) -> int:
    return int(row["evaluations"]) + 3 * int(row["gradients"])


def _curves(axes: Axes, rows: Rows, title: str) -> None:
    for colour, name, method, steps in _methods(rows):
        points = curve(rows, method, steps)
        _bars(axes, points, colour, f"{name}{_runs(points)}")
    drawing.label(axes, "eps", "log p", title)
    drawing.name_curves(axes, "lower right")


def _differences(axes: Axes, rows: Rows, title: str) -> None:
    base = {point.eps: point for point in curve(rows, "auto") if not point.doubtful}
    for colour, name, method, steps in _methods(rows):
        points = [
            Point(p.eps, p.log_prob - base[p.eps].log_prob, math.hypot(p.error, base[p.eps].error), p.runs)
            for p in curve(rows, method, steps)
            if p.eps in base and method != "auto"
        ]
        if points:
            _bars(axes, points, colour, name)
    axes.axhline(0, color=drawing.OURS, linewidth=1.2)
    drawing.label(axes, "eps", "log p less that of rarely's default", title)


def _all_images(axes: Axes, rows: Rows, title: str) -> None:
    for colour, _, method, steps in _methods(rows):
        for image in sorted({row["image"] for row in rows}, key=int):
            points = curve([row for row in rows if row["image"] == image], method, steps)
            style = "-" if method == "auto" else "."
            axes.plot([p.eps for p in points], [p.log_prob for p in points], style, color=colour)
    drawing.label(axes, "eps", "log p", title)


def _calls(axes: Axes, rows: Rows, title: str) -> None:
    for colour, name, method, steps in _methods(rows):
        mine = [row for row in _of(rows, method, steps) if math.isfinite(float(row["log_prob"]))]
        calls = [_calls_of(row) for row in mine]
        axes.plot([float(row["log_prob"]) for row in mine], calls, ".", color=colour, label=name)
    drawing.log_y(axes)
    drawing.label(axes, "log p", "network calls of one run", title)
    drawing.name_curves(axes, "lower left")


def _runs(points: Sequence[Point]) -> str:
    counts = sorted({point.runs for point in points})
    if not counts:
        return " (none)"
    least, most = counts[0], counts[-1]
    return f" ({most} run{'s' * (most > 1)})" if least == most else f" ({least} to {most} runs)"


def _bars(axes: Axes, points: Sequence[Point], colour: str, name: str) -> None:
    """Markers with bars, hollow ones without a bar where the error is a factor of e or more."""
    bars = [0.0 if p.doubtful else 3 * p.error for p in points]
    axes.errorbar(
        [p.eps for p in points], [p.log_prob for p in points], bars,
        fmt="-o", color=colour, label=name, markersize=3.5, linewidth=1.0, capsize=2,
    )  # fmt: skip
    doubtful = [(p.eps, p.log_prob) for p in points if p.doubtful]
    if doubtful:
        x, y = zip(*doubtful, strict=True)
        axes.scatter(x, y, s=20, facecolors="white", edgecolors=colour, zorder=3)
