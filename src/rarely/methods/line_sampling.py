"""Line sampling: one direction integrated exactly for each way to fail, the rest tempered."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import LINES_SHARE
from rarely.methods.base import Progress, Run, progress
from rarely.methods.guesses import learn, survey
from rarely.methods.lined import LinedRegion
from rarely.methods.lines import Line, find_lines, stack_lines
from rarely.methods.modes import PRUNE, search_calls
from rarely.methods.tempering import ROOT_CALLS, Lines, Particles, temper
from rarely.stats.normal import truncated_quantile

_FIRST_CHAINS = 96  # of all lines of a problem in the first round
_ROUNDS, _TIMES = 3, 6  # after the first, and how many times as large as all before it each may be
_LONGER = 2  # times the length of the first chains that later ones have: what a region is like shows in how far they go
_CLOSE = 1.2  # times the error aimed at that ends it early: the error is known to a quarter
_BEFORE, _EARLY = 0.1, 0.1  # how far before an entry nothing violates, and the share of lines that may be otherwise
_DEARER = 2.0  # times the calls that another method is forecast to need, from which lines are given up


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
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if self.chains < 2 or self.length < 2 or self.replicates < 2:
            raise InputError("LineSampling needs at least 2 chains of length 2 and 2 replicates")

    @property
    def at_once(self) -> int:
        return self.replicates * self.chains * self.length * _TIMES

    def forecast(self, log_prob: float) -> float:
        return 2_000 + ROOT_CALLS * self.replicates * self.chains * self.length  # the search, and one line

    def run(self, batch: Batch, rng: Rng) -> Run:
        before = batch.calls()
        regions = yield from self.lines(batch, [None] * len(batch), rng)
        spent = (batch.calls() - before).tolist()
        return [region.evidence(calls) for region, calls in zip(regions, spent, strict=True)]

    def lines(
        self, batch: Batch, starts: Sequence[Tensor | None], rng: Rng, rivals: Sequence[float] | None = None
    ) -> Generator[Progress, None, list[LinedRegion]]:
        """What the lines say for each problem.

        `starts` may hold violating points (n, d) of a problem, `rivals` the calls that another method would need for
        the same error.
        """
        if batch.inputs.normal_dim is None:
            raise InputError("line sampling needs an input model that maps from normals; use Splitting")
        regions = [LinedRegion() for _ in range(len(batch))]
        try:
            yield from self._refine(batch, starts, regions, rivals or [math.inf] * len(batch), rng)
        except Exhausted:
            for region in regions:
                region.poor = not region.replicates()
            yield progress("line sampling", batch, [region.log_prob for region in regions], 0)
        return regions

    def _refine(
        self,
        batch: Batch,
        starts: Sequence[Tensor | None],
        regions: list[LinedRegion],
        rivals: Sequence[float],
        rng: Rng,
    ) -> Generator[Progress, None, None]:
        dimension = batch.inputs.normal_dim or 0
        ways = batch.parts(batch.inputs.from_normal(rng.normal((len(batch), 1, dimension), batch.dtype))).shape[2]
        for region, points, left in zip(regions, starts, _left(batch), strict=True):
            region.poor = left < search_calls(points, ways)
        rows = torch.tensor([row for row, region in enumerate(regions) if not region.poor], dtype=torch.long)
        if len(rows) == 0:
            return
        plan, crowded = find_lines(batch.take(rows), [starts[row] for row in rows.tolist()], rng)
        for row, many in zip(rows.tolist(), crowded, strict=True):
            regions[row].crowded = many
        for line in plan:
            line.owner = int(rows[line.owner])
        plan = self._payable(batch, plan, regions)
        for line in plan:
            regions[line.owner].lines.append(line)
        if plan:
            survey(batch, plan, rng)
        before, first = batch.calls(), {line: self._first_size(regions[line.owner]) for line in plan}
        self._populate(batch, first, self.length, rng)
        yield progress("line sampling", batch, [region.log_prob for region in regions], len(batch))
        started = [region.states for region in regions]
        for _ in range(_ROUNDS):
            spent, purse = (batch.calls() - before).tolist(), _left(batch)
            more: dict[Line, int] = {}
            for each in zip(regions, started, spent, purse, rivals, strict=True):
                more |= self._growth(*each)
            if not more:
                return
            self._populate(batch, more, _LONGER * self.length, rng)
            running = len({line.owner for line in more})
            yield progress("line sampling", batch, [region.log_prob for region in regions], running)

    def _payable(self, batch: Batch, plan: list[Line], regions: list[LinedRegion]) -> list[Line]:
        """Lines worth a first round: not those of crowded problems, nor of problems that cannot pay for it."""
        each = self.replicates * self.chains * self.length * ROOT_CALLS
        for row, (region, left) in enumerate(zip(regions, _left(batch), strict=True)):
            region.poor = region.poor or left < each * sum(line.owner == row for line in plan)
        return [line for line in plan if not regions[line.owner].crowded and not regions[line.owner].poor]

    def _first_size(self, region: LinedRegion) -> int:
        """Chains of a first round that tells how large the second must be; fewer of each where lines are many."""
        return max(2, min(self.chains, _FIRST_CHAINS // len(region.lines)))

    def _growth(self, region: LinedRegion, first: int, spent: int, left: float, rival: float) -> dict[Line, int]:
        """Chains of another round that bring the standard deviation to the target; none when nothing is to be done.

        Small populations are worse than their spread says, so a round is at most a few times all before it.
        """
        aim = LINES_SHARE * self.target_error
        excess = region.std / aim
        if not math.isfinite(excess) or excess <= _CLOSE or spent * excess**2 > _DEARER * rival:
            return {}
        lacking = {line: min(own, _TIMES * line.states) for line, own in region.lacking(aim).items()}
        room = min(0.7 * left * region.states / max(1, spent), self.growth * first - region.states)
        share = min(1.0, room / max(1e-9, sum(lacking.values()))) / (_LONGER * self.length)
        # In steps of a half octave, so that lines of many problems share a batch.
        steps = {line: round(2 * math.log2(max(1e-9, share * own))) for line, own in lacking.items()}
        return {line: max(2, round(2 ** (step / 2))) for line, step in steps.items() if step >= 0}

    def _populate(self, batch: Batch, chains: dict[Line, int], length: int, rng: Rng) -> None:
        for number in sorted(set(chains.values())):
            self.populate(batch, [line for line, own in chains.items() if own == number], number, length, rng)

    def populate(self, batch: Batch, lines: Sequence[Line], chains: int, length: int, rng: Rng) -> None:
        """One population of `chains` chains per replicate of every line, again where entries were taken wrongly."""
        while lines:
            kinds = [[line for line in lines if line.exact == exact] for exact in (False, True)]
            lines = [line for kind in kinds if kind for line in self._populations(batch, kind, chains, length, rng)]

    def _populations(self, batch: Batch, lines: Sequence[Line], chains: int, length: int, rng: Rng) -> list[Line]:
        """Returns lines to try again, more exactly; not what is negligible even if it is too low by many nats."""
        stacked = stack_lines(batch, lines).take(torch.arange(len(lines)).repeat_interleave(self.replicates))
        result = temper(stacked, self.replicates, chains, length, rng)
        tested = _test_beyond(stacked, result.last, rng)
        early = _violating_before(stacked, result.last)
        doubted: dict[Line, bool] = {}  # and whether their scores move in steps
        best: dict[int, float] = {}
        for j, line in enumerate(lines):
            rows = slice(j * self.replicates, (j + 1) * self.replicates)
            misled = not line.exact and not learn(line, result.guess[rows], result.truth[rows])
            if misled or (not line.stepped and float(early[rows].mean()) > _EARLY):
                doubted[line] = not misled
            line.rounds.append((chains * length, result.log_prob[rows].cpu()))
            line.alive.append(float(result.alive[rows].mean()))
            line.heights.append(result.last.h[rows].flatten().cpu())
            line.record(*(value[rows] for value in tested))
            best[line.owner] = max(best.get(line.owner, -math.inf), line.log_mean)
        again = [line for line in doubted if not line.log_mean < best[line.owner] - PRUNE]
        for line in again:
            line.forget()
            line.exact, line.stepped = True, line.stepped or doubted[line]
        return again


def _left(batch: Batch) -> list[float]:
    """Calls left to the problem of each row."""
    return [batch.spend.left(row.unsqueeze(0)) for row in batch.rows]


def _violating_before(lines: Lines, last: Particles) -> Tensor:
    """Whether lines violate shortly before their entries into the region, (R, N) of 0 and 1.

    A score that moves in steps is small, and constant, far beyond the entry, which is then taken for a root.
    """
    entry, _ = lines.cell_entry(last.z)
    t = last.t.clamp_max(30.0) - _BEFORE
    with torch.no_grad():
        score = lines.batch.score(lines.batch.inputs.from_normal(last.z + t.unsqueeze(-1) * lines.alpha.unsqueeze(1)))
    return ((score >= 0) & (t > entry)).double()


def _test_beyond(lines: Lines, last: Particles, rng: Rng) -> tuple[Tensor, Tensor]:
    """Inputs at a random place of each line beyond its entry, drawn by the normal law, with their scores.

    They are draws from the violating law (the witnesses), and the share that violates corrects for lines that leave the
    region again: the mean of P(Z > t) times that share is unbiased for what lies beyond the entries.
    """
    t = last.t.clamp_max(30.0)
    tau = truncated_quantile(rng.normal(t.shape, t.dtype), t, torch.full_like(t, torch.inf)).to(t.dtype)
    z = last.z + tau.unsqueeze(-1) * lines.alpha.unsqueeze(1)
    with torch.no_grad():
        x = lines.batch.inputs.from_normal(z)
    return x, lines.batch.score(x)
