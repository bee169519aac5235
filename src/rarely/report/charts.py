"""The charts of the page: each a drawing in the page's colours, what it shows in words, and the numbers behind it."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rarely.campaign.robustness import Curve
from rarely.display.figures import ACCENT, FAINT, INK, SERIES, WARNING
from rarely.questions.result import scientific
from rarely.report.figures import histogram, plot_curves, plot_distribution
from rarely.report.tally import Tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (5.2, 3.2)  # inches; small, so that the letters are still large on a phone
# Fixed colours become the page's variables, so that one drawing serves light and dark. Black is matplotlib's default.
_VARIABLES = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    ACCENT: "var(--accent)",
    FAINT: "var(--faint)",
    WARNING: "var(--warning)",
    **{color: f"var(--series-{i})" for i, color in enumerate(SERIES) if color != ACCENT},
}


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG inside a page, for those who see it and for those who have it read to them."""

    name: str  # unique in the page: what the drawing refers to inside itself is named after it
    title: str
    said: str  # what it shows, in words
    box: str
    body: str  # what stands inside the svg element


@dataclass(frozen=True)
class Chart:
    title: str
    drawing: Drawing
    heads: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]


def charts(counted: Tally) -> list[Chart]:
    """Those that there is something to draw in."""
    return [*_distribution(counted), *_curves(counted)]


def _distribution(counted: Tally) -> Iterator[Chart]:
    numbers = (*counted.trusted, *counted.doubtful)
    if not numbers:
        return
    low, high = scientific(min(numbers)), scientific(max(numbers))
    said = f"{how_many(len(numbers))} with a number, from {low} to {high}."
    if counted.trusted:
        said += f" Half of the violated lie below {scientific(float(np.median(counted.trusted)))}."
    edges, heights, doubts = histogram(counted.trusted, counted.doubtful)
    lines = [
        (f"{a:g} to {b:g}", str(count), str(doubt))
        for a, b, count, doubt in zip(edges, edges[1:], heights, doubts, strict=False)
    ]
    drawing = inline(plot_distribution(counted.trusted, counted.doubtful, _SIZE), "distribution", "How probable", said)
    yield Chart("How probable violations are", drawing, ("log10 p", "violated", "not to be trusted"), lines)


def _curves(counted: Tally) -> Iterator[Chart]:
    every = counted.curves()
    if not every:
        return
    curves = every[: len(SERIES)]
    said = " ".join(_said(curve) for curve in curves[:2])
    if doubtful := counted.counts["not to be trusted"]:
        said += f" {how_many(doubtful)} not to be trusted left out."
    if len(every) > len(curves):
        said += f" The first {len(curves)} of {len(every)} groups are drawn."
    drawing = inline(plot_curves(curves, size=_SIZE), "curve", "Probability over the radius", said)
    heads = ("group", "radius", "problems", "lower quartile", "median", "upper quartile", "no violation found")
    lines = [line for curve in curves for line in _curve_lines(curve)]
    yield Chart("Robustness over the radius", drawing, heads, lines)


def _said(curve: Curve) -> str:
    middles = curve.quartiles()[[0, -1], 1]
    ends = zip((curve.radii[0], curve.radii[-1]), middles, strict=True)
    said = "; ".join(_median(radius, middle) for radius, middle in ends) + "."
    return f"{curve.name}: {said}" if curve.name else said[0].upper() + said[1:]


def _median(radius: float, log_prob: float) -> str:
    if log_prob == -math.inf:
        return f"at radius {radius:g} half of the problems or more show no violation"
    return f"at radius {radius:g} the median is {scientific(log_prob)}"


def _curve_lines(curve: Curve) -> Iterator[tuple[str, ...]]:
    for radius, cuts, column in zip(curve.radii, curve.quartiles(), curve.log_probs, strict=True):
        values = np.asarray(column)
        quartiles = ("none found" if cut == -math.inf else scientific(cut) for cut in cuts)
        yield curve.name or "all", f"{radius:g}", str(len(values)), *quartiles, str(int(np.isneginf(values).sum()))


def how_many(count: int) -> str:
    return "1 problem" if count == 1 else f"{count:,} problems"


def large(count: int) -> str:
    for name, size in (("billion", 10**9), ("million", 10**6)):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:,}"


def inline(figure: Figure, name: str, title: str, said: str) -> Drawing:
    """A figure in the page's colours and fonts."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)  # would rule the whole page
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # every drawing has a figure_1; the references go to other elements
    text = re.sub(r'style="[^"]*"', _restyle, text)
    text = re.sub(r"\s*\n\s*", " ", text)
    found = re.search(r'<svg[^>]* viewBox="([^"]*)"[^>]*>(.*)</svg>', text)
    assert found is not None  # matplotlib always writes one
    return Drawing(name, title, said, found[1], found[2])


def _restyle(style: re.Match[str]) -> str:
    text = re.sub(r"font-family: [^;\"]*;? ?", "", style[0])
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    return text
