"""What travels from the driver to a worker and back: plain data, cheap to pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
class Answer:
    """What became of a chunk: one `Solved` per task, or the reason why there is none."""

    chunk: Chunk
    solved: tuple[Solved, ...] = ()
    failure: str = ""
