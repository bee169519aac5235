"""The store: what is written is read back, and what goes wrong is told without harm."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_helpers import Inline, content

from rarely import Campaign
from rarely.campaign.schema import FILE, MIGRATIONS
from rarely.campaign.store import Store
from rarely.campaign.writer import Writer, locked
from rarely.core.errors import InputError, StoreError


@pytest.fixture
def folder(plan: dict[str, Any], tmp_path: Path) -> Path:
    Campaign(plan).run(tmp_path / "out", engine=Inline()).close()
    return tmp_path / "out"


def test_records_header_and_witnesses(folder: Path, plan: dict[str, Any], tmp_path: Path) -> None:
    with Store.open(folder) as store:
        assert store.counts() == {"waiting": 0, "done": 60, "failed": 0}
        assert sum(store.outcomes().values()) == 60
        records = list(store.records())
        assert [record.index for record in records] == list(range(60))
        assert store.calls() == sum(record.estimate.calls for record in records)
        one = records[31]
        assert repr(store.record(one.key)) == repr(one)
        assert (one.network, one.item, one.norm, one.radius, one.replicate) == ("net", "data.npz[5]", "inf", 0.1, 1)
        violated = next(r for r in records if r.estimate and r.estimate.outcome.value == "violated")
        kept = store.witnesses(violated.key)
        assert kept is not None
        assert 1 <= len(kept.inputs) == len(kept.scores) <= 8
        assert (kept.scores >= 0).all()
        with np.load(tmp_path / "data.npz") as data:
            original = data["images"][int(violated.item[9:-1])]
        np.testing.assert_array_equal(kept.original, original)
        assert (np.abs(kept.inputs - original) <= violated.radius + 1e-6).all()
        assert list(store.records("failed")) == list(store.records("waiting")) == []
        with pytest.raises(InputError, match="no problem with the key 'xyz'"):
            store.record("xyz")
        header = store.header
    assert (header.name, header.seed, len(header.digest)) == ("small", 1, 16)
    assert {"rarely", "torch", "python", "platform"} <= set(header.versions)
    assert "--out" in header.command


def test_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no campaign in"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"this is not a database at all, not even a small one" * 100)
    with pytest.raises(StoreError, match="not a store of rarely"):
        Store.open(tmp_path)
    (tmp_path / FILE).unlink()
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("CREATE TABLE x (y)")
    with pytest.raises(StoreError, match="was stopped before it began"):
        Store.open(tmp_path)


def test_a_newer_store_is_not_touched(folder: Path, plan: dict[str, Any]) -> None:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer rarely"):
        Store.open(folder)
    with pytest.raises(StoreError, match="newer rarely"):
        Campaign(plan).run(folder, engine=Inline())


def test_an_older_store_is_brought_up_to_date(
    folder: Path, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(folder)
    monkeypatch.setattr(
        "rarely.campaign.schema.MIGRATIONS", [*MIGRATIONS, "ALTER TABLE problems ADD COLUMN extra TEXT"]
    )
    with pytest.raises(StoreError, match="written by an older rarely"):
        Store.open(folder)
    Campaign(plan).run(folder, engine=Inline()).close()
    assert content(folder) == before
    with closing(sqlite3.connect(folder / FILE)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert connection.execute("SELECT count(extra) FROM problems").fetchone() == (0,)


def test_the_second_driver_is_refused(folder: Path, plan: dict[str, Any]) -> None:
    with locked(folder), pytest.raises(StoreError, match=rf"in use by another run \(process {os.getpid()}\)"):
        Campaign(plan).run(folder, engine=Inline())
    Campaign(plan).run(folder, engine=Inline()).close()


def test_a_file_system_without_locks(folder: Path, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(StoreError, match="the file system does not lock files; choose an --out on another one"):
        Campaign(plan).run(folder, engine=Inline())


def test_a_killed_run_in_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{FILE}-wal").touch()

    class Refuses:
        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("sqlite3.connect", lambda *_, **__: Refuses())
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(StoreError, match="copy the whole folder to where it may"):
        Store.open(folder)


def test_a_full_disk_is_told_and_loses_nothing(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    Campaign(plan).run(whole, engine=Inline()).close()
    begin = Writer.begin

    def small_disk(self: Writer, *arguments: Any) -> None:
        begin(self, *arguments)
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        self._connection.execute(f"PRAGMA max_page_count = {pages + 12}")

    monkeypatch.setattr(Writer, "begin", small_disk)
    engine = Inline()
    with pytest.raises(StoreError, match="the disk is full; make room and run the same command again"):
        Campaign(plan).run(out, engine=engine)
    assert engine.closed
    with Store.open(out) as store:
        store.check()
        kept = store.counts()
    assert 0 < kept["done"] < 60
    monkeypatch.setattr(Writer, "begin", begin)
    engine = Inline()
    Campaign(plan).run(out, engine=engine).close()
    assert sum(len(chunk.tasks) for chunk in engine.ran) == kept["waiting"]
    assert content(out) == content(whole)


def test_a_folder_that_cannot_be_made(plan: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Campaign(plan).run(tmp_path / "file" / "out", engine=Inline())


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_store_gives_what_was_written_or_an_error(folder: Path, seed: int) -> None:
    """Flipped bytes, zeros, swapped pages and lost ends: never another content, never another exception."""
    before, whole, rng = content(folder), (folder / FILE).read_bytes(), random.Random(seed)
    told = 0
    for _ in range(25):
        data, kind = bytearray(whole), rng.randrange(4)
        at = rng.randrange(200 if rng.random() < 0.2 else len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        elif kind == 2:
            del data[at:]
        else:
            one, two = (4096 * rng.randrange(len(data) // 4096) for _ in range(2))
            data[one : one + 4096], data[two : two + 4096] = data[two : two + 4096], data[one : one + 4096]
        (folder / FILE).write_bytes(data)
        try:
            with Store.open(folder) as store:
                assert store.counts() == {"waiting": 0, "done": 60, "failed": 0}
                assert [record.index for record in store.records()] == list(range(60))
            assert content(folder) == before
        except StoreError:
            told += 1
    assert told > 8


def test_a_store_of_which_sqlite_quotes_what_is_no_text(folder: Path, plan: dict[str, Any]) -> None:
    whole = (folder / FILE).read_bytes()
    damaged = whole.replace(b"CREATE TABLE about", b"CREATE \x80ABLE about", 1)
    assert damaged != whole
    (folder / FILE).write_bytes(damaged)
    for ask in (Store.open, lambda place: Campaign(plan).run(place, engine=Inline())):
        with pytest.raises(StoreError, match="it is damaged; restore a copy"):
            ask(folder)
    Campaign(plan).run(folder, engine=Inline(), new=True).close()


def test_a_lost_result_is_noticed(folder: Path, plan: dict[str, Any]) -> None:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        key = connection.execute("SELECT key FROM problems WHERE place = 7").fetchone()[0]
        connection.execute("DELETE FROM results WHERE place = 7")
        connection.commit()
    with Store.open(folder) as store:
        for read in (lambda: list(store.records()), lambda: store.record(key), lambda: store.witnesses(key)):
            with pytest.raises(StoreError, match="are missing; restore a copy"):
                read()
    with pytest.raises(StoreError, match="is damaged"):
        Campaign(plan).run(folder, engine=Inline())
    Campaign(plan).run(folder, engine=Inline(), new=True).close()


def test_a_long_reason_is_cut(plan: dict[str, Any], tmp_path: Path) -> None:
    with Campaign(plan).run(tmp_path / "out", engine=Inline(lambda chunk: "x" * 5_000_000)) as store:
        reason = next(store.records("failed")).reason
    assert reason.endswith("... (5,000,000 characters in all)")
    assert len(reason) < 2100
