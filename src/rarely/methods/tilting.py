"""The score tilts the law of inputs: populations in phi(z) exp(b u(s)), from b = 0 to where inputs violate.

Where the score s is a plane, exp(b s) moves the normals towards the violation, and there are about as many temperatures
b as it is standard deviations away, where splitting has half its square of levels. Given its score an input has the
same law at every temperature, so that states drawn by weight start the next one in equilibrium. Ratios of constants are
those of Bennett (1976); p is what all states that violate say together, each weighted by how likely all temperatures
are to meet it (Shirts and Chodera 2008). Once the ladder stands, all its temperatures go on side by side until the
error is small enough.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rarely.core.arguments import settle
from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import LOG_FLOOR
from rarely.core.witnesses import gather_witnesses
from rarely.methods.annealing import WIDE, Annealing
from rarely.methods.base import Progress, Run, progress
from rarely.methods.rungs import Chains, Law, raised, walk
from rarely.methods.tilted import METHOD, TiltedRegion

_SETTLED = 0.1  # how fast steps adapt once a ladder stands
_ROUNDS = 8  # after the first
_TIMES = 2  # as large as all before it a round may be: to go on costs nothing, and errors are overestimated at first
_LEAST = 3  # times the first length, at which chains may end: the law that they start in is a rough guess
_LOOK = 20  # part of the longest chains that tells whether even they would be too short
_CHUNK = 16  # moves between two looks at the clock
_CLOSE = 1.2  # times the error aimed at that ends it early: the error is known to a quarter
_DEARER = 2.0  # times the calls that another method is forecast to need, from which it is given up
_EACH = 6000  # calls for each nat of log p at an error of 0.1, at least, on convolutional networks


@dataclass(frozen=True)
class Tilting:
    """P by tempering the score itself: Hamiltonian moves through the whole space of normals.

    For regions in many dimensions that are curved or rough, where no line stands for its neighbours. `replicates`
    independent populations of `chains` chains give the interval; the chains of all temperatures are made longer until
    the standard deviation of log p reaches `target_error`. Needs gradients and an input model that maps from normals.
    """

    target_error: float = 0.1
    chains: int = 2
    length: int = 8
    replicates: int = 16
    growth: int = 60  # chains are at most this many times as long in the end
    log_p_min: float = LOG_FLOOR

    def __post_init__(self) -> None:
        settle(self)
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if not self.log_p_min < 0:
            raise InputError(f"log_p_min is a natural logarithm and must be negative, got {self.log_p_min}")
        if self.chains < 2 or self.length < 2 or self.replicates < 2:
            raise InputError("Tilting needs at least 2 chains of length 2 and 2 replicates")

    @property
    def at_once(self) -> int:
        return self.replicates * self.chains * self.length * WIDE

    def forecast(self, log_prob: float) -> float:
        return _EACH * abs(log_prob) * (0.1 / self.target_error) ** 2

    def run(self, batch: Batch, rng: Rng) -> Run:
        before = batch.calls()
        regions = yield from self.regions(batch, rng)
        spent = (batch.calls() - before).tolist()
        return [region.evidence(calls) for region, calls in zip(regions, spent, strict=True)]

    def regions(
        self, batch: Batch, rng: Rng, rivals: Sequence[float] | None = None
    ) -> Generator[Progress, None, list[TiltedRegion]]:
        """What the populations say of each problem; `rivals`: calls that another method needs for the same error."""
        if batch.inputs.normal_dim is None:
            raise InputError("tilting needs an input model that maps from normals; use Splitting")
        regions = [TiltedRegion() for _ in range(len(batch))]
        ladders = Annealing(self.chains, self.length, self.replicates, self.log_p_min)
        before = batch.calls()
        try:
            yield from ladders.build(batch, regions, rng)
            for region in regions:
                region.moves = self.length
                if region.answered:
                    region.weigh()
            yield from self._refine(batch, regions, rivals or [math.inf] * len(batch), before, rng)
            _show(batch, regions)
        except Exhausted:
            for region in regions:  # the last round of some problems is not weighed yet
                if region.answered:
                    region.weigh()
            yield progress(METHOD, batch, [region.log_prob for region in regions], 0)
        return regions

    def _refine(
        self, batch: Batch, regions: Sequence[TiltedRegion], rivals: Sequence[float], before: Tensor, rng: Rng
    ) -> Generator[Progress, None, None]:
        """Make the chains of all temperatures longer, all problems together until each has enough."""
        for turn in range(_ROUNDS + 1):
            spent, lengths = (batch.calls() - before).tolist(), dict[int, int]()
            for row, region in enumerate(regions):
                if region.answered and turn < _ROUNDS:
                    left = batch.spend.left(batch.rows[row : row + 1])
                    lengths[row] = self._more(region, spent[row], left, rivals[row])
            lengths = {row: length for row, length in lengths.items() if length}
            yield progress(METHOD, batch, [region.log_prob for region in regions], len(lengths))
            if not lengths:
                return
            longer = list(lengths)
            while lengths:
                some = min(_CHUNK, *lengths.values())
                self._extend(batch, list(lengths), regions, some, rng)
                lengths = {row: length - some for row, length in lengths.items() if length > some}
            for row in longer:
                regions[row].weigh()

    def _more(self, region: TiltedRegion, spent: int, left: float, rival: float) -> int:
        """Moves by which the chains of a problem should be longer, in steps of a half octave; 0 where that is enough.

        `spent` calls are behind it and `left` are left; another method would take `rival` for the same error.
        """
        excess, restless = region.std / self.target_error, region.restless
        had, per_move, least = region.moves, spent / region.moves, _LEAST * self.length
        needed = spent * excess**2
        if had < least:  # so short chains say too little of what longer ones need to give up against experience
            needed = min(needed, self.forecast(region.log_prob))
        if not math.isfinite(excess) or needed > _DEARER * rival:
            return 0
        if (excess <= _CLOSE and not restless and had >= least) or _hopeless(had, excess, self.growth * self.length):
            return 0
        wanted = max(had * (excess**2 - 1), had * restless, least - had)
        wanted = min(wanted, _TIMES * had, 0.8 * left / per_move, self.growth * self.length - had)
        return round(2 ** (round(2 * math.log2(wanted)) / 2)) if wanted >= 2 else 0

    def _extend(
        self, batch: Batch, rows: Sequence[int], regions: Sequence[TiltedRegion], length: int, rng: Rng
    ) -> None:
        """Go on at all temperatures of some problems, side by side."""
        both = [(row, rung) for row in rows for rung in regions[row].rungs[1:]]
        owners = torch.tensor([row for row, _ in both]).repeat_interleave(self.replicates)
        like, each = both[0][1].scores, self.replicates
        b, soft = (
            like.new_tensor(values).repeat_interleave(each).unsqueeze(1)
            for values in ([rung.b for _, rung in both], [regions[row].soft for row, _ in both])
        )
        start = Chains.join([rung.last for _, rung in both if rung.last is not None])
        step = start.z.new_tensor([rung.step for _, rung in both])
        law = Law(batch.take(owners), b, soft)
        pairs = _neighbours([len(regions[row].rungs) - 1 for row in rows], each, b.device)
        walked = walk(law, start, step, length, each, rng, _SETTLED, pairs)
        for k, (row, rung) in enumerate(both):
            own = slice(k * each, (k + 1) * each)
            rung.go_on(walked, own, k)
            if rung is regions[row].rungs[-1]:
                regions[row].kept = walked.z[own].clone(), walked.score[own]
        free = batch.take(torch.tensor(rows).repeat_interleave(each))
        drawn = free.score_normal(free.normals(WIDE * self.chains * length, rng)).double().unsqueeze(2)
        for i, row in enumerate(rows):
            scores = drawn[i * each : (i + 1) * each]
            regions[row].rungs[0].extend(scores, torch.ones_like(scores))
            regions[row].moves += length


def _neighbours(ladders: Sequence[int], each: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Rows of neighbouring temperatures, in two sets in which each row is once.

    `ladders` has the temperatures of each problem, each of them `each` rows one after the other.
    """
    sets = []
    for odd in (0, 1):
        starts = accumulate(ladders, initial=0)
        lower = [start + k for start, size in zip(starts, ladders, strict=False) for k in range(odd, size - 1, 2)]
        rows = (torch.tensor(lower, dtype=torch.long).unsqueeze(1) * each + torch.arange(each)).flatten().to(device)
        sets.append((rows, rows + each))
    return sets


def _hopeless(had: int, excess: float, most: int) -> bool:
    """Whether what chains of the first length and more tell is that the longest would still be too short."""
    return had >= most / _LOOK and had * excess**2 > _DEARER * most


def _show(batch: Batch, regions: Sequence[TiltedRegion]) -> None:
    """Violating states of the last temperature as witnesses: fair draws of all that violate once they are weighted."""
    for row, region in enumerate(regions):
        if not region.answered or region.kept is None:
            continue
        z, score = (state.flatten(0, 1) for state in region.kept)
        hit = score >= 0
        with torch.no_grad():
            x = batch.take(torch.tensor([row])).inputs.from_normal(z[hit].unsqueeze(0)).squeeze(0)
        weights = -region.rungs[-1].b * raised(score[hit], score.new_tensor(region.soft))
        region.witnesses = gather_witnesses(x, score[hit].to(x.dtype), weights)
