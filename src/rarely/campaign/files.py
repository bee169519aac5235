"""Hashes of what a plan reads, so that a changed file is noticed and never mixed with results of the old one."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from rarely.campaign.tasks import File
from rarely.core.errors import FormatError, InputError


def locate(text: str, folder: Path) -> File:
    """A path of the plan, relative to the plan's folder, or `module:attribute`, with its hash."""
    path = folder / text
    if path.exists():
        return File(str(path), fingerprint(str(path)))
    module, colon, attribute = text.rpartition(":")
    if not colon:
        raise FormatError(path, "there is no such file")
    if module.endswith(".py"):
        text = f"{folder / module}:{attribute}"
    return File(text, fingerprint(text))


def fingerprint(path: str) -> str:
    """The hash of a file, of all files of a folder, or of the file behind `module:attribute` where it has one."""
    place = Path(path)
    seen = hashlib.sha256()
    try:
        if place.is_dir():
            for file in sorted(entry for entry in place.iterdir() if entry.is_file()):
                seen.update(file.name.encode() + b"\0" + _hash(file))
        else:
            seen.update(_hash(place if place.exists() else _source(path)))
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror})") from error
    return seen.hexdigest()[:32]


def unchanged(file: File) -> str:
    """The path of a file whose content is still that of the plan."""
    if fingerprint(file.path) != file.digest:
        raise InputError(
            f"{file.path} changed while the campaign was running; run it again with --new to start from the new file"
        )
    return file.path


def _hash(file: Path | None) -> bytes:
    if file is None:
        return b""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def _source(name: str) -> Path | None:
    """The file of a module; None for what is found only when it is imported."""
    module = name.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None
