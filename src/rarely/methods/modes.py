"""Where violations may be: directions for every way to fail, from gradients near and far, and draws from far out.

A steep mode far from the origin shows only where its score has overtaken the others', so gradients are taken up to
eight standard deviations out. A way to fail that is nowhere the nearest gets gradients of its own, in the middle and
where it is nearest among those far points: a network may be flat in the middle, all its ReLUs off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.core.spend import GRADIENT
from rarely.kernels import PCN, State
from rarely.methods.moves import move
from rarely.methods.roots import search_directions
from rarely.methods.tempering import ROOT_CALLS
from rarely.methods.walk import Walk

SAME = 0.7  # cosine above which two directions are one
PRUNE = 14.0  # nats that a direction's half-space probability may lie under the best one's
_FAR, _GRADIENTS = 8.0, 64  # standard deviations out to which gradients are taken, and how many
_EXTRA = 16  # distinct directions of far gradients that are followed, beside one for each way to fail
_WAYS = 32  # ways to fail, the nearest by one gradient, that are followed whatever it says: a network may curve to them
_SHRINK = 0.7  # of a distance guessed from one gradient: none of the others is given up that may be this much nearer
_ROUNDS = 6  # improvements of a direction
_PLAIN = 8  # dimensions in which distances tell regions apart
_BEYOND = 1.1  # of the step to where a score would be 0
_POINTS = 24  # violating points that start a search of their own


@dataclass(frozen=True)
class Mode:
    """A direction of one problem in which one way to fail is near."""

    owner: int  # row of the batch
    way: int
    alpha: Tensor  # (d,) unit vector
    distance: float  # from the origin to the violating region along it; inf when it is not met


def search_modes(batch: Batch, starts: Sequence[Tensor | None], rng: Rng) -> list[Mode]:
    """Directions of every problem, improved; `starts` may hold violating points (n, d) that begin searches, too.

    A score without any slope, a quantised one say, has none: violating points alone do not tell where near ones lie.
    """
    first = _from_gradients(batch, rng)
    sloped = {mode.owner for mode in first}
    first += _from_points(batch, [points if row in sloped else None for row, points in enumerate(starts)])
    if not first:
        return []
    owners, ways = torch.tensor([mode.owner for mode in first]), torch.tensor([mode.way for mode in first])
    alpha = torch.stack([mode.alpha for mode in first]).unsqueeze(1)
    found = search_directions(batch.take(owners).ways(ways), alpha, _ROUNDS)
    return [Mode(mode.owner, mode.way, found.alpha[k, 0], float(found.distance[k, 0])) for k, mode in enumerate(first)]


def search_calls(points: Tensor | None, ways: int) -> int:
    """Calls that the search of one problem takes at most, as a budget plans it."""
    searches = 2 * ways + _EXTRA + (0 if points is None else min(len(points), _POINTS))
    gradients = GRADIENT * (2 * ways + _GRADIENTS) + 2 + _GRADIENTS
    return gradients + searches * ((_ROUNDS + 1) * (ROOT_CALLS + GRADIENT) + 1)


def log_tail(t: float) -> float:
    return float(log_ndtr(torch.tensor(-t, dtype=torch.float64)))


def _from_gradients(batch: Batch, rng: Rng) -> list[Mode]:
    """Where single gradients point, with the distance at which the plane that they show lies."""
    b, d = len(batch), batch.inputs.normal_dim or 0
    scale = torch.linspace(0.5, _FAR, _GRADIENTS, dtype=batch.dtype, device=batch.device).reshape(1, -1, 1)
    z = torch.cat([torch.zeros(b, 1, d, dtype=batch.dtype, device=batch.device),
                   scale * rng.normal((b, _GRADIENTS, d), batch.dtype)], 1)  # fmt: skip
    parts = batch.parts(batch.inputs.from_normal(z))
    ways = parts.shape[2]
    every = torch.arange(ways, device=z.device).expand(b, ways)
    likeliest, where = parts[:, 1:].max(1)  # (B, K)
    far = z[:, 1:].gather(1, where.unsqueeze(-1).expand(b, ways, d))
    points = torch.cat([z[:, :1].expand(b, ways, d), far, z[:, 1:]], 1)
    aim = torch.cat([every, every, parts[:, 1:].argmax(-1)], 1)  # (B, 2 K + S)
    value = torch.cat([parts[:, 0], likeliest, parts[:, 1:].amax(-1)], 1)
    _, slope = batch.gradient_ways(points, aim, normal=True)
    steep = slope.norm(dim=-1)
    alpha = torch.nan_to_num(slope / steep.clamp_min(1e-30).unsqueeze(-1))
    distance = ((slope * points).sum(-1) - value) / steep.clamp_min(1e-30)
    guess = torch.where((steep > 0) & torch.isfinite(value), distance.clamp_min(0.5), torch.inf).tolist()
    return [mode for row in range(b) for mode in _distinct(row, aim[row].tolist(), alpha[row], guess[row], ways)]


def _distinct(row: int, aim: list[int], alpha: Tensor, guess: list[float], ways: int) -> list[Mode]:
    """Candidates for each way, and the nearest of the far ones, from 2 `ways` on, that point elsewhere."""
    alike = (alpha @ alpha.T).cpu().numpy()
    best = log_tail(min(guess, default=math.inf))
    kept: list[int] = []
    extra = 0
    nearest = sorted((k for k in range(len(aim)) if math.isfinite(guess[k])), key=lambda k: guess[k])
    first = {aim[k]: k for k in reversed(nearest) if k < 2 * ways}  # of each way
    followed = set(sorted(first.values(), key=lambda k: guess[k])[:_WAYS])
    for k in nearest:
        if k not in followed and log_tail(_SHRINK * guess[k]) < best - PRUNE:
            continue
        if any(aim[j] == aim[k] and alike[j, k] > SAME for j in kept) or (k >= 2 * ways and extra == _EXTRA):
            continue
        kept.append(k)
        extra += k >= 2 * ways
    return [Mode(row, aim[k], alpha[k], guess[k]) for k in kept]


def _from_points(batch: Batch, starts: Sequence[Tensor | None]) -> list[Mode]:
    """Violating points know modes that no gradient points to."""
    given = [
        (row, z[torch.linspace(0, len(z) - 1, min(_POINTS, len(z))).long()])
        for row, z in enumerate(starts)
        if z is not None and len(z)
    ]
    if not given:
        return []
    owners = torch.cat([torch.full((len(z),), row) for row, z in given])
    points = torch.cat([z for _, z in given]).unsqueeze(1)
    part = batch.take(owners)
    ways = part.parts(part.inputs.from_normal(points)).argmax(-1).squeeze(1).tolist()
    alpha = (points / points.norm(dim=-1, keepdim=True).clamp_min(1e-30)).squeeze(1)
    return [Mode(int(owners[k]), ways[k], alpha[k], math.inf) for k in range(len(owners))]


# Draws from far out -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FarDraws:
    """Inputs from a law that is `sigma` times as wide, and the violations among them brought back to typical ones.

    A half-space at distance b is met with probability Phi(-b / sigma), whatever the dimension. What is bounded is
    hardly ever met: where there are gradients some of the draws climb to it. Moves that keep p(z | violation) take
    what was found to what is typical in its own region: no climb from the middle is needed.
    """

    draws: int = 2000
    sigma: float = 3.0
    kept: int = 64
    steps: int = 24
    climbing: int = 64
    climbs: int = 5

    def points(self, batch: Batch, rng: Rng) -> list[Tensor | None]:
        """Violating points (n, d) of each problem, None where none was met."""
        z = self.sigma * rng.normal((len(batch), self.draws, batch.inputs.normal_dim or 0), batch.dtype)
        scores = batch.score_normal(z)
        if batch.network.differentiable:
            z = torch.cat([z, self._climbed(batch, z[:, : self.climbing])], 1)
            scores = torch.cat([scores, batch.score_normal(z[:, self.draws :])], 1)
        hits = [(row >= 0).nonzero().squeeze(1) for row in scores]
        rows = [b for b, own in enumerate(hits) if len(own)]
        found: list[Tensor | None] = [None] * len(batch)
        if not rows:
            return found
        # Half of them the nearest, half as they came: a far mode must not be crowded out by a near one.
        chosen = torch.stack([_mixed(z[b], hits[b], self.kept) for b in rows])
        index = torch.arange(len(rows), device=z.device).unsqueeze(1)
        where = torch.tensor(rows, device=z.device)
        state = State(z[where][index, chosen], scores[where][index, chosen], z.new_full((len(rows), 1), 0.3))
        part = batch.take(torch.tensor(rows))
        level = scores.new_zeros(len(rows))
        steps = self.steps * (1 if z.shape[2] <= _PLAIN else 4)  # coordinates that do not matter return last
        moved = move(Walk(PCN(), part, False, rng), state, level, steps, steps).state
        for j, b in enumerate(rows):
            found[b] = moved.position[j, : min(self.kept, len(hits[b]))]
        return found

    def _climbed(self, batch: Batch, z: Tensor) -> Tensor:
        """Newton's steps from (B, n, d) to where the score is 0 by its slope, and a little farther."""
        for _ in range(self.climbs):
            score, slope = batch.gradient_normal(z)
            size = _BEYOND * (-score).clamp_min(0.0) / slope.square().sum(-1).clamp_min(1e-30)
            step = torch.nan_to_num(size.unsqueeze(-1) * slope)
            z = z + step * (_FAR / step.norm(dim=-1, keepdim=True).clamp_min(_FAR))
        return z


