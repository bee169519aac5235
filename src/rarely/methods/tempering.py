"""Line integrated out, the rest tempered: SMC over phi(z) P(Z > t(z))^b on the complement of a direction.

The state is z orthogonal to alpha. With t(z) the entry of its line into the violating region, h(z) = log P(Z > t(z)) is
the log-probability left on that line, and p is the mean of exp(h) over normal z. h varies by a few nats where log p
varies by forty, so a few temperatures b from 0 to 1 do. Every state of the chains is used (Dau and Chopin 2022), twice:
the ratio of two normalising constants is that of Bennett (1976), from the states at both temperatures.

To search for the entry costs three calls, at thousands of places. One score where entries are expected says nearly as
much: t is `zero` - score / slope, which is exact where the boundary is a plane. Populations move in the law of this
guess, and at the end each state is weighted by P(Z > t) over what was guessed, with t searched for. Lines whose guess
was seen to mislead are `exact`: they search all along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.methods.ladder import Spread, bennett, mean_of, systematic
from rarely.methods.roots import find_roots
from rarely.stats.normal import LOG_SQRT_2PI

_ENOUGH = 0.6  # effective share from which the last change is left to weights, and nothing moves at its end
_TARGET = 0.7  # acceptance of Hamiltonian moves
_ARC, _LEAPS = 1.2, 8  # angle of a move, and the most steps that it is taken in
_WIDEST = 1.4  # angle of a step, which is a whole move where the region is flat
_CAP = 30.0  # longest drift, in units of the noise
_MAX_TEMPERATURES = 60
ROOT_CALLS = 8  # calls that finding a root is taken to cost at most, on average, when a budget is planned


@dataclass(frozen=True)
class Lines:
    """R populations, each of lines along its own direction, cut to its own cell.

    A cell is where direction alpha claims z before its rivals: (alpha - rival) . z >= offset for each. Along alpha this
    starts at one t, so cells split an event with several directions into disjoint pieces at no cost.
    """

    batch: Batch
    alpha: Tensor  # (R, d)
    distance: Tensor  # (R,)
    rivals: Tensor  # (R, C, d), zero rows pad
    offsets: Tensor  # (R, C), -inf pads
    plane: Tensor  # (R,) where along alpha a score is looked at, to guess where the line enters the region
    zero: Tensor  # (R,) the entry that a score of 0 there means
    slope: Tensor  # (R,) how fast scores rise along alpha
    stepped: Tensor  # (R,) whether the score was seen to move in steps
    exact: bool = False  # whether every entry is searched for, not guessed

    def take(self, index: Tensor) -> Lines:
        i = index.to(self.alpha.device)
        names = ("alpha", "distance", "rivals", "offsets", "plane", "zero", "slope", "stepped")
        return replace(self, batch=self.batch.take(index.cpu()), **{name: getattr(self, name)[i] for name in names})

    def complement(self, v: Tensor) -> Tensor:
        """v (R, N, d) without its part along alpha."""
        return v - (v @ self.alpha.unsqueeze(-1)) * self.alpha.unsqueeze(1)

    def cell_entry(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Where each line enters the cell, (R, N), and the rival that decides it."""
        ahead = self.alpha.unsqueeze(1) - self.rivals  # (R, C, d)
        speed = (ahead * self.alpha.unsqueeze(1)).sum(-1).clamp_min(1e-6)  # (R, C)
        entries = (self.offsets.unsqueeze(1) - z @ ahead.mT) / speed.unsqueeze(1)
        worst, which = entries.max(-1)
        return worst, which

    def at(self, z: Tensor, t: Tensor) -> Tensor:
        """The points (R, N, d) at t (R, N) of the lines through z."""
        return z + t.unsqueeze(-1) * self.alpha.unsqueeze(1)

    def weight(self, z: Tensor, t: Tensor) -> Tensor | None:
        """Log-weights (R, N) of normals kept, at the mean of a normal beyond t; None where all are 0.

        They vary slowly along a line. What one place misses is found by the tests beyond the entries.
        """
        beyond = mean_beyond(torch.where(torch.isfinite(t), t, torch.zeros_like(t)))
        return self.batch.log_weight(self.at(z, beyond))

    def guessed(self, scores: Tensor) -> Tensor:
        """Entries that scores (R, N) at the plane let expect."""
        return self.zero.unsqueeze(1) - scores / self.slope.unsqueeze(1)


