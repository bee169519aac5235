"""A figure to point at: each mark says which problem it is. Needs plotly; the file opens offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rarely.campaign.store import Record
from rarely.core.errors import InputError, MissingExtra
from rarely.questions.result import Estimate
from rarely.report.figures import FAINT, INK, LN10, SERIES, WARNING
from rarely.report.tally import standing, tally

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def write_interactive(file: Path, records: Sequence[Record], kind: str) -> None:
    """Write a curve, a distribution or levels as HTML."""
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise MissingExtra("a figure to point at needs plotly: pip install 'rarely[plotly]', or write .svg") from error
    known = [(record, record.estimate) for record in records if record.estimate is not None]
    figure = Figure(
        layout={"template": "plotly_white", "font": {"color": INK}, "colorway": SERIES, "hovermode": "closest"}
    )
    {"curve": _curve, "distribution": _distribution, "levels": _levels}[kind](figure, known)
    if not figure.data:
        raise InputError(f"nothing that is finished can be drawn as {kind}")
    figure.write_html(file, include_plotlyjs=True)


def _curve(figure: Figure, known: Sequence[tuple[Record, Estimate]]) -> None:
    seen = [(r, e) for r, e in known if r.radius is not None and math.isfinite(e.log_prob)]
    if seen:
        figure.add_scatter(x=[r.radius for r, _ in seen], name="problems", **_marks(seen))
    for color, curve in zip(cycle(SERIES), tally((record for record, _ in known), max_rows=0).curves(), strict=False):
        middles = [_finite(cut / LN10) for cut in curve.quartiles()[:, 1].tolist()]
        name = f"median {escape(curve.name)}"
        figure.add_scatter(x=list(curve.radii), y=middles, mode="lines+markers", line_color=color, name=name)
    figure.update_layout(xaxis_title="radius ε", yaxis_title="log10 of the probability of a mistake")


def _distribution(figure: Figure, known: Sequence[tuple[Record, Estimate]]) -> None:
    seen = sorted(((r, e) for r, e in known if math.isfinite(e.log_prob)), key=lambda pair: pair[1].log_prob)
    if seen:
        shares = [(i + 1) / len(known) for i in range(len(known) - len(seen), len(known))]
        marks = _marks(seen)
        figure.add_scatter(**{**marks, "x": marks["y"], "y": shares})
    figure.update_layout(
        xaxis_title="log10 of the probability of a violation", yaxis_title="share of problems at or below"
    )


def _levels(figure: Figure, known: Sequence[tuple[Record, Estimate]]) -> None:
    for record, estimate in known:
        if len(estimate.levels) > 1:
            levels = [_finite(level) for level in estimate.levels]
            figure.add_scatter(y=levels, mode="lines+markers", name=escape(record.name), hoverinfo="name+y")
    figure.add_hline(y=0, line_color=WARNING)
    figure.update_layout(xaxis_title="level number", yaxis_title="level (score)")


def _marks(seen: Sequence[tuple[Record, Estimate]]) -> dict[str, Any]:
    """log10 p of each problem as a mark that says its name; plotly reads tags in names, so they are escaped."""
    return {
        "y": [estimate.log_prob / LN10 for _, estimate in seen],
        "text": [f"{escape(record.name)}<br>{escape(str(estimate))}" for record, estimate in seen],
        "hoverinfo": "text",
        "mode": "markers",
        "marker": {"color": [WARNING if standing(r) == "not to be trusted" else FAINT for r, _ in seen]},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
