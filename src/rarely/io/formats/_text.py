"""Reading a text file, compressed or not, so that whatever is wrong with it is a `FormatError`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from rarely.core.errors import FormatError


def read_text(path: str | Path) -> str:
    """The text of `path`. Compression is told from the content: `.gz` names get lost on the way."""
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, "not a text file (UTF-8)", data.count(b"\n", 0, error.start) + 1) from None
    except (OSError, EOFError, zlib.error, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FormatError(path, f"cannot be read: {reason}") from None
