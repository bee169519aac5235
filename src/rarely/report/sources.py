"""Where records come from: a campaign, or the JSON that `rarely estimate` and `rarely robustness` write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rarely.campaign.records import Record
from rarely.campaign.schema import FILE
from rarely.core.errors import FormatError, InputError
from rarely.questions.result import Estimate


def read_records(sources: Iterable[Path]) -> Iterator[Record]:
    """The records of campaigns and result files, one source after the other."""
    for source in sources:
        is_store = source.is_dir() or source.suffix == Path(FILE).suffix
        yield from _campaign(source) if is_store else _results(source)


def _campaign(folder: Path) -> Iterator[Record]:
    from rarely.campaign.store import Store

    with Store.open(folder) as store:
        yield from store.records()


def _results(file: Path) -> Iterator[Record]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(file, f"not JSON: {error}") from error
    study = content if isinstance(content, dict) and "rows" in content else None
    found: Any = study["rows"] if study else content if isinstance(content, list) else [content]
    try:
        for index, entry in enumerate(found):
            yield _from_study(file, index, entry, study["norm"]) if study else _alone(file, index, entry)
    except (KeyError, TypeError) as error:
        raise FormatError(file, f"not a result of `rarely estimate` or `rarely robustness`: {error!r}") from error


def _alone(file: Path, index: int, data: Any) -> Record:
    estimate = Estimate.from_json(json.dumps(data), str(file))
    name = estimate.name or file.stem
    return Record(f"{index:016x}", index, name, "", name, "", "", None, 0, "done", 1, "", estimate)


def _from_study(file: Path, index: int, row: Any, norm: str) -> Record:
    """A row of `rarely robustness`: an image at a radius. It waits when it was misclassified or not reached."""
    data = row["estimate"]
    estimate = None if data is None else Estimate.from_json(json.dumps(data), str(file))
    image, radius = str(row["image"]), float(row["eps"])
    return Record(
        f"{index:016x}", index, f"{image} {radius:g}", file.stem, image, str(row["label"]), norm, radius, 0,
        "done" if estimate else "waiting", 1, "", estimate,
    )  # fmt: skip
