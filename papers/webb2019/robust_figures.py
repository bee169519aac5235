"""Figures of `robust`: Fig. 3 (quartiles over training, certificates) and Fig. 5 (every image)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from papers.webb2019 import common, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = -250.0
Rows = Sequence[dict[str, str]]


def figures(table: Path, out: Path) -> list[Path]:
    rows = common.read(table)
    if not rows:
        common.stop(f"{table} holds nothing to draw yet")
    images = len({row["image"] for row in rows})
    first, axes = drawing.panels(f"Webb et al. (2019), figure 3. {images} images, capped at {FLOOR:g}", 2)
    _quartiles(axes[0], rows, "a  median and quartiles of log p")
    _shares(axes[1], rows, "b  images without a violation, or certified")
    columns = min(6, images)
    lines = -(-images // columns)
    second, grid = drawing.panels(
        "Webb et al. (2019), figure 5: every image", columns, lines, height=1.1, squeeze=False, sharex=True, sharey=True
    )
    for axis, image in zip(grid.flat, sorted({int(row["image"]) for row in rows}), strict=False):
        _one_image(axis, [row for row in rows if int(row["image"]) == image], f"image {image}")
    for axis in grid.flat[images:]:
        axis.set_visible(False)
    last = max(int(row["epoch"]) for row in rows)
    grid[0, 0].set_xticks(sorted({0, last // 2, last}))
    for axis in grid[:, 0]:
        axis.set_ylabel("log p", color=drawing.INK, fontsize=drawing.SMALL)
    for axis in grid[-1]:
        axis.set_xlabel("epoch", color=drawing.INK, fontsize=drawing.SMALL)
    second.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=drawing.SMALL,
        frameon=False, labelcolor="linecolor", borderaxespad=0,
    )  # fmt: skip
    summary = out / "summary.md"
    summary.write_text(_summary(rows) + "\n", encoding="utf-8")
    return [*drawing.save(first, out, "robust-training"), *drawing.save(second, out, "each-image"), summary]


def _summary(rows: Rows) -> str:
    """By epoch and eps: median and quartiles of log p, shares without a violation and with a certificate."""
    header = ("epoch", "eps", "median log p", "quartiles", "none found", "certified", "do not trust")
    lines = []
    for epoch, at_epoch in _by_epoch(rows):
        for _, eps, group in _series(at_epoch):
            low, middle, high = quantiles(map(capped, group), n=4, method="inclusive")
            stalled = sum(row["outcome"] == "stalled" for row in group)
            shares = (f"{_none_found(group):.0%}", f"{_certified(group):.0%}", str(stalled))
            lines.append((epoch, f"{eps:g}", f"{middle:.1f}", f"{low:.1f} to {high:.1f}", *shares))
    return common.markdown(header, lines)


def _none_found(rows: Rows) -> float:
    return sum(row["log_prob"] == "-inf" for row in rows) / len(rows)


def _certified(rows: Rows) -> float:
    return sum(int(row["certified"]) for row in rows) / len(rows)


def capped(row: dict[str, str]) -> float:
    """log p, with the floor where no violation was found."""
    return max(FLOOR, float(row["log_prob"]))


def _series(rows: Rows) -> list[tuple[str, float, list[dict[str, str]]]]:
    radii = sorted({float(row["eps"]) for row in rows})
    colours = (drawing.OURS, drawing.PAPERS, drawing.PLAIN)
    return [(c, eps, [r for r in rows if float(r["eps"]) == eps]) for c, eps in zip(colours, radii, strict=True)]


def _by_epoch(rows: Rows) -> list[tuple[int, list[dict[str, str]]]]:
    epochs = sorted({int(row["epoch"]) for row in rows})
    return [(epoch, [row for row in rows if int(row["epoch"]) == epoch]) for epoch in epochs]


def _quartiles(axes: Axes, rows: Rows, title: str) -> None:
    for colour, eps, mine in _series(rows):
        groups = _by_epoch(mine)
        epochs = [epoch for epoch, _ in groups]
        low, middle, high = zip(
            *(quantiles(map(capped, group), n=4, method="inclusive") for _, group in groups), strict=True
        )
        axes.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(epochs, middle, "-o", color=colour, markersize=3)
        drawing.name_curve(axes, f"eps = {eps:g}", (epochs[-1], middle[-1]), colour, xytext=(0, 7), ha="right")
    axes.set_ylim(FLOOR - 12, 5)
    drawing.label(axes, "epoch of robust training", "log p", title)


def _shares(axes: Axes, rows: Rows, title: str) -> None:
    for colour, eps, mine in _series(rows):
        groups = _by_epoch(mine)
        epochs = [epoch for epoch, _ in groups]
        none_found = [_none_found(group) for _, group in groups]
        certified = [_certified(group) for _, group in groups]
        axes.plot(epochs, none_found, "-o", color=colour, markersize=3, label=f"sampling, eps = {eps:g}")
        text = f"W&K bound, eps = {eps:g}"  # hollow, larger: at 0.2 and 0.3 it lies on the sampling's zeros
        axes.plot(epochs, certified, "--s", color=colour, markersize=4 + 12 * eps, mfc="none", label=text)
    axes.set_ylim(-0.03, 1.4)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    drawing.label(axes, "epoch of robust training", "share of images", title)
    drawing.name_curves(axes, "upper right", columns=2)


def _one_image(axes: Axes, rows: Rows, title: str) -> None:
    for colour, eps, mine in _series(rows):
        ordered = sorted(mine, key=lambda row: int(row["epoch"]))
        epochs = [int(row["epoch"]) for row in ordered]
        axes.plot(epochs, [capped(row) for row in ordered], color=colour, linewidth=1.0, label=f"eps = {eps:g}")
    axes.set_ylim(FLOOR - 8, 8)
    axes.set_title(title, loc="left", fontsize=drawing.SMALL, color=drawing.INK, pad=2)
    axes.tick_params(labelsize=drawing.SMALL)
