"""Which files the patterns of a plan mean, and what they are called."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from rarely.core.errors import FormatError


def matching(patterns: Sequence[str], folder: Path) -> list[Path]:
    """Files that patterns mean, relative to a folder: in the order of the patterns, and of names within each."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches, seen = list[str](), set[Path]()
        for match in glob.iglob(pattern, root_dir=folder, recursive=True):
            matches.append(match)
            if "**" in pattern and (place := (folder / match).parent) not in seen:
                _check_way(place)
                seen.add(place)
        if not matches:
            raise FormatError(folder / pattern, "there is no such file")
        found.update((folder / match, None) for match in sorted(matches))
    return list(found)


def _check_way(place: Path) -> None:
    """Refuse a folder whose way goes in a circle: the same files would come again and again, for ever with two."""
    for link in (place, *place.parents):
        if link.is_symlink() and link.resolve() in (parent.resolve() for parent in link.parents):
            raise FormatError(link, "is a link to a folder that it lies in, which ** would follow without end")


def short_names(files: Sequence[Path]) -> list[str]:
    """Files by their name, or where names repeat by their path below the folder that all are in.

    Not by the whole path: the same files elsewhere are the same problems.
    """
    names = [file.name for file in files]
    if len(set(names)) == len(names):
        return names
    whole = [os.path.abspath(file) for file in files]
    shared = os.path.commonpath([os.path.dirname(file) for file in whole])
    return [Path(os.path.relpath(file, shared)).as_posix() for file in whole]
