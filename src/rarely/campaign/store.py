"""The store of a campaign: what it holds, as tables and as plain data, and how it is read.

It may be read while the campaign runs, and by several readers.
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from rarely.core.errors import InputError, StoreError
from rarely.questions.result import Estimate

FILE = "campaign.sqlite"

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

# Step n brings a store from version n to n + 1. Steps are never changed once they are released, only added.
MIGRATIONS = [_FIRST]

_RECORDS = """
SELECT p.key, p.place, p.name, p.network, p.item, p.label, p.norm, p.radius, p.replicate,
       coalesce(r.state, 'waiting'), coalesce(r.attempts, 0), coalesce(r.reason, ''), r.estimate
FROM problems p LEFT JOIN results r USING (place)
"""

ProblemState = Literal["waiting", "done", "failed"]


@dataclass(frozen=True)
class Record:
    """One problem of a campaign and what is known of it."""

    key: str  # stable id, 16 hex digits: hash of all that defines the problem and its estimator settings
    index: int  # place in the plan
    name: str  # what a person calls it, e.g. "net.onnx mnist.npz[3] linf 0.05 #2"
    network: str  # as written in the plan
    item: str  # property file, or dataset item ("mnist.npz[3]")
    label: str  # class name where the plan names classes, else the label number, else ""
    norm: str  # "inf", "2", "1" or ""
    radius: float | None
    replicate: int
    state: ProblemState
    attempts: int
    reason: str  # why it failed, "" otherwise
    estimate: Estimate | None  # without the witnesses' values


@dataclass(frozen=True)
class WitnessSet:
    """Some inputs that violate the property of one problem."""

    inputs: np.ndarray[Any, Any]  # (n, *event), at most 8 kept per problem
    scores: np.ndarray[Any, Any]  # (n,)
    original: np.ndarray[Any, Any] | None  # (*event): the dataset item or the centre of the region


@dataclass(frozen=True)
class Header:
    """What the campaign is."""

    name: str
    plan: str  # the TOML text (normalised) that would reproduce it
    digest: str  # hash of plan + inputs
    seed: int
    created: str  # ISO time, UTC
    versions: dict[str, str]  # rarely, torch, python, platform
    command: str  # how to run it again


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

    def records(self, state: ProblemState | None = None) -> Iterator[Record]:
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

    def counts(self) -> dict[ProblemState, int]:
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


def migrate(connection: sqlite3.Connection, source: Path) -> None:
    """Bring a store to the newest version; one step is one transaction."""
    for step in range(version(connection, source), len(MIGRATIONS)):
        connection.execute("BEGIN IMMEDIATE")
        for statement in MIGRATIONS[step].split(";"):  # executescript would commit on its own
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {step + 1}")
        connection.execute("COMMIT")


def version(connection: sqlite3.Connection, source: Path) -> int:
    """The version of a store, which must not be newer than this code."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > len(MIGRATIONS):
        raise StoreError(
            f"{source} was written by a newer rarely (its schema is {found}, this version knows {len(MIGRATIONS)}); "
            "upgrade rarely to read it"
        )
    return found


def pack_witnesses(found: WitnessSet) -> bytes:
    buffer = io.BytesIO()
    arrays = {"inputs": found.inputs, "scores": found.scores}
    if found.original is not None:
        arrays["original"] = found.original
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack_witnesses(content: bytes) -> WitnessSet:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return WitnessSet(stored["inputs"], stored["scores"], stored.get("original"))


_CAUSES = {
    "disk is full|no space left": "the disk is full; make room and run the same command again, "
    "finished problems are kept",
    "read-?only": "it cannot be written: the folder or the file is read-only",
    "permission": "you have no permission to write there",
    "unable to open": "it cannot be opened; check that the folder exists and may be written",
    "malformed": "it is damaged",
    "not a database|no such table": "it is not a store of rarely",
    "locked": "another program holds it locked",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What SQLite and the file system complain of, in a sentence."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        cause = next(
            (text for sign, text in _CAUSES.items() if re.search(sign, str(error).lower())), "it cannot be used"
        )
        raise StoreError(f"{path}: {cause} ({error})") from error
