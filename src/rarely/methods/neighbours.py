"""Importance sampling around violating inputs whose parts are tokens or categories: no normal mixture fits those.

A proposal takes one of the violating inputs and draws some of its parts anew. Its density is known exactly, as a sum
over all of them, and so are the weights. What nobody has found is not covered, so populations explore on their own: how
much was found by one of them alone says how much was found by none (as with animals caught once and twice, Chao 1987).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.each_inputs import EachInputs
from rarely.core.parts import Categorical, categorical
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import WEIGHTS_SHARE
from rarely.methods.base import Run, progress
from rarely.methods.weighed import FEWEST, GROUPS, Weighed
from rarely.stats.statistic import Replicates

_SHARES = (0.15, 0.35, 0.6)  # of the parts that are drawn anew: near ones for needles, far ones for what is wide
_MOST = 400  # violating inputs that a proposal stands at
_EXPLORED, _LOOKS = 256, 2  # draws around what one population has found, and how often
_PILOT, _ROUNDS = 2048, 8  # draws around all of it, and how often at most what they find becomes a centre, too
_NEW = 0.02  # share of p that such draws find where no centre is, from which they go on
_REFITS = 2  # draws that tell how much each centre matters, and how often what
_KEPT = 0.3  # share of a proposal in the next
_FREE = 0.2  # share of the parts that are drawn anew where all others come from the pool
_FAINT = 0.02  # of the rate at which violations come by chance: what comes more seldom a population has not found
_ALONE = 0.25  # as if so much of what one population has found were found by two: where there are none of those
_BLEND = {0.15: 0.2, 0.35: 0.5, 0.6: 0.9}  # of normals beside them, how much is drawn anew with each of these shares
_POOLED = 0.4  # and of those from the pool
_GOLDEN = 0.6180339887498949  # its multiples, without their whole parts, lie evenly
_BLOCK = 2**22  # comparisons of parts at a time


@dataclass(frozen=True)
class Proposal:
    """Violating inputs that are taken as they are but for some of their parts, and a pool of which each part is taken.

    The first are for needles, which lie apart. The pool is for what is wide: parts taken from it one by one have the
    frequencies that they have among violations, independently (a tilt of every part, by cross-entropy).
    """

    law: Categorical
    centres: Tensor  # (C, parts)
    pool: Tensor  # (M, parts)
    log_weights: Tensor  # (M,) of the pool's inputs
    log_shares: Tensor  # (C A + 1,) of each centre with each of `_SHARES`; of the pool

    @classmethod
    def of(cls, law: Categorical, points: Tensor) -> Proposal:
        """At the likeliest of the points (n, parts), between evenly and by their probability."""
        centres = torch.unique(points, dim=0)
        likely = law.log_parts(centres).double().sum(1)
        if len(centres) > _MOST:
            normals = getattr(law, "normals", 0)
            top = _of_every_kind(centres[:, : centres.shape[1] - normals]) if normals else likely.topk(_MOST).indices
            centres, likely = centres[top], likely[top]
        shares = torch.log_softmax(0.5 * likely, 0).repeat_interleave(len(_SHARES)) - math.log(len(_SHARES))
        shares = torch.cat([shares, shares.new_zeros(1)]) - math.log(2)
        return cls(law, centres, *_thinned(points, likely.new_zeros(len(points))), shares)

    @property
    def kinds(self) -> int:
        """How many of the parts are categories; all others, after them, are standard normals."""
        return self.centres.shape[1] - getattr(self.law, "normals", 0)

    def draw(self, n: int, rng: Rng) -> Tensor:
        which = _picked(self.log_shares.exp(), (n,), rng)
        parts, near, k = self.centres.shape[1], len(self.centres) * len(_SHARES), self.kinds
        x = self.centres[(which // len(_SHARES)).clamp_max(len(self.centres) - 1)]
        anew = torch.tensor(_SHARES, device=x.device)[which % len(_SHARES)]
        blend = torch.tensor(tuple(_BLEND.values()), device=x.device)[which % len(_SHARES)]
        free = which == near
        index = _picked(self.log_weights.exp(), (int(free.sum()), parts), rng)
        x[free], anew[free], blend[free] = self.pool[index, torch.arange(parts, device=x.device)], _FREE, _POOLED
        chosen = rng.uniform((n, parts)) < anew.unsqueeze(1)
        if k == parts:
            return self.law.redraw(x, chosen, rng)
        law: Any = self.law
        beta = torch.where(free.unsqueeze(1) & chosen[:, k:], 1.0, blend.unsqueeze(1)).to(x.dtype)
        z = torch.sqrt(1 - beta * beta) * x[:, k:] + beta * rng.normal((n, parts - k), x.dtype)
        return torch.cat([law.codes.redraw(x[:, :k], chosen[:, :k], rng), z], 1)

    def log_ratios(self, x: Tensor) -> Tensor:
        """Log of the density of each part of the proposal over that of the law, at x (n, parts): (n, C A + 1)."""
        k = self.kinds
        rare = -self.law.log_parts(self.centres)[:, :k].double()  # (C, categories)
        gains = [torch.log1p((1 - share) / share * torch.exp(rare)) for share in _SHARES]
        weights, found = self.log_weights.exp().unsqueeze(1), [rare.new_zeros(0, len(self.log_shares))]
        for rows in torch.split(x, max(1, _BLOCK // max(self.centres.numel(), self.pool.numel()))) if len(x) else []:
            same = (rows[:, :k].unsqueeze(1) == self.centres[:, :k]).double()
            each = [(same * gain).sum(2) + k * math.log(s) for gain, s in zip(gains, _SHARES, strict=True)]
            often = (rows[:, :k].unsqueeze(1) == self.pool[:, :k]).double().mul_(weights).sum(1)
            rarity = torch.exp(-self.law.log_parts(rows)[:, :k].double())
            tilt = torch.log(_FREE + (1 - _FREE) * often * rarity).sum(1)
            if k < rows.shape[1]:
                z, centres, pool = (t[:, k:].double() for t in (rows, self.centres, self.pool))
                each = [own + _log_blended(z, centres, _BLEND[s]).sum(2) for own, s in zip(each, _SHARES, strict=True)]
                often = torch.exp(_log_blended(z, pool, _POOLED)).mul_(weights).sum(1)
                tilt = tilt + torch.log(_FREE + (1 - _FREE) * often).sum(1)
            found.append(torch.cat([torch.stack(each, 2).flatten(1), tilt.unsqueeze(1)], 1))
        return torch.cat(found) + self.log_shares

    def refitted(self, x: Tensor) -> Proposal:
        """By violating draws x (n, parts): its shares, and what is in the pool."""
        if not len(x):
            return self
        ratios = self.log_ratios(x)
        whole = torch.logsumexp(ratios, 1, keepdim=True)
        learnt = torch.logsumexp(ratios - 2 * whole, 0) - torch.logsumexp(-whole, 0)
        mixed = torch.logaddexp(self.log_shares + math.log(_KEPT), learnt + math.log1p(-_KEPT))
        pool, weights = _thinned(x, -whole[:, 0])
        return replace(self, log_shares=mixed, pool=pool, log_weights=weights)

    def joined(self, x: Tensor, owners: Tensor, log_p: float) -> tuple[Proposal, Tensor]:
        """With violating draws x (n, parts) as centres, too, and the owners (C, I) of all centres."""
        if not len(x):
            return self, owners
        ratios = self.log_ratios(x)
        points, theirs = torch.cat([self.centres, x]), torch.cat([owners, self.owned(ratios, owners, log_p)]).double()
        both = Proposal.of(self.law, points)
        pool, weights = _thinned(x, -torch.logsumexp(ratios, 1))
        same = torch.cat(
            [(part.unsqueeze(1) == points).all(2).double() @ theirs for part in torch.split(both.centres, 128)]
        )
        return replace(both, pool=pool, log_weights=weights), same > 0

    def new(self, x: Tensor) -> float:
        """Share of what violating draws x (n, parts) have found that lies where no centre is."""
        weights = torch.softmax(-torch.logsumexp(self.log_ratios(x), 1), 0)
        return float(weights[~_among(x, self.centres)].sum())

    def owned(self, ratios: Tensor, owners: Tensor, log_p: float) -> Tensor:
        """Which populations, the owners (C, I) of centres, would have drawn inputs with ratios (n, C A + 1): (n, I).

        That is, at `_FAINT` of the rate at least at which violations, of which there are exp(log_p), come by chance.
        """
        rate, share = torch.exp(ratios + log_p), self.log_shares.exp()
        theirs = owners.to(ratios.dtype).repeat_interleave(len(_SHARES), 0)
        theirs = torch.cat([theirs, theirs.new_ones(1, theirs.shape[1])])  # the pool is of everybody
        return (rate @ theirs > _FAINT * (share @ theirs)) & owners.any(0)


def _log_blended(z: Tensor, centres: Tensor, beta: float) -> Tensor:
    """Log of the density of sqrt(1 - beta^2) c + beta xi over that of xi at z (n, m), for each c (C, m): (n, C, m)."""
    far = z.unsqueeze(1) - math.sqrt(1 - beta * beta) * centres
    return -math.log(beta) - far.square() / (2 * beta * beta) + 0.5 * z.square().unsqueeze(1)


def _of_every_kind(codes: Tensor) -> Tensor:
    """Places of `_MOST` of the points with codes (n, categories), in turn from all that share their codes.

    The likeliest of all would stand for one kind alone: beside normals each has as many points as have been drawn.
    """
    kind = torch.unique(codes, dim=0, return_inverse=True)[1]
    mixed = torch.arange(len(kind), device=kind.device).double().mul(_GOLDEN).frac().argsort()
    order = mixed[kind[mixed].argsort(stable=True)]
    first = torch.searchsorted(kind[order], kind[order])
    turn = torch.arange(len(kind), device=kind.device) - first
    return order[turn.argsort(stable=True)[:_MOST]]


def _thinned(points: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """The heaviest of the points (n, parts), and their weights, which make one."""
    top = log_weights.topk(min(_MOST, len(points))).indices
    return points[top], torch.log_softmax(log_weights[top].double(), 0)


def _picked(weights: Tensor, shape: tuple[int, ...], rng: Rng) -> Tensor:
    """Indices by weight."""
    edges = weights.cumsum(0)
    return torch.searchsorted(edges, rng.uniform(shape, torch.float64) * edges[-1]).clamp_max(len(weights) - 1)


@dataclass(frozen=True)
class Neighbours:
    """The method: `samples` at a time, as many rounds of them as the target asks for."""

    target_error: float
    samples: int
    max_rounds: int

    def weigh(self, batch: Batch, starts: Sequence[Sequence[Tensor]], rng: Rng) -> Run:
        """Evidence of each problem from the violating inputs (n, parts) that each of its populations has found."""
        before, found = batch.calls(), [Weighed("neighbours") for _ in range(len(batch))]
        for row, populations in enumerate(starts):
            if any(map(len, populations)):
                with suppress(Exhausted):
                    self._sampled(batch.take(torch.tensor([row])), found[row], populations, rng)
                found[row].broke = not found[row].log_w
            yield progress("importance sampling", batch, [one.log_prob for one in found], len(batch) - row - 1)
        spent = (batch.calls() - before).tolist()
        return [one.evidence(calls) for one, calls in zip(found, spent, strict=True)]

    def _sampled(self, one: Batch, found: Weighed, populations: Sequence[Tensor], rng: Rng) -> None:
        law = one.inputs.models[0] if isinstance(one.inputs, EachInputs) else one.inputs
        assert categorical(law)
        populations = [_explored(one, law, points, rng) if len(points) else points for points in populations]
        points = torch.cat([points for points in populations if len(points)])
        proposal = Proposal.of(law, points)
        owners = torch.stack([_among(proposal.centres, points) for points in populations], 1)
        for _ in range(_ROUNDS):
            x, scores = _drawn(one, proposal, _PILOT, rng)
            new = proposal.new(x[scores >= 0])
            proposal, owners = proposal.joined(x[scores >= 0], owners, _log_mean(proposal, x, scores))
            if new < _NEW:
                break
        for _ in range(_REFITS):
            x, scores = _drawn(one, proposal, _PILOT, rng)
            proposal = proposal.refitted(x[scores >= 0])
        alone = twice = whole = 0.0
        wanted = done = 1
        while done <= wanted:
            left = int(min(self.samples, one.spend.left(one.rows))) // GROUPS * GROUPS
            if left < FEWEST:
                raise Exhausted
            x, scores = _drawn(one, proposal, left, rng)
            ratios = proposal.log_ratios(x[scores >= 0])
            weights = -torch.logsumexp(ratios, 1)
            log_w = scores.new_full((left,), -torch.inf, dtype=torch.float64)
            log_w[scores >= 0] = weights
            found.add(log_w, scores, one.read(x.unsqueeze(0))[0], x)
            by = proposal.owned(ratios, owners, found.log_prob).sum(1)
            mass = weights.exp()
            whole, alone, twice = (
                total + float(mass[which].sum())
                for total, which in ((whole, by >= 0), (alone, by <= 1), (twice, by == 2))
            )
            if whole:  # after every round: the budget may end the next
                found.believe(_unseen(alone / whole, twice / whole, len(populations)))
            if done == 1:
                wanted = self._rounds(found)
            done += 1

    def _rounds(self, found: Weighed) -> int:
        """Rounds of samples that the target asks for, as far as the first one tells."""
        std = Replicates(found.groups()).std
        goal = (std / (WEIGHTS_SHARE * self.target_error)) ** 2 if math.isfinite(std) else 1.0
        return max(1, math.ceil(min(goal, self.max_rounds)))


def _drawn(one: Batch, proposal: Proposal, n: int, rng: Rng) -> tuple[Tensor, Tensor]:
    """Inputs (n, parts) from a proposal and their scores (n,)."""
    x = proposal.draw(n, rng)
    return x, one.score(one.taken(x).unsqueeze(0))[0]


def _explored(one: Batch, law: Categorical, points: Tensor, rng: Rng) -> Tensor:
    """What one population has found, and the violations around it, which it looks for on its own."""
    for _ in range(_LOOKS):
        x, scores = _drawn(one, Proposal.of(law, points), _EXPLORED, rng)
        points = torch.unique(torch.cat([points, x[scores >= 0]]), dim=0)
    return points


def _among(x: Tensor, points: Tensor) -> Tensor:
    """Which of x (n, parts) are among some points, of which there may be none, (n,)."""
    if not len(points):
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return (x.unsqueeze(1) == points).all(2).any(1)


def _log_mean(proposal: Proposal, x: Tensor, scores: Tensor) -> float:
    """log p by draws x (n, parts) of a proposal."""
    weights = -torch.logsumexp(proposal.log_ratios(x[scores >= 0]), 1)
    return float(torch.logsumexp(weights, 0)) - math.log(len(x))


def _unseen(alone: float, twice: float, populations: int) -> float:
    """Share of what was found that nobody may have found, from what one population found, and what two did."""
    if alone == 0:
        return 0.0
    return (populations - 1) / populations * alone**2 / (2 * twice + _ALONE * alone)
