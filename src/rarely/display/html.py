"""Tables, scales and pictures as HTML for notebooks, light and dark: text has the notebook's colour, nothing a ground.

Everything that a user named is escaped here; `Html` marks what this module has made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

ACCENT, DOUBT = "#2f8fb3", "#d4634a"  # seen on white and on black
# The class stands twice where a notebook has rules of its own for tables, which these go before.
_STYLE = """<style>
.rarely { max-width: 60rem; line-height: 1.45; }
.rarely p { margin: 0 0 .25em; }
.rarely .big { font-size: 1.5em; font-weight: 600; }
.rarely .quiet { opacity: .7; }
.rarely .doubt { color: #d4634a; font-weight: 600; }
.rarely table { border-collapse: collapse; margin: .5em 0; width: auto; font-size: .95em; }
.rarely.rarely table :is(tr, th, td) { background: none; border: 0; color: inherit; text-align: left; }
.rarely.rarely table :is(th, td) { vertical-align: top; padding: .15em 1.2em .15em 0; white-space: normal; }
.rarely table td { max-width: 40em; }
.rarely table th { font-weight: 600; }
.rarely.rarely table .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.rarely figure { display: inline-block; margin: .3em .8em .3em 0; text-align: center; }
.rarely figure img { display: block; width: 96px; image-rendering: pixelated; }
.rarely figcaption { font-size: .85em; opacity: .7; }
.rarely svg { display: block; overflow: visible; }
.rarely svg text { font-size: 11px; fill: currentColor; }
</style>"""
LN10 = math.log(10)


class Html(str):
    """A text that is markup already."""

    __slots__ = ()


def text(value: str) -> Html:
    """Escaped, unless it is markup already."""
    return value if isinstance(value, Html) else Html(escape(value))


def block(*parts: str) -> str:
    """One output of a notebook."""
    return Html(f'<div class="rarely">{_STYLE}{"".join(map(text, parts))}</div>')


def paragraph(value: str, look: str = "") -> Html:
    kind = f' class="{look}"' if look else ""
    return Html(f"<p{kind}>{text(value)}</p>") if value else Html("")


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """A label and what belongs to it in each row."""
    lines = "".join(f"<tr><th>{text(label)}</th><td>{text(value)}</td></tr>" for label, value in rows)
    return Html(f"<table>{lines}</table>" if lines else "")


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] | range = ()) -> Html:
    """A table with a head; the columns in `numbers` are aligned at the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        looks = (' class="number"' if place in numbers else "" for place in range(len(cells)))
        return "".join(f"<{tag}{look}>{text(cell)}</{tag}>" for look, cell in zip(looks, cells, strict=True))

    body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in rows)
    return Html(f"<table><thead><tr>{line(heads, 'th')}</tr></thead><tbody>{body}</tbody></table>")


def folded(title: str, *parts: str) -> Html:
    """What is shown when somebody asks for it."""
    inside = "".join(map(text, parts))
    return Html(f"<details><summary>{text(title)}</summary>{inside}</details>" if inside else "")


def items(values: Iterable[str]) -> Html:
    lines = "".join(f"<li>{text(value)}</li>" for value in values)
    return Html(f"<ul>{lines}</ul>" if lines else "")


def pictures(shown: Iterable[tuple[str, str]]) -> Html:
    """Captions, and pictures as addresses of data."""
    found = ((escape(caption), escape(source)) for caption, source in shown)
    return Html(
        "".join(
            f'<figure><img src="{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
            for caption, source in found
        )
    )


def interval(log_prob: float, low: float, high: float, said: str, *, doubt: bool = False, least: float = 0.0) -> Html:
    """A number and its interval, natural logs, on a scale of powers of ten. Without a number, all below `high`.

    `least`: the lower end of the scale, where several are compared; then no scale is written.
    """
    alone = least == 0.0
    known = [log / LN10 for log in (low, log_prob, high) if math.isfinite(log)]
    room = max(0.5, 0.5 * (known[-1] - known[0])) if known else 0.0
    first = math.floor(min(known, default=-1.0) - room) if alone else least / LN10
    last = min(0, math.ceil(known[-1] + room)) if alone and known else 0
    width, top, edge = (440, 12, 20) if alone else (140, 8, 6)

    def at(tens: float) -> float:
        return round(edge + (width - 2 * edge) * (min(max(tens, first), last) - first) / ((last - first) or 1), 1)

    color, left = DOUBT if doubt else ACCENT, low / LN10 if math.isfinite(low) else first
    marks = [_line(at(left), at(high / LN10), top, color, 4)]
    if math.isfinite(log_prob):
        marks.append(f'<circle cx="{at(log_prob / LN10)}" cy="{top}" r="5" fill="{color}"/>')
    axis = _axis(first, last, at) if alone else _line(edge, width - edge, top, "currentColor", 1, ' opacity=".25"')
    height = 44 if alone else 16
    return Html(
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(said)}">{axis}{"".join(marks)}</svg>'
    )


def _line(left: float, right: float, y: float, color: str, width: float, more: str = "") -> str:
    ends = f'x1="{left}" x2="{max(right, left + 1)}" y1="{y}" y2="{y}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}" stroke-linecap="round"{more}/>'


def _axis(first: float, last: float, at: Callable[[float], float]) -> str:
    step = max(1, math.ceil((last - first) / 6))
    ticks = "".join(
        f'<line x1="{at(tick)}" x2="{at(tick)}" y1="22" y2="27" stroke="currentColor" opacity=".5"/>'
        f'<text x="{at(tick)}" y="40" text-anchor="middle">{"1" if tick == 0 else f"1e{tick}"}</text>'
        for tick in range(int(first), int(last) + 1, step)
    )
    return _line(at(first), at(last), 22, "currentColor", 1, ' opacity=".5"') + ticks