@dataclass(frozen=True)
class Particles:
    z: Tensor  # (R, N, d)
    t: Tensor  # (R, N) entry into the region, found or guessed, after the cell's
    h: Tensor  # (R, N) float64
    slope: Tensor  # (R, N) of the score along alpha at the entry
    drift: Tensor | None = None  # (R, N, d) gradient of h

    def gather(self, index: Tensor) -> Particles:
        wide = index.unsqueeze(-1).expand(-1, -1, self.z.shape[-1])
        drift = None if self.drift is None else self.drift.gather(1, wide)
        t, h, slope = (value.gather(1, index) for value in (self.t, self.h, self.slope))
        return Particles(self.z.gather(1, wide), t, h, slope, drift)

    def rows(self, index: Tensor) -> Particles:
        drift = None if self.drift is None else self.drift[index]
        return Particles(self.z[index], self.t[index], self.h[index], self.slope[index], drift)

    def put(self, index: Tensor, other: Particles) -> Particles:
        """With the rows at `index` replaced."""
        names = ("z", "t", "h", "slope", "drift")
        return Particles(*(getattr(self, name).index_copy(0, index, getattr(other, name)) for name in names))

    def where(self, ok: Tensor, other: Particles) -> Particles:
        wide = ok.unsqueeze(-1)
        assert self.drift is not None
        assert other.drift is not None
        pairs = ((self.t, other.t), (self.h, other.h), (self.slope, other.slope))
        t, h, slope = (torch.where(ok, mine, theirs) for mine, theirs in pairs)
        drift = torch.where(wide, self.drift, other.drift)
        return Particles(torch.where(wide, self.z, other.z), t, h, slope, drift)


@dataclass(frozen=True)
class Tempered:
    log_prob: Tensor  # (R,) float64
    alive: Tensor  # (R,) share of lines that reach the region: of the first ones, or of those that guesses led to
    last: Particles  # some particles of each population at b = 1, drawn by weight, with their true entries
    faint: Tensor  # (R,) bool: given up on the way; log_prob is then a bound from above
    guess: Tensor  # (R, N) guessed entries of the last states
    truth: Tensor  # (R, N) and the true ones, inf where there is none

    def rows(self, index: Tensor) -> Tempered:
        names = ("log_prob", "alive", "faint", "guess", "truth")
        return replace(self, last=self.last.rows(index), **{name: getattr(self, name)[index] for name in names})

    @staticmethod
    def join(parts: Sequence[Tempered], rows: Sequence[Tensor]) -> Tempered:
        """Populations in the order of their `rows`."""
        order = torch.cat(list(rows)).argsort()
        log_prob, alive, faint, guess, truth = (
            torch.cat([getattr(part, name) for part in parts])[order]
            for name in ("log_prob", "alive", "faint", "guess", "truth")
        )
        z, t, h, slope = (torch.cat([getattr(p.last, n) for p in parts])[order] for n in ("z", "t", "h", "slope"))
        return Tempered(log_prob, alive, Particles(z, t, h, slope), faint, guess, truth)


