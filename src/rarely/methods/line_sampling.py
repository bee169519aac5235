"""Line sampling: one direction integrated exactly for each way to fail, the rest tempered."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from rarely.core.arguments import settle
from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import LINES_SHARE
from rarely.methods.base import Progress, Run, progress
from rarely.methods.crossing import book
from rarely.methods.guesses import survey
from rarely.methods.lined import TIMES, TIMES_KNOWN, LinedRegion
from rarely.methods.lines import Line, find_lines, stack_lines
from rarely.methods.modes import PRUNE, search_calls
from rarely.methods.tempering import ROOT_CALLS, temper

_FIRST_CHAINS = 96  # of all lines of a problem in the first round
_FEW_CHAINS = 2  # half as long, that tell whether a line matters beside those that lead
_STRAIGHT = 0.8  # coherence from which lines pay beside a referee: MNIST has .9, convolutional networks .3 to .85
_SCOUTS = 2  # replicates that tell so: what matters lies two nats and more above where a line is given up
_METHOD = "line sampling"
_ROUNDS = 3  # after the first
_LONGER = 2  # times the length of the first chains that later ones have: what a region is like shows in how far they go


@dataclass(frozen=True)
class LineSampling:
    """P by lines: search directions for every way to fail, temper the complement of each, add the pieces up.

    `replicates` independent populations of `chains` x `length` states give the interval; up to three more rounds of
    longer chains are sized so that the standard deviation of log p reaches `target_error`. Needs gradients and an input
    model that maps from normals.
    """

    target_error: float = 0.1
    chains: int = 4
    length: int = 8
    replicates: int = 8
    growth: int = 40  # all rounds together are at most this many times the first

    def __post_init__(self) -> None:
        settle(self)
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if self.chains < 2 or self.length < 2 or self.replicates < 2:
            raise InputError("LineSampling needs at least 2 chains of length 2 and 2 replicates")

    @property
    def at_once(self) -> int:
        return self.replicates * self.chains * self.length * TIMES

    def forecast(self, log_prob: float) -> float:
        return 2_000 + ROOT_CALLS * self.replicates * self.chains * self.length  # the search, and one line

    def run(self, batch: Batch, rng: Rng) -> Run:
        before = batch.calls()
        regions = yield from self.lines(batch, [None] * len(batch), rng)
        spent = (batch.calls() - before).tolist()
        return [region.evidence(_METHOD, calls) for region, calls in zip(regions, spent, strict=True)]

    def lines(
        self,
        batch: Batch,
        starts: Sequence[Tensor | None],
        rng: Rng,
        rivals: Sequence[float] | None = None,
        referees: Sequence[float] | None = None,
    ) -> Generator[Progress, None, list[LinedRegion]]:
        """What the lines say for each problem.

        `starts` may hold violating points (n, d) of a problem, `rivals` the calls that another method would need for
        the same error, and `referees` the log p that a method for curved regions can make more of.
        """
        if batch.inputs.normal_dim is None:
            raise InputError("line sampling needs an input model that maps from normals; use Splitting")
        regions = [LinedRegion() for _ in range(len(batch))]
        try:
            known = referees or [-math.inf] * len(batch)
            yield from self._refine(batch, starts, regions, rivals or [math.inf] * len(batch), known, rng)
        except Exhausted:
            for region in regions:
                region.poor = not region.replicates()
            yield progress(_METHOD, batch, [region.log_prob for region in regions], 0)
        return regions

    def _refine(
        self,
        batch: Batch,
        starts: Sequence[Tensor | None],
        regions: list[LinedRegion],
        rivals: Sequence[float],
        referees: Sequence[float],
        rng: Rng,
    ) -> Generator[Progress, None, None]:
        dimension = batch.inputs.normal_dim or 0
        ways = batch.parts(batch.inputs.from_normal(rng.normal((len(batch), 1, dimension), batch.dtype))).shape[2]
        for region, points, left in zip(regions, starts, batch.left_each(), strict=True):
            region.poor = left < search_calls(points, ways)
        rows = torch.tensor([row for row, region in enumerate(regions) if not region.poor], dtype=torch.long)
        if len(rows) == 0:
            return
        plan, found = find_lines(batch.take(rows), [starts[row] for row in rows.tolist()], rng)
        for row, beside in zip(rows.tolist(), found, strict=True):
            regions[row].crowded, regions[row].astray = beside.crowded, beside.astray
        for line in plan:
            line.owner = int(rows[line.owner])
        plan = self._payable(batch, plan, regions)
        for line in plan:
            regions[line.owner].lines.append(line)
        if plan:
            survey(batch, plan, rng)
        new = self._leave_curved(batch, regions, referees, rng)
        self._populate(batch, {line: self._first_size(regions[line.owner]) for line in new}, self.length, rng)
        before = batch.calls()
        aside = self._begin(batch, regions, rng)
        started = [region.states for region in regions]
        for turn in range(1 + _ROUNDS):
            spent, purse = (batch.calls() - before - aside).tolist(), batch.left_each()
            sizes: dict[Line, int] = {}
            if turn < _ROUNDS:
                for each in zip(regions, started, spent, purse, rivals, strict=True):
                    sizes |= self._growth(*each)
            going_on = {line.owner for line in sizes}
            yield progress(_METHOD, batch, [region.log_prob for region in regions], len(going_on))
            if not sizes:
                return
            self._populate(batch, sizes, _LONGER * self.length, rng)

    def _leave_curved(
        self, batch: Batch, regions: Sequence[LinedRegion], referees: Sequence[float], rng: Rng
    ) -> list[Line]:
        """See which problems are curved where violations are known, and which of their lines lead to more elsewhere.

        What a line holds of p is known where as many of the known violations lie in its cell. What lines that lead
        nowhere new say of a curved region is dear and wide: they get no populations.
        """
        curved = [
            r for r, known in zip(regions, referees, strict=True) if known > -math.inf and r.coherence < _STRAIGHT
        ]
        others = [line for region in curved for line in region.lines if line.points is None]
        floor = {line: regions[line.owner].faint_beside(referees[line.owner]) for line in others}
        replace(self, replicates=_SCOUTS).populate(batch, others, _FEW_CHAINS, self.length // 2, rng, floor)
        new = [
            line
            for line in others
            if line.log_mean >= floor[line]
            and math.exp(line.log_mean - referees[line.owner]) > TIMES_KNOWN * regions[line.owner].claimed(line)
        ]
        for line in others:
            line.forget()
        for region in curved:
            region.curved = True
        return new

    def _begin(self, batch: Batch, regions: Sequence[LinedRegion], rng: Rng) -> Tensor:
        """A first round: of the lines that lead, then of others that matter beside them; says what it cost to see who.

        Most directions that are searched for hold nothing, at a distance that is no smaller for it. On a convolutional
        network eight of nine lines took nine tenths of 257,000 calls and were 11 to 70 nats below the other.
        """
        straight = [region for region in regions if not region.curved]
        leading = [line for region in straight for line in region.leading()]
        self._populate(batch, {line: self._first_size(regions[line.owner]) for line in leading}, self.length, rng)
        others = [line for region in straight for line in region.lines if line not in leading]
        floor = {line: regions[line.owner].faintest for line in others}
        before = batch.calls()
        self.populate(batch, others, _FEW_CHAINS, self.length // 2, rng, floor)
        aside = batch.calls() - before
        matter = [line for line in others if line.log_mean >= floor[line]]
        self._populate(batch, {line: self._first_size(regions[line.owner]) for line in matter}, self.length, rng)
        return aside

    def _payable(self, batch: Batch, plan: list[Line], regions: list[LinedRegion]) -> list[Line]:
        """Lines worth a first round: not those of crowded problems, nor of problems that cannot pay for it."""
        each = self.replicates * self.chains * self.length * ROOT_CALLS
        for row, (region, left) in enumerate(zip(regions, batch.left_each(), strict=True)):
            region.poor = region.poor or left < each * sum(line.owner == row for line in plan)
        return [line for line in plan if not regions[line.owner].crowded and not regions[line.owner].poor]

    def _first_size(self, region: LinedRegion) -> int:
        """Chains of a first round that tells how large the second must be; fewer of each where lines are many."""
        return max(2, min(self.chains, _FIRST_CHAINS // len(region.lines)))

    def _growth(self, region: LinedRegion, first: int, spent: int, left: float, rival: float) -> dict[Line, int]:
        """Chains of another round."""
        most = self.growth * first
        lacking = region.further(LINES_SHARE * self.target_error, most, spent, left, rival)
        # In steps of a half octave, so that lines of many problems share a batch.
        chains = {line: round(2 * math.log2(own / (_LONGER * self.length))) for line, own in lacking.items()}
        return {line: max(2, round(2 ** (step / 2))) for line, step in chains.items() if step >= 0}

    def _populate(self, batch: Batch, chains: dict[Line, int], length: int, rng: Rng) -> None:
        for number in sorted(set(chains.values())):
            self.populate(batch, [line for line, own in chains.items() if own == number], number, length, rng)

    def populate(
        self,
        batch: Batch,
        lines: Sequence[Line],
        chains: int,
        length: int,
        rng: Rng,
        floor: Mapping[Line, float] = MappingProxyType({}),
    ) -> None:
        """One population of `chains` chains per replicate of every line, again where entries were taken wrongly.

        Lines are given up once their log p is below their `floor`.
        """
        while lines:
            kinds = [[line for line in lines if line.exact == exact] for exact in (False, True)]
            each = (self._populations(batch, kind, chains, length, rng, floor) for kind in kinds if kind)
            lines = [line for again in each for line in again]

    def _populations(
        self, batch: Batch, lines: Sequence[Line], chains: int, length: int, rng: Rng, floor: Mapping[Line, float]
    ) -> list[Line]:
        """Returns lines to try again, more exactly; not what is negligible even if it is too low by many nats."""
        stacked = stack_lines(batch, lines).take(torch.arange(len(lines)).repeat_interleave(self.replicates))
        lowest = torch.tensor([floor.get(line, -math.inf) for line in lines], dtype=torch.float64)
        ends = lowest.repeat_interleave(self.replicates).to(stacked.alpha.device)
        result = temper(stacked, self.replicates, chains, length, rng, ends)
        doubted = book(lines, stacked, result, chains * length, rng)
        for line, faint in zip(lines, result.faint[:: self.replicates].tolist(), strict=True):
            if faint and line.log_mean >= floor[line]:  # as guessed it was below, in truth it is not
                doubted[line] = False
        best: dict[int, float] = {}
        for line in lines:
            best[line.owner] = max(best.get(line.owner, -math.inf), line.log_mean)
        again = [line for line in doubted if not line.log_mean < best[line.owner] - PRUNE]
        for line in again:
            line.forget()
            line.exact, line.stepped = True, line.stepped or doubted[line]
        return again
