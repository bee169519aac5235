"""Inputs in a notebook: a few of them, as pictures where they are pictures, else as rows of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rarely.display import html
from rarely.display.pictures import as_picture, png, shades, value_range

if TYPE_CHECKING:
    from rarely.core.evidence import Witnesses

_PICTURES, _ROWS, _COLUMNS = 8, 6, 12  # shown


def witnesses_html(found: Witnesses) -> str:
    """The first of some violating inputs."""
    if len(found) == 0 or found.counted:
        return ""
    inputs = found.inputs.double().numpy()
    if as_picture(inputs[0]) is None:
        return html.Html(html.paragraph(_title(len(found), _ROWS), "quiet") + _rows(found))
    captions = [f"score {score:.3g}" for score in found.scores[:_PICTURES].tolist()]
    return html.Html(html.paragraph(_title(len(found), _PICTURES), "quiet") + pictures_html(inputs, captions))


def pictures_html(inputs: Any, captions: list[str]) -> str:
    """Inputs that are pictures, each with its caption, in one scale of shades."""
    shown = [picture for values in inputs[: len(captions)] if (picture := as_picture(np.asarray(values))) is not None]
    if not shown:
        return ""
    low, high = value_range(shown)
    sources = [png(shades(picture, low, high)) for picture in shown]
    return html.pictures(zip(captions, sources, strict=True))


def _title(count: int, most: int) -> str:
    if count == 1:
        return "an input that violates"
    return f"{count:,} inputs that violate" if count <= most else f"{count:,} inputs that violate, the first {most}"


def _rows(found: Witnesses) -> str:
    records = found.records()[:_ROWS]
    names = list(records[0])[:_COLUMNS]
    more = len(records[0]) > _COLUMNS
    lines = [
        [*(_cell(record[name]) for name in names), *["…"] * more, f"{score:.3g}"]
        for record, score in zip(records, found.scores.tolist(), strict=False)
    ]
    heads = [*names, *["…"] * more, "score"]
    return html.grid(heads, lines, range(len(heads)))


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
