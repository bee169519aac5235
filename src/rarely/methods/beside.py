"""Splitting beside a direction: where the line through z enters the region is what climbs, and the line is integrated.

As in `tempering.py` the state is z orthogonal to alpha, and p is the mean of P(Z > t(z)). Without gradients populations
climb in the score at a plane that alpha is orthogonal to, at one call a move: it says nearly where the line enters. p
is the sum over the shells between two levels of what is expected of them; a few states of each, drawn by what their
scores let expect, have their entries searched for and tell how far that is from the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.input_model import InputModel
from rarely.core.rng import Rng
from rarely.core.stacking import take
from rarely.kernels import PCN
from rarely.methods.compass import slopes
from rarely.methods.ladder import Spread, systematic
from rarely.methods.moves import chains
from rarely.methods.tempering import Lines, Tempered, search
from rarely.methods.walk import Walk
from rarely.stats.levels import ancestors, select

_LENGTH = 10  # states of a chain, and one in so many survives a level
_ENOUGH = 0.4  # effective share of a population from which weights do the rest
_SHELL, _LAST = 16, 64  # states that are kept of a shell, and of all of them for the search
_MOST_LEVELS = 120


@dataclass(frozen=True)
class _AtPlane:
    """Inputs whose place along alpha is that of the plane, whatever z says of it."""

    inside: InputModel
    alpha: Tensor  # (R, 1, d)
    plane: Tensor  # (R, 1, 1)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.inside.event_shape

    @property
    def normal_dim(self) -> int | None:
        return self.inside.normal_dim

    def from_normal(self, z: Tensor) -> Tensor:
        return self.inside.from_normal(z + (self.plane - (z * self.alpha).sum(-1, keepdim=True)) * self.alpha)

    def take(self, index: Tensor) -> _AtPlane:
        i = index.to(self.alpha.device)
        return _AtPlane(take(self.inside, index), self.alpha[i], self.plane[i])


@dataclass(frozen=True)
class Climbed:
    tempered: Tempered
    slope: Tensor  # (R, d) of the score beside alpha, as the moves have shown it


def climb(lines: Lines, replicates: int, chains_each: int, thin: int, rng: Rng) -> Climbed:
    """log P of the event from populations of `chains_each` chains; every `replicates` in a row are of one line."""
    r, n, device = len(lines.alpha), _LENGTH * chains_each, lines.alpha.device
    log_p = torch.zeros(r, dtype=torch.float64, device=device)
    slope, levels = torch.zeros_like(lines.alpha), torch.zeros(r, device=device)
    kept: list[list[_Kept]] = [[] for _ in range(r)]
    active, part = torch.arange(r, device=device), lines
    cold = torch.zeros(r, 1, dtype=torch.float64, device=device)
    warm = torch.ones_like(cold)
    walk = _walk(part, rng)
    state = walk.kernel.init(walk.batch, n, rng)
    for turn in range(_MOST_LEVELS):
        h = log_ndtr(-part.guessed(state.score).double())
        # The populations of a line stop together, but for those that cannot climb, which say nothing about the others.
        climbing = h.new_full((r, n), -torch.inf).index_copy(0, active, h)
        over = (Spread(climbing, cold, replicates).share(warm) >= _ENOUGH).squeeze(1)[active]
        choice = select(state.score, 1 / _LENGTH, False, goal=math.inf)
        dead = choice.survivors == 0
        over = over | dead | (turn == _MOST_LEVELS - 1)
        below = (state.score <= choice.level.unsqueeze(1)) | over.unsqueeze(1)
        log_w = torch.where(below, h, -torch.inf)
        mass = log_p[active] + torch.logsumexp(log_w, 1) - math.log(n)
        few, many = (systematic(log_w, count, rng) for count in (_SHELL, _LAST))
        for j, row in enumerate(active.tolist()):
            pick = (many if bool(over[j]) else few)[j]
            kept[row].append(_Kept(state.position[j, pick], state.score[j, pick], mass[j]))
        log_p[active] += choice.log_increment
        go = (~over).nonzero().squeeze(1)
        if len(go) == 0:
            break
        if len(go) < len(active):
            active, part, state = active[go], part.take(go), state.rows(go)
            choice = replace(choice, **{f: getattr(choice, f)[go] for f in choice.__dataclass_fields__})
            walk = _walk(part, rng)
        start = state.clone(ancestors(choice, chains_each, rng, multinomial=False))
        state = chains(walk, start, choice.level, _LENGTH, thin).state
        slope[active] += slopes(state, _LENGTH)
        levels[active] += 1
    return Climbed(_corrected(lines, kept, rng), slope / levels.clamp_min(1).unsqueeze(1))


def _walk(lines: Lines, rng: Rng) -> Walk:
    inputs = _AtPlane(lines.batch.inputs, lines.alpha.unsqueeze(1), lines.plane.reshape(-1, 1, 1))
    return Walk(PCN(), replace(lines.batch, inputs=inputs), True, rng)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Kept:
    """States of a shell, drawn by what is expected of them, and that together."""

    z: Tensor  # (m, d)
    score: Tensor  # (m,)
    mass: Tensor  # () log of it


def _corrected(lines: Lines, kept: list[list[_Kept]], rng: Rng) -> Tempered:
    """Draw states of all shells by what is expected of them, and search for their entries."""
    total, z, scores = [], [], []
    for own in kept:
        log_w = torch.cat([(k.mass - math.log(len(k.z))).expand(len(k.z)) for k in own])
        pick = systematic(log_w.unsqueeze(0), _LAST, rng)[0]
        total.append(torch.logsumexp(log_w, 0))
        z.append(torch.cat([k.z for k in own])[pick])
        scores.append(torch.cat([k.score for k in own])[pick])
    guess = lines.guessed(torch.stack(scores))
    truth = search(lines, lines.complement(torch.stack(z)), guess, lines.slope.unsqueeze(1).expand(guess.shape))
    ratio = truth.h - log_ndtr(-guess.double())
    log_prob = torch.stack(total) + torch.logsumexp(ratio, 1) - math.log(_LAST)
    last = truth.gather(systematic(ratio, _LAST // 2, rng))
    alive = torch.isfinite(truth.h).double().mean(1)
    return Tempered(log_prob, alive, last, torch.zeros_like(alive, dtype=torch.bool), guess, truth.t)
