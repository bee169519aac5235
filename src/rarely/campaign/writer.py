"""The store of a campaign, written: by one driver at a time, whole chunks at once."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rarely.campaign.store import FILE, Header, explained, migrate
from rarely.campaign.tasks import Solved, Task
from rarely.core.errors import InputError, StoreError

_LOCK = "campaign.lock"


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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            raise StoreError(
                f"{folder} is in use by another run (process {owner}); wait for it, stop it, or choose another --out"
            ) from None
        with explained(folder):
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

    def begin(self, header: Header, fingerprint: Mapping[str, str], tasks: Iterable[Task]) -> None:
        """Write down what the campaign is, or check that a store begun earlier is of the same one."""
        with explained(self.path):
            about = dict(self._connection.execute("SELECT key, value FROM about"))
            if about:
                _check_same(self.path, json.loads(about["fingerprint"]), fingerprint)
                return
            with self._transaction():
                rows = (
                    (t.index, t.key, t.name, t.network, t.item, t.label, t.norm, t.radius, t.replicate) for t in tasks
                )
                try:
                    self._connection.executemany("INSERT INTO problems VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
                except sqlite3.IntegrityError as error:
                    raise InputError("the plan asks for the same problem twice: two [[problems]] overlap") from error
                content = {"header": json.dumps(asdict(header)), "fingerprint": json.dumps(dict(fingerprint))}
                self._connection.executemany("INSERT INTO about VALUES (?, ?)", content.items())

    def finished(self, tasks: Sequence[Task], *, failed_too: bool) -> bool:
        """Whether a chunk has its results; with `failed_too=False`, whether all of them are answers."""
        query = "SELECT count(*) FROM results WHERE place BETWEEN ? AND ?" + (
            "" if failed_too else " AND state = 'done'"
        )
        with explained(self.path):
            known: int = self._connection.execute(query, (tasks[0].index, tasks[-1].index)).fetchone()[0]
        return known == len(tasks)

    def commit(self, results: Iterable[TaskResult]) -> None:
        """Write the results of one chunk, all or none."""
        with explained(self.path), self._transaction():
            for result in results:
                found = result.solved
                known: tuple[object, ...] = (None, None, None, 0, None)
                if found is not None:
                    known = (found.outcome, found.log_prob, found.log_prob_std, found.calls, found.estimate)
                state = "failed" if found is None else "done"
                row = (result.place, state, result.attempts, result.reason, *known)
                self._connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                if found is not None and found.witnesses is not None:
                    self._connection.execute(
                        "INSERT OR REPLACE INTO witnesses VALUES (?, ?)", (result.place, found.witnesses)
                    )

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
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        number = 1
        while (aside := folder / f"campaign-{number}.sqlite").exists():
            number += 1
        path.rename(aside)


def _check_same(path: Path, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    changed = []
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if before is None or after is None:
            changed.append(f"{key} was {'added' if before is None else 'removed'}")
        elif before != after:
            hashed = key.startswith(("network ", "problems["))
            changed.append(f"{key} changed" if hashed else f"{key} was {before} and is {after}")
    if changed:
        raise StoreError(
            f"{path.parent} holds a campaign with other settings: {'; '.join(changed)}. Put them back to go on, "
            "or start a new one with --new, which keeps the old store under another name"
        )
