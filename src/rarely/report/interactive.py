"""A figure to point at: each mark says which problem it is. Needs plotly; the file opens offline."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rarely.campaign.robustness import Curve
from rarely.campaign.store import Record
from rarely.core.errors import InputError, MissingExtra
from rarely.display.figures import FAINT, INK, LN10, SERIES, WARNING
from rarely.questions.result import Estimate
from rarely.report.figures import MAX_POINTS
from rarely.report.tally import Tally, standing

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LONGEST = 400  # characters that a mark says


class _Mark(NamedTuple):
    log_prob: float
    place: int  # earlier problems are shown first where probabilities are equal, and marks are never compared further
    radius: float | None
    text: str
    color: str


@dataclass
class Marks:
    """The most probable problems, as many as a figure can show."""

    _heap: list[_Mark] = field(default_factory=list)

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, on their way to somebody else."""
        for place, record in enumerate(records):
            estimate = record.estimate
            if estimate is not None and math.isfinite(estimate.log_prob):
                color = WARNING if standing(record) == "not to be trusted" else FAINT
                text = f"{_shown(record.name)}<br>{_shown(str(estimate))}"
                mark = _Mark(estimate.log_prob, -place, record.radius, text, color)
                (heapq.heappush if len(self._heap) < MAX_POINTS else heapq.heappushpop)(self._heap, mark)
            yield record

    def sorted(self) -> list[_Mark]:
        return sorted(self._heap, reverse=True)


def write_interactive(file: Path, kind: str, counted: Tally, marks: Marks) -> None:
    """Write a curve or a distribution as HTML."""
    figure = _figure()
    {"curve": _curve, "distribution": _distribution}[kind](figure, counted, marks.sorted())
    if not figure.data:
        raise InputError(f"nothing that is finished can be drawn as {kind}")
    figure.write_html(file, include_plotlyjs=True)


def write_climbs(file: Path, climbs: Sequence[Estimate]) -> None:
    """Write the levels of each sampler as HTML."""
    figure = _figure()
    for estimate in climbs:
        levels = [_finite(level) for level in estimate.levels]
        figure.add_scatter(y=levels, mode="lines+markers", name=_shown(estimate.name), hoverinfo="name+y")
    figure.add_hline(y=0, line_color=WARNING)
    figure.update_layout(xaxis_title="level number", yaxis_title="level (score)")
    figure.write_html(file, include_plotlyjs=True)


def _figure() -> Figure:
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise MissingExtra("a figure to point at needs plotly: pip install 'rarely[plotly]', or write .svg") from error
    return Figure(
        layout={"template": "plotly_white", "font": {"color": INK}, "colorway": SERIES, "hovermode": "closest"}
    )


def _curve(figure: Figure, counted: Tally, marks: Sequence[_Mark]) -> None:
    seen = [mark for mark in marks if mark.radius is not None]
    if seen:
        radii, heights = [mark.radius for mark in seen], [mark.log_prob / LN10 for mark in seen]
        figure.add_scatter(x=radii, y=heights, name="problems", **_style(seen))
    for color, curve in zip(cycle(SERIES), counted.curves(), strict=False):
        middles = [_finite(cut / LN10) for cut in curve.quartiles()[:, 1].tolist()]
        name = f"median {_shown(curve.name)}"
        figure.add_scatter(x=list(curve.radii), y=middles, mode="lines+markers", line_color=color, name=name)
    axis = " or ".join(dict.fromkeys(curve.axis for curve in counted.curves())) or Curve.axis
    figure.update_layout(xaxis_title=axis, yaxis_title="log10 of the probability of a mistake")


def _distribution(figure: Figure, counted: Tally, marks: Sequence[_Mark]) -> None:
    known = counted.total - counted.counts["failed"] - counted.counts["waiting"]
    numbers = np.sort(np.concatenate([counted.trusted, counted.doubtful])) / LN10
    if len(numbers) > len(marks):  # those without a mark are a line, through some of them
        picked = np.unique(np.linspace(0, len(numbers) - 1, MAX_POINTS).round().astype(int))
        shares = (known - len(numbers) + 1 + picked) / known
        figure.add_scatter(x=numbers[picked], y=shares, mode="lines", line_color=FAINT, name="all problems")
    if marks:
        shares = 1 - np.arange(len(marks)) / known
        figure.add_scatter(x=[mark.log_prob / LN10 for mark in marks], y=shares, name="problems", **_style(marks))
    figure.update_layout(
        xaxis_title="log10 of the probability of a violation", yaxis_title="share of problems at or below"
    )


def _style(marks: Sequence[_Mark]) -> dict[str, Any]:
    colors = [mark.color for mark in marks]
    return {"text": [mark.text for mark in marks], "hoverinfo": "text", "mode": "markers", "marker": {"color": colors}}


def _shown(text: str) -> str:
    """Plotly reads tags in names, so they are escaped."""
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
