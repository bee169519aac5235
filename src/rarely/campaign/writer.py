"""The store of a campaign, written: by one driver at a time, whole chunks at once."""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rarely.campaign.schema import FILE, TOTALS, Totals, checksum, migrate, put_about
from rarely.campaign.store import Header, Store
from rarely.campaign.tasks import Solved, Task
from rarely.campaign.trouble import explained
from rarely.core.errors import InputError, StoreError

_LOCK = "campaign.lock"
_NAMED = 5  # parts of a network that a refusal names
_REASON = 2000  # characters that are kept of why a problem failed: a network may raise with megabytes
_STATES = {"done": 1, "failed": 2}  # 0 waits


@dataclass(frozen=True)
class TaskResult:
    """What is known of one problem at last: its answer, or why it has none."""

    place: int
    attempts: int
    solved: Solved | None
    reason: str = ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for this process alone. The system takes the lock back however the process ends."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with explained(folder):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
                raise StoreError(
                    f"{folder} is in use by another run (process {owner}); wait for it, stop it, or choose another "
                    "--out"
                ) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


class Writer:
    """The writing end of a store, to be used inside `locked`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        with explained(self.path):
            self._connection = sqlite3.connect(self.path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A chunk takes seconds and this a few milliseconds: finished work survives a loss of power, too.
            self._connection.execute("PRAGMA synchronous = FULL")
            migrate(self._connection, self.path)
        self._totals = Totals()
        self._states = bytearray()  # of each problem, by place

    def begin(
        self, header: Header, fingerprint: Mapping[str, str], tasks: Iterable[Task], uncovered: Sequence[str] = ()
    ) -> None:
        """Write down what the campaign is, or check that a store begun earlier is whole and of the same one."""
        with explained(self.path):
            about = dict(self._connection.execute("SELECT key, value FROM about"))
            if about:
                _check_covered(self.path, about)
                self._go_on(fingerprint)
                return
            if self._connection.execute("SELECT count(*) FROM problems").fetchone()[0]:
                raise sqlite3.DatabaseError("malformed: there are problems, and no word about their campaign")
            with self._transaction():
                try:
                    self._connection.executemany(
                        "INSERT INTO problems VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(self._problem, tasks)
                    )
                except sqlite3.IntegrityError as error:
                    raise InputError("the plan asks for the same problem twice: two [[problems]] overlap") from error
                content = {"header": json.dumps(asdict(header)), "fingerprint": json.dumps(dict(fingerprint))}
                content["uncovered"] = json.dumps(list(uncovered))
                put_about(self._connection, [*content.items(), (TOTALS, self._totals.to_json())])
            self._states = bytearray(self._totals.problems)

    def _problem(self, t: Task) -> tuple[object, ...]:
        texts = map(_storable, (t.key, t.name, t.network, t.item, t.label, t.norm))
        row = (t.index, *texts, None if t.radius is None else float(t.radius), t.replicate)
        mark = checksum("problems", *row)
        self._totals.problem(mark)
        return (*row, mark)

    def _go_on(self, fingerprint: Mapping[str, str]) -> None:
        """A damaged store is refused: to go on from it would keep what is wrong, and to mend it would guess."""
        with Store.open(self.path) as store:
            old, self._totals = store.begun_with()
            _check_same(self.path, old, fingerprint)
            store.check()
            self._states = bytearray(self._totals.problems)
            for place, state in self._connection.execute("SELECT place, state FROM results"):
                self._states[place] = _STATES[state]

    def finished(self, tasks: Sequence[Task], *, failed_too: bool) -> bool:
        """Whether a chunk has its results; with `failed_too=False`, whether all of them are answers."""
        states = self._states[tasks[0].index : tasks[-1].index + 1]
        return 0 not in states and (failed_too or _STATES["failed"] not in states)

    def commit(self, results: Iterable[TaskResult]) -> None:
        """Write the results of one chunk, all or none."""
        with explained(self.path), self._transaction():
            for result in results:
                self._put(result)
            put_about(self._connection, [(TOTALS, self._totals.to_json())])

    def _put(self, result: TaskResult) -> None:
        found, place = result.solved, result.place
        if self._states[place]:
            query = "SELECT state, outcome, calls, checksum FROM results WHERE place = ?"
            state, outcome, calls, mark = self._connection.execute(query, (place,)).fetchone()
            self._totals.result(state, outcome, calls, mark, sign=-1)
            self._connection.execute("DELETE FROM witnesses WHERE place = ?", (place,))
        known: tuple[Any, ...] = (None, None, None, 0, None)
        witness = None
        if found is not None:
            known = (found.outcome, _real(found.log_prob), _real(found.log_prob_std), found.calls, found.estimate)
            if found.witnesses is not None:
                witness = checksum("witnesses", place, found.witnesses)
                self._connection.execute("INSERT INTO witnesses VALUES (?, ?, ?)", (place, found.witnesses, witness))
        state = "failed" if found is None else "done"
        row = (place, state, result.attempts, shortened(_storable(result.reason), _REASON), *known)
        mark = checksum("results", *row, witness)
        self._connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, mark))
        self._totals.result(state, known[0], known[3], mark)
        self._states[place] = _STATES[state]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it itself when the disk is full
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()


def put_aside(folder: Path) -> None:
    """Give an older store another name, so that a new one can begin; nothing that is done is ever thrown away."""
    path = folder / FILE
    if not path.exists():
        return
    with explained(path):
        with (
            suppress(sqlite3.DatabaseError, UnicodeDecodeError),
            closing(sqlite3.connect(path, isolation_level=None)) as connection,
        ):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        number = 1
        while (aside := folder / f"campaign-{number}.sqlite").exists():
            number += 1
        path.rename(aside)
        for ending in ("-wal", "-shm"):  # of a store so damaged that SQLite could not put its log away
            with suppress(FileNotFoundError):
                path.with_name(f"{path.name}{ending}").rename(f"{aside}{ending}")


def shortened(text: str, most: int) -> str:
    """A text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters in all)"