def _mixed(z: Tensor, hits: Tensor, count: int) -> Tensor:
    """Indices of `count` of the hits, repeated where there are fewer."""
    near = hits[z[hits].norm(dim=1).argsort()]
    both = torch.stack([near, hits], 1).flatten()
    both = torch.tensor(list(dict.fromkeys(both.tolist())), device=z.device)
    return both[torch.arange(count, device=z.device) % len(both)]


def unseen_points(points: Tensor, seen: Tensor) -> Tensor:
    """Which of points (n, d) lie farther from all of `seen` (m, d) than those lie from each other, (n,)."""
    if len(seen) < 8:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    own = torch.cdist(seen.double(), seen.double())
    own.fill_diagonal_(torch.inf)
    limit = 2.0 * torch.quantile(own.amin(1), 0.95)
    return torch.cdist(points.double(), seen.double()).amin(1) > limit


def lost_share(points: Tensor, seen: Tensor) -> float:
    """Share of violating points (n, d) that lie where `seen` (m, d) has none.

    In many dimensions all distances are alike: they are taken in the few in which half of the points, and those seen,
    reach farthest, and the other half is looked at. A half would find room for itself in any noise.
    """
    if points.shape[1] > _PLAIN:
        half, points = points[::2].double(), points[1::2].double()
        if len(points) < _PLAIN:
            return 0.0
        moment = half.mT @ half / len(half) + seen.double().mT @ seen.double() / len(seen)
        basis = torch.linalg.eigh(moment)[1][:, -_PLAIN:]
        points, seen = points @ basis, seen.double() @ basis
    return float(unseen_points(points, seen).double().mean())
