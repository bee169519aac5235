"""The directions of line sampling: how they are found, told apart, and laid out as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.evidence import Witnesses, gather_witnesses
from rarely.core.rng import Rng
from rarely.methods.modes import PRUNE, SAME, log_tail, search_modes
from rarely.methods.tempering import Lines

_MOST = 12  # lines for one way to fail: fewer than directions that are searched, so that a region all around is seen
_CROWDED = 4.0  # nats under the best direction within which one more than those counts


@dataclass(eq=False)
class Line:
    """One direction for one way to fail of one problem, and what its populations said."""

    owner: int  # row of the batch
    way: int
    alpha: Tensor  # (d,)
    distance: float
    rivals: list[Line] = field(default_factory=list)
    rounds: list[tuple[int, Tensor]] = field(default_factory=list)  # chains, and log p of each replicate
    alive: list[float] = field(default_factory=list)  # share of lines that reach the region at all, per round
    heights: list[Tensor] = field(default_factory=list)  # h of the particles at temperature 1
    hits: int = 0  # test points beyond an entry that violate
    tests: int = 0
    witnesses: list[Witnesses] = field(default_factory=list)

    def replicates(self) -> Tensor:
        """log p of each replicate over all rounds, weighted by their sizes, corrected for lines that leave again."""
        sizes = torch.tensor([float(chains) for chains, _ in self.rounds], dtype=torch.float64)
        table = torch.stack([logs for _, logs in self.rounds]) + (sizes / sizes.sum()).log().unsqueeze(1)
        return torch.logsumexp(table, 0) + math.log(max(self.beyond, 1e-300))

    @property
    def log_mean(self) -> float:
        if not self.rounds:
            return -math.inf
        logs = self.replicates()
        return float(torch.logsumexp(logs, 0)) - math.log(len(logs))

    def record(self, x: Tensor, scores: Tensor) -> None:
        self.tests, self.hits = self.tests + scores.numel(), self.hits + int((scores >= 0).sum())
        self.witnesses.append(gather_witnesses(x.flatten(0, 1), scores.flatten()))

    @property
    def beyond(self) -> float:
        """Share of what lies beyond the entries that violates: 1 unless lines cross more than once."""
        return self.hits / max(1, self.tests)


def find_lines(batch: Batch, starts: Sequence[Tensor | None], rng: Rng) -> tuple[list[Line], list[bool]]:
    """A line for each direction that may matter, from gradients near and far and from given violating points.

    Also says which problems are crowded: those with more distinct directions for one way to fail than lines.
    """
    modes = search_modes(batch, starts, rng)
    kept: list[Line] = []
    crowded = [False] * len(batch)
    for row in range(len(batch)):
        own = [Line(m.owner, m.way, m.alpha, m.distance) for m in modes if m.owner == row and math.isfinite(m.distance)]
        some, crowded[row] = _prune(own)
        kept += some
    return kept, crowded


def _prune(lines: list[Line]) -> tuple[list[Line], bool]:
    """The distinct directions of one problem that may matter, nearest first, each told its rivals for the same way."""
    kept: list[Line] = []
    crowded = False
    best = log_tail(min((line.distance for line in lines), default=math.inf))
    for line in sorted(lines, key=lambda item: item.distance):
        same, tail = [k for k in kept if k.way == line.way], log_tail(line.distance)
        if tail > best - PRUNE and all(float(k.alpha @ line.alpha) < SAME for k in same):
            if len(same) < _MOST:
                kept.append(line)
            else:
                crowded = crowded or tail > best - _CROWDED
    for line in kept:
        line.rivals = [k for k in kept if k.way == line.way and k is not line]
    return kept, crowded


def stack_lines(batch: Batch, lines: Sequence[Line]) -> Lines:
    owners, ways = torch.tensor([line.owner for line in lines]), torch.tensor([line.way for line in lines])
    alpha = torch.stack([line.alpha for line in lines])
    distance = alpha.new_tensor([line.distance for line in lines])
    most = max(1, *(len(line.rivals) for line in lines))
    rivals = alpha.new_zeros(len(lines), most, alpha.shape[-1])
    offsets = alpha.new_full((len(lines), most), -torch.inf)
    for i, line in enumerate(lines):
        for j, rival in enumerate(line.rivals):
            rivals[i, j], offsets[i, j] = rival.alpha, line.distance - rival.distance
    return Lines(batch.take(owners).ways(ways), alpha, distance, rivals, offsets)
