"""Figure 1a and the numbers of experiment 1, from its tables."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.webb2019 import common, drawing
from papers.webb2019.collision import Truth, reference_path, references
from papers.webb2019.common import Context, log_mean
from papers.webb2019.streamed import counted

TENS = math.log(10)
NAMES = {"paper": "the paper's Algorithm 1", "auto": "rarely's default", "plain": "plain Monte Carlo"}
COLORS = {"paper": drawing.PAPERS, "auto": drawing.OURS, "plain": drawing.PLAIN}


@dataclass(frozen=True)
class Found:
    """What one method says of one property, over its runs."""

    log_prob: float
    error: float  # standard error over the runs, or of the count
    runs: int
    calls: float  # of one run
    seconds: float
    hit: int  # runs (plain: samples) that found a violation
    setting: str = ""
    bound: float = -math.inf  # plain Monte Carlo without a hit: 95 % upper bound

    @property
    def tens(self) -> float:
        return self.log_prob / TENS


Results = dict[str, dict[str, Found]]  # method -> file -> what it says


def gather(out: Path, verdict: str) -> Results:
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in [*common.read(out / "paper.csv"), *common.read(out / "auto.csv")]:
        if row["verdict"] == verdict:
            groups[row["method"], row["file"]].append(row)
    found: Results = defaultdict(dict)
    for (method, file), rows in groups.items():
        values = [float(row["log_prob"]) for row in rows]
        mean, error = log_mean(values)
        calls, seconds = (sum(float(row[name]) for row in rows) / len(rows) for name in ("calls", "seconds"))
        hit = sum(int(row["witnesses"]) > 0 for row in rows)
        # A single run has no spread: its own standard deviation stands in.
        own = float(rows[0]["std"]) if len(rows) == 1 and math.isfinite(mean) else error
        found[method][file] = Found(mean, own, len(rows), calls, seconds, hit, _setting(rows[0]))
    for file, count in counted(out, verdict).items():
        found["plain"][file] = Found(
            count.log_prob, count.error, 1, count.samples, count.seconds, count.hits, bound=count.bound
        )  # fmt: skip
    return found


def _setting(row: dict[str, str]) -> str:
    return f"N = {row['particles']}, M = {row['steps']}, " if row["particles"] else ""


def figures(context: Context) -> list[Path]:
    sat, unsat = gather(context.out, "SAT"), gather(context.out, "UNSAT")
    truth = references(reference_path(context))
    order = _order(sat)
    if not order:
        return []
    runs = max(f.runs for f in sat["paper"].values()) if sat.get("paper") else 0
    figure, (top, left, right) = drawing.mosaic(
        f"Webb et al. (2019), figure 1a. {len(order)} properties, {runs} runs of Algorithm 1, ± 3 s.e.", "aa;bc"
    )
    for method in ("plain", "paper", "auto"):
        if sat.get(method):
            _estimates(top, sat[method], order, method)
            _differences(left, sat[method], truth, method)
            _costs(right, sat[method], method)
    drawing.label(top, "satisfiable property, rarest first", "log10 p", "a  estimates")
    drawing.name_curves(top, "lower right")
    left.axhline(0, color=drawing.INK, linewidth=0.8)
    left.set_ylim(-0.35, 0.35)
    drawing.label(left, "log10 p", "log p less that of the reference", "b  difference from the references")
    drawing.name_curves(left, "lower right")
    drawing.log_y(right)
    drawing.label(right, "log10 p", "network calls", "c  cost of a run")
    written = drawing.save(figure, context.out, "collision")
    summary = context.out / "summary.md"
    summary.write_text(_summary(sat, unsat, truth), encoding="utf-8")
    return [*written, summary]


def _order(sat: Results) -> list[str]:
    """Files from rare to common, by the best guess there is."""
    best: dict[str, float] = {}
    for method in ("plain", "paper", "auto"):
        for file, found in sat.get(method, {}).items():
            if math.isfinite(found.log_prob) or file not in best:
                best[file] = found.log_prob
    return sorted(best, key=best.__getitem__)


def _estimates(axes: Any, found: dict[str, Found], order: list[str], method: str) -> None:
    """Large squares, dots in them, bars across: where all three agree, all three can be seen."""
    place = {file: i for i, file in enumerate(order, 1)}
    seen = [(place[file], f) for file, f in found.items() if math.isfinite(f.log_prob)]
    x, y = [i for i, _ in seen], [f.tens for _, f in seen]
    bars = [3 * f.error / TENS for _, f in seen]
    style: dict[str, Any] = {
        "plain": {"fmt": "s", "ms": 5.5, "mfc": "none", "mew": 0.7, "alpha": 0.8},
        "paper": {"fmt": "o", "ms": 2.6},
        "auto": {"fmt": "_", "ms": 6.5, "mew": 0.9},
    }[method]
    axes.errorbar(x, y, bars, lw=0.8, color=COLORS[method], label=NAMES[method], **style)
    missed = [(place[file], f.bound / TENS) for file, f in found.items() if f.hit == 0 and f.bound > -math.inf]
    if missed:
        axes.plot(*zip(*missed, strict=True), "v", ms=4.5, mfc="none", mew=0.8, color=COLORS[method])
        text = f"none in {max(f.calls for f in found.values()):.0e} plain samples: 95 % bounds"
        drawing.name_curve(axes, text, max(missed), COLORS[method], xytext=(16, -12))


def _differences(axes: Any, found: dict[str, Found], truth: dict[str, Truth], method: str) -> None:
    seen = [
        (truth[file], f) for file, f in found.items() if file in truth and math.isfinite(f.log_prob) and f.error < 0.3
    ]
    x, y = [t.log_prob / TENS for t, _ in seen], [f.log_prob - t.log_prob for t, f in seen]
    bars = [3 * math.hypot(f.error, t.std) for t, f in seen]
    axes.errorbar(x, y, bars, fmt="o", ms=2.6, color=COLORS[method], lw=0.7, alpha=0.8, label=NAMES[method])


def _costs(axes: Any, found: dict[str, Found], method: str) -> None:
    seen = sorted((f.tens, f.calls) for f in found.values() if math.isfinite(f.log_prob))
    axes.plot(*zip(*seen, strict=True), "o", ms=2.6, mew=0, color=COLORS[method], rasterized=True)
    place: dict[str, Any] = {"xytext": (-5, 0), "ha": "right"} if method == "plain" else {"xytext": (0, 7)}
    drawing.name_curve(axes, NAMES[method], seen[0], COLORS[method], **place)


def _summary(sat: Results, unsat: Results, truth: dict[str, Truth]) -> str:
    """The table of RESULTS.md."""
    lines = []
    for method in ("paper", "auto", "plain"):
        if not sat.get(method):
            continue
        found, others = sat[method], unsat.get(method, {})
        errors = [
            f.log_prob - truth[file].log_prob for file, f in found.items() if file in truth and f.log_prob > -math.inf
        ]
        rms = math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else math.nan
        bias = sum(errors) / len(errors) if errors else math.nan
        every = sum(f.hit >= (1 if method == "plain" else f.runs) for f in found.values())
        lines.append((
            NAMES[method], "–" if method == "plain" else max(f.runs for f in found.values()),
            f"{every} of {len(found)}", f"{sum(f.hit > 0 for f in others.values())} of {len(others)}",
            f"{bias:+.3f}", f"{rms:.3f} ({len(errors)})",
            f"{sum(f.calls for f in found.values()) / len(found):.2g}",
            f"{sum(f.seconds for f in found.values()) / len(found):.2g}",
        ))  # fmt: skip
    header = ("method", "runs", "violated, of satisfiable (in every run)", "violated, of unsatisfiable", "bias",
              "RMS difference from the references (how many)", "calls of a run", "seconds of a run")  # fmt: skip
    text = common.markdown(header, lines)
    missed = [file for file in _order(sat) if file in sat.get("plain", {}) and sat["plain"][file].hit == 0]
    rows = [(file, *(_cell(sat.get(method, {}).get(file)) for method in ("paper", "auto", "plain"))) for file in missed]
    return f"{text}\n\nNot found by plain Monte Carlo ({len(missed)}):\n\n" + common.markdown(
        ("property", "log10 p, paper's method", "log10 p, rarely's default", "plain"), rows
    ) + "\n"  # fmt: skip


def _cell(found: Found | None) -> str:
    if found is None:
        return ""
    if math.isfinite(found.log_prob):
        return f"{found.tens:.2f} ± {found.error / TENS:.2f}"
    return f"none in {found.calls:.1e}" if found.runs == 1 and found.bound > -math.inf else "none"
