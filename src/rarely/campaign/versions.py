"""What computes the numbers: this package itself, and what it computes with.

A release is known by its version. A checkout has another content each day under the same one, so sources are hashed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from rarely import __version__

_DECIDE = ("bounds", "campaign", "core", "inputs", "io", "kernels", "methods", "questions", "stats", "registry.py")
_BESIDE = ("torch", "numpy", "onnxruntime")


@cache
def versions() -> dict[str, str]:
    """Of this process, by name. Sources are read at the first call, which belongs near the start of a process."""
    own = f"{__version__} with the sources {sources_in(Path(__file__).parents[1])}"
    return {"rarely": own, **{name: _version(name) for name in _BESIDE}}


def sources_in(root: Path) -> str:
    """The hash of all sources of a package like this one that a number passes through."""
    found = hashlib.blake2b(digest_size=4)
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if name.parts[0] in _DECIDE:
            found.update(f"{name.as_posix()}\0".encode())
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
