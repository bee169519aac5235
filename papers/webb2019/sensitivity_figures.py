"""Figures 1b, 1c and 4, and the numbers of experiment 2, from its table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.webb2019 import common
from papers.webb2019.collision import Truth
from papers.webb2019.common import Context
from papers.webb2019.sensitivity import RULES, Cell, Rule, truth

TENS = math.log(10)
RULE_NAMES = {"paper": "survivors s ≥ L, as printed", "strict": "survivors s > L"}


@dataclass(frozen=True)
class Point:
    """One property in one cell, all rounds together."""

    reference: float
    difference: float  # log of the mean estimate minus log of the reference
    error: float
    replicates: int
    calls: float


Points = dict[Cell, dict[str, Point]]


def gather(rows: Sequence[dict[str, str]], known: dict[str, Truth]) -> Points:
    groups: dict[tuple[Cell, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        rule: Rule = "paper" if row["rule"] == "paper" else "strict"
        cell = Cell(rule, float(row["quantile"]), int(row["particles"]), int(row["steps"]))
        if row["file"] in known:
            groups[cell, row["file"]].append(row)
    points: Points = defaultdict(dict)
    for (cell, file), group in groups.items():
        reference = known[file]
        weights = [int(row["replicates"]) for row in group]
        ratios = [math.exp(float(row["log_mean"]) - reference.log_prob) for row in group]
        total = sum(weights)
        mean = sum(w * r for w, r in zip(weights, ratios, strict=True)) / total
        spread = [w * r * float(row["error"]) for w, r, row in zip(weights, ratios, group, strict=True) if r > 0]
        if mean == 0:
            continue
        error = math.hypot(math.hypot(*spread) / (total * mean), reference.std)
        calls = sum(w * float(row["calls"]) for w, row in zip(weights, group, strict=True)) / total
        points[cell][file] = Point(reference.log_prob, math.log(mean), error, total, calls)
    return points


def bias(points: dict[str, Point]) -> tuple[float, float]:
    """Mean difference over properties, and its standard error from the spread inside each."""
    return _mean(list(points.values()))


def _mean(points: Sequence[Point]) -> tuple[float, float]:
    if not points:
        return math.nan, math.nan
    return sum(p.difference for p in points) / len(points), math.hypot(*(p.error for p in points)) / len(points)


def figures(context: Context) -> list[Path]:
    points = gather(common.read(context.out / "sensitivity.csv"), truth(context))
    if not points:
        return []
    written = [*_by_property(context, points), *_by_particles(context, points)]
    summary = context.out / "summary.md"
    summary.write_text(_summary(points), encoding="utf-8")
    return [*written, summary]


def _axis(points: Points, name: str) -> list[Any]:
    return sorted({getattr(cell, name) for cell in points})


def _by_property(context: Context, points: Points) -> list[Path]:
    """Figures 1b, 1c and 4: the difference against the rareness of the property, a column for each rule."""
    quantiles, steps, sizes = (_axis(points, name) for name in ("quantile", "steps", "particles"))
    size = 10_000 if 10_000 in sizes else sizes[-1]
    columns: list[tuple[str, list[tuple[str, float, int]]]] = [
        (f"M = {steps[-1]}", [(f"ρ = {q}", q, steps[-1]) for q in quantiles]),
        *((f"ρ = {q}", [(f"M = {m}", q, m) for m in steps]) for q in quantiles),
    ]
    figure, axes = common.panels(2, len(columns), height=2.5, sharey=True, sharex=True)
    for column, rule in zip(axes.T, RULES, strict=True):
        for each, (title, lines) in zip(column, columns, strict=True):
            each.axhline(0, color=common.INK, linewidth=0.8)
            for i, (text, q, m) in enumerate(lines):
                _binned(each, list(points.get(Cell(rule, q, size, m), {}).values()), common.SERIES[i], 0.1 * i, text)
            each.axvline(-6.5, color=common.FAINT, linewidth=1)
            common.label(each, "log10 p of the reference", "log (mean estimate / reference)", f"{title}, N = {size}")
            each.label_outer()
        runs = max(
            (p.replicates for cell in points if cell.particles == size for p in points[cell].values()), default=0
        )
        note = {"fontsize": common.SMALL}
        column[0].annotate(f"{RULE_NAMES[rule]}; {runs} runs", (0.02, 0.03), xycoords="axes fraction", **note)
        column[0].annotate("the paper's figures →", (-6.4, 0.92), xycoords=("data", "axes fraction"), **note)
    return common.save(figure, context.out, "sensitivity")


def _binned(axes: Any, found: Sequence[Point], color: str, shift: float, text: str) -> None:
    """A faint dot for each property, and the mean of those within a factor of ten with its standard error."""
    x, y = [p.reference / TENS for p in found], [p.difference for p in found]
    axes.plot(x, y, ".", ms=2, color=color, alpha=0.4, rasterized=True)
    bins: dict[int, list[Point]] = defaultdict(list)
    for point in found:
        bins[math.floor(point.reference / TENS)].append(point)
    means = [(k + 0.4 + shift, *_mean(bins[k])) for k in sorted(bins)]
    columns = ([value[i] for value in means] for i in range(3))
    axes.errorbar(*columns, fmt="o-", ms=3.5, lw=1, elinewidth=1, color=color, label=text)


def _by_particles(context: Context, points: Points) -> list[Path]:
    """The mean difference over the properties that every N has, against N. Series stand side by side at each N."""
    quantiles, steps, sizes = (_axis(points, name) for name in ("quantile", "steps", "particles"))
    shared = _shared(points)
    figure, axes = common.panels(len(quantiles), sharey=True, squeeze=False)
    for each, q in zip(axes[0], quantiles, strict=True):
        each.axhline(0, color=common.INK, linewidth=0.8)
        for j, (rule, style) in enumerate(zip(RULES, ("o-", "s--"), strict=True)):
            for i, (color, m) in enumerate(zip(common.SERIES, steps, strict=False)):
                values = [(n, *bias(_only(points.get(Cell(rule, q, n, m), {}), shared))) for n in sizes]
                here = [(n * 1.06 ** (2 * i + j - 2.5), *v) for n, *v in values if math.isfinite(v[0])]
                fill, text = "none" if rule == "strict" else color, f"M = {m}, {RULE_NAMES[rule]}"
                columns = ([v[k] for v in here] for k in range(3))
                each.errorbar(*columns, fmt=style, ms=4, lw=1, color=color, mfc=fill, label=text)
        each.set_xscale("log")
        each.set_xticks(sizes, [f"{n:,}" for n in sizes])
        each.minorticks_off()
        title = f"ρ = {q}, {len(shared)} properties, ± 1 s.e."
        common.label(each, "N", "mean log (estimate / reference)", title, legend=False)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=common.SMALL,
        frameon=False,
    )
    return common.save(figure, context.out, "particles")


def _shared(points: Points) -> set[str]:
    """Properties that every cell has: means over different properties say nothing about N."""
    return set.intersection(*(set(found) for found in points.values()))


def _only(found: dict[str, Point], files: set[str]) -> dict[str, Point]:
    return {file: point for file, point in found.items() if file in files}


def _summary(points: Points) -> str:
    rows = []
    for n in _axis(points, "particles"):
        for q in _axis(points, "quantile"):
            for m in _axis(points, "steps"):
                both = [points.get(Cell(rule, q, n, m), {}) for rule in RULES]
                if any(both):
                    some = next(found for found in both if found)
                    calls = sum(p.calls for p in some.values()) / len(some)
                    texts = ["{:+.3f} ± {:.3f}".format(*bias(found)) if found else "" for found in both]
                    repeats = max(p.replicates for p in some.values())
                    rows.append((f"{n:,}", q, m, len(some), repeats, *texts, f"{calls:.2g}"))
    header = (
        "N",
        "ρ",
        "M",
        "properties",
        "replicates",
        "bias of log p, s ≥ L as printed",
        "bias, s > L",
        "calls of a run",
    )
    return common.markdown(header, rows) + "\n"
