"""Reading files, compressed or not, so that whatever is wrong with one is a `FormatError`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from rarely.core.errors import FormatError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_bytes(path: str | Path) -> bytes:
    """The content of `path`. Compression is told from it: `.gz` names get lost on the way."""
    try:
        data = Path(path).read_bytes()
        if data.startswith(_LFS_POINTER):
            raise FormatError(path, "a pointer of Git LFS, not the file itself; fetch that with `git lfs pull`")
        return unpacked(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(path, f"damaged gzip file ({error})") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FormatError(path, f"cannot be read: {reason}") from None


def unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def read_text(path: str | Path) -> str:
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, "not a text file (UTF-8)", data.count(b"\n", 0, error.start) + 1) from None


def one_line(error: Exception, length: int = 300) -> str:
    """What an exception says, without line breaks."""
    return (" ".join(str(error).split()) or type(error).__name__)[:length]
