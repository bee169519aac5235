"""The tables of a store, how an older one is brought up to date, and the checksums that show damage.

Every row carries the checksum of its columns, that of a result covers the checksum of its witnesses, and one row of
`about`, the totals, says how many rows there are and what their checksums come to: no row can be changed, swapped or
lost without a trace.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rarely.core.errors import StoreError

FILE = "campaign.sqlite"
TOTALS = "totals"  # its key in `about`

_FIRST = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE problems (
    place INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL, network TEXT NOT NULL, item TEXT NOT NULL,
    label TEXT NOT NULL, norm TEXT NOT NULL, radius REAL, replicate INTEGER NOT NULL
);
CREATE TABLE results (
    place INTEGER PRIMARY KEY REFERENCES problems (place), state TEXT NOT NULL, attempts INTEGER NOT NULL,
    reason TEXT NOT NULL, outcome TEXT, log_prob REAL, log_prob_std REAL, calls INTEGER NOT NULL, estimate TEXT
);
CREATE INDEX results_by_state ON results (state, outcome, calls);
CREATE TABLE witnesses (place INTEGER PRIMARY KEY REFERENCES results (place), content BLOB NOT NULL);
"""

_SUMS = 1 << 64


def checksum(table: str, *columns: object) -> bytes:
    """Of one row: of the kind, the length and the value of each column. Never to be changed: stores hold it."""
    parts = [table.encode()]
    for value in columns:
        data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else repr(value).encode()
        parts += [b"%s %d:" % (type(value).__name__.encode(), len(data)), data]
    return blake2b(b"".join(parts), digest_size=8).digest()


@dataclass
class Totals:
    """What all rows come to."""

    problems: int = 0
    sums: list[int] = field(default_factory=lambda: [0, 0])  # of the checksums of problems and of results
    tally: dict[tuple[str, str | None], list[int]] = field(default_factory=dict)  # (state, outcome): count, calls

    def problem(self, mark: bytes) -> None:
        self.problems += 1
        self.sums[0] = (self.sums[0] + int.from_bytes(mark)) % _SUMS

    def result(self, state: str, outcome: str | None, calls: int, mark: bytes, sign: int = 1) -> None:
        """One more result, or with sign -1 one less."""
        entry = self.tally.setdefault((state, outcome), [0, 0])
        entry[0] += sign
        entry[1] += sign * calls
        if entry == [0, 0]:
            del self.tally[state, outcome]
        self.sums[1] = (self.sums[1] + sign * int.from_bytes(mark)) % _SUMS

    def to_json(self) -> str:
        return json.dumps([self.problems, self.sums, [[*key, *entry] for key, entry in self.tally.items()]])

    @classmethod
    def from_json(cls, text: str) -> Totals:
        problems, sums, tally = json.loads(text)
        return cls(problems, sums, {(state, outcome): [count, calls] for state, outcome, count, calls in tally})


def put_about(connection: sqlite3.Connection, content: Iterable[tuple[str, str]]) -> None:
    """Write or replace rows of `about`."""
    rows = [(key, value, checksum("about", key, value)) for key, value in content]
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?, ?)", rows)


def _with_checksums(connection: sqlite3.Connection) -> None:
    """Rows of the first version get theirs. Damage from before can be seen only where SQLite sees it."""
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {found}")
    for table in ("about", "problems", "results", "witnesses"):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum BLOB NOT NULL DEFAULT x''")
    connection.execute("DROP INDEX results_by_state")  # the totals know what it was asked for
    about = connection.execute("SELECT key, value FROM about").fetchall()
    totals = Totals()
    for place, content in connection.execute("SELECT place, content FROM witnesses"):
        _mark(connection, "witnesses", place, checksum("witnesses", place, content))
    for *row, _ in connection.execute("SELECT * FROM problems"):
        totals.problem(mark := checksum("problems", *row))
        _mark(connection, "problems", row[0], mark)
    query = "SELECT r.*, w.checksum FROM results r LEFT JOIN witnesses w USING (place)"
    for *row, _, witness in connection.execute(query):
        totals.result(row[1], row[4], row[7], mark := checksum("results", *row, witness))
        _mark(connection, "results", row[0], mark)
    if about:
        put_about(connection, [*about, (TOTALS, totals.to_json())])


def _mark(connection: sqlite3.Connection, table: str, place: int, mark: bytes) -> None:
    connection.execute(f"UPDATE {table} SET checksum = ? WHERE place = ?", (mark, place))


# Step n brings a store from version n to n + 1. Steps are never changed once they are released, only added.
Step = str | Callable[[sqlite3.Connection], None]
MIGRATIONS: list[Step] = [_FIRST, _with_checksums]


def migrate(connection: sqlite3.Connection, source: Path) -> None:
    """Bring a store to the newest version; one step is one transaction."""
    for number in range(version(connection, source), len(MIGRATIONS)):
        step: Any = MIGRATIONS[number]
        connection.execute("BEGIN IMMEDIATE")
        if isinstance(step, str):
            for statement in step.split(";"):  # executescript would commit on its own
                connection.execute(statement)
        else:
            step(connection)
        connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")


def newest() -> int:
    return len(MIGRATIONS)


def version(connection: sqlite3.Connection, source: Path) -> int:
    """The version of a store, which must not be newer than this code."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not 0 <= found <= newest():
        raise StoreError(
            f"{source} was written by a newer rarely (its schema is {found}, this version knows {newest()}); "
            "upgrade rarely to read it"
        )
    return found
