"""What all methods share: the protocol, and progress."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.evidence import Evidence
from rarely.core.rng import Rng

_LONG = 30.0  # seconds from which people want to know
_MANY = (("billion", 1e9, 1), ("million", 1e6, 1), ("thousand", 1e3, 0))
_SMALL = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))


@dataclass(frozen=True)
class Progress:
    """Where a run stands, after a level or a chunk of samples. Tensors have one entry for each of some problems."""

    stage: str
    rows: Tensor  # (B,) which problems of the list
    level: Tensor  # (B,) current level; 0 when the violation is reached
    log_prob: Tensor  # (B,) running log-probability of exceeding that level
    active: int  # of them still running
    calls: int  # network calls of them so far, gradients counted as three
    settled: Mapping[int, list[Evidence]] = field(default_factory=dict)  # all that is learnt of rows that are finished
    forecast: str = ""  # what comes now will take, in words, where that is long


def progress(stage: str, batch: Batch, log_prob: Sequence[float], active: int, level: Tensor | None = None) -> Progress:
    """The progress of a batch; without levels a method speaks of the violation itself."""
    running = torch.tensor(log_prob, dtype=torch.float64).clamp_max(0.0)
    levels = torch.zeros(len(batch)) if level is None else level
    return Progress(stage, batch.rows, levels, running, active, int(batch.calls().sum()))


def forecast(calls: float, pace: float, supposing: str = "") -> str:
    """What so many calls will take at `pace` seconds a call, in words; nothing where that is short or not known."""
    seconds = calls * pace
    if not seconds >= _LONG:
        return ""
    number = next(
        (f"{calls / size:.{digits}f} {name}" for name, size, digits in _MANY if calls >= size), f"{calls:.0f}"
    )
    each = next((f"{pace * size:.3g} {unit}" for unit, size in _SMALL if pace * size >= 1), "a moment")
    whole = next(f"{seconds / size:.0f} {unit}" for unit, size in _UNITS if seconds >= 2 * size or size == 1)
    return f"about {number} calls{' ' * bool(supposing)}{supposing}, {whole} at {each} a call"


Run = Generator[Progress, None, list[list[Evidence]]]


class Estimator(Protocol):
    """Turns network calls into evidence about every problem of a batch."""

    @property
    def at_once(self) -> int:
        """Inputs of one problem that are alive at a time: batches are made to fit into memory by it."""
        ...

    def forecast(self, log_prob: float) -> float:
        """Network calls that it takes for an event of this probability, roughly."""
        ...

    def run(self, batch: Batch, rng: Rng) -> Run:
        """Yield progress; return the evidence for each row. Limits are in `batch.spend`, which raises `Exhausted`."""
        ...
