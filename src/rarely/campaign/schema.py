"""The tables of a store, and how older ones become newer ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rarely.core.errors import StoreError

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
