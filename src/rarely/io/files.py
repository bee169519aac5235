"""Reading files, compressed or not, so that whatever is wrong with one is a `FormatError`; and writing whole ones."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rarely.core.errors import FormatError, InputError, RarelyError
from rarely.core.limits import MEMORY, TEXT, UNPACKED, Limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_PIECE = 1 << 20
_DRAFTS = itertools.count()
_FIGURES = (".svg", ".png", ".pdf")
_EXPANSION = 50  # text shrinks by 20 and weights by 2; what shrinks by more than this is nothing but a bomb


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """What the system has against a path or its content, as a sentence: also a name too long, or with a NUL in it."""
    try:
        yield
    except RarelyError:
        raise
    except MemoryError:
        raise FormatError(path, "there is not enough memory to read it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise FormatError(path, f"cannot be read: {reason}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to in the place of `path`, which then has it: an older file stays until the new one is whole.

    Devices and pipes, and files in folders that take no new ones, are written to as they are.
    """
    target = path.resolve()
    if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        yield path
        return
    # What the ending says holds for the draft, too.
    draft = target.with_name(f".rarely-{os.getpid()}-{next(_DRAFTS)}{target.suffix}")
    try:
        yield draft
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; what no file system could hold is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def read_bytes(path: str | Path, limit: Limit = MEMORY) -> bytes:
    """The content of `path`. Compression is told from it: `.gz` names get lost on the way."""
    with reading(path), Path(path).open("rb") as stream:
        refuse(path, limit.excess(Path(path).stat().st_size, "the file"))
        data = _bounded(stream, limit, path)  # a pipe or a device does not say how long it is
    if data.startswith(_LFS_POINTER):
        raise FormatError(path, "a pointer of Git LFS, not the file itself; fetch that with `git lfs pull`")
    return unpacked(data, path, limit)


def unpacked(data: bytes, source: str | Path, limit: Limit = MEMORY) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    packed = replace(UNPACKED, most=min(max(UNPACKED.most, _EXPANSION * len(data)), limit.most))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            return _bounded(stream, packed, source)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(source, f"damaged gzip file ({error})") from None


def _bounded(stream: Any, limit: Limit, source: str | Path) -> bytes:
    pieces, size = [], 0
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        refuse(source, limit.excess(size, "the content"))
    return b"".join(pieces)


def read_text(path: str | Path, limit: Limit = TEXT) -> str:
    data = read_bytes(path, limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, "not a text file (UTF-8)", data.count(b"\n", 0, error.start) + 1) from None


def read_json(path: str | Path) -> Any:
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise FormatError(path, "nested too deep") from None
    except ValueError as error:  # also for whole numbers with thousands of digits
        raise FormatError(path, f"not JSON: {one_line(error)}") from None


def is_zip(path: str | Path) -> bool:
    """Whether it ends as a zip file does; zipfile itself raises for an end that it does not support."""
    with reading(path):
        try:
            return zipfile.is_zipfile(path)
        except zipfile.BadZipFile:
            return False


def check_archive(path: str | Path, inner: IO[bytes] | None = None) -> None:
    """Refuse a zip file, or one inside of it, such as torch writes, that would unpack to more than memory may hold."""
    try:
        with zipfile.ZipFile(inner or path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise FormatError(path, f"not a zip archive that can be read ({one_line(error)})") from None
    refuse(path, MEMORY.excess(size, "its unpacked content"))


def refuse(source: str | Path, reason: str | None) -> None:
    """Raise what a limit has to say, if anything."""
    if reason is not None:
        raise FormatError(source, reason)


def one_line(error: BaseException, length: int = 300) -> str:
    """What an exception says, without line breaks."""
    return (" ".join(str(error).split()) or type(error).__name__)[:length]


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure; its kind is the ending of the name."""
    ending = Path(path).suffix.lower()
    if ending not in _FIGURES:
        raise InputError(f"{path}: a figure is written as {', '.join(_FIGURES)}")
    import matplotlib

    # Text stays text in an SVG, and the same figure gives the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rarely"}):
        figure.savefig(path, dpi=160, metadata={"Date": None} if ending == ".svg" else None)
