"""What travels from the driver to a worker and back: plain data, cheap to pickle, with files known by their hash.

A changed file is noticed by it, and never mixed with results of the old one.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rarely.core.errors import FormatError, InputError

NAMED_WITHIN = (".py", ".onnx", ".onnx.gz")
"""Files of which `file:name` is a part: an object of a module, an output of a network."""


@dataclass(frozen=True)
class File:
    """A file, a folder or `module:attribute`, and the hash of its content when the plan was read."""

    path: str
    digest: str


@dataclass(frozen=True)
class NetworkFile:
    file: File
    architecture: str | None = None
    trust_pickle: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ImagePlace:
    """One image of a dataset; without a label the network's own answer is the one to keep."""

    dataset: File
    row: int
    label: int | None
    clip: tuple[float, float] | None


@dataclass(frozen=True)
class PropertyPlace:
    """A .vnnlib file, or an .rlv file, which needs no network beside it."""

    file: File
    input_model: str | None


@dataclass(frozen=True)
class Task:
    """One problem of the plan: what a person calls it and where it comes from."""

    index: int
    key: str
    name: str
    network: str
    item: str
    label: str
    norm: str
    radius: float | None
    replicate: int
    network_file: NetworkFile | None
    place: ImagePlace | PropertyPlace


@dataclass(frozen=True)
class Method:
    """How problems are estimated."""

    estimator: dict[str, Any]  # the table [estimator] of the plan
    confidence: float
    calls: int | None
    device: str


@dataclass(frozen=True)
class Chunk:
    """Problems that run together. The plan alone decides which, so their numbers depend on nothing else."""

    number: int
    seed: int
    method: Method
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Solved:
    """The answer for one task, as the store keeps it."""

    estimate: str  # Estimate.to_json
    outcome: str
    log_prob: float
    log_prob_std: float
    calls: int
    witnesses: bytes | None  # .npz


@dataclass(frozen=True)
class ChunkAnswer:
    """What became of a chunk: one `Solved` per task, or the reason why there is none."""

    chunk: Chunk
    solved: tuple[Solved, ...] = ()
    failure: str = ""


def make_chunk(number: int, seed: int, method: Method, tasks: tuple[Task, ...]) -> Chunk:
    """A chunk whose seed follows from the plan's and from what is in it."""
    own = int(digest([str(seed), *(task.key for task in tasks)]), 16) >> 2  # below 2**63 for all batches of the chunk
    return Chunk(number, own, method, tasks)


def digest(parts: Iterable[str]) -> str:
    """16 hex digits, of what need not be in memory at once."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part.encode() + b"\0")
    return state.hexdigest()


def locate(text: str, folder: Path) -> File:
    """A path of the plan, relative to the plan's folder, or `module:attribute`, with its hash."""
    path = folder / text
    if path.exists():
        return File(str(path), fingerprint(str(path)))
    module, colon, attribute = text.rpartition(":")
    if not colon:
        raise FormatError(path, "there is no such file")
    if module.lower().endswith(NAMED_WITHIN):
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
    if module.lower().endswith(NAMED_WITHIN):
        return Path(module)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None
