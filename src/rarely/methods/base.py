"""What all estimators share: the protocol, progress, budgets and the making of an Estimate."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rarely.core.errors import InputError, NetworkError
from rarely.core.problem import Batch
from rarely.core.rng import Rng
from rarely.questions.result import Estimate, Interval, Outcome, Witnesses

MAX_WITNESSES = 1000


@dataclass(frozen=True)
class Progress:
    """Where a run stands, after a level or a chunk of samples. Tensors have one entry per problem of the batch."""

    stage: str
    level: Tensor  # (B,) current level; 0 when the violation is reached
    log_prob: Tensor  # (B,) running log-probability of exceeding that level
    active: int  # problems still running
    calls: int  # network calls so far, gradients counted as three


@dataclass(frozen=True)
class Budget:
    """Limits for one problem: network calls (a gradient counts as three) and seconds for the whole run."""

    max_evaluations: int | None = None
    timeout: float | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise InputError(f"max_evaluations must be at least 1, got {self.max_evaluations}")
        if self.timeout is not None and not self.timeout > 0:
            raise InputError(f"timeout must be positive, got {self.timeout}")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def late(self) -> bool:
        return self.timeout is not None and self.seconds > self.timeout

    @property
    def left_seconds(self) -> float:
        return math.inf if self.timeout is None else max(0.0, self.timeout - self.seconds)

    def left(self, spent: int) -> float:
        """Calls left to a problem that spent this many."""
        return math.inf if self.max_evaluations is None else self.max_evaluations - spent


Run = Generator[Progress, None, list[Estimate]]


class Estimator(Protocol):
    """Estimates the violation probability of every problem of a batch."""

    def run(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        """Yield progress; return one Estimate per row of the batch."""
        ...


def check_finite(scores: Tensor) -> None:
    if bool(torch.isnan(scores).any()):
        raise NetworkError(
            "the score became NaN during the run: the network overflows on inputs that the input model can draw; "
            "run in float64 or narrow the input model"
        )


def gather_witnesses(x: Tensor, scores: Tensor) -> Witnesses:
    """Violating inputs (n, *event) of one problem, the highest scores first, on the CPU."""
    hit = (scores >= 0).nonzero().squeeze(1)
    hit = hit[scores[hit].argsort(descending=True)][:MAX_WITNESSES]
    return Witnesses(x[hit].detach().cpu(), scores[hit].detach().cpu())


def join_witnesses(found: Sequence[Witnesses]) -> Witnesses:
    """The first `MAX_WITNESSES` of all."""
    inputs, scores = torch.cat([w.inputs for w in found]), torch.cat([w.scores for w in found])
    return Witnesses(inputs[:MAX_WITNESSES], scores[:MAX_WITNESSES])


def make_estimate(
    batch: Batch,
    row: int,
    budget: Budget,
    confidence: float,
    outcome: Outcome,
    log_prob: float,
    std: float,
    low: float,
    high: float,
    upper_bound: float,
    witnesses: Witnesses | None = None,
    levels: tuple[float, ...] = (),
    acceptance: tuple[float, ...] = (),
    notes: tuple[str, ...] = (),
) -> Estimate:
    problem = int(batch.rows[row])
    return Estimate(
        outcome=outcome,
        log_prob=log_prob,
        log_prob_std=std,
        interval=Interval(confidence, low, high),
        upper_bound=upper_bound,
        evaluations=int(batch.counter.evaluations[problem]),
        gradients=int(batch.counter.gradients[problem]),
        seconds=budget.seconds,
        levels=levels,
        acceptance=acceptance,
        witnesses=witnesses or Witnesses(torch.zeros(0), torch.zeros(0)),
        notes=notes,
    )