def temper(lines: Lines, replicates: int, chains: int, length: int, rng: Rng, floor: Tensor | None = None) -> Tempered:
    """log P of the event on each population's cell, from `chains` chains of `length` states per temperature.

    Every `replicates` populations in a row are of one line and go through the same temperatures. A population that
    chose its own would go on too fast where it happens to have missed the best lines, and end too low: by 0.2 in log p
    with 64 states, where common ones left no bias to be seen.

    Lines are given up once their log p is below `floor` (R,): h <= 0, so that every temperature bounds it from above.
    """
    r, d, n = len(lines.batch), lines.alpha.shape[-1], chains * length
    cloud = _first(lines, lines.complement(rng.normal((r, n, d), lines.alpha.dtype)))
    log_prob = torch.zeros(r, dtype=torch.float64, device=cloud.h.device)
    b, step = log_prob.unsqueeze(1), cloud.z.new_full((r, 1, 1), 0.5)
    alive, active = torch.isfinite(cloud.h).double().mean(1), torch.arange(r, device=b.device)
    ended: list[Tempered] = []
    rows: list[Tensor] = []
    for turn in range(_MAX_TEMPERATURES + 1):
        spread = Spread(cloud.h, b, replicates)
        over = spread.share(torch.ones_like(b)) >= _ENOUGH
        if turn == _MAX_TEMPERATURES:  # the temperature never reached 1: nothing can be said
            log_prob, over = torch.full_like(log_prob, -torch.inf), torch.ones_like(over)
        low = torch.zeros_like(over) if floor is None else mean_of(log_prob, replicates) < floor.unsqueeze(1)
        low &= ~over
        for some, goal in ((over, torch.ones_like(b)), (low, b)):
            if bool(some.any()):
                i = some.squeeze(1).nonzero().squeeze(1)
                ended.append(_finish(lines.take(i), cloud.rows(i), b[i], goal[i], log_prob[i], alive[i], chains, rng))
                rows.append(active[i])
        if bool((over | low).any()):
            i = (~(over | low)).squeeze(1).nonzero().squeeze(1)
            if len(i) == 0:
                break
            lines, cloud, b, step = lines.take(i), cloud.rows(i), b[i], step[i]
            log_prob, alive, active = log_prob[i], alive[i], active[i]
            floor = None if floor is None else floor[i]
        following = Spread(cloud.h, b, replicates).next_temperature()
        change = following - b
        log_w = torch.where(torch.isfinite(cloud.h), change * cloud.h, -torch.inf)
        start, before, b = cloud.gather(systematic(log_w, chains, rng)), cloud.h, following
        cloud, step = _chains(lines, start, b, step, length, rng)
        log_prob = log_prob + bennett(change * before, change * cloud.h, torch.logsumexp(log_w, 1) - math.log(n))
    return Tempered.join(ended, rows)


def _finish(
    lines: Lines, cloud: Particles, b: Tensor, goal: Tensor, log_prob: Tensor, alive: Tensor, chains: int, rng: Rng
) -> Tempered:
    """From temperature b of what was guessed to temperature `goal` of the true law, by weights."""
    truth = cloud
    if not lines.exact:
        truth = search(lines, cloud.z, cloud.t, cloud.slope)
        alive = torch.isfinite(truth.h).double().mean(1)
    log_w = torch.where(torch.isfinite(truth.h), goal * truth.h - b * cloud.h, -torch.inf)
    ratio = torch.logsumexp(log_w, 1) - math.log(log_w.shape[1])
    last = replace(truth, drift=None).gather(systematic(log_w, chains, rng))
    return Tempered(log_prob + ratio, alive, last, (goal < 1).squeeze(1), cloud.t, truth.t)


def _first(lines: Lines, z: Tensor) -> Particles:
    """Particles at z, without a drift: most of them are never moved."""
    guess = lines.zero.unsqueeze(1).expand(z.shape[:2])
    slope = lines.slope.unsqueeze(1).expand(z.shape[:2])
    return search(lines, z, guess, slope) if lines.exact else expected(lines, z)


def expected(lines: Lines, z: Tensor) -> Particles:
    """Particles at z whose entries are guessed."""
    return _guess(lines, z, lines.batch.score_normal(lines.at(z, lines.plane.unsqueeze(1).expand(z.shape[:2]))))


def search(lines: Lines, z: Tensor, guess: Tensor, slope: Tensor) -> Particles:
    """Particles whose entries are searched for."""
    t = find_roots(lines.batch, z, lines.alpha, guess, slope, lines.stepped)
    return _particles(lines, z, t, slope)


def _guess(lines: Lines, z: Tensor, scores: Tensor) -> Particles:
    """Particles whose entries are guessed from scores at the plane."""
    return _particles(lines, z, lines.guessed(scores), lines.slope.unsqueeze(1).expand(scores.shape))


def _particles(lines: Lines, z: Tensor, t: Tensor, slope: Tensor) -> Particles:
    entry, _ = lines.cell_entry(z)
    t = torch.maximum(t, entry)
    h = log_ndtr(-t.double())
    weight = lines.weight(z, t)
    return Particles(z, t, h if weight is None else h + weight, slope)


