"""Line integrated out, the rest tempered: SMC over phi(z) P(Z > t(z))^b on the complement of a direction.

The state is z orthogonal to alpha. With t(z) the entry of its line into the violating region, h(z) = log P(Z > t(z)) is
the log-probability left on that line, and p is the mean of exp(h) over normal z. h varies by a few nats where log p
varies by forty, so a few temperatures b from 0 to 1 do. Every state of the chains is used (Dau and Chopin 2022), twice:
the ratio of two normalising constants is that of Bennett (1976), from the states at both temperatures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.methods.roots import find_roots
from rarely.stats.normal import LOG_SQRT_2PI

_ESS = 0.25  # effective share of particles that a change of temperature leaves; ratios come from both sides of it
_TARGET = 0.7  # acceptance of Hamiltonian moves
_ARC, _LEAPS = 0.9, 6  # angle of a move, and the most steps that it is taken in
_WIDEST = 1.3  # angle of a step, which is a whole move where the region is flat
_CAP = 30.0  # longest drift, in units of the noise
_MAX_TEMPERATURES = 60
_BENNETT = 20  # rounds; each shrinks the error of a guess at least by half where half the states are effective
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
    stepped: Tensor  # (R,) whether the score was seen to move in steps

    def take(self, index: Tensor) -> Lines:
        i = index.to(self.alpha.device)
        parts = (self.alpha[i], self.distance[i], self.rivals[i], self.offsets[i], self.stepped[i])
        return Lines(self.batch.take(index), *parts)

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


@dataclass(frozen=True)
class Particles:
    z: Tensor  # (R, N, d)
    t: Tensor  # (R, N) entry into the region, after the cell's
    h: Tensor  # (R, N) float64
    slope: Tensor  # (R, N) of the score along alpha at the entry
    drift: Tensor | None  # (R, N, d) gradient of h

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
    alive: Tensor  # (R,) share of the first lines that reach the region
    last: Particles  # particles of each population at b = 1, drawn by weight


def evaluate(lines: Lines, z: Tensor, guess: Tensor, slope: Tensor) -> Particles:
    t = find_roots(lines.batch, z, lines.alpha, guess, slope, lines.stepped)
    entry, _ = lines.cell_entry(z)
    t = torch.maximum(t, entry)
    return Particles(z, t, log_ndtr(-t.double()), slope, None)


def with_drift(lines: Lines, particles: Particles) -> Particles:
    """Add the gradient of h: hazard(t) times minus the gradient of t, by implicit differentiation at the entry."""
    finite = torch.isfinite(particles.t)
    t = torch.where(finite, particles.t, torch.zeros_like(particles.t))
    _, g = lines.batch.gradient_normal(particles.z + t.unsqueeze(-1) * lines.alpha.unsqueeze(1))
    entry, which = lines.cell_entry(particles.z)
    rival = lines.rivals.gather(1, which.unsqueeze(-1).expand(-1, -1, g.shape[-1]))
    g = torch.where((entry >= t).unsqueeze(-1), lines.alpha.unsqueeze(1) - rival, g)
    along = (g @ lines.alpha.unsqueeze(-1)).squeeze(-1)
    hazard = torch.exp(-0.5 * t.double() ** 2 - LOG_SQRT_2PI - log_ndtr(-t.double())).to(t.dtype)
    drift = (hazard / along.clamp_min(1e-6)).unsqueeze(-1) * lines.complement(g)
    drift = drift * (_CAP / drift.norm(dim=-1, keepdim=True).clamp_min(1e-9)).clamp(max=1.0)
    drift = torch.where((finite & (along > 0)).unsqueeze(-1), drift, torch.zeros_like(drift))
    return replace(particles, slope=torch.where(along > 0, along, particles.slope), drift=drift)


def temper(lines: Lines, replicates: int, chains: int, length: int, rng: Rng) -> Tempered:
    """log P of the event on each population's cell, from `chains` chains of `length` states per temperature.

    Every `replicates` populations in a row are of one line and go through the same temperatures. A population that
    chose its own would go on too fast where it happens to have missed the best lines, and end too low: by 0.2 in log p
    with 64 states, where common ones left no bias to be seen.
    """
    r, d, n = len(lines.batch), lines.alpha.shape[-1], chains * length
    z = lines.complement(rng.normal((r, n, d), lines.alpha.dtype))
    guess = lines.distance.clamp_max(15.0).unsqueeze(1).expand(r, n)
    cloud = evaluate(lines, z, guess, _first_slope(lines).expand(r, n))
    alive = torch.isfinite(cloud.h).double().mean(1).cpu()
    log_prob, b = torch.zeros(r, dtype=torch.float64), torch.zeros(r, 1, dtype=torch.float64, device=z.device)
    step = z.new_full((r, 1, 1), 0.5)
    active = torch.arange(r)
    finals: list[Particles | None] = [None] * r
    for _ in range(_MAX_TEMPERATURES):
        following = _next_temperature(cloud.h, b, replicates)
        log_w = (following - b) * cloud.h
        log_w = torch.where(torch.isfinite(cloud.h), log_w, -torch.inf)
        ratio = torch.logsumexp(log_w, 1) - math.log(n)
        start = cloud.gather(_systematic(log_w, chains, rng))
        done = (following.squeeze(1) >= 1).cpu()
        ended = done.nonzero().squeeze(1)
        log_prob[active[ended]] += ratio.cpu()[ended]
        for j in ended.tolist():
            finals[int(active[j])] = start.rows(torch.tensor([j], device=z.device))
        going = (~done).nonzero().squeeze(1)
        if len(going) == 0:
            break
        index = going.to(z.device)
        lines, active = (lines.take(going) if len(going) < len(active) else lines), active[going]
        before, change = cloud.h[index], (following - b)[index]
        start, b, step = start.rows(index), following[index], step[index]
        cloud, step = _chains(lines, start, b, step, length, rng)
        log_prob[active] += _bennett(change * before, change * cloud.h, ratio[index]).cpu()
    else:
        log_prob[active] = -torch.inf  # the temperature never reached 1: nothing can be said
    last = [f for f in finals if f is not None]
    z, t, h, slope = (torch.cat([getattr(f, name) for f in last]) for name in ("z", "t", "h", "slope"))
    whole = Particles(z, t, h, slope, None)
    return Tempered(log_prob, alive, whole)


def _bennett(below: Tensor, above: Tensor, ratio: Tensor) -> Tensor:
    """log Z'/Z (R,) from the differences of the two log-densities at states of Z and of Z', (R, n) each.

    Bennett (1976), eq. 12a and b; `ratio` is the guess that the lower states alone give, -inf where all are dead.
    """
    dead = torch.isneginf(ratio)
    for _ in range(_BENNETT):
        forth = torch.nn.functional.logsigmoid(below - ratio.unsqueeze(1)).logsumexp(1)
        back = torch.nn.functional.logsigmoid(ratio.unsqueeze(1) - above).logsumexp(1)
        ratio = ratio + forth - back
    return torch.where(dead, -torch.inf, ratio)


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
            moved, w = _leap(lines.take(rows.cpu()), proposal.rows(rows), end[rows], angle[rows], b[rows])
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
    ahead = torch.where(torch.isfinite(at.t), at.t, lines.distance.unsqueeze(1))
    there = with_drift(lines, evaluate(lines, z, _predict(at, z, ahead), at.slope))
    assert there.drift is not None
    return there, v + kick * there.drift


def _energy(z: Tensor, v: Tensor) -> Tensor:
    """|z|^2 + |v|^2, (R, N) float64."""
    return z.double().square().sum(-1) + v.double().square().sum(-1)


def _predict(current: Particles, z: Tensor, ahead: Tensor) -> Tensor:
    """The entry of a proposal's line to first order. The gradient of h is hazard(t) times minus that of t."""
    assert current.drift is not None
    t = ahead.double()
    hazard = torch.exp(-0.5 * t**2 - LOG_SQRT_2PI - log_ndtr(-t)).to(z.dtype)
    return ahead - (current.drift * (z - current.z)).sum(-1) / hazard.clamp_min(1e-6)


