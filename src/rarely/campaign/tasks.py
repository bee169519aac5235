"""What travels from the driver to a worker and back: plain data, cheap to pickle, with files known by their hash.

A changed file is noticed by it, and never mixed with results of the old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def digest(parts: Iterable[str]) -> str:
    """16 hex digits, of what need not be in memory at once."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part.encode(errors="surrogateescape") + b"\0")
    return state.hexdigest()


@dataclass(frozen=True)
class File:
    """A file, a folder or `module:attribute`, and the hash of what it was made of when the plan was read."""

    path: str
    digest: str
    parts: tuple[tuple[str, str], ...] = ()  # names and hashes of what it pulls in, itself first; () if that is all


@dataclass(frozen=True)
class NetworkFile:
    """A network, and how it is loaded."""

    file: File
    architecture: File | None = None
    trust_pickle: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    state: str = ""  # hash of what a network made by Python holds; "" for one that its files describe

    @property
    def token(self) -> str:
        """Tells it from all others, by content and not by path."""
        made = self.architecture and self.architecture.digest
        return digest([self.file.digest, str(made), repr(self.mean), repr(self.std)])


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
    model: File | None = None  # what `input_model` is made of, where it is `module:attribute`
    state: str = ""  # hash of what that holds


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
    content: str = ""  # hash of what decides its numbers, without the names in `key`


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
    rehearsal: bool = False  # its problems are only built, to see whether they can be


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
    refused: bool = False  # the failure is an error of the user, and no accident


def make_chunk(number: int, seed: int, method: Method, tasks: tuple[Task, ...]) -> Chunk:
    """A chunk whose seed follows from the plan's and from what is in it, whatever that is called."""
    own = (
        int(digest([str(seed), *(task.content for task in tasks)]), 16) >> 2
    )  # below 2**63 for all batches of the chunk
    return Chunk(number, own, method, tasks)
