"""The directions of line sampling: how they are found, told apart, and laid out as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.batch import Batch
from rarely.core.evidence import Witnesses, gather_witnesses
from rarely.core.rng import Rng
from rarely.methods.roots import gradient_starts, search_directions
from rarely.methods.tempering import ROOT_CALLS, Lines

_MAX_WAYS = 12  # ways to fail that get a direction search, those nearest to failing first
_SAME = 0.7  # cosine above which two directions are one
_PRUNE = 14.0  # nats that a direction's half-space probability may lie under the best one's
_STARTS, _ROUNDS = 2, 6  # gradient starts for a way to fail at least (16 when there is only one), and improvements
_POINTS = 24  # violating points that start a search of their own


@dataclass
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
    """Directions for every way to fail worth one, from gradients near the origin and from given violating points.

    Also says which problems are crowded: those with more distinct directions than lines.
    """
    pilot = rng.normal((len(batch), 16, batch.inputs.normal_dim or 0), batch.dtype)
    parts = batch.parts(batch.inputs.from_normal(pilot))
    reach = parts.amax(1)  # (B, K) how near each way to fail comes among a few inputs
    pairs = [
        (row, way)
        for row in range(len(batch))
        for way in reach[row].argsort(descending=True)[:_MAX_WAYS].tolist()
        if float(reach[row, way]) > -math.inf
    ]
    owners, ways = (torch.tensor([p[k] for p in pairs]) for k in (0, 1))
    each = batch.take(owners).ways(ways)
    count = max(_STARTS, 16 * len(batch) // len(pairs))
    found = search_directions(each, gradient_starts(each, count, rng), _ROUNDS)
    lines = [
        Line(row, way, found.alpha[k, s], float(found.distance[k, s]))
        for k, (row, way) in enumerate(pairs)
        for s in range(count)
    ]
    lines += _from_points(batch, starts)
    kept: list[Line] = []
    crowded = [False] * len(batch)
    for row in range(len(batch)):
        some, crowded[row] = _prune([line for line in lines if line.owner == row and math.isfinite(line.distance)])
        kept += some
    return kept, crowded


def _from_points(batch: Batch, starts: Sequence[Tensor | None], most: int = _POINTS) -> list[Line]:
    """Directions from violating points: they know modes that gradients near the origin do not point to."""
    given = [
        (row, z[torch.linspace(0, len(z) - 1, min(most, len(z))).long()])
        for row, z in enumerate(starts)
        if z is not None
    ]
    given = [(row, z) for row, z in given if len(z)]
    if not given:
        return []
    owners = torch.cat([torch.full((len(z),), row) for row, z in given])
    points = torch.cat([z for _, z in given]).unsqueeze(1)
    part = batch.take(owners)
    ways = part.parts(part.inputs.from_normal(points)).argmax(-1).squeeze(1)
    alpha = points / points.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    found = search_directions(part.ways(ways), alpha, _ROUNDS)
    return [
        Line(int(owners[k]), int(ways[k]), found.alpha[k, 0], float(found.distance[k, 0])) for k in range(len(owners))
    ]


def _prune(lines: list[Line], most: int = 4) -> tuple[list[Line], bool]:
    """The distinct directions of one problem that may matter, nearest first, each told its rivals for the same way."""
    kept: list[Line] = []
    crowded = False
    best = min((line.distance for line in lines), default=math.inf)
    for line in sorted(lines, key=lambda item: item.distance):
        near = _log_tail(line.distance) > _log_tail(best) - _PRUNE
        same = [k for k in kept if k.way == line.way]
        if near and all(float(k.alpha @ line.alpha) < _SAME for k in same):
            if len(same) < most:
                kept.append(line)
            else:
                crowded = True
    for line in kept:
        line.rivals = [k for k in kept if k.way == line.way and k is not line]
    return kept, crowded


def _log_tail(t: float) -> float:
    return float(log_ndtr(torch.tensor(-t, dtype=torch.float64)))


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


def search_calls(points: Tensor | None) -> int:
    """Calls that the direction search of one problem takes at most, as a budget plans it."""
    searches = max(16, _STARTS * _MAX_WAYS) + (0 if points is None else min(len(points), _POINTS))
    return searches * ((_ROUNDS + 1) * (ROOT_CALLS + 3) + 4)
