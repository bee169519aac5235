"""What decides the numbers that come of a file or a Python object named in a plan, and its hash.

For a file that is every byte it pulls in; for a Python object its sources as far as they can be found (`sources.py`),
and what it holds once it is built (`built.py`). What is left is said in words: `uncovered`.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rarely.campaign.sources import sources_of
from rarely.campaign.tasks import File, digest
from rarely.core.errors import FormatError, InputError
from rarely.io.files import exists, read_bytes
from rarely.io.onnx.model import is_onnx, split_output

_KEPT = 50  # parts whose hashes are kept one by one, so that a change can be named
_SETTLED = 2 * 10**9  # nanoseconds after which a file with the same times has the same content


@dataclass(frozen=True)
class Content:
    """Something hashed now."""

    file: File
    uncovered: tuple[str, ...] = ()  # what is not in the hash and may decide, in words


def locate(text: str, folder: Path) -> Content:
    """The content of a path of the plan, relative to the plan's folder, or of `module:attribute`."""
    path = folder / text
    if exists(path):
        return content_of(str(path))
    module, colon, attribute = text.rpartition(":")
    if not colon:
        raise FormatError(path, "there is no such file")
    if module.lower().endswith(".py") or is_onnx(text):
        text = f"{folder / module}:{attribute}"
    return content_of(text)


def is_python(path: str) -> bool:
    """Whether a name is that of a Python object, and not of a file."""
    return ":" in path and not is_onnx(path) and not exists(path)


@dataclass(frozen=True)
class Pieces:
    """All that is behind a name, found without running any of it."""

    files: list[tuple[str, Path]]  # by what they are called, itself first
    versions: list[tuple[str, str]]  # of distributions that it imports
    uncovered: list[str]  # what was not found, in words


def pieces(path: str) -> Pieces:
    """The files behind the name of a file, a folder or a Python object."""
    place = Path(split_output(path)[0])
    if place.is_dir():
        # Pictures are looked for in the folder itself, not below it.
        return Pieces([(file.name, file) for file in sorted(place.iterdir()) if file.is_file()], [], [])
    if is_python(path):
        sources = sources_of(path.rpartition(":")[0])
        files = list(sources.files.items())
        return Pieces(files[:1] + sorted(files[1:]), sorted(sources.versions.items()), sources.uncovered)
    inside = is_onnx(path) and place.is_file()  # a pipe would be waited for
    others = [(other, place.resolve().parent / other) for other in _external(place)] if inside else []
    return Pieces([(place.name, place), *others], [], [])


def content_of(path: str) -> Content:
    """Hash what is behind a name."""
    name, attribute = split_output(path)
    try:
        behind = pieces(path)
        parts = [(part, sha256(file)[:32]) for part, file in behind.files] + behind.versions
    except OSError as error:
        raise FormatError(name, f"cannot be read ({error.strerror})") from error
    if is_python(path):
        attribute = path.rpartition(":")[2]
    place, uncovered = Path(name), behind.uncovered
    if attribute:
        parts[:1] = [(part, f"{hashed}:{attribute}") for part, hashed in parts[:1]]
    # Places are not in it, nor the name of the file itself: a plan that is moved asks for the same numbers.
    whole = hashlib.sha256()
    for i, (part, hashed) in enumerate(parts):
        whole.update(f"{part if i or place.is_dir() else ''}\0{hashed}\0".encode(errors="surrogateescape"))
    kept = tuple(few(parts)) if len(parts) > 1 else ()
    return Content(File(path, whole.hexdigest()[:32], kept), tuple(dict.fromkeys(uncovered)))


def unchanged(file: File) -> str:
    """The path of a file whose content is still that of the plan."""
    now = content_of(file.path).file
    if now.digest != file.digest:
        raise InputError(
            f"{file.path} changed while the campaign was running{_which(file, now)}; run it again with --new to start "
            "from the new file"
        )
    return file.path


_imported: dict[str, str] = {}  # hashes of the sources that this process imported, by module


def import_afresh(file: File) -> None:
    """Have Python forget older versions of the sources behind an object: workers of a cluster live long."""
    if not is_python(file.path):
        return
    now = {name: sha256(source) for name, source in sources_of(file.path.rpartition(":")[0]).files.items()}
    if any(_imported.get(name, hashed) != hashed for name, hashed in now.items()):
        for name in now:
            sys.modules.pop(name.removesuffix(".py"), None)
        importlib.invalidate_caches()
    _imported.update(now)


def _which(before: File, now: File) -> str:
    """The parts that differ."""
    old, new = dict(before.parts), dict(now.parts)
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return f" ({', '.join(names[:3])}{' and more' if len(names) > 3 else ''})" if names else ""


def few(parts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Some parts by name, and the others together."""
    yield from parts[:_KEPT]
    if rest := parts[_KEPT:]:
        yield f"{len(rest)} more", digest(f"{name}={hashed}" for name, hashed in rest)


_hashes: dict[tuple[str, int, int, int, int], str] = {}


def sha256(file: Path) -> str:
    """Of a file's bytes; once for each state of it, since every chunk asks."""
    if not file.is_file():
        file.stat()  # says what is wrong, as a rule
        raise FormatError(file, "is no regular file")
    known = file.stat()
    key = (str(file), known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns)
    if key not in _hashes:
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if time.time_ns() - max(known.st_mtime_ns, known.st_ctime_ns) < _SETTLED:
            return found  # another change may come within one tick of the file system's clock
        _hashes[key] = found
    return _hashes[key]


def _external(file: Path) -> list[str]:
    """Data files that an ONNX file names, in its own words; their content is not read."""
    data = read_bytes(file)
    if b"location" not in data:
        return []
    import onnx

    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # loading it will say so
        return []
    places = sorted(set(_locations(model)))
    folder = file.resolve().parent
    for place in places:
        if not (folder / place).resolve().is_relative_to(folder):
            raise FormatError(file, f"its weights are in {place}, outside its own folder, which is refused")
        if not (folder / place).exists():
            raise FormatError(file, f"its weights are in {place}, which is not there; put it beside the file")
    return places


def _locations(message: Any) -> Iterator[str]:
    """Of every stored tensor, wherever it stands: initializers, constants, subgraphs, functions, sparse ones."""
    if message.DESCRIPTOR.name == "TensorProto":
        if message.data_location == message.EXTERNAL:
            yield from (entry.value for entry in message.external_data if entry.key == "location")
        return
    for kind, value in message.ListFields():
        if kind.message_type is not None:
            for one in value if isinstance(value, Sequence) or hasattr(value, "add") else (value,):
                yield from _locations(one)
