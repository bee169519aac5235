"""The store of a campaign: what it holds as plain data, and how it is read.

It may be read while the campaign runs, and by several readers. Whatever is read is checked: a damaged store gives what
was written or a `StoreError`, never anything else.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from rarely.campaign.schema import FILE, TOTALS, Totals, checksum, newest, version
from rarely.campaign.trouble import WHAT_TO_DO, explained, readable
from rarely.campaign.witnesses import WitnessSet, unpack_witnesses
from rarely.core.errors import InputError, StoreError
from rarely.questions.result import Estimate

_PROBLEM, _RESULT = 9, 9  # columns of the two tables, without their checksums
_ROWS = """
SELECT p.place, p.key, p.name, p.network, p.item, p.label, p.norm, p.radius, p.replicate, p.checksum,
       r.place, r.state, r.attempts, r.reason, r.outcome, r.log_prob, r.log_prob_std, r.calls, r.estimate, r.checksum,
       w.checksum
FROM problems p LEFT JOIN results r USING (place) LEFT JOIN witnesses w USING (place)
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
        self._whole = ""  # the totals that the rows were last seen to agree with
        with explained(path):
            self.header = self._header()

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

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What may decide the numbers and is not in the fingerprint, in words."""
        with explained(self.path):
            known = self._connection.execute("SELECT count(*) FROM about WHERE key = 'uncovered'").fetchone()[0]
        if not known:
            return ("whatever the files named in the plan pull in: an earlier rarely hashed only these files",)
        text = self._about("uncovered")
        with readable(self.path, "what the fingerprint does not cover"):
            return tuple(json.loads(text))

    def records(self, state: ProblemState | None = None) -> Iterator[Record]:
        """In the order of the plan, one at a time."""
        for row in self.rows(state):
            yield self._record(row)

    def record(self, key: str) -> Record:
        return self._record(self._row(key))

    def at(self, place: int) -> Record:
        """The record at a place of the plan."""
        with explained(self.path):
            row = self._connection.execute(f"{_ROWS} WHERE p.place = ?", (place,)).fetchone()
        if row is None:
            self._lost()
        self._check_row(row)
        return self._record(row)

    def rows(self, state: ProblemState | None = None) -> Iterator[tuple[Any, ...]]:
        """The rows behind `records`, checked. At their end it is known that none is missing."""
        where, given = ("", ()) if state is None else ("WHERE coalesce(r.state, 'waiting') = ?", (state,))
        with explained(self.path):
            rows = self._connection.execute(f"{_ROWS} {where} ORDER BY p.place", given)
            wanted, text = self._totals()  # as of the moment that the rows are of: the statement is under way
            seen = Totals()
            for row in rows:
                self._check_row(row)
                seen.problem(row[_PROBLEM])
                if row[_PROBLEM + 1] is not None:
                    _, found, _, _, outcome, _, _, calls, _, mark = row[_PROBLEM + 1 : -1]
                    seen.result(found, outcome, calls, mark)
                yield row
            if state is None:
                if seen != wanted or self._connection.execute(_STRAYS).fetchone()[0]:
                    self._lost()
                self._whole = text
            elif seen.problems != _counts(wanted)[state]:
                self._lost()

    def _check_row(self, row: tuple[Any, ...]) -> None:
        problem, mark, result, witness = row[:_PROBLEM], row[_PROBLEM], row[_PROBLEM + 1 : -1], row[-1]
        if checksum("problems", *problem) != mark:
            self._damaged(f"the problem at place {row[0]}")
        if result[0] is None:
            return
        if checksum("results", *result[:_RESULT], witness) != result[_RESULT]:
            self._damaged(f"the result of {problem[2]!r:.200}")

    def _row(self, key: str) -> tuple[Any, ...]:
        with explained(self.path):
            for column in ("p.key", "+p.key"):  # with the index, and without it
                row: Any = self._connection.execute(f"{_ROWS} WHERE {column} = ?", (key,)).fetchone()
                if row is not None:
                    break
            else:
                self._check_whole()
                raise InputError(f"{self.path} has no problem with the key {key!r}")
            self._check_row(row)
            if row[1] != key:
                self._damaged("the index of its problems")
            if row[_PROBLEM + 1] is None:  # a problem that waits, or one whose result was lost
                self._check_whole()
        return tuple(row)

    def _record(self, row: tuple[Any, ...]) -> Record:
        key, place = row[1], row[0]
        _, state, attempts, reason, *_, estimate, _ = row[_PROBLEM + 1 : -1]
        known = (state or "waiting", attempts or 0, reason or "")
        with readable(self.path, f"the result of {row[2]!r:.200}"):
            found = None if estimate is None else Estimate.from_json(estimate, str(self.path))
            return Record(*(key, place, *row[2:_PROBLEM], *known, found))

    def witnesses(self, key: str) -> WitnessSet | None:
        row = self._row(key)
        if row[-1] is None:
            return None
        with explained(self.path):
            found = self._connection.execute(
                "SELECT place, content, checksum FROM witnesses WHERE place = ?", (row[0],)
            ).fetchone()
        what = f"the witnesses of {row[2]!r:.200}"
        if found is None or found[-1] != row[-1] or checksum("witnesses", *found[:-1]) != row[-1]:
            self._damaged(what)
        with readable(self.path, what):
            return unpack_witnesses(found[1])

    def counts(self) -> dict[ProblemState, int]:
        return _counts(self._totals()[0])

    def outcomes(self) -> dict[str, int]:
        """How often each outcome occurs among the problems that are done."""
        tally = self._totals()[0].tally
        return {str(outcome): count for (state, outcome), (count, _) in sorted(tally.items()) if state == "done"}

    def calls(self) -> int:
        """Network calls spent on what is done."""
        return sum(calls for _, calls in self._totals()[0].tally.values())

    def begun_with(self) -> tuple[dict[str, str], Totals]:
        """What the campaign was begun with, to be compared with what is asked for now; and the totals."""
        text = self._about("fingerprint")
        with readable(self.path, "its fingerprint"):
            return dict(json.loads(text)), self._totals()[0]

    def check(self) -> None:
        """Read and check the whole file."""
        with explained(self.path):
            verdict = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                self._damaged(f"the file ({verdict})")
            for _ in self.rows():
                pass
            for *row, mark in self._connection.execute("SELECT place, content, checksum FROM witnesses"):
                if checksum("witnesses", *row) != mark:
                    self._damaged(f"the witnesses at place {row[0]}")

    def _check_whole(self) -> None:
        if self._totals()[1] != self._whole:
            for _ in self.rows():
                pass

    def _about(self, key: str) -> str:
        with explained(self.path):
            row = self._connection.execute("SELECT key, value, checksum FROM about WHERE key = ?", (key,)).fetchone()
        if row is None or row[0] != key or checksum("about", *row[:-1]) != row[-1]:
            self._damaged(f"what it says about the campaign ({key})")
        return str(row[1])

    def _totals(self) -> tuple[Totals, str]:
        text = self._about(TOTALS)
        with readable(self.path, "the totals"):
            return Totals.from_json(text), text

    def _header(self) -> Header:
        found = version(self._connection, self.path)
        if 0 < found < newest():
            raise StoreError(
                f"{self.path} was written by an older rarely; run its campaign once more to bring it up to date"
            )
        if not found or not self._connection.execute("SELECT count(*) FROM about").fetchone()[0]:
            raise StoreError(f"the campaign in {self.path.parent} was stopped before it began; run it again")
        text = self._about("header")
        with readable(self.path, "its header"):
            return Header(**json.loads(text))

    def _damaged(self, what: str) -> NoReturn:
        raise StoreError(f"{self.path} is damaged: {what} is not what was written; {WHAT_TO_DO}")

    def _lost(self) -> NoReturn:
        raise StoreError(f"{self.path} is damaged: some of its problems or results are missing; {WHAT_TO_DO}")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


# Results and witnesses that belong to nothing: no join of the problems would meet them.
_STRAYS = """
SELECT (SELECT count(*) FROM results r LEFT JOIN problems p USING (place) WHERE p.place IS NULL)
     + (SELECT count(*) FROM witnesses w LEFT JOIN results r USING (place) WHERE r.place IS NULL)
"""


def _counts(totals: Totals) -> dict[ProblemState, int]:
    known = {"done": 0, "failed": 0}
    for (state, _), (count, _) in totals.tally.items():
        known[state] = known.get(state, 0) + count
    return {"waiting": totals.problems - sum(known.values()), "done": known["done"], "failed": known["failed"]}


def _connect(path: Path) -> sqlite3.Connection:
    uri = path.resolve().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, isolation_level=None)
    try:
        # A schema from elsewhere can do nothing, and SQLite looks twice at what it reads.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA user_version")
    except sqlite3.OperationalError:
        # A reader shares memory with the writer through a file beside the store, which a read-only folder refuses.
        # Without a log of unfinished changes nobody writes, and none is needed.
        if path.with_name(f"{path.name}-wal").exists():
            if os.access(path.parent, os.W_OK):
                raise
            raise StoreError(
                f"{path} was left in the middle of a run, and its folder is read-only: SQLite has to write there to "
                "read it; copy the whole folder to where it may"
            ) from None
        connection.close()
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
    return connection
