"""Plain Monte Carlo: the exact method for events that are not rare."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rarely.core.errors import InputError
from rarely.core.problem import Batch
from rarely.core.rng import Rng
from rarely.methods.base import (
    MAX_WITNESSES,
    Budget,
    Progress,
    Run,
    check_finite,
    gather_witnesses,
    join_witnesses,
    make_estimate,
)
from rarely.questions.result import Estimate, Outcome, Witnesses
from rarely.stats.intervals import clopper_pearson, log_upper_bound


@dataclass(frozen=True)
class MonteCarlo:
    """Count violations among independent inputs, in chunks, with an exact (Clopper-Pearson) interval.

    Stops for a problem at `samples`, at `hits` violations, or when the relative standard error reaches `target_error`.
    """

    samples: int = 1_000_000
    hits: int | None = None
    target_error: float | None = None
    chunk: int = 10_000

    def __post_init__(self) -> None:
        if self.samples < 1 or self.chunk < 1:
            raise InputError("MonteCarlo needs samples and chunk of at least 1")
        if self.hits is not None and self.hits < 1:
            raise InputError(f"hits must be at least 1, got {self.hits}")
        if self.target_error is not None and not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")

    def run(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        b = len(batch)
        hits, trials = [0] * b, [0] * b
        found: list[Witnesses | None] = [None] * b
        active, done = torch.arange(b), [False] * b
        while len(active):
            part = batch.take(active)
            spent = [int(batch.counter.calls()[int(batch.rows[i])]) for i in active.tolist()]
            n = min(
                self.chunk,
                *(
                    int(min(self.samples - trials[i], budget.left(c)))
                    for i, c in zip(active.tolist(), spent, strict=True)
                ),
            )
            if n > 0:
                x = part.sample(n, rng)
                scores = part.score(x)
                check_finite(scores)
                new_hits = (scores >= 0).sum(1).tolist()
                for j, i in enumerate(active.tolist()):
                    trials[i], hits[i] = trials[i] + n, hits[i] + new_hits[j]
                    if new_hits[j] and len(found[i] or ()) < MAX_WITNESSES:
                        new = gather_witnesses(x[j], scores[j])
                        found[i] = join_witnesses([old, new]) if (old := found[i]) is not None else new
            for i in active.tolist():
                done[i] = n <= 0 or self._enough(hits[i], trials[i]) or budget.late
            active = torch.tensor([i for i in range(b) if not done[i]], dtype=torch.long)
            running = torch.tensor(
                [h / max(t, 1) for h, t in zip(hits, trials, strict=True)], dtype=torch.float64
            ).log()
            calls = int(batch.counter.calls()[batch.rows].sum())
            yield Progress("monte carlo", torch.zeros(b), running, len(active), calls)
        return [self._estimate(batch, i, hits[i], trials[i], found[i], confidence, budget) for i in range(b)]

    def _enough(self, hits: int, trials: int) -> bool:
        if trials >= self.samples or (self.hits is not None and hits >= self.hits):
            return True
        # sd of log p-hat is sqrt((1-p)/(p n)); a few hits are needed before that can be believed.
        return self.target_error is not None and hits >= 10 and (1 - hits / trials) / hits <= self.target_error**2

    @staticmethod
    def _estimate(
        batch: Batch, row: int, hits: int, trials: int, found: Witnesses | None, confidence: float, budget: Budget
    ) -> Estimate:
        if trials == 0:
            return make_estimate(
                batch, row, budget, confidence, Outcome.OUT_OF_BUDGET, -math.inf, math.inf, -math.inf, 0.0, 0.0,
                notes=("the budget left no room for a single sample",),
            )  # fmt: skip
        low, high = clopper_pearson(hits, trials, confidence)
        upper = log_upper_bound(hits, trials, confidence)
        if hits == 0:
            return make_estimate(
                batch, row, budget, confidence, Outcome.OUT_OF_BUDGET, -math.inf, math.inf, low, high, upper,
                notes=(f"no violation in {trials:,} independent inputs",),
            )  # fmt: skip
        p = hits / trials
        std = math.sqrt((1 - p) / hits)
        return make_estimate(
            batch, row, budget, confidence, Outcome.VIOLATED, math.log(p), std, low, high, upper, found
        )
