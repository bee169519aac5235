"""Directed splitting: populations that climb beside the direction in which scores rise, learnt without gradients."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.arguments import settle
from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import LINES_SHARE
from rarely.methods.base import Progress, Run, progress
from rarely.methods.beside import climb
from rarely.methods.compass import Compass
from rarely.methods.crossing import book
from rarely.methods.guesses import survey
from rarely.methods.islands import Island, evidence_of
from rarely.methods.lined import LinedRegion
from rarely.methods.lines import ANY, Line, stack_lines
from rarely.methods.roots import unit
from rarely.methods.splitting import Splitting

_FEW = 8  # violating points that are too few to begin with
_ROUNDS = 6  # at most, each with what the one before has learnt of the direction
_PATIENCE = 4
_LONGER = 2  # steps between the states of all rounds but the first
_METHOD = "directed splitting"


@dataclass(frozen=True)
class DirectedSplitting:
    """Splitting that integrates the direction in which scores rise, and climbs in what is orthogonal to it.

    For black boxes in many dimensions: where scores rise is learnt from the moves of populations, first of plain
    splitting, then of its own. `replicates` populations of `chains` chains give the interval.
    """

    target_error: float = 0.1
    chains: int = 15
    replicates: int = 8
    growth: int = 60  # all rounds together are at most this many times the first

    def __post_init__(self) -> None:
        settle(self)
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if self.chains < 2 or self.replicates < 2:
            raise InputError("DirectedSplitting needs at least 2 chains and 2 replicates")

    @property
    def at_once(self) -> int:
        return 40 * self.replicates * self.chains

    def forecast(self, log_prob: float) -> float:
        return 2 * self._first.forecast(log_prob)

    @property
    def _first(self) -> Splitting:
        return Splitting(10 * self.chains, 0.1, 1, islands=8, keep="all")

    def run(self, batch: Batch, rng: Rng) -> Run:
        before = batch.calls()
        islands = yield from self._first.populations(batch, rng, sloped=True)
        between = batch.calls()
        starts = [_survivors(group) for group in islands]
        regions = yield from self.beside(batch, starts, [compass(group) for group in islands], rng)
        learnt = []
        calls = zip((between - before).tolist(), (batch.calls() - between).tolist(), strict=True)
        for group, region, (first, then) in zip(islands, regions, calls, strict=True):
            learnt.append([*evidence_of(group, "splitting", first), *region.evidence(_METHOD, then)])
        return learnt

    def beside(
        self,
        batch: Batch,
        starts: Sequence[Tensor | None],
        compasses: Sequence[Compass | None],
        rng: Rng,
        rivals: Sequence[float] | None = None,
    ) -> Generator[Progress, None, list[LinedRegion]]:
        """What populations beside a direction say of each problem.

        From violating points (n, d), what is known of the direction, and the calls that another method would need for
        the same error.
        """
        regions = [LinedRegion() for _ in range(len(batch))]
        try:
            yield from self._climb(batch, starts, compasses, regions, rivals or [math.inf] * len(batch), rng)
        except Exhausted:
            for region in regions:
                region.poor = not region.replicates()
            yield progress(_METHOD, batch, [region.log_prob for region in regions], 0)
        return regions

    def _climb(
        self,
        batch: Batch,
        starts: Sequence[Tensor | None],
        compasses: Sequence[Compass | None],
        regions: list[LinedRegion],
        rivals: Sequence[float],
        rng: Rng,
    ) -> Generator[Progress, None, None]:
        needles: dict[Line, Compass] = {}
        for row, (points, needle) in enumerate(zip(starts, compasses, strict=True)):
            if needle is not None and points is not None and len(points) >= _FEW:
                line = Line(row, ANY, needle.direction, math.nan, points=points)
                regions[row].lines.append(line)
                needles[line] = needle
        first, before = 10 * self.chains, batch.calls()
        sizes = dict.fromkeys(needles, self.chains)
        for turn in range(_ROUNDS):
            for chains in sorted(set(sizes.values())):
                group = [line for line, own in sizes.items() if own == chains]
                for line in group:
                    line.turn(needles[line].direction)
                survey(batch, group, rng)
                self._round(batch, {line: needles[line] for line in group}, chains, _LONGER if turn else 1, rng)
            spent = (batch.calls() - before).tolist()
            left = batch.left_each()
            sizes = {line: self.chains for line in sizes if not line.rounds}
            # The direction gets better, so that a first round says too much of what others will cost.
            wait = 1 if turn else _PATIENCE
            for region, used, purse, rival in zip(regions, spent, left, rivals, strict=True):
                more = region.further(LINES_SHARE * self.target_error, self.growth * first, used, purse, wait * rival)
                # In steps of a half octave, so that lines of many problems share a batch.
                for line, states in more.items():
                    steps = round(2 * math.log2(max(1.0, states / (10 * _LONGER))))
                    sizes[line] = max(2, round(2 ** (steps / 2)))
            sizes = sizes if turn + 1 < _ROUNDS else {}
            yield progress(_METHOD, batch, [region.log_prob for region in regions], len(sizes))
            if not sizes:
                return

    def _round(
        self,
        batch: Batch,
        needles: dict[Line, Compass],
        chains: int,
        thin: int,
        rng: Rng,
    ) -> None:
        lines = list(needles)
        stacked = stack_lines(batch, lines).take(torch.arange(len(lines)).repeat_interleave(self.replicates))
        climbed = climb(stacked, self.replicates, chains, thin, rng)
        doubted = book(lines, stacked, climbed.tempered, 10 * chains * thin, rng)
        for j, line in enumerate(lines):
            rows = slice(j * self.replicates, (j + 1) * self.replicates)
            line.stepped = line.stepped or doubted.get(line, False)
            if line in doubted and len(line.rounds) == 1:
                line.forget()  # better guesses follow
            last = climbed.tempered.last.rows(torch.arange(rows.start, rows.stop, device=line.alpha.device))
            entered = torch.isfinite(last.t)
            if bool(entered.any()):  # a direction that leads nowhere has no better points than those it was given
                line.points = (last.z + last.t.unsqueeze(-1) * line.alpha)[entered]
            own = climbed.slope[rows]
            own = own + (line.slope - own @ line.alpha).unsqueeze(1) * line.alpha
            needles[line].see(list(own))


def compass(islands: Sequence[Island]) -> Compass | None:
    """What populations of plain splitting know of the direction: where they rose, and where they ended."""
    means = [i.survivors.mean(0) for i in islands if i.survivors is not None and len(i.survivors)]
    if not means:
        return None
    found = Compass(unit(torch.stack(means).mean(0)))
    found.see([island.slope for island in islands if island.slope is not None])
    found.see(means)
    return found


def _survivors(islands: Sequence[Island]) -> Tensor | None:
    some = [i.survivors[:100] for i in islands if i.survivors is not None and len(i.survivors)]
    return torch.cat(some) if some else None