def with_drift(lines: Lines, particles: Particles) -> Particles:
    """Add the gradient of h: hazard(t) times minus the gradient of t, by implicit differentiation at the entry."""
    z, t = particles.z, particles.t
    finite = torch.isfinite(t)
    where = torch.where(finite, t, torch.zeros_like(t)) if lines.exact else lines.plane.unsqueeze(1).expand(t.shape)
    scores, g = lines.batch.gradient_normal(lines.at(z, where))
    if not lines.exact:
        particles = _guess(lines, z, scores)
        t = particles.t
    entry, which = lines.cell_entry(z)
    rival = lines.rivals.gather(1, which.unsqueeze(-1).expand(-1, -1, g.shape[-1]))
    g = torch.where((entry >= t).unsqueeze(-1), lines.alpha.unsqueeze(1) - rival, g)
    along = (g @ lines.alpha.unsqueeze(-1)).squeeze(-1)
    steep = along if lines.exact else torch.where(entry >= t, along, particles.slope)
    hazard = mean_beyond(t)
    drift = (hazard / steep.clamp_min(1e-6)).unsqueeze(-1) * lines.complement(g)
    drift = drift * (_CAP / drift.norm(dim=-1, keepdim=True).clamp_min(1e-9)).clamp(max=1.0)
    drift = torch.where((finite & (steep > 0)).unsqueeze(-1), drift, torch.zeros_like(drift))
    slope = torch.where(along > 0, along, particles.slope) if lines.exact else particles.slope
    return replace(particles, slope=slope, drift=drift)


def _chains(lines: Lines, start: Particles, b: Tensor, step: Tensor, length: int, rng: Rng) -> tuple[Particles, Tensor]:
    """Hamiltonian moves on the complement: every state of every chain.

    Kicks by the slope of b h, and rotations that keep the normal law; a kick of tan(step / 2) instead of step / 2 makes
    the move exact where h is a plane, however long it is. Steps shrink where h is curved, and more of them are taken.
    """
    current = with_drift(lines, start) if start.drift is None else start
    states = [current]
    for _ in range(length - 1):
        v = lines.complement(rng.normal(current.z.shape, current.z.dtype))
        angle = step * (0.8 + 0.4 * rng.uniform(current.t.shape, current.z.dtype).unsqueeze(-1))
        leaps = torch.ceil(_ARC / step.flatten() - 0.25).clamp(1, _LEAPS).long()
        proposal, end = current, v
        for leap in range(int(leaps.max())):
            rows = (leaps > leap).nonzero().squeeze(1)
            moved, w = _leap(lines.take(rows), proposal.rows(rows), end[rows], angle[rows], b[rows])
            proposal, end = proposal.put(rows, moved), end.index_copy(0, rows, w)
        gained = b * (proposal.h - current.h) - 0.5 * (_energy(proposal.z, end) - _energy(current.z, v))
        ok = torch.log(rng.uniform(gained.shape, torch.float64)) < torch.nan_to_num(gained, nan=-torch.inf)
        current = proposal.where(ok, current)
        states.append(current)
        rate = ok.to(step.dtype).mean(1).reshape(-1, 1, 1)
        step = (step * torch.exp(0.5 * (rate - _TARGET))).clamp(1e-2, _WIDEST)
    joined = [torch.cat([getattr(s, name) for s in states], 1) for name in ("z", "t", "h", "slope", "drift")]
    return Particles(*joined), step


def _leap(lines: Lines, at: Particles, v: Tensor, angle: Tensor, b: Tensor) -> tuple[Particles, Tensor]:
    """Kick, rotation by `angle`, kick."""
    kick = torch.tan(angle / 2) * b.to(angle.dtype).unsqueeze(-1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    assert at.drift is not None
    v = v + kick * at.drift
    z, v = lines.complement(at.z * cos + v * sin), lines.complement(v * cos - at.z * sin)
    there = search(lines, z, _predict(lines, at, z), at.slope) if lines.exact else replace(at, z=z)
    there = with_drift(lines, there)
    assert there.drift is not None
    return there, v + kick * there.drift


def mean_beyond(t: Tensor) -> Tensor:
    """E[Z | Z > t] of a standard normal."""
    exact = t.double()
    return torch.exp(-0.5 * exact**2 - LOG_SQRT_2PI - log_ndtr(-exact)).to(t.dtype)


def _energy(z: Tensor, v: Tensor) -> Tensor:
    """|z|^2 + |v|^2, (R, N) float64."""
    return z.double().square().sum(-1) + v.double().square().sum(-1)


def _predict(lines: Lines, at: Particles, z: Tensor) -> Tensor:
    """The entry of a proposal's line to first order. The gradient of h is hazard(t) times minus that of t."""
    assert at.drift is not None
    ahead = torch.where(torch.isfinite(at.t), at.t, lines.distance.unsqueeze(1))
    return ahead - (at.drift * (z - at.z)).sum(-1) / mean_beyond(ahead).clamp_min(1e-6)
