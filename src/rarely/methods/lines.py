"""The directions of line sampling: how they are found, told apart, and laid out as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.core.witnesses import Witnesses, gather_witnesses
from rarely.methods.modes import PRUNE, SAME, log_tail, search_modes
from rarely.methods.roots import unit
from rarely.methods.tempering import Lines
from rarely.stats.statistic import Replicates

ANY = -1  # way to fail
_MOST = 12  # lines for one way to fail: fewer than directions that are searched, so that a region all around is seen
_CROWDED = 4.0  # nats under the best direction within which one more than those counts
_SLOPES, _FEW_SLOPES = 64, 8  # violating points of a problem whose own slopes are taken, and too few to say anything
_COHERENT = 0.25  # mean cosine of slopes with a direction from which it is theirs
_WHOLE = -0.01  # log P(Z > t) from which a line lies in the region altogether
_TWO = 0.5  # share of what is left of the slopes of a group without their mean that lies along one line: two groups


@dataclass(eq=False)
class Line:
    """One direction for one way to fail of one problem, and what its populations said."""

    owner: int  # row of the batch
    way: int  # or ANY
    alpha: Tensor  # (d,)
    distance: float  # to the region along it, or what is typical of violating points
    typical: float = 1.0  # cosine that slopes at the violating points that it is for have with it
    points: Tensor | None = None  # (n, d) those points
    rivals: list[Line] = field(default_factory=list)
    rounds: list[tuple[int, Tensor]] = field(default_factory=list)  # states, and log p of each replicate
    alive: list[float] = field(default_factory=list)  # share of lines that reach the region at all, per round
    heights: list[Tensor] = field(default_factory=list)  # h of the particles at temperature 1
    hits: float = 0.0  # test points beyond an entry that violate, by their weights
    tests: int = 0
    plane: float = 0.0  # where a score is looked at, to guess the entry of a line
    zero: float = 0.0  # the entry that a score of 0 there means
    slope: float = 1.0  # how fast scores rise on the way
    exact: bool = False  # guesses were seen to mislead: entries are searched for
    stepped: bool = False  # violations were met before entries: the score moves in steps, and roots need brackets
    witnesses: list[Witnesses] = field(default_factory=list)

    def replicates(self) -> Tensor:
        """log p of each replicate over all rounds, weighted by their sizes, corrected for lines that leave again."""
        sizes = torch.tensor([float(states) for states, _ in self.rounds], dtype=torch.float64)
        table = torch.stack([logs for _, logs in self.rounds]) + (sizes / sizes.sum()).log().unsqueeze(1)
        return torch.logsumexp(table, 0) + math.log(max(self.beyond, 1e-300))

    @property
    def states(self) -> int:
        """Of each replicate."""
        return sum(states for states, _ in self.rounds)

    @property
    def std(self) -> float:
        """Of the log of the mean."""
        return Replicates(tuple(self.replicates().tolist())).std

    @property
    def log_mean(self) -> float:
        if not self.rounds:
            return -math.inf
        logs = self.replicates()
        return float(torch.logsumexp(logs, 0)) - math.log(len(logs))

    def turn(self, alpha: Tensor) -> None:
        """Into another direction; what was seen along the old one does not compare."""
        self.alpha, self.heights = alpha, []
        if self.points is not None:
            self.distance = float((self.points @ alpha).median())

    def forget(self) -> None:
        """What was guessed before guesses were seen to mislead."""
        self.rounds, self.alive, self.heights, self.witnesses = [], [], [], []
        self.hits, self.tests = 0.0, 0

    def record(self, x: Tensor, scores: Tensor, weights: Tensor) -> None:
        self.tests, self.hits = self.tests + scores.numel(), self.hits + float(weights[scores >= 0].sum())
        self.witnesses.append(gather_witnesses(x.flatten(0, 1), scores.flatten()))

    @property
    def within(self) -> float:
        """Share of the lines, drawn by the violating law, that lie in the region altogether."""
        return float((torch.cat(self.heights) > _WHOLE).double().mean()) if self.heights else 0.0

    @property
    def beyond(self) -> float:
        """Share of what lies beyond the entries that violates: 1 unless lines cross more than once."""
        return self.hits / self.tests if self.tests else 1.0


@dataclass
class Remainder:
    """What the lines of one problem leave."""

    crowded: bool = False  # more distinct directions for one way to fail than lines
    astray: list[Tensor] = field(default_factory=list)  # given violating points (n, d) whose slopes suit no line


def find_lines(batch: Batch, starts: Sequence[Tensor | None], rng: Rng) -> tuple[list[Line], list[Remainder]]:
    """A line for each direction that may matter, from gradients near and far and from given violating points."""
    modes = search_modes(batch, starts, rng)
    slopes = _slopes(batch, starts)
    kept: list[Line] = []
    found = [Remainder() for _ in range(len(batch))]
    for row, beside in enumerate(found):
        own = [Line(m.owner, m.way, m.alpha, m.distance) for m in modes if m.owner == row and math.isfinite(m.distance)]
        typical = [_typical(group, own, row) for group in slopes[row]]
        beside.astray = [group.points for group, line in zip(slopes[row], typical, strict=True) if line is None]
        some, beside.crowded = _prune(own, [line for line in typical if line is not None])
        kept += some
    return kept, found


@dataclass(frozen=True)
class _Slopes:
    """Violating points of one problem that share a way to fail, and the directions in which their scores rise."""

    way: int  # or ANY
    points: Tensor  # (n, d)
    slopes: Tensor  # (n, d) unit vectors


def _slopes(batch: Batch, starts: Sequence[Tensor | None]) -> list[list[_Slopes]]:
    """Groups of violating points of each problem: one for each way, or more where their slopes are of two kinds."""
    found: list[list[_Slopes]] = [[] for _ in starts]
    rows = [row for row, points in enumerate(starts) if points is not None and len(points) >= _FEW_SLOPES]
    if not rows:
        return found
    some = [starts[row] for row in rows]
    z = torch.stack([p[torch.linspace(0, len(p) - 1, _SLOPES).long()] for p in some if p is not None])
    part = batch.take(torch.tensor(rows))
    ways = part.parts(part.inputs.from_normal(z)).argmax(-1)
    _, gradient = part.gradient_ways(z, ways, normal=True)
    units = unit(gradient)
    for k, row in enumerate(rows):
        for way in sorted(set(ways[k].tolist())):
            own = ways[k] == way
            found[row] += _parted(_Slopes(way, z[k][own], units[k][own]))
    return found


def _parted(group: _Slopes) -> list[_Slopes]:
    """The group, or two where its slopes are of two kinds: what their mean leaves of them lies along one line."""
    if len(group.slopes) < 2 * _FEW_SLOPES:
        return [group] if len(group.slopes) >= _FEW_SLOPES else []
    rest = (group.slopes - group.slopes.mean(0)).double()
    size, vectors = torch.linalg.eigh(rest @ rest.mT)
    side = vectors[:, -1] > 0
    if bool(side.all()) or not bool(side.any()):
        return [group]
    halves = [_Slopes(group.way, group.points[own], group.slopes[own]) for own in (side, ~side)]
    alike = float(unit(halves[0].slopes.mean(0)) @ unit(halves[1].slopes.mean(0)))
    if size[-1] > _TWO * size.sum() and alike < SAME:
        return [part for half in halves for part in _parted(half)]
    return [group]


def _typical(group: _Slopes, searched: Sequence[Line], row: int) -> Line | None:
    """The line that suits a group best, if any does: along the mean of its slopes, or one that was searched for.

    The nearest violation shows the way to all others only where the region is flat. In a curved one slopes differ from
    place to place, and their mean is what most of them have in common. Half of them make it, the others compare.
    """
    mean, others = unit(group.slopes[::2].mean(0)), group.slopes[1::2]
    directions = [mean, *(line.alpha for line in searched if line.way == group.way)]
    cosines = (others @ torch.stack(directions).mT).mean(0)
    best = int(cosines.argmax())
    if float(cosines[best]) < _COHERENT:
        return None
    alpha = unit(group.slopes.mean(0)) if best == 0 else directions[best]
    distance = float((group.points @ alpha).median())
    return Line(row, group.way, alpha, distance, typical=float(cosines[best]), points=group.points)


def _prune(lines: list[Line], typical: list[Line]) -> tuple[list[Line], bool]:
    """The distinct directions of one problem that may matter, each told its rivals for the same way.

    Those of violating points that are known come first; then what else was searched for, nearest first.
    """
    kept = list(typical)
    crowded = False
    best = log_tail(min((line.distance for line in lines), default=math.inf))
    for line in sorted(lines, key=lambda item: item.distance):
        same, tail = [k for k in kept if k.way == line.way], log_tail(line.distance)
        if tail > best - PRUNE and all(float(k.alpha @ line.alpha) < SAME * k.typical for k in same):
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
    plane, zero, slope = (alpha.new_tensor([getattr(k, name) for k in lines]) for name in ("plane", "zero", "slope"))
    stepped = torch.tensor([line.stepped for line in lines], device=alpha.device)
    part, exact = batch.take(owners), any(line.exact for line in lines)
    if bool((ways != ANY).all()):
        part = part.ways(ways)
    return Lines(part, alpha, distance, rivals, offsets, plane, zero, slope, stepped, exact)
