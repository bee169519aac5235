"""One self-contained page about a campaign. Templates escape what a user named; the page forbids itself the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from rarely.campaign.store import Header, Record
from rarely.campaign.witnesses import WitnessSet
from rarely.io.files import replacing
from rarely.questions.result import scientific
from rarely.questions.showing import in_words
from rarely.report.charts import charts, how_many, large
from rarely.report.tally import FIELDS, MAX_ROWS, STANDINGS, Tally, tally
from rarely.report.witness import shown

WITH_WITNESS = 50  # of the worst problems: pictures of ten thousand would fill the page
_SCRIPTS = ("format.js", "table.js", "details.js")
_SETTINGS = 3  # listed one by one


def write_page(
    file: Path,
    header: Header,
    records: Iterable[Record],
    witnesses: Callable[[str], WitnessSet | None],
    max_rows: int = MAX_ROWS,
    uncovered: Sequence[str] = (),
) -> Tally:
    """Write the page and return what it counted. `records` is read once; an older page stays until the new is whole."""
    counted = tally(records, max_rows)
    text = _page(header, counted, witnesses, uncovered)
    with replacing(file) as draft:
        draft.write_text(text, encoding="utf-8", errors="replace")  # a file name need not be valid Unicode
    return counted


def _page(
    header: Header, counted: Tally, witnesses: Callable[[str], WitnessSet | None], uncovered: Sequence[str]
) -> str:
    rows = counted.rows()
    keys = dict.fromkeys([*(found.record.key for found in counted.worst), *(key for key, _ in rows)])
    script = '(() => {\n"use strict";\n' + "\n".join(asset(name) for name in _SCRIPTS) + "\n})();\n"
    return render(
        "page.html",
        header=header,
        counted=counted,
        sentence=in_a_sentence(counted),
        meta=_meta(header),
        tiles=_tiles(counted),
        shares=[(name, count, _share(count, counted.total)) for name, count in _present(counted)],
        charts=charts(counted),
        witnesses={key: seen for key in list(keys)[:WITH_WITNESS] if (seen := shown(witnesses(key)))},
        provenance=_provenance(header, counted),
        uncovered=uncovered,
        fields=FIELDS,
        standings=STANDINGS,
        rows=[text for _, text in rows],
        style=asset("page.css"),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rarely.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(scientific=scientific, in_words=in_words)
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # and not sorted: the order of standings is shown
    return made


def asset(name: str) -> str:
    return files("rarely.report").joinpath("assets", name).read_text(encoding="utf-8")


def in_a_sentence(counted: Tally) -> str:
    """The campaign in a sentence or two, as plain text."""
    if counted.total == 0:
        return "This campaign has no problems."
    shares = [f"{count:,} {_verb(name, count)}" for name, count in _present(counted)]
    listed = " and ".join(filter(None, (", ".join(shares[:-1]), shares[-1])))
    text = f"Of {how_many(counted.total)}, {listed}."
    if counted.worst:
        worst = counted.worst[0]
        chance = f"{in_words(worst.estimate)} (p = {scientific(worst.estimate.log_prob)})"
        text += f" The most probable violation happens {chance}: {worst.record.name}."
    return text


def _present(counted: Tally) -> list[tuple[str, int]]:
    return [(name, counted.counts[name]) for name in STANDINGS if counted.counts[name]]


def _verb(name: str, count: int) -> str:
    be = "is" if count == 1 else "are"
    told = {"failed": "failed", "out of budget": "ran out of budget", "waiting": f"{be} still waiting"}
    return told.get(name, f"{be} {name}")


def _meta(header: Header) -> str:
    versions = [f"{name} {value}" for name, value in header.versions.items() if name in ("rarely", "torch")]
    return " · ".join(filter(None, (_when(header.created), *versions, f"seed {header.seed}")))


def _when(created: str) -> str:
    return created[:16].replace("T", " ") + " UTC" if created else ""


def _tiles(counted: Tally) -> list[tuple[str, str]]:
    finished = counted.total - counted.counts["waiting"]
    of_all = "" if finished == counted.total else f" of {counted.total:,}"
    tiles = [("problems finished", f"{finished:,}{of_all}")]
    if counted.worst:
        tiles.append(("highest probability", scientific(counted.worst[0].estimate.log_prob)))
        tiles.append(("median of the violated", scientific(float(np.median(counted.trusted)))))
    return [*tiles, ("network calls", large(counted.calls))]


def _share(count: int, total: int) -> str:
    share = 100 * count / total
    return "under 0.1%" if share < 0.1 else f"{share:.3g}%" if share < 99.9 or count == total else "over 99.9%"


def _provenance(header: Header, counted: Tally) -> list[tuple[str, str]]:
    used = counted.settings.most_common(_SETTINGS)
    others = len(counted.settings) - len(used)
    return [
        ("campaign", header.name),
        ("started", _when(header.created)),
        ("seed", str(header.seed)),
        ("digest", header.digest),
        *header.versions.items(),
        *((f"settings of {how_many(count)}", text) for text, count in used),
        ("other settings", f"{others:,}, see the plan" if others else ""),
    ]
