"""Answers as rows of tables, as notebooks show them, and as pandas frames."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rarely.core import frames
from rarely.core.evidence import Evidence, Number
from rarely.display import html

if TYPE_CHECKING:
    from rich.table import Table

    from rarely.questions.result import Concluded, Estimate


def numbers(e: Estimate) -> dict[str, Any]:
    """What an estimate says, in the columns of a table."""
    return {
        "outcome": e.outcome.value, "log_prob": e.log_prob, "log_prob_std": e.log_prob_std, "low": e.interval.low,
        "high": e.interval.high, "upper_bound": e.upper_bound, "evaluations": e.evaluations, "gradients": e.gradients,
        "calls": e.calls, "seconds": e.seconds,
    }  # fmt: skip


def frame(estimates: Sequence[Estimate]) -> Any:
    """A pandas frame with a row for each. `low`, `high` and `upper_bound` are logarithms, as in a campaign's table."""
    ends = [{"method": e.method, "witnesses": len(e.witnesses)} for e in estimates]
    found = [{"name": e.name, "prob": e.prob, **numbers(e)} for e in estimates]
    return frames.frame([{**row, **end} for row, end in zip(found, ends, strict=True)])


def rows(e: Estimate) -> Iterator[tuple[str, str]]:
    """Label and value of each line of the table of one estimate."""
    if e.name:
        yield "problem", e.name
    yield "outcome", e.word
    yield "", e.sentence
    if e.outcome.value == "violated":
        chance, interval = e.cells
        yield "probability", chance
        yield f"{e.interval.confidence:.0%} interval", interval
        yield "log p", f"{e.log_prob:.3f} ± {e.log_prob_std:.3f}, by {e.method}"
    elif e.outcome.value != "proved safe":
        yield f"upper bound ({e.interval.confidence:.0%})", e.bound
    yield from _costs(e)
    for record in e.evidence:
        cost = f", {record.calls:,} calls" if record.calls else ""
        yield f"by {record.method}", f"{_said(record, e.notes)}{cost}"
    for note in e.notes:
        yield "note", note


def table(e: Estimate) -> Table:
    """The same for terminals."""
    from rich.table import Table

    found = Table(show_header=False, box=None)
    for label, value in rows(e):
        found.add_row(label, value)
    return found


def _costs(e: Estimate) -> Iterator[tuple[str, str]]:
    if e.proved_range:
        yield "proved", e.proved_range
    yield "witnesses", str(len(e.witnesses))
    yield "network calls", f"{e.calls:,} ({e.evaluations:,} evaluations, {e.gradients:,} gradients)"
    yield "seconds", f"{e.seconds:.2f}"


def _said(record: Evidence, notes: Sequence[str]) -> str:
    told = f"; {record.note}" if isinstance(record, Number) and record.note not in ("", *notes) else ""
    return f"{record.sentence}{told}"


def in_words(estimate: Estimate) -> str:
    """A probability as a person would say it."""
    if estimate.outcome.value == "proved safe":
        return "never: this is proved"
    if not estimate.outcome.trusted:
        return "not known: do not trust a number here"
    if estimate.log_prob == -math.inf:
        return "never seen"
    if estimate.prob > 0.5:
        return _often(estimate)
    names = ("", " thousand", " million", " billion", " trillion", " quadrillion", " quintillion", " sextillion")
    tens = -estimate.log_prob / math.log(10)
    if tens >= 3 * len(names):
        return f"1 in 10^{tens:.0f}"
    once = float(f"{10**tens:.2g}")
    power = min(int(math.log10(once) // 3), len(names) - 1)
    return f"1 in {once / 1000**power:g}{names[power]}"


def _often(e: Estimate) -> str:
    """A share near one keeps the digits that make it less than one."""
    if e.prob <= 0.99 or e.log_prob == 0:
        return f"{e.prob:.0%} of the time"
    share = 100 * float(e.cells[0])
    return f"{share:.3g}% of the time" if share < 100 else "over 99.9% of the time"


def estimate_html(e: Estimate) -> str:
    """The number with its interval on a scale, what it means, what it cost, witnesses, and the evidence folded away."""
    return html.block(
        html.paragraph(e.name, "quiet"),
        html.paragraph(_headline(e), "big"),
        _interval(e),
        html.paragraph(e.sentence, "" if e.outcome.trusted else "doubt"),
        html.facts(_costs(e)),
        html.items(e.notes),
        e.witnesses.as_html(),
        _evidence(e.evidence, e.notes),
    )


def _headline(e: Estimate) -> str:
    if not e.outcome.trusted:
        return "do not trust a number here"
    if e.outcome.value == "violated":
        return f"p = {e.cells[0]}, {in_words(e)}"
    return e.word if e.outcome.value == "proved safe" else f"{e.word}: {e.bound}"


def _interval(e: Estimate) -> str:
    """The interval in words and on a scale, where there is one."""
    if e.outcome.value == "proved safe" or not math.isfinite(e.interval.high):
        return ""
    chance, between = e.cells
    known = e.log_prob > -math.inf
    words = f"{e.interval.confidence:.0%} interval {between}" if known else e.bound
    scale = html.interval(
        e.log_prob, e.interval.low, e.interval.high, f"{chance}, {words}", doubt=not e.outcome.trusted
    )
    if not e.outcome.trusted:
        words = f"{e.bound}; a guess: p = {chance}" if known else e.bound
    elif not known:  # the headline has said it
        words = ""
    return html.Html(html.paragraph(words, "quiet") + scale)


def _evidence(evidence: Sequence[Evidence], notes: Sequence[str] = ()) -> str:
    lines = [(record.method, _said(record, notes), f"{record.calls:,}" if record.calls else "") for record in evidence]
    return html.folded("The evidence", html.grid(("by", "what it learnt", "calls"), lines, (2,))) if lines else ""


def estimates_html(estimates: Sequence[Estimate]) -> str:
    """A row for each, their intervals on one scale."""
    if not estimates:
        return html.block(html.paragraph("no problem", "quiet"))
    ends = [x for e in estimates for x in (e.interval.low, e.interval.high, e.log_prob) if math.isfinite(x)]
    least = min([-math.log(10), *ends]) * 1.05
    interval = f"{estimates[0].interval.confidence:.0%} interval"
    lines = [
        (
            e.name, _outcome(e), *e.cells,
            html.interval(e.log_prob, e.interval.low, e.interval.high, " ".join(e.cells), doubt=not e.outcome.trusted,
                          least=least) if e.outcome.value != "proved safe" else "",
            f"{e.calls:,}",
        )
        for e in estimates
    ]  # fmt: skip
    heads = ("problem", "outcome", "probability", interval, _ends(least), "calls")
    return html.block(html.grid(heads, lines, (2, 5)))


def _outcome(e: Estimate) -> str:
    return e.word if e.outcome.trusted else html.Html(f'<span class="doubt">{html.text(e.word)}</span>')


def _ends(least: float) -> str:
    return f"1e{math.floor(least / html.LN10)} … 1"


def concluded_html(c: Concluded) -> str:
    """A ruling or a verdict: the word, the sentence, what it cost, witnesses and evidence."""
    costs = f"{c.calls:,} ({c.evaluations:,} evaluations, {c.gradients:,} gradients)"
    return html.block(
        html.paragraph(c.word, "big"),
        html.paragraph(c.sentence),
        html.facts([("witnesses", str(len(c.witnesses))), ("network calls", costs), ("seconds", f"{c.seconds:.2f}")]),
        c.witnesses.as_html(),
        _evidence(c.evidence),
    )
