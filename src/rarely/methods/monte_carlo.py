"""Plain Monte Carlo: the exact method for events that are not rare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.arguments import settle
from rarely.core.batch import Batch, check_finite, check_first
from rarely.core.errors import InputError
from rarely.core.evidence import Draws, Evidence, Found
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.witnesses import FAIR, MAX_WITNESSES, Witnesses, gather_each, join_witnesses
from rarely.methods.base import Run, progress


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
        settle(self)
        if self.samples < 1 or self.chunk < 1:
            raise InputError("MonteCarlo needs samples and chunk of at least 1")
        if self.hits is not None and self.hits < 1:
            raise InputError(f"hits must be at least 1, got {self.hits}")
        if self.target_error is not None and not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")

    @property
    def at_once(self) -> int:
        return min(self.chunk, self.samples)

    def forecast(self, log_prob: float) -> float:
        needed = min(self.hits or math.inf, 1 / self.target_error**2 if self.target_error else math.inf)
        return min(float(self.samples), needed * math.exp(min(-log_prob, 700.0)))  # beyond it exp overflows

    def run(self, batch: Batch, rng: Rng, known: Sequence[Draws] | None = None) -> Run:
        """`known` are draws of each problem from before, which count towards the goal."""
        counts = [Count(before) for before in known or [Draws(0, 0)] * len(batch)]
        before = batch.calls()
        active = [i for i, count in enumerate(counts) if not self._enough(count)]
        try:
            while active := self._paying(batch, active):
                part = batch.take(torch.tensor(active))
                n = int(min(self.chunk, part.left(), *(self.samples - counts[i].n for i in active)))
                n = max(1, batch.spend.rows(n * len(part)) // len(part))
                x = part.sample(n, rng)
                scores = part.score(x)
                check_finite(scores)
                flat = (
                    check_first(part.property, scores)
                    if not any(counts[i].drawn for i in active)
                    else [False] * len(part)
                )
                self._add([counts[i] for i in active], x, scores, flat)
                active = [i for i in active if not self._enough(counts[i])]
                yield progress("Monte Carlo", batch, [count.log_share for count in counts], len(active))
        except Exhausted:
            pass
        yield progress("Monte Carlo", batch, [count.log_share for count in counts], 0)
        spent = (batch.calls() - before).tolist()
        return [count.evidence(calls) for count, calls in zip(counts, spent, strict=True)]

    @staticmethod
    def _paying(batch: Batch, active: Sequence[int]) -> list[int]:
        left = batch.left_each()
        return [i for i in active if left[i] >= 1]

    @staticmethod
    def _add(counts: Sequence[Count], x: Tensor, scores: Tensor, flat: Sequence[bool]) -> None:
        """Count inputs (B, N, *event) of B problems."""
        some = torch.tensor([count.wants_witnesses for count in counts], device=scores.device)
        seen = scores.masked_fill(~some.unsqueeze(1), -torch.inf).flatten()
        owner = torch.arange(len(counts), device=scores.device).repeat_interleave(scores.shape[1])
        witnesses = gather_each(x.flatten(0, 1), seen, owner, len(counts))
        hits = (scores >= 0).sum(1).tolist()
        for count, new, own, flat_ in zip(counts, hits, witnesses, flat, strict=True):
            count.add(scores.shape[1], new, own, flat_)

    def _enough(self, count: Count) -> bool:
        hits, n = count.hits, count.n
        if n >= self.samples or (self.hits is not None and hits >= self.hits):
            return True
        # sd of log p-hat is sqrt((1-p)/(p n)); a few hits are needed before that can be believed.
        return self.target_error is not None and hits >= 10 and (1 - hits / n) / hits <= self.target_error**2


@dataclass
class Count:
    """The count of one problem."""

    before: Draws
    drawn: int = 0
    found: int = 0
    flat: bool = False
    witnesses: list[Witnesses] = field(default_factory=list)

    @property
    def n(self) -> int:
        return self.before.n + self.drawn

    @property
    def hits(self) -> int:
        return self.before.hits + self.found

    @property
    def wants_witnesses(self) -> bool:
        return sum(map(len, self.witnesses)) < MAX_WITNESSES

    def add(self, drawn: int, hits: int, witnesses: Witnesses, flat: bool) -> None:
        self.drawn, self.found, self.flat = self.drawn + drawn, self.found + hits, self.flat or flat
        if len(witnesses):
            self.witnesses.append(witnesses)

    @property
    def log_share(self) -> float:
        return math.log(self.hits / self.n) if self.hits else -math.inf

    def evidence(self, calls: int) -> list[Evidence]:
        drawn: list[Evidence] = [Draws(self.drawn, self.found, calls, flat=self.flat)]
        return [*drawn, Found("Monte Carlo", join_witnesses(self.witnesses), drawn=FAIR)] if self.witnesses else drawn
