"""A look at the pickles of a checkpoint before torch opens it.

Where torch refuses a name, it searches what it has to say with a regular expression that takes the square of its
length: a name of a few hundred kilobytes would take hours.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO

from rarely.core.errors import FormatError
from rarely.io.files import check_archive, is_zip, reading

_LONGEST = 2000  # characters of a name
_LEGACY = 5  # pickles at the start of a checkpoint that is no archive
_NAMING = ("GLOBAL", "INST")
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error)  # torch says it better


def check_names(path: Path) -> None:
    """Refuse a checkpoint, or an archive of them, with a name at which torch would never end."""
    with reading(path), path.open("rb") as stream:
        longest = _of_archive(path, stream) if is_zip(path) else _of_stream(stream, _LEGACY)
    if longest > _LONGEST:
        raise FormatError(path, f"damaged: its pickle has a name of {longest:,} characters")


def _of_archive(path: Path, stream: IO[bytes]) -> int:
    check_archive(path, stream)
    longest = 0
    with zipfile.ZipFile(stream) as archive, suppress(*_UNREADABLE):
        for name in archive.namelist():
            if name.endswith(".pkl"):
                longest = max(longest, _of_stream(io.BytesIO(archive.read(name)), 1))
            elif name.endswith(".pt"):  # weights within an exported program
                inner = io.BytesIO(archive.read(name))
                is_archive = zipfile.is_zipfile(inner)
                inner.seek(0)
                longest = max(longest, _of_archive(path, inner) if is_archive else _of_stream(inner, _LEGACY))
    return longest


def _of_stream(stream: IO[bytes], pickles: int) -> int:
    """The length of the longest name, up to where the pickles end or are none."""
    longest = 0
    try:
        for _ in range(pickles):
            for code, text, _ in pickletools.genops(stream):
                if code.name in _NAMING:
                    longest = max(longest, len(str(text)))
    except Exception:  # what is damaged raises anything, and torch will say so
        pass
    return longest
