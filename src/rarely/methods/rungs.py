"""Populations at one temperature: Hamiltonian moves in phi(z) exp(b u(s)), where every point on the way is used.

u is the score, which levels off where inputs violate: the law is proper whatever the score does there. Kicks by the
slope of b u and rotations that keep the normal law; a kick of tan(step / 2) instead of step / 2 makes the move exact
where the score is a plane, however long it is.

A move of L leaps that starts at z_0 is accepted at z_L. A move of j leaps would have been accepted at z_j with a chance
a_j, and keeps the law, too: z_j counts for a_j / L of a state, and z_0 for what is left (Nishimura and Dunson 2020).
Scores decorrelate within a leap or two where the last inputs before the violation are told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.methods.moves import correlation

_TARGET = 0.75  # acceptance of moves
_ARC, _LEAPS = 1.57, 12  # angle of a move: a quarter turn forgets the start; and the most steps that it is taken in
_WIDEST = 1.4  # angle of a step
DEAREST = 3 * _LEAPS  # calls of a move at most: each leap takes a gradient


@dataclass(frozen=True)
class Chains:
    """Where the chains of R populations stand."""

    z: Tensor  # (R, C, d)
    score: Tensor  # (R, C) float64
    slope: Tensor  # (R, C, d) of the score
    weight: Tensor | None  # (R, C) log-weight of normals kept

    def each(self, change: Callable[..., Tensor], *others: Chains) -> Chains:
        """What `change` makes of each tensor, and of those of others."""

        def changed(name: str) -> Tensor:
            return change(*(getattr(one, name) for one in (self, *others)))

        weight = None if self.weight is None else changed("weight")
        return Chains(changed("z"), changed("score"), changed("slope"), weight)

    def rows(self, index: Tensor | slice) -> Chains:
        return self.each(lambda own: own[index])

    @staticmethod
    def join(parts: Sequence[Chains]) -> Chains:
        return parts[0].each(lambda *own: torch.cat(own), *parts[1:])


@dataclass(frozen=True)
class Law:
    """phi(z) exp(b u(score)) of R populations."""

    batch: Batch
    b: Tensor  # (R, 1) float64
    soft: Tensor  # (R, 1) float64: scores far beyond it count no more than this

    def rows(self, index: Tensor) -> Law:
        return Law(self.batch.take(index), self.b[index], self.soft[index])

    def at(self, z: Tensor) -> Chains:
        score, slope = self.batch.gradient_normal(z)
        return Chains(z, score.double(), torch.nan_to_num(slope), self.batch.log_weight(z))

    def log_density(self, at: Chains) -> Tensor:
        """(R, C) by that of the normals alone."""
        own = self.b * raised(at.score, self.soft)
        return own if at.weight is None else own + at.weight

    def push(self, at: Chains) -> Tensor:
        """(R, C, d) how b u rises."""
        flat = 1 - torch.tanh(at.score / self.soft).square()
        steep = self.b * torch.where(at.score < 0, torch.ones_like(flat), flat)
        return steep.to(at.z.dtype).unsqueeze(-1) * at.slope


@dataclass(frozen=True)
class Walked:
    """All that moves have met, in the order of time."""

    last: Chains
    scores: Tensor  # (R, K, C) float64
    shares: Tensor  # (R, K, C) of a state that each of them counts for
    z: Tensor  # (R, length C, d) the state after each move
    score: Tensor  # (R, length C)
    step: Tensor  # (G,) angle of a step
    rate: Tensor  # (G,) acceptance
    left: Tensor  # (G,) correlation between the first and the last scores


def raised(score: Tensor, soft: Tensor) -> Tensor:
    """u(s): the score itself below 0, levelling off at `soft` above."""
    return torch.where(score < 0, score, soft * torch.tanh(score / soft))


def walk(
    law: Law,
    start: Chains,
    step: Tensor,
    length: int,
    replicates: int,
    rng: Rng,
    gain: float,
    pairs: Sequence[tuple[Tensor, Tensor]] = (),
) -> Walked:
    """`length` moves of every chain.

    Every `replicates` populations in a row are of one group and share the angle of their steps, which adapts by `gain`.
    After a move pairs of populations exchange their chains: one set of `pairs` after the other.
    """
    current = start
    scores: list[Tensor] = []
    shares: list[Tensor] = []
    states: list[tuple[Tensor, Tensor]] = []
    rates: list[Tensor] = []
    for _ in range(length):
        leaps = torch.ceil(_ARC / step - 0.25).clamp(1, _LEAPS).long().repeat_interleave(replicates)
        wide = step.repeat_interleave(replicates).reshape(-1, 1, 1)
        v = rng.normal(current.z.shape, current.z.dtype)
        angle = wide * (0.8 + 0.4 * rng.uniform(current.score.shape, current.z.dtype).unsqueeze(-1))
        before = law.log_density(current) - _energy(current.z, v)
        proposal, chance = current, torch.zeros_like(before)
        each, met = leaps.unsqueeze(1).double(), len(scores)
        for leap in range(int(leaps.max())):
            rows = (leaps > leap).nonzero().squeeze(1)
            part = law if len(rows) == len(leaps) else law.rows(rows)
            there, w = _leap(part, proposal.rows(rows), v[rows], angle[rows])
            gained = part.log_density(there) - _energy(there.z, w) - before[rows]
            accepted = torch.nan_to_num(gained, nan=-torch.inf).clamp_max(0.0).exp()
            proposal = proposal.each(lambda own, new, rows=rows: own.index_copy(0, rows, new), there)
            v, chance = v.index_copy(0, rows, w), chance.index_copy(0, rows, accepted)
            scores.append(proposal.score)
            shares.append(torch.zeros_like(chance).index_copy(0, rows, accepted) / each)
        scores.append(current.score)
        shares.append(1 - torch.stack(shares[met:]).sum(0))
        ok = rng.uniform(chance.shape, torch.float64) < chance
        current = proposal.each(lambda new, old, ok=ok: torch.where(_like(ok, new), new, old), current)
        if pairs:
            current = _exchange(law, current, *pairs[len(states) % len(pairs)], rng)
        states.append((current.z, current.score))
        rates.append(chance.mean(1).reshape(-1, replicates).mean(1))
        step = (step * torch.exp(gain * (rates[-1] - _TARGET)).to(step)).clamp(1e-3, _WIDEST)
    left = correlation(*(one.score.reshape(len(step), -1) for one in (start, current)))
    z, score = (torch.cat([state[i] for state in states], 1) for i in (0, 1))
    rate = torch.stack(rates).mean(0)
    return Walked(current, torch.stack(scores, 1), torch.stack(shares, 1), z, score, step, rate, left)


def _leap(law: Law, at: Chains, v: Tensor, angle: Tensor) -> tuple[Chains, Tensor]:
    """Kick, rotation by `angle`, kick."""
    kick, cos, sin = torch.tan(angle / 2), torch.cos(angle), torch.sin(angle)
    v = v + kick * law.push(at)
    there = law.at(at.z * cos + v * sin)
    return there, v * cos - at.z * sin + kick * law.push(there)


def _exchange(law: Law, at: Chains, low: Tensor, high: Tensor, rng: Rng) -> Chains:
    """Chains of two rows change places as both laws together allow, which costs no call.

    So what moves freely at low temperatures comes up to the high ones.
    """
    height = raised(at.score, law.soft)
    gained = (law.b[high] - law.b[low]) * (height[low] - height[high])
    ok = rng.uniform(gained.shape, torch.float64).log() < gained

    def change(own: Tensor) -> Tensor:
        here, there, taken = own[low], own[high], _like(ok, own)
        swapped = torch.where(taken, there, here), torch.where(taken, here, there)
        return own.index_copy(0, torch.cat([low, high]), torch.cat(swapped))

    return at.each(change)


def _like(ok: Tensor, value: Tensor) -> Tensor:
    return ok.unsqueeze(-1) if value.ndim > ok.ndim else ok


def _energy(z: Tensor, v: Tensor) -> Tensor:
    """(|z|^2 + |v|^2) / 2, (R, C) float64."""
    return 0.5 * (z.double().square().sum(-1) + v.double().square().sum(-1))
