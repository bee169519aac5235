"""Ladders of temperatures, built from b = 0 to where inputs violate: many problems in step, each with its own."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch, check_finite, check_first
from rarely.core.rng import Rng
from rarely.methods.base import Progress, progress
from rarely.methods.ladder import systematic
from rarely.methods.rungs import DEAREST, Law, raised, walk
from rarely.methods.tilted import METHOD, Rung, TiltedRegion

WIDE = 8  # times as many independent states as others: each costs one call, and says more
_ESS = 0.35  # effective share of the states that a change of temperature leaves
_MOST_HITS, _ARRIVED = 0.5, 0.25  # share of states that violate: what temperatures aim at, and what is enough
_SOME = 0.01  # share from which there is a number, if a doubtful one
_SOFT = 2.0  # standard deviations of the first scores at which u levels off
_MOST = 60  # temperatures
_GAIN, _WIDEST = 0.5, 1.0  # how fast steps adapt, and the angle that they begin with


@dataclass
class _States:
    """Where populations stand: row r is replicate r % replicates of problem r // replicates."""

    z: Tensor  # (R, n, d)
    score: Tensor  # (R, n) float64
    step: Tensor  # (G,) angle of a step

    def take(self, some: Sequence[int], replicates: int) -> _States:
        groups = torch.tensor(some, device=self.step.device)
        rows = (groups.unsqueeze(1) * replicates + torch.arange(replicates, device=groups.device)).flatten()
        return _States(self.z[rows], self.score[rows], self.step[groups])


@dataclass(frozen=True)
class Annealing:
    """`replicates` populations of `chains` chains for each problem, `length` states of each at a temperature."""

    chains: int
    length: int
    replicates: int
    log_p_min: float

    def build(self, batch: Batch, regions: Sequence[TiltedRegion], rng: Rng) -> Generator[Progress, None, None]:
        """Give each region its rungs and say how its ladder ended; what the first states say of it is there at once."""
        first = WIDE * self.chains * self.length
        active = [row for row in range(len(batch)) if self._affords(batch, row, first)]
        if not active:
            return
        part = self._rows(batch, active)
        z = part.normals(first, rng)
        score = part.score_normal(z).double()
        check_finite(score)
        flat = check_first(part.property, score)[:: self.replicates]
        spread = score.reshape(len(active), -1).std(1).tolist()
        for i, region in enumerate(regions[row] for row in active):
            own = score[i * self.replicates : (i + 1) * self.replicates].unsqueeze(2)
            region.soft, region.reached = _SOFT * spread[i], (0.0,) * self.replicates
            region.rungs, region.flat = [Rung(0.0, own, torch.ones_like(own))], flat[i]
        states = _States(z, score, z.new_full((len(active),), _WIDEST))
        for _ in range(_MOST):
            going = [i for i, row in enumerate(active) if not self._ended(regions[row])]
            going = [i for i in going if self._affords(batch, active[i], self.chains * (1 + self.length * DEAREST))]
            yield progress(METHOD, batch, [region.log_reached for region in regions], len(going))
            if not going:
                return
            if len(going) < len(active):
                active, states = [active[i] for i in going], states.take(going, self.replicates)
                part = self._rows(batch, active)
            states = self._rise(part, [regions[row] for row in active], states, rng)
        for row in active:
            regions[row].ended = "stalled"

    def _affords(self, batch: Batch, row: int, calls: int) -> bool:
        """Whether a problem can pay for so many calls of each replicate: what one cannot pay for would end all."""
        return batch.spend.left(batch.rows[row : row + 1]) >= self.replicates * calls

    def _rows(self, batch: Batch, problems: Sequence[int]) -> Batch:
        return batch.take(torch.tensor(problems).repeat_interleave(self.replicates))

    def _ended(self, region: TiltedRegion) -> bool:
        """Whether a ladder is complete, one way or another, which the region is told."""
        hits = region.rungs[-1].hits
        if hits >= _ARRIVED or region.flat:
            region.ended = "violated" if hits > 0 else "stalled"
        elif region.log_reached < self.log_p_min:
            region.ended = "floor"
        elif not region.rises:
            region.ended = "violated" if hits >= _SOME else "stalled"
        else:
            return False
        return True

    def _rise(self, part: Batch, regions: Sequence[TiltedRegion], states: _States, rng: Rng) -> _States:
        """One more temperature."""
        like, replicates = states.score, self.replicates
        met = [region.rungs[-1].part() for region in regions]
        scores, log_shares = (torch.cat([own[i] for own in met]) for i in (0, 1))
        soft = like.new_tensor([region.soft for region in regions]).repeat_interleave(replicates).unsqueeze(1)
        b = like.new_tensor([region.rungs[-1].b for region in regions]).repeat_interleave(replicates).unsqueeze(1)
        following = _next(scores, log_shares, b, soft, replicates)
        change = following - b
        more = (change * raised(scores, soft) + log_shares).logsumexp(1) - log_shares.logsumexp(1)
        index = systematic(change * raised(states.score, soft), self.chains, rng)
        law = Law(part, following, soft)
        start = law.at(states.z.gather(1, index.unsqueeze(-1).expand(-1, -1, states.z.shape[-1])))
        walked = walk(law, start, states.step, self.length, replicates, rng, _GAIN)
        for i, region in enumerate(regions):
            own = slice(i * replicates, (i + 1) * replicates)
            region.climb(float(following[own.start]), walked, own, i, more[own].tolist())
        return _States(walked.z, walked.score, walked.step)


def _next(scores: Tensor, log_shares: Tensor, b: Tensor, soft: Tensor, replicates: int) -> Tensor:
    """The next temperature (R, 1), by the states (R, n) of all replicates of a problem together."""
    height, count, hit = (
        value.reshape(-1, replicates * scores.shape[1])
        for value in (raised(scores, soft), log_shares, (scores >= 0).double())
    )
    base = torch.softmax(count, 1)
    middle = (base * height).sum(1, keepdim=True)
    spread = (base * (height - middle).square()).sum(1, keepdim=True).sqrt()
    low = b[::replicates]
    start, high = low, low + 20 / spread.clamp_min(1e-30)
    for _ in range(40):
        mid = 0.5 * (low + high)
        w = torch.softmax(count + (mid - start) * height, 1)
        effective = 1 / (w.square() / base.clamp_min(1e-300)).sum(1, keepdim=True)
        ok = (effective > _ESS) & ((w * hit).sum(1, keepdim=True) < _MOST_HITS)
        low, high = torch.where(ok, mid, low), torch.where(ok, high, mid)
    return low.repeat_interleave(replicates, 0)
