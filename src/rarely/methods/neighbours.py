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

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.input_model import Categorical, EachInputs, categorical
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.methods.base import Run, progress
from rarely.core.thresholds import WEIGHTS_SHARE
from rarely.methods.weighed import FEWEST, GROUPS, Weighed
from rarely.stats.statistic import Replicates

_SHARES = (0.15, 0.35, 0.6)  # of the parts that are drawn anew: near ones for needles, far ones for what is wide
_MOST = 1000  # violating inputs that a proposal stands at
_EXPLORED, _LOOKS = 256, 2  # draws around what one population has found, and how often
_PILOT, _ROUNDS = 2048, 3  # draws around all of it, and how often what they find becomes a centre, too
_KEPT = 0.3  # share of the first proposal in the second
_FAINT = 0.05  # share of the density of all from which one population has found a place, too
_BLOCK = 2**22  # comparisons of parts at a time


@dataclass(frozen=True)
class Proposal:
    """Violating inputs, and how likely each is taken and how much of it drawn anew."""

    law: Categorical
    centres: Tensor  # (C, parts)
    log_shares: Tensor  # (C, A) of each centre and each of `_SHARES`

    @classmethod
    def of(cls, law: Categorical, points: Tensor) -> Proposal:
        """At the likeliest of the points (n, parts), between evenly and by their probability."""
        centres = points.unique(dim=0)
        weight = law.log_parts(centres).double().sum(1)
        if len(centres) > _MOST:
            top = weight.topk(_MOST).indices
            centres, weight = centres[top], weight[top]
        shares = torch.log_softmax(0.5 * weight, 0).unsqueeze(1) - math.log(len(_SHARES))
        return cls(law, centres, shares.expand(-1, len(_SHARES)))

    def joined(self, points: Tensor, owners: Tensor, shared: Tensor) -> tuple[Proposal, Tensor]:
        """At more points (n, parts), too, which belong to the owners `shared` (n, I); with the owners of all."""
        both = Proposal.of(self.law, torch.cat([self.centres, points]))
        same = (both.centres.unsqueeze(1) == torch.cat([self.centres, points])).all(2)
        return both, (same.double() @ torch.cat([owners, shared]).double()) > 0

    def draw(self, n: int, rng: Rng) -> Tensor:
        edges = self.log_shares.exp().flatten().cumsum(0)
        which = torch.searchsorted(edges, rng.uniform((n,), torch.float64) * edges[-1]).clamp_max(len(edges) - 1)
        anew = torch.tensor(_SHARES, device=edges.device)[which % len(_SHARES)]
        x = self.centres[which // len(_SHARES)]
        return self.law.redraw(x, rng.uniform(tuple(x.shape)) < anew.unsqueeze(1), rng)

    def log_ratios(self, x: Tensor) -> Tensor:
        """Log of the density of each part of the proposal over that of the law, at x (n, parts): (n, C, A)."""
        rare = -self.law.log_parts(self.centres).double()  # (C, parts)
        gains = [torch.log1p((1 - share) / share * torch.exp(rare)) for share in _SHARES]
        per = max(1, _BLOCK // self.centres.numel())
        found = []
        for rows in x.split(per):
            same = (rows.unsqueeze(1) == self.centres).double()
            each = [(same * gain).sum(2) + x.shape[1] * math.log(s) for gain, s in zip(gains, _SHARES, strict=True)]
            found.append(torch.stack(each, 2))
        return torch.cat(found) + self.log_shares if found else rare.new_zeros(0, *self.log_shares.shape)

    def refitted(self, ratios: Tensor) -> Proposal:
        """With shares by what violating draws, whose ratios (n, C, A) are given, say of their parts (cross-entropy)."""
        flat = ratios.flatten(1)
        whole = torch.logsumexp(flat, 1, keepdim=True)
        learnt = torch.logsumexp(flat - 2 * whole, 0) - torch.logsumexp(-whole, 0)
        old = self.log_shares.flatten()
        mixed = torch.logaddexp(old + math.log(_KEPT), learnt + math.log1p(-_KEPT))
        return replace(self, log_shares=mixed.reshape(self.log_shares.shape))


@dataclass(frozen=True)
class Neighbours:
    """The method: `samples` at a time, as many rounds of them as the target asks for."""

    target_error: float
    samples: int
    max_rounds: int

    def weigh(self, batch: Batch, starts: Sequence[Sequence[Tensor]], rng: Rng) -> Run:
        """Evidence of each problem from the violating inputs (n, parts) that each of its populations has found."""
        before, found = batch.calls(), [Weighed() for _ in range(len(batch))]
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
        owners = torch.stack([(proposal.centres.unsqueeze(1) == p).all(2).any(1) for p in populations], 1)
        for _ in range(_ROUNDS):
            x, scores = _drawn(one, proposal, _PILOT, rng)
            hits = x[scores >= 0]
            shared = _owned(proposal.log_ratios(hits), owners)
            proposal, owners = proposal.joined(hits, owners, shared)
        x, scores = _drawn(one, proposal, _PILOT, rng)
        proposal = proposal.refitted(proposal.log_ratios(x[scores >= 0]))
        alone = twice = whole = 0.0
        wanted = done = 1
        while done <= wanted:
            left = int(min(self.samples, one.spend.left(one.rows))) // GROUPS * GROUPS
            if left < FEWEST:
                raise Exhausted
            x, scores = _drawn(one, proposal, left, rng)
            ratios = proposal.log_ratios(x[scores >= 0])
            weights = -torch.logsumexp(ratios.flatten(1), 1)
            log_w = scores.new_full((left,), -torch.inf, dtype=torch.float64)
            log_w[scores >= 0] = weights
            found.add(log_w, scores, x, x)
            by = _owned(ratios, owners).sum(1)
            mass = weights.exp()
            whole, alone, twice = (
                total + float(mass[which].sum())
                for total, which in ((whole, by >= 0), (alone, by <= 1), (twice, by == 2))
            )
            if done == 1:
                wanted = self._rounds(found)
            done += 1
        if whole:
            found.believe(_unseen(alone / whole, twice / whole, len(populations)))

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
        points = torch.cat([points, x[scores >= 0]]).unique(dim=0)
    return points


def _owned(ratios: Tensor, owners: Tensor) -> Tensor:
    """Which populations, the owners (C, I) of centres, would have drawn inputs with ratios (n, C, A): (n, I)."""
    log = torch.logsumexp(ratios, 2)
    each = torch.exp(log - log.amax(1, keepdim=True)) @ owners.to(ratios.dtype)
    return each > _FAINT * each.amax(1, keepdim=True)


def _unseen(alone: float, twice: float, populations: int) -> float:
    """Share of what was found that nobody may have found, from what one population found, and what two did."""
    if alone == 0:
        return 0.0
    return (populations - 1) / populations * alone**2 / (2 * twice) if twice else math.inf
