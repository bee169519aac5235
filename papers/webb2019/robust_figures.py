"""Figures of `robust`: Fig. 3 (quartiles over training, certificates) and Fig. 5 (every image)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from papers.webb2019 import common

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = -250.0
Rows = Sequence[dict[str, str]]


def figures(table: Path, out: Path) -> list[Path]:
    rows = common.read(table)
    if not rows:
        common.stop(f"{table} holds nothing to draw yet")
    images = len({row["image"] for row in rows})
    first, axes = common.panels(2)
    _quartiles(axes[0], rows, f"{images} images: median and quartiles, capped at {FLOOR:g}")
    _shares(axes[1], rows, f"{images} images: none found, and certified")
    columns = min(6, images)
    lines = -(-images // columns)
    second, grid = common.panels(columns, lines, height=1.3, squeeze=False, sharex=True, sharey=True)
    for axis, image in zip(grid.flat, sorted({int(row["image"]) for row in rows}), strict=False):
        _one_image(axis, [row for row in rows if int(row["image"]) == image], f"image {image}")
    for axis in grid.flat[images:]:
        axis.set_visible(False)
    second.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=9, frameon=False
    )
    second.supxlabel("epoch of robust training", color=common.INK, fontsize=10)
    second.supylabel("log p", color=common.INK, fontsize=10)
    summary = out / "summary.md"
    summary.write_text(_summary(rows) + "\n", encoding="utf-8")
    return [*common.save(first, out, "robust-training"), *common.save(second, out, "each-image"), summary]


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
    colours = (common.OURS, common.PAPERS, common.PLAIN)
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
        axes.plot(epochs, middle, "-o", color=colour, markersize=3, label=f"eps = {eps:g}")
    axes.set_ylim(FLOOR - 12, 50)
    common.label(axes, "epoch of robust training", "log p", title)
    axes.legend(fontsize=common.SMALL, frameon=False, loc="upper right", ncols=3)


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
    common.label(axes, "epoch of robust training", "share of images", title)
    axes.legend(fontsize=common.SMALL, frameon=False, loc="upper right", ncols=2)


def _one_image(axes: Axes, rows: Rows, title: str) -> None:
    for colour, eps, mine in _series(rows):
        ordered = sorted(mine, key=lambda row: int(row["epoch"]))
        epochs = [int(row["epoch"]) for row in ordered]
        axes.plot(epochs, [capped(row) for row in ordered], color=colour, linewidth=1.0, label=f"eps = {eps:g}")
    axes.set_ylim(FLOOR - 8, 8)
    axes.set_title(title, loc="left", fontsize=common.SMALL, color=common.INK, pad=2)
    axes.tick_params(labelsize=common.SMALL)