def _first_slope(lines: Lines) -> Tensor:
    """Rise of the score along alpha at the entry from the origin: one gradient per population."""
    at = lines.distance.clamp_max(15.0).reshape(-1, 1, 1) * lines.alpha.unsqueeze(1)
    _, g = lines.batch.gradient_normal(at)
    return (g @ lines.alpha.unsqueeze(-1)).squeeze(-1).abs()


def _next_temperature(h: Tensor, b: Tensor, replicates: int) -> Tensor:
    """The largest b' <= 1 that leaves the effective share _ESS of the particles with a crossing, (R, 1)."""
    h, b = h.reshape(-1, replicates * h.shape[1]), b[::replicates]
    alive = torch.isfinite(h).sum(1, keepdim=True).double()

    def share(c: Tensor) -> Tensor:
        w = torch.softmax(torch.where(torch.isfinite(h), (c - b) * h, -torch.inf), 1)
        return 1 / (w * w).sum(1, keepdim=True) / alive

    low, high = b.clone(), torch.ones_like(b)
    for _ in range(40):
        mid = 0.5 * (low + high)
        ok = share(mid) > _ESS
        low, high = torch.where(ok, mid, low), torch.where(ok, high, mid)
    chosen = torch.where((share(torch.ones_like(b)) >= _ESS) | (alive == 0), torch.ones_like(b), low)
    return chosen.repeat_interleave(replicates, 0)


def _systematic(log_w: Tensor, n: int, rng: Rng) -> Tensor:
    w = torch.nan_to_num(torch.softmax(log_w, 1), nan=1.0 / log_w.shape[1])
    u = (rng.uniform((log_w.shape[0], 1), torch.float64) + torch.arange(n, device=log_w.device)) / n
    return torch.searchsorted(torch.cumsum(w, 1), u).clamp_max(log_w.shape[1] - 1)
