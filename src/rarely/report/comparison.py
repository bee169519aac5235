"""One self-contained page about two sides of a comparison. It has no script, and forbids itself the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

from rarely import __version__
from rarely.campaign.compare import Comparison, Pair, in_a_sentence, ratio
from rarely.campaign.store import Record
from rarely.questions.result import scientific
from rarely.report.charts import Drawing, inline
from rarely.report.figures import MAX_POINTS, plot_comparison
from rarely.report.page import asset, render

_ROWS = 5000  # of the table: more would make a page that browsers open slowly


@dataclass(frozen=True)
class _Row:
    """A line of the table, as text."""

    name: str
    a: str
    b: str
    ratio: str
    interval: str
    verdict: str
    clear: bool
    outcomes: str


def write_comparison(file: Path, found: Comparison, names: tuple[str, str]) -> None:
    """Write the page; `names` says what A and B are."""
    pairs = nlargest(_ROWS, found.matches.pairs(), key=lambda pair: pair.weight)
    text = render(
        "comparison.html",
        version=__version__,
        names=names,
        sentence=in_a_sentence(found),
        tiles=list(_tiles(found)),
        confidence=f"{found.confidence:.4g}",
        drawing=_drawing(pairs),
        rows=[_row(pair) for pair in pairs],
        left_out=found.done - len(pairs),
        style=asset("page.css"),
    )
    file.write_text(text, encoding="utf-8", errors="replace")  # a file name need not be valid Unicode


def _tiles(found: Comparison) -> Iterator[tuple[str, str]]:
    yield "compared", f"{found.done:,}"
    for verdict, count in found.verdicts.items():
        yield verdict, f"{count:,}"
    for name, spread in (("mean ratio B / A", found.mean), ("median ratio B / A", found.median)):
        if spread is not None:
            told = f"{found.confidence:.0%}: {ratio(spread.low)} to {ratio(spread.high)}"
            yield f"{name} ({told})", ratio(spread.value)


def _drawing(pairs: list[Pair]) -> Drawing | None:
    known = [pair for pair in pairs if pair.difference is not None][:MAX_POINTS]
    if not known:
        return None
    numbers = [(_log_prob(pair.a), _log_prob(pair.b)) for pair in known]
    clear = [pair.clear for pair in known]
    above = sum(b > a for a, b in numbers)
    said = f"{len(known):,} problems with a number on both sides; in {above:,} of them B fails more often."
    if sum(clear):
        said += f" {sum(clear):,} differ by more than their intervals explain."
    return inline(plot_comparison(numbers, clear), "comparison", "p in B over p in A", said)


def _row(pair: Pair) -> _Row:
    times = interval = ""
    if pair.difference is not None and pair.low is not None and pair.high is not None:
        times, interval = ratio(pair.difference), f"{ratio(pair.low)} to {ratio(pair.high)}"
    outcomes = " / ".join(record.estimate.word for record in (pair.a, pair.b) if record.estimate is not None)
    return _Row(pair.name, _chance(pair.a), _chance(pair.b), times, interval, pair.verdict, pair.clear, outcomes)


def _log_prob(record: Record) -> float:
    return record.estimate.log_prob if record.estimate is not None else math.nan


def _chance(record: Record) -> str:
    estimate = record.estimate
    if estimate is None or math.isfinite(estimate.log_prob):
        return scientific(_log_prob(record))
    return "0, proved" if estimate.upper_bound == -math.inf else f"at most {scientific(estimate.upper_bound)}"
