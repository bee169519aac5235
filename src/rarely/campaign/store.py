"""The store of a campaign, read. It may be read while the campaign runs, and by several readers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rarely.campaign.records import Header, Record, State, WitnessSet
from rarely.campaign.schema import FILE, MIGRATIONS, version
from rarely.campaign.work import unpack_witnesses
from rarely.core.errors import InputError, StoreError
from rarely.questions.result import Estimate

_RECORDS = """
SELECT p.key, p.place, p.name, p.network, p.item, p.label, p.norm, p.radius, p.replicate,
       coalesce(r.state, 'waiting'), coalesce(r.attempts, 0), coalesce(r.reason, ''), r.estimate
FROM problems p LEFT JOIN results r USING (place)
"""


class Store:
    """A read-only view of a campaign's folder."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self.path = connection, path
        with explained(path):
            self.header = _header(connection, path)

    @classmethod
    def open(cls, folder: Path | str) -> Store:
        """The store in a folder, or one of the older ones that `--new` put aside, by its file."""
        path = Path(folder)
        if path.is_dir():
            path = path / FILE
        if not path.is_file():
            raise StoreError(f"there is no campaign in {folder}: no file {FILE}; `rarely campaign run` makes one")
        with explained(path):
            return cls(_connect(path), path)

    def records(self, state: State | None = None) -> Iterator[Record]:
        """In the order of the plan, one at a time."""
        where = "" if state is None else "WHERE coalesce(r.state, 'waiting') = ?"
        with explained(self.path):
            rows = self._connection.execute(f"{_RECORDS} {where} ORDER BY p.place", () if state is None else (state,))
            for row in rows:
                yield self._record(row)

    def record(self, key: str) -> Record:
        with explained(self.path):
            row = self._connection.execute(f"{_RECORDS} WHERE p.key = ?", (key,)).fetchone()
        if row is None:
            raise InputError(f"{self.path} has no problem with the key {key!r}")
        return self._record(row)

    def _record(self, row: tuple[Any, ...]) -> Record:
        estimate = None if row[-1] is None else Estimate.from_json(row[-1], str(self.path))
        return Record(*(*row[:-1], estimate))

    def witnesses(self, key: str) -> WitnessSet | None:
        with explained(self.path):
            row = self._connection.execute(
                "SELECT content FROM witnesses JOIN problems USING (place) WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else unpack_witnesses(row[0])

    def counts(self) -> dict[State, int]:
        known: dict[str, int] = {}
        for state, _, count, _ in self._tally():
            known[state] = known.get(state, 0) + count
        with explained(self.path):
            total = self._connection.execute("SELECT count(*) FROM problems").fetchone()[0]
        done, failed = known.get("done", 0), known.get("failed", 0)
        return {"waiting": total - done - failed, "done": done, "failed": failed}

    def outcomes(self) -> dict[str, int]:
        """How often each outcome occurs among the problems that are done."""
        return {outcome: count for state, outcome, count, _ in self._tally() if state == "done"}

    def calls(self) -> int:
        """Network calls spent on what is done."""
        return sum(calls for *_, calls in self._tally())

    def _tally(self) -> list[tuple[str, str, int, int]]:
        query = "SELECT state, outcome, count(*), sum(calls) FROM results GROUP BY state, outcome"
        with explained(self.path):
            return list(self._connection.execute(query))

    def check(self) -> None:
        """Ask SQLite to read and check the whole file."""
        with explained(self.path):
            verdict = self._connection.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise StoreError(f"{self.path} is damaged: {verdict}")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _connect(path: Path) -> sqlite3.Connection:
    uri = path.resolve().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA user_version")
    except sqlite3.OperationalError:
        # A reader shares memory with the writer through a file beside the store, which a read-only folder refuses.
        # Without a log of unfinished changes nobody writes, and none is needed.
        if path.with_name(f"{path.name}-wal").exists():
            raise
        connection.close()
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
    return connection


def _header(connection: sqlite3.Connection, path: Path) -> Header:
    found = version(connection, path)
    if 0 < found < len(MIGRATIONS):
        raise StoreError(f"{path} was written by an older rarely; run its campaign once more to bring it up to date")
    about = dict(connection.execute("SELECT key, value FROM about")) if found else {}
    if "header" not in about:
        raise StoreError(f"the campaign in {path.parent} was stopped before it began; run it again")
    return Header(**json.loads(about["header"]))


_CAUSES = {
    "disk is full": "the disk is full; make room and run the same command again, finished problems are kept",
    "readonly": "it cannot be written: the folder or the file is read-only",
    "read-only": "it cannot be written: the folder or the file is read-only",
    "permission": "you have no permission to write there",
    "unable to open": "it cannot be opened; check that the folder exists and may be written",
    "malformed": "it is damaged",
    "not a database": "it is not a store of rarely",
    "no such table": "it is not a store of rarely",
    "locked": "another program holds it locked",
    "no space left": "the disk is full; make room and run the same command again, finished problems are kept",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What SQLite and the file system complain of, in a sentence."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        cause = next((text for sign, text in _CAUSES.items() if sign in str(error).lower()), "it cannot be used")
        raise StoreError(f"{path}: {cause} ({error})") from error
