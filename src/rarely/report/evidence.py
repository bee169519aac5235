"""One self-contained page about one decision, for a safety file. It has no script, and forbids itself the network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps

from rarely import __version__
from rarely.campaign.again import Answer
from rarely.campaign.content import sha256
from rarely.campaign.gate import Gate
from rarely.campaign.witnesses import WitnessSet
from rarely.core.errors import FormatError
from rarely.core.evidence import Number
from rarely.io.files import is_file, one_line
from rarely.questions.result import Estimate, Outcome, scientific
from rarely.report.argument import OPEN, argument, assumptions, claim, evidence_of, standing
from rarely.report.page import asset, render
from rarely.report.witness import Shown, shown

_SHOWN = 6  # witnesses: one of each image, the first of one problem
_ENVIRONMENT = ("date", "rarely", "torch", "numpy", "python", "platform", "device", "dtype", "threads", "seed")


@dataclass(frozen=True)
class Pictured:
    """A violating input on the page."""

    name: str
    score: str
    shown: Shown


def write_evidence(file: Path, answer: Answer, source: Path, witnesses: Path | None, name: str) -> None:
    """Write the page, which will have a `name`.

    `source` is the JSON that the answer is from, `witnesses` where violating inputs lie, if somebody said so.
    """
    made = answer.provenance
    record = json.loads(answer.to_json())
    text = str(htmlsafe_json_dumps(record, separators=(",", ":"), allow_nan=False))
    pictured, hint = _witnesses(answer, source, witnesses)
    page = render(
        "evidence.html",
        version=__version__,
        claim=claim(answer),
        standing=standing(answer),
        sentence=answer.sentence,
        tiles=list(_tiles(answer)),
        argument=argument(answer),
        asked=list(_asked(answer)),
        evidence=[(about, record, getattr(record, "assumes", "")) for about, record in evidence_of(answer)],
        notes=getattr(answer, "notes", ()),
        assumptions=assumptions(answer),
        witnesses=pictured,
        witness_hint=hint,
        images=list(zip(answer.images, answer.decisions, strict=True)) if isinstance(answer, Gate) else [],
        open=[*_doubtful(answer), *OPEN],
        files=_list_of_dicts(made.get("files")),
        uncovered=_list_of_text(made.get("uncovered")),
        environment=[(name, str(made[name])) for name in _ENVIRONMENT if name in made],
        packages=sorted(_texts(made.get("packages")).items()),
        command=str(made.get("command", "")),
        page=name,
        source=source.name,
        digest=sha256(source),
        record=text,
        style=asset("page.css") + asset("evidence.css"),
    )
    file.write_text(page, encoding="utf-8", errors="replace")  # a file name need not be valid Unicode


def _tiles(answer: Answer) -> Iterator[tuple[str, str]]:
    """The numbers of the decision."""
    if isinstance(answer, Gate):
        yield "ruling", answer.ruling.value
        yield "images", f"{len(answer.decisions):,}"
        yield "confidence", f"{answer.confidence:.4g}"
        yield "network calls", f"{sum(one.calls for one in answer.decisions):,}"
        return
    if isinstance(answer, Estimate):
        yield "outcome", answer.word
        if answer.outcome is Outcome.VIOLATED:
            yield "probability", scientific(answer.log_prob)
            low, high = scientific(answer.interval.low), scientific(answer.interval.high)
            yield f"{answer.interval.confidence:.4g} interval", f"{low} to {high}"
        elif answer.outcome is not Outcome.PROVED_SAFE:
            yield f"bound at {answer.interval.confidence:.4g}", f"p <= {scientific(answer.upper_bound)}"
        if answer.proved_range:
            yield "proved", answer.proved_range
    else:
        yield "ruling", answer.ruling.value
        yield "limit", f"{answer.p_max:g}"
        yield "confidence", "1, a proof" if answer.confidence == 1 else f"{answer.confidence:.4g}"
        numbers = [record for record in answer.evidence if isinstance(record, Number)]
        if numbers:
            yield f"p, by {numbers[-1].method}", scientific(numbers[-1].log_prob)
    yield "network calls", f"{answer.calls:,}"


def _asked(answer: Answer) -> Iterator[tuple[str, str]]:
    """The question, in words and as it was put."""
    asked, words = answer.provenance.get("asked"), _texts(answer.provenance.get("words"))
    asked = asked if isinstance(asked, dict) else {}
    which = "of the first image, " if isinstance(answer, Gate) else ""
    for role, told in (("network", "network"), ("violation", "a violation is"), ("inputs", "inputs are")):
        if role in words:
            yield told, words[role] if role == "network" else f"{which}{words[role]}"
    for name in ("network", "property", "input_model", "architecture"):
        if asked.get(name):
            yield f"{name.replace('_', ' ')}, as named", str(asked[name])
    for part in ("images", "settings"):
        if isinstance(asked.get(part), dict):
            yield part, ", ".join(f"{key} {_plain(value)}" for key, value in asked[part].items())


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _doubtful(answer: Answer) -> Iterator[str]:
    """What of this very answer is open."""
    if standing(answer) == "not to be trusted":
        yield "This answer says of itself that its number is not to be trusted."
    if standing(answer) == "undecided":
        yield "The claim is undecided: the evidence neither supports nor refutes it."
    if any(record.assumes for _, record in evidence_of(answer) if isinstance(record, Number)):
        yield "The assumptions of the statistical methods: they were checked against each other, and not proved."
    if "interrupted" in answer.provenance:
        yield "The run was interrupted, and this is what was known then."
    if "files" not in answer.provenance:
        yield "Which files this is about: the answer does not say so, and cannot be replayed."


def _witnesses(answer: Answer, source: Path, named: Path | None) -> tuple[list[Pictured], str]:
    """Violating inputs from their file, if it is the one that the answer speaks of, and a word about them."""
    told = _texts(answer.provenance.get("witnesses"))
    count = sum(len(one.witnesses) for one in (answer.decisions if isinstance(answer, Gate) else [answer]))
    said = f"{count:,} violating inputs were found and replayed" if count else "No violating input was found"
    name = told.get("name", "")
    places = [named] if named is not None else [Path(name), source.parent / name, source.parent / Path(name).name]
    file = next((place for place in places if name and is_file(place)), named)
    if file is None:
        return [], f"{said}." if not name else f"{said}; their file, {name}, is not here."
    if not is_file(file):
        raise FormatError(file, "there is no such file")
    if sha256(file) != told.get("sha256"):
        raise FormatError(file, "not the file of witnesses that the answer is about: its sha256 is another")
    return _pictured(file, answer), f"{said}; those in {file.name}, sha256 {told.get('sha256')}, were written with it."


def _pictured(file: Path, answer: Answer) -> list[Pictured]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            if "names" in stored:
                names = [str(name) for name in stored["names"]]
                wanted = [answer.name] if not isinstance(answer, Gate) else names
                sets = [(n, stored[f"inputs_{i}"], stored[f"scores_{i}"]) for i, n in enumerate(names) if n in wanted]
            else:
                inputs, scores = stored["inputs"], stored["scores"]
                sets = [("", inputs[i : i + 1], scores[i : i + 1]) for i in range(min(len(scores), _SHOWN))]
            found = [(name, WitnessSet(inputs, scores, None)) for name, inputs, scores in sets if len(scores)]
            drawn = ((name, one, shown(one)) for name, one in found[:_SHOWN])
            return [Pictured(name, f"{float(one.scores.max()):.4g}", seen) for name, one, seen in drawn if seen]
    except Exception as error:  # a file that was changed by hand may hold anything
        raise FormatError(file, f"not the witnesses of rarely ({one_line(error)})") from error


def _texts(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _list_of_text(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _list_of_dicts(value: Any) -> Sequence[dict[str, str]]:
    keys = ("role", "name", "sha256", "bytes")
    rows = value if isinstance(value, list) else []
    return [{key: str(row.get(key, "")) for key in keys} for row in rows if isinstance(row, dict)]
