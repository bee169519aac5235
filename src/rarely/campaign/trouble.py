"""What goes wrong with a store, in sentences."""

from __future__ import annotations

import re
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rarely.core.errors import RarelyError, StoreError

WHAT_TO_DO = "restore a copy of it, or start again with --new, which keeps this one under another name"
_UNREADABLE = (
    ArithmeticError, AttributeError, EOFError, LookupError, NotImplementedError, OSError, RecursionError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_CAUSES = {
    "disk is full|no space left": "the disk is full; make room and run the same command again, "
    "finished problems are kept",
    "read-?only": "it cannot be written: the folder or the file is read-only",
    "permission": "you have no permission to write there",
    "unable to open": "it cannot be opened; check that the folder exists and may be written",
    "malformed|decode|no such column|too big|corrupt|duplicate column": f"it is damaged; {WHAT_TO_DO}",
    "not a database|no such table": "it is not a store of rarely",
    "no locks|not supported|not implemented": "the file system does not lock files; choose an --out on another one",
    "locked": "another program holds it locked",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What SQLite and the file system complain of, in a sentence."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last where SQLite quotes what is damaged
        cause = next(
            (text for sign, text in _CAUSES.items() if re.search(sign, str(error).lower())), "it cannot be used"
        )
        raise StoreError(f"{path}: {cause} ({error})") from error


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Whatever reading some content of a store raises, as a sentence."""
    try:
        yield
    except RarelyError:
        raise
    except (*_UNREADABLE, MemoryError) as error:
        raise StoreError(f"{path} is damaged: {what} cannot be read ({error!r:.200}); {WHAT_TO_DO}") from error