def _storable(text: str) -> str:
    """As SQLite can hold it: the name of a file need not be valid Unicode."""
    return text.encode(errors="replace").decode()


def _real(value: float) -> float | None:
    """As SQLite keeps it: it has no NaN."""
    return None if math.isnan(value) else float(value)


def _check_covered(path: Path, about: Mapping[str, object]) -> None:
    if "uncovered" not in about:
        raise StoreError(
            f"{path.parent} was written by an earlier rarely, which did not hash all that decides the numbers, so it "
            "cannot be gone on with; start a new one with --new, which keeps this one under another name"
        )


def _check_same(path: Path, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    keys = dict.fromkeys((*old, *new))
    differing: dict[str, list[str]] = {}  # parts of what differs, such as the files of a network
    for key in keys:
        if old.get(key) != new.get(key):
            whole = next((key[:i] for i in range(len(key)) if key.startswith(": ", i) and key[:i] in keys), key)
            differing.setdefault(whole, []).extend([key[len(whole) + 2 :]] if whole != key else [])
    changed = []
    for key, parts in differing.items():
        before, after = old.get(key), new.get(key)
        if before is None or after is None:
            changed.append(f"{key} was {'added' if before is None else 'removed'}")
        elif key.startswith(("network ", "problems[", "input_model ")):
            told = ", ".join(parts[:_NAMED]) + (f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else "")
            changed.append(f"{key} changed: {told}" if told else f"{key} changed")
        else:
            changed.append(f"{key} was {before} and is {after}")
    if changed:
        raise StoreError(
            f"{path.parent} holds a campaign with other settings: {'; '.join(changed)}. Put them back to go on, "
            "or start a new one with --new, which keeps the old store under another name"
        )
