"""One self-contained page about a campaign. Everything a user named is escaped; the page forbids itself the network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from rarely.campaign.records import Header, Record, WitnessSet
from rarely.report import parts
from rarely.report.tally import FIELDS, MAX_ROWS, STANDINGS, Tally, json_for_html, tally
from rarely.report.witness import witness_html

WITH_WITNESS = 50  # of the worst problems: pictures of ten thousand would fill the page
_SCRIPTS = ("format.js", "table.js", "details.js")


def write_page(
    file: Path,
    header: Header,
    records: Iterable[Record],
    witnesses: Callable[[str], WitnessSet | None],
    max_rows: int = MAX_ROWS,
) -> Tally:
    """Write the page and return what it counted. `records` is read once; an older page stays until the new is whole."""
    counted = tally(records, max_rows)
    text = _page(header, counted, witnesses)
    draft = file.with_name(f".{file.name}.part")
    try:
        draft.write_text(text, encoding="utf-8", errors="replace")  # a file name need not be valid Unicode
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    return counted


def _page(header: Header, counted: Tally, witnesses: Callable[[str], WitnessSet | None]) -> str:
    rows = counted.rows()
    keys = dict.fromkeys([*(found.record.key for found in counted.worst), *(key for key, _ in rows)])
    pictures = {key: html for key in list(keys)[:WITH_WITNESS] if (html := _witness(witnesses(key)))}
    script = '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "\n})();\n"
    data = "{" + ",".join(
        (
            f'"fields":{json_for_html(FIELDS)}',
            f'"standings":{json_for_html(STANDINGS)}',
            f'"rows":[{",".join(text for _, text in rows)}]',
        )
    ) + "}"  # fmt: skip
    charts, worst = parts.charts(counted), parts.worst(counted, pictures)
    version = header.versions.get("rarely", "")
    return Template(_asset("page.html")).substitute(
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        generator=escape(f"rarely {version}"),
        version=escape(version),
        name=escape(header.name),
        style=_asset("page.css"),
        sentence=escape(parts.sentence(counted)),
        meta=escape(parts.meta(header)),
        nav_charts='<a href="#charts">Charts</a>' if charts else "",
        nav_worst='<a href="#worst">Worst problems</a>' if worst else "",
        tiles=parts.tiles(counted),
        shares=parts.shares(counted),
        charts=charts,
        worst=worst,
        truncated=parts.truncated(counted, len(rows)),
        provenance=parts.provenance(header, counted),
        reproduce=parts.reproduce(header),
        witnesses=parts.templates(counted, pictures),
        data=data,
        script=script,
    )


def _witness(found: WitnessSet | None) -> str:
    return "" if found is None else witness_html(found)


def _asset(name: str) -> str:
    return files("rarely.report").joinpath("assets", name).read_text(encoding="utf-8")
