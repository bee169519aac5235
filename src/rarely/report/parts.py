"""The parts of the page, each a function from what was counted to escaped HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape

import numpy as np

from rarely.campaign.records import Header, Record
from rarely.questions.result import Estimate, in_words, scientific
from rarely.report.figures import SERIES, Curve, histogram, plot_curves, plot_distribution
from rarely.report.svg import inline
from rarely.report.tally import STANDINGS, Tally

_SETTINGS = 3  # listed one by one
_SHORT_PLAN = 60  # lines
_SIZE = (5.2, 3.2)  # inches; small, so that the letters are still large on a phone


def sentence(counted: Tally) -> str:
    """The campaign in a sentence or two, as plain text."""
    if counted.total == 0:
        return "This campaign has no problems."
    shares = [
        f"{counted.counts[name]:,} {_verb(name, counted.counts[name])}" for name in STANDINGS if counted.counts[name]
    ]
    listed = " and ".join(filter(None, (", ".join(shares[:-1]), shares[-1])))
    text = f"Of {_count(counted.total, 'problem')}, {listed}."
    if counted.worst:
        worst = counted.worst[0]
        chance = f"{in_words(worst.estimate)} (p = {scientific(worst.estimate.log_prob)})"
        text += f" The most probable violation happens {chance}: {worst.record.name}."
    return text


def _verb(name: str, count: int) -> str:
    be = "is" if count == 1 else "are"
    return {
        "failed": "failed",
        "out of budget": "ran out of budget",
        "waiting": f"{be} still waiting",
    }.get(name, f"{be} {name}")


def meta(header: Header) -> str:
    versions = [f"{name} {value}" for name, value in header.versions.items() if name in ("rarely", "torch")]
    return " · ".join(filter(None, (_when(header.created), *versions, f"seed {header.seed}")))


def _when(created: str) -> str:
    return created[:16].replace("T", " ") + " UTC" if created else ""


def tiles(counted: Tally) -> str:
    finished = counted.total - counted.counts["waiting"]
    found = [
        ("problems finished", f"{finished:,}" if finished == counted.total else f"{finished:,} of {counted.total:,}")
    ]
    if counted.worst:
        found.append(("highest probability", scientific(counted.worst[0].estimate.log_prob)))
        found.append(("median of the violated", scientific(float(np.median(counted.trusted)))))
    found.append(("network calls", _large(counted.calls)))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in found)


def _large(count: int) -> str:
    for name, size in (("billion", 10**9), ("million", 10**6)):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:,}"


def shares(counted: Tally) -> str:
    """A bar of the shares, and a list of them that filters the table."""
    if counted.total == 0:
        return ""
    present = [(name, counted.counts[name]) for name in STANDINGS if counted.counts[name]]
    words = ", ".join(f"{name} {_share(count, counted.total)}" for name, count in present)
    bar = "".join(f'<span class="{_style(name)}" style="flex:{count}"></span>' for name, count in present)
    legend = "".join(
        f'<li><a href="#problems" data-standing="{name}" title="{escape(STANDINGS[name])}">'
        f'<span class="dot {_style(name)}" aria-hidden="true"></span>{name} '
        f"<b>{count:,}</b> <small>{_share(count, counted.total)}</small></a></li>"
        for name, count in present
    )
    return f'<div class="shares" role="img" aria-label="Shares: {words}">{bar}</div><ul class="legend">{legend}</ul>'


def _style(name: str) -> str:
    return f"is-{name.replace(' ', '-')}"


def _share(count: int, total: int) -> str:
    share = 100 * count / total
    return "under 0.1%" if share < 0.1 else f"{share:.3g}%" if share < 99.9 or count == total else "over 99.9%"


def charts(counted: Tally) -> str:
    drawn = [chart for chart in (_distribution(counted), _curves(counted)) if chart]
    if not drawn:
        return ""
    return (
        '<section id="charts" aria-labelledby="charts-title"><h2 id="charts-title">Charts</h2>'
        f'<div class="charts">{"".join(drawn)}</div></section>'
    )


def _distribution(counted: Tally) -> str:
    numbers = len(counted.trusted) + len(counted.doubtful)
    if numbers == 0:
        return ""
    low, high = (scientific(f((*counted.trusted, *counted.doubtful))) for f in (min, max))
    said = f"{_count(numbers, 'problem')} with a number, from {low} to {high}."
    if counted.trusted:
        said += f" Half of the violated lie below {scientific(float(np.median(counted.trusted)))}."
    edges, heights, doubts = histogram(counted.trusted, counted.doubtful)
    lines = [
        (f"{a:g} to {b:g}", str(count), str(doubt))
        for a, b, count, doubt in zip(edges, edges[1:], heights, doubts, strict=False)
    ]
    drawing = inline(plot_distribution(counted.trusted, counted.doubtful, _SIZE), "distribution", "How probable", said)
    return _chart("How probable violations are", said, drawing, ("log10 p", "violated", "not to be trusted"), lines)


def _curves(counted: Tally) -> str:
    every = counted.curves()
    if not every:
        return ""
    curves = every[: len(SERIES)]
    said = " ".join(_said(curve) for curve in curves[:2]) + _left_out(counted)
    if len(every) > len(curves):
        said += f" The first {len(curves)} of {len(every)} groups are drawn."
    lines = [line for curve in curves for line in _curve_lines(curve)]
    drawing = inline(plot_curves(curves, size=_SIZE), "curve", "Probability over the radius", said)
    heads = ("group", "radius", "problems", "lower quartile", "median", "upper quartile", "no violation found")
    return _chart("Robustness over the radius", said, drawing, heads, lines)


def _said(curve: Curve) -> str:
    middles = curve.quartiles()[[0, -1], 1]
    parts = [_median(radius, middle) for radius, middle in zip((curve.radii[0], curve.radii[-1]), middles, strict=True)]
    said = "; ".join(parts) + "."
    return f"{curve.name}: {said}" if curve.name else said[0].upper() + said[1:]


def _median(radius: float, log_prob: float) -> str:
    if log_prob == -math.inf:
        return f"at radius {radius:g} half of the problems or more show no violation"
    return f"at radius {radius:g} the median is {scientific(log_prob)}"


def _left_out(counted: Tally) -> str:
    count = counted.counts["not to be trusted"]
    return f" {_count(count, 'problem')} not to be trusted left out." if count else ""


def _curve_lines(curve: Curve) -> Iterable[tuple[str, ...]]:
    for radius, cuts, column in zip(curve.radii, curve.quartiles(), curve.log_probs, strict=True):
        values = np.asarray(column)
        quartiles = ("none found" if cut == -math.inf else scientific(cut) for cut in cuts)
        yield curve.name or "all", f"{radius:g}", str(len(values)), *quartiles, str(int(np.isneginf(values).sum()))


def _chart(title: str, said: str, drawing: str, heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f'<figure class="chart"><figcaption><b>{escape(title)}</b><span>{escape(said)}</span></figcaption>{drawing}'
        f'<details><summary>The numbers behind this chart</summary><div class="scroll" role="region" tabindex="0" '
        f'aria-label="Numbers: {escape(title)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div></details></figure>"
    )


def worst(counted: Tally, pictures: Mapping[str, str]) -> str:
    """The most probable violations, each with an input that violates."""
    if not counted.worst:
        return ""
    cards = "".join(_card(found.record, found.estimate, pictures) for found in counted.worst)
    return (
        '<section id="worst" aria-labelledby="worst-title"><h2 id="worst-title">Worst problems</h2>'
        f'<ol class="cards">{cards}</ol></section>'
    )


def _card(record: Record, estimate: Estimate, pictures: Mapping[str, str]) -> str:
    low, high = scientific(estimate.interval.low), scientific(estimate.interval.high)
    key = escape(record.key)
    return (
        f'<li class="card"><p class="chance">{in_words(estimate)}</p>'
        f'<p class="interval">p = {scientific(estimate.log_prob)}, {_percent(estimate.interval.confidence)} interval '
        f"{low} to {high}</p>"
        f'<p class="name"><button type="button" class="open" data-open="{key}">{escape(record.name)}</button></p>'
        f'<div id="witness-{key}">{pictures.get(record.key, "")}</div></li>'
    )


def templates(counted: Tally, pictures: Mapping[str, str]) -> str:
    """Witnesses that are not on a card, kept until somebody asks for their problem."""
    on_cards = {found.record.key for found in counted.worst}
    return "".join(
        f'<template id="witness-{escape(key)}">{html}</template>'
        for key, html in pictures.items()
        if key not in on_cards
    )


def truncated(counted: Tally, rows: int) -> str:
    if rows == counted.total:
        return ""
    return f" The table holds the worst {rows:,} of {counted.total:,} problems; summary and charts count all of them."


def provenance(header: Header, counted: Tally) -> str:
    used = counted.settings.most_common(_SETTINGS)
    pairs = [
        ("campaign", header.name),
        ("started", _when(header.created)),
        ("seed", str(header.seed)),
        ("digest", header.digest),
        *header.versions.items(),
        *((f"settings of {_count(count, 'problem')}", text) for text, count in used),
    ]
    if len(counted.settings) > len(used):
        pairs.append(("other settings", f"{len(counted.settings) - len(used):,}, see the plan"))
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value)


def reproduce(header: Header) -> str:
    is_open = " open" if header.plan.count("\n") < _SHORT_PLAN else ""
    return (
        "<p>The same plan, files and seed give the same numbers, whatever the number of workers. The digest above "
        "covers the plan and the files it names.</p>"
        f"<pre>{escape(header.command)}</pre>"
        f"<details{is_open}><summary>The plan</summary><pre>{escape(header.plan)}</pre></details>"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
