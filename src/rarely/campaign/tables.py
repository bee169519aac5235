"""A campaign as one flat table: CSV, JSON, Parquet, or a pandas frame."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rarely.campaign.store import Record, Store
from rarely.core import frames
from rarely.core.errors import InputError, MissingExtra
from rarely.questions.result import plain
from rarely.questions.showing import numbers

_TEXT = ("key", "name", "network", "item", "label", "norm", "state", "reason", "outcome")
_WHOLE = ("index", "replicate", "attempts", "evaluations", "gradients", "calls")
COLUMNS = (
    "index", "key", "name", "network", "item", "label", "norm", "radius", "replicate", "state", "attempts", "reason",
    "outcome", "log_prob", "log_prob_std", "low", "high", "upper_bound", "evaluations", "gradients", "calls", "seconds",
)  # fmt: skip
SUFFIXES = (".csv", ".json", ".parquet")
_ROWS_AT_ONCE = 5000
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # wide ones, too


def flat(record: Record) -> dict[str, Any]:
    """One row; what an estimate would say is None where there is none."""
    row = {name: getattr(record, name, None) for name in COLUMNS}
    return row if record.estimate is None else {**row, **numbers(record.estimate)}


def export_store(store: Store, file: str | Path) -> int:
    """Write every problem of a store; the suffix says how. Returns the number of rows. Memory stays flat."""
    path = Path(file)
    check_suffix(path)
    writers = {".csv": _write_csv, ".json": _write_json, ".parquet": _write_parquet}
    return writers[path.suffix.lower()](store, path)


def check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a table is written as {', '.join(SUFFIXES)}")


def frame(store: Store) -> Any:
    """Every problem of a store as a pandas frame."""
    return frames.frame([flat(record) for record in store.records()], COLUMNS)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """One line per row, whose number is returned; rows may come one at a time.

    A text that a spreadsheet would take for a formula begins with an apostrophe; numbers stay as they are.
    """
    count = 0
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _no_formula(value) for name, value in row.items()})
            count += 1
    return count


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.lstrip("'").startswith(_FORMULAS) else value


def from_csv(text: str) -> str:
    """A text as it was before `write_csv`."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULAS) else text


def _write_csv(store: Store, path: Path) -> int:
    return write_csv(path, COLUMNS, map(flat, store.records()))


def _write_json(store: Store, path: Path) -> int:
    """A list with one row a line."""
    count = 0
    with path.open("w", encoding="utf-8") as out:
        out.write("[")
        for count, record in enumerate(store.records(), 1):
            row = json.dumps(plain(flat(record)), ensure_ascii=False, allow_nan=False)
            out.write(("\n" if count == 1 else ",\n") + row)
        out.write("\n]\n")
    return count


def _write_parquet(store: Store, path: Path) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra(
            "Parquet needs pyarrow: pip install 'rarely[tables]'; .csv and .json need nothing"
        ) from error
    kinds = {
        **dict.fromkeys(COLUMNS, pyarrow.float64()),
        **dict.fromkeys(_TEXT, pyarrow.string()),
        **dict.fromkeys(_WHOLE, pyarrow.int64()),
    }
    schema, count = pyarrow.schema(list(kinds.items())), 0
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in _pieces(map(flat, store.records())):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _pieces(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while piece := list(islice(rows, _ROWS_AT_ONCE)):
        yield piece
