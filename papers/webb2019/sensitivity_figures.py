"""Figures 1b, 1c and 4, and the numbers of experiment 2, from its table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from papers.webb2019 import common, drawing
from papers.webb2019.collision import Truth
from papers.webb2019.common import Context
from papers.webb2019.sensitivity import RULES, Cell, Rule, truth

TENS = math.log(10)
PAPERS_SIZE = 10_000  # N of the paper's figures
COMMON = -6.5  # log10 p from which on they have the properties
RARENESS = {"p < 1e-6": (-math.inf, -6.0), "to 1e-3": (-6.0, -3.0), "above": (-3.0, math.inf)}  # of log10 p
EDGES = (-20.0, -10.0, -8.0, COMMON, *range(-5, 1))  # of log10 p, for means
RULE_NAMES = {"paper": "survivors s ≥ L", "strict": "survivors s > L"}


@dataclass(frozen=True)
class Point:
    """One property in one cell, all rounds together."""

    reference: float
    difference: float  # log of the mean estimate minus log of the reference
    error: float
    scatter: float  # standard deviation of one run's log p
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
        own = math.hypot(*spread) / (total * mean)
        error, scatter = math.hypot(own, reference.std), own * math.sqrt(total)
        calls = sum(w * float(row["calls"]) for w, row in zip(weights, group, strict=True)) / total
        points[cell][file] = Point(reference.log_prob, math.log(mean), error, scatter, total, calls)
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
    """Figures 1b, 1c and 4: the mean estimate by the reference against the rareness of the property."""
    quantiles, steps, sizes = (_axis(points, name) for name in ("quantile", "steps", "particles"))
    size = PAPERS_SIZE if PAPERS_SIZE in sizes else sizes[-1]
    beside = ["figure 1b", *("figure 1c" if q == 0.1 else "figure 4" for q in quantiles)]
    lines = [[(f"ρ = {q}", q, steps[-1]) for q in quantiles], *([(f"M = {m}", q, m) for m in steps] for q in quantiles)]
    titles = [f"M = {steps[-1]}", *(f"ρ = {q}" for q in quantiles)]
    rows = -(-len(lines) // 2)
    figure, axes = drawing.panels(
        f"Webb et al. (2019), figures 1b, 1c and 4. {_runs(points, size)}, N = {size:,}; dots are properties, "
        "lines means ± 1 s.e.",
        2, rows, height=2.5, sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for each in axes.flat[len(lines) :]:
        each.set_visible(False)
    for each, title, paper, curves in zip(axes.flat, titles, beside, lines, strict=False):
        each.axvspan(-20, COMMON, color=drawing.FAINT, alpha=0.25, linewidth=0)
        each.axhline(1, color=drawing.INK, linewidth=0.8)
        for i, (text, q, m) in enumerate(curves):
            found = list(points.get(Cell("paper", q, size, m), {}).values())
            _binned(each, found, drawing.SERIES[i], 0.03 * (i - 1), text)
        drawing.label(each, "log10 p", "mean estimate / reference", f"{title} ({paper})")
        each.label_outer()
        drawing.name_curves(each, "upper right", columns=len(curves))
    first = axes[0, 0]
    rarest = min(point.reference for found in points.values() for point in found.values()) / TENS
    first.set_xlim(rarest - 0.5, 0.2)
    first.set_ylim(0.78, 1.22)
    first.annotate("rarer than in the\npaper's figures", (0.02, 0.03), xycoords="axes fraction", fontsize=drawing.SMALL,
                   color=drawing.MUTED)  # fmt: skip
    return drawing.save(figure, context.out, "sensitivity")


def _runs(points: Points, size: int) -> str:
    counts = {p.replicates for cell in points if cell.particles == size for p in points[cell].values()}
    properties = max(len(found) for cell, found in points.items() if cell.particles == size)
    runs = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(*counts)
    return f"{properties} properties, {runs} runs"


def _binned(axes: Any, found: Sequence[Point], color: str, shift: float, text: str) -> None:
    """A faint dot for each property, and the mean of those within a factor of ten with its standard error."""
    x, y = [p.reference / TENS for p in found], [math.exp(p.difference) for p in found]
    axes.plot(x, y, ".", ms=2.5, mew=0, color=color, alpha=0.35, rasterized=True)
    means = []
    for lower, upper in pairwise(EDGES):
        here = [p for p in found if lower <= p.reference / TENS < upper]
        if here:
            value, error = _mean(here)
            middle = sum(p.reference for p in here) / len(here) / TENS
            means.append((middle + shift, math.exp(value), error * math.exp(value)))
    columns = ([value[i] for value in means] for i in range(3))
    axes.errorbar(*columns, fmt="o-", ms=3.5, lw=1.2, elinewidth=1, color=color, label=text)


def _by_particles(context: Context, points: Points) -> list[Path]:
    """The mean difference over the properties that every N has, against N: a row for each rule."""
    quantiles, steps, sizes = (_axis(points, name) for name in ("quantile", "steps", "particles"))
    shared = _shared(points)
    figure, axes = drawing.panels(
        f"Webb et al. (2019), section 6.2: N makes no difference? Mean over {len(shared)} properties, ± 1 s.e.",
        len(quantiles), len(RULES), height=2.2, sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for row, rule in zip(axes, RULES, strict=True):
        for each, q in zip(row, quantiles, strict=True):
            each.axhline(0, color=drawing.INK, linewidth=0.8)
            for i, (color, m) in enumerate(zip(drawing.SERIES, steps, strict=False)):
                values = [(n, *bias(_only(points.get(Cell(rule, q, n, m), {}), shared))) for n in sizes]
                here = [(n * 1.1 ** (i - 1), *v) for n, *v in values if math.isfinite(v[0])]  # side by side
                columns = ([v[k] for v in here] for k in range(3))
                each.errorbar(*columns, fmt="o-", ms=4, lw=1.2, color=color, label=f"M = {m}")
            each.set_xscale("log")
            each.set_xticks(sizes, [f"{n:,}" for n in sizes])
            each.minorticks_off()
            title = f"ρ = {q}" + (f", {RULE_NAMES[rule]}" if q == quantiles[0] else "")
            drawing.label(each, "N", "mean log (estimate / reference)", title)
            each.label_outer()
    drawing.name_curves(axes[0, -1], "upper right")
    return drawing.save(figure, context.out, "particles")


def _shared(points: Points) -> set[str]:
    """Properties that every cell has: means over different properties say nothing about N."""
    return set.intersection(*(set(found) for found in points.values()))


def _only(found: dict[str, Point], files: set[str]) -> dict[str, Point]:
    return {file: point for file, point in found.items() if file in files}


def _summary(points: Points) -> str:
    """Every setting, then the bias by rareness at the N of the paper's figures."""
    grid = [(n, q, m) for n in _axis(points, "particles") for q in _axis(points, "quantile")
            for m in _axis(points, "steps")]  # fmt: skip
    both = {(n, q, m): [points.get(Cell(rule, q, n, m), {}) for rule in RULES] for n, q, m in grid}
    every = [(f"{n:,}", q, m, *_setting(both[n, q, m])) for n, q, m in grid if any(both[n, q, m])]
    header = ("N", "ρ", "M", "properties", "runs", "bias, s ≥ L as printed", "bias, s > L", "s.d. of a run, s ≥ L",
              "s > L", "calls of a run")  # fmt: skip
    text = common.markdown(header, every) + "\n"
    rarer = [(q, m, *_by_rareness(both[n, q, m])) for n, q, m in grid if n == PAPERS_SIZE and any(both[n, q, m])]
    if rarer:
        names = [f"{name}, {rule}" for rule in ("s ≥ L", "s > L") for name in RARENESS]
        text += f"\nBias at N = {PAPERS_SIZE:,} by p:\n\n{common.markdown(('ρ', 'M', *names), rarer)}\n"
    return text


def _setting(both: Sequence[dict[str, Point]]) -> list[object]:
    some = next(found for found in both if found)
    counts = {p.replicates for found in both for p in found.values()}
    runs = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(*counts)
    scatter = [math.sqrt(sum(p.scatter**2 for p in found.values()) / len(found)) if found else None for found in both]
    calls = sum(p.calls for p in some.values()) / len(some)
    spread = ["" if s is None else f"{s:.2f}" for s in scatter]
    return [len(some), runs, *(_text(list(found.values())) for found in both), *spread, f"{calls:.2g}"]


def _by_rareness(both: Sequence[dict[str, Point]]) -> list[str]:
    return [
        _text([p for p in found.values() if low <= p.reference / TENS < high])
        for found in both
        for low, high in RARENESS.values()
    ]


def _text(points: Sequence[Point]) -> str:
    return "{:+.3f} ± {:.3f}".format(*_mean(points)) if points else ""
