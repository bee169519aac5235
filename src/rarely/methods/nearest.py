"""The violating input nearest to the middle of the inputs, as far as a short search finds it.

It begins at violations that are known. Where the network has gradients, each of them goes to the nearest point of the
half-space that its slope shows, again and again, as in Hasofer, Lind (1974) and Rackwitz, Fiessler (1978), with slopes
averaged, since those of a network jump. Otherwise the points are drawn inwards and moved at random. What is found lies
near; that nothing lies nearer is not said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rarely.core.batch import Batch
from rarely.core.evidence import Evidence, Nearest
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.witnesses import Witnesses
from rarely.methods.base import Run, progress
from rarely.methods.rulers import Ruler, rulers

_NAME = "search for the nearest"
_FIRM = 1e-4  # of the score in the middle, by which a point violates: no other arithmetic turns it around
_LOOKED = 16  # points whose ways to fail are asked
_STARTS, _FOLLOWED = 6, 2  # of them set out, and go on to the end
_SHORT, _LONG = 5, 18  # steps until the best are chosen, and in all
_HALF_STEPS = 3  # of the first ones: the plane of a far point says little about the middle
_BEYOND, _WORSE, _BETTER = 0.02, 1.5, 0.6  # share by which a step aims beyond the plane, after a miss and after a hit
_LEAST_BEYOND, _MOST_BEYOND = 2e-4, 0.3
_AVERAGED = 0.5  # how fast the weight of a new slope falls
_WIDTHS = 0.5, 2.5  # of the normals that are drawn where none are known
_MEANS = (4, 16, 64)  # of so many of the nearest violations
_FEW = 0.2  # share of the coordinates that every other move changes
_ROUNDS, _TRIED = 20, 8  # of random moves, and points tried in each
_NARROW, _WIDER, _NARROWER = 0.02, 1.4, 0.7  # of the distance gained by a move, and how its length follows success
_INWARDS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.97)  # shares of the distance that are tried, and again between two


@dataclass(frozen=True)
class NearestViolation:
    """Some 200 calls a problem, 400 where slopes lead nowhere; `search` starts from violations that are known."""

    def search(self, batch: Batch, inputs: Sequence[Tensor], normals: Sequence[Tensor | None]) -> Run:
        """The nearest violation of each problem, from its violating `inputs` (n, *event), or `normals` (n, d) of some.

        Numbers are left as they are: it has random numbers of its own, and says nothing about p.
        """
        learnt: list[list[Evidence]] = [[] for _ in range(len(batch))]
        for rows, ruler in rulers(batch):
            before = ruler.batch.calls()
            best = _Best.of(ruler, torch.zeros(len(rows), dtype=batch.dtype, device=batch.device))
            known = _known(ruler, [inputs[row] for row in rows], [normals[row] for row in rows])
            with suppress(Exhausted):
                _search(ruler, known, best)
            spent = (ruler.batch.calls() - before).tolist()
            for row, own in zip(rows, best.evidence(known, spent), strict=True):
                learnt[row] = own
            yield progress(_NAME, batch, [0.0] * len(batch), 0)
        return learnt


def _known(ruler: Ruler, inputs: Sequence[Tensor], normals: Sequence[Tensor | None]) -> list[Tensor]:
    """The violating points (n, *shape) of each problem, nearest first."""
    batch, own = ruler.batch, list(inputs)
    if ruler.center is None:
        none = torch.zeros(0, *ruler.shape, device=batch.device)
        own = [none if points is None else points.to(batch.device) for points in normals]
    counts = [len(points) for points in own]
    points = ruler.offsets(pad_sequence([points.to(batch.dtype) for points in own], batch_first=True).to(batch.device))
    missing = torch.arange(max(counts)) >= torch.tensor(counts).unsqueeze(1)
    order = ruler.size(points).masked_fill(missing.to(batch.device), torch.nan).argsort(dim=1, stable=True)
    points = points[torch.arange(len(points), device=batch.device).unsqueeze(1), order]
    return [row[:count] for row, count in zip(points, counts, strict=True)]


@dataclass
class _Best:
    """The nearest violation of each row of a ruler so far."""

    ruler: Ruler
    firm: Tensor  # (R,) scores from which a point counts
    points: Tensor  # (R, *shape)
    sizes: Tensor  # (R,) inf where there is none
    scores: Tensor  # (R,)

    @classmethod
    def of(cls, ruler: Ruler, firm: Tensor) -> _Best:
        middle = ruler.middle()[:, 0]
        return cls(ruler, firm, middle, torch.full_like(firm, torch.inf, dtype=torch.float64), torch.zeros_like(firm))

    def see(self, points: Tensor, sizes: Tensor, scores: Tensor) -> Tensor:
        """Keep what is nearer of points (R, N, *shape); which of them violate, (R, N)."""
        good = (scores >= self.firm.unsqueeze(1)) & torch.isfinite(sizes)
        size, which = torch.where(good, sizes, torch.inf).min(1)
        row = torch.arange(len(points), device=points.device)
        self._keep(size < self.sizes, points[row, which], size, scores[row, which])
        return good

    def tried(self, points: Tensor) -> Tensor:
        """Score points (R, N, *shape) of all rows, and keep what is nearer."""
        return self.see(points, self.ruler.size(points), self.ruler.batch.score(self.ruler.inputs(points)))

    def rows(self, index: Tensor) -> _Best:
        i = index.to(self.firm.device)
        return _Best(self.ruler.take(index), self.firm[i], self.points[i], self.sizes[i], self.scores[i])

    def put(self, index: Tensor, other: _Best) -> None:
        """What another search has found of some rows, one or many times each, where it is nearer."""
        index, count = index.to(self.sizes.device), len(index)
        nearest = torch.full_like(self.sizes, torch.inf).scatter_reduce(0, index, other.sizes, "amin")
        place = torch.arange(count, device=index.device).masked_fill(other.sizes > nearest[index], count)
        first = torch.full_like(self.sizes, count - 1, dtype=torch.long).scatter_reduce(0, index, place, "amin")
        self._keep(nearest < self.sizes, other.points[first], nearest, other.scores[first])

    def _keep(self, nearer: Tensor, points: Tensor, sizes: Tensor, scores: Tensor) -> None:
        self.points = torch.where(nearer.reshape(-1, *(1,) * (points.ndim - 1)), points, self.points)
        self.sizes, self.scores = torch.where(nearer, sizes, self.sizes), torch.where(nearer, scores, self.scores)

    def evidence(self, known: Sequence[Tensor], calls: Sequence[int]) -> list[list[Evidence]]:
        """Of each row, beside the points that were known of it and the calls that it took."""
        ruler, found = self.ruler, list[list[Evidence]]()
        x, scores = ruler.inputs(self.points.unsqueeze(1)).cpu(), self.scores.cpu()
        first = [points[0] if len(points) else best for points, best in zip(known, self.points, strict=True)]
        beyond = ruler.size(torch.stack(first).unsqueeze(1)).squeeze(1).tolist()
        for row, size in enumerate(self.sizes.tolist()):
            witness = Witnesses(x[row], scores[row : row + 1])
            others = beyond[row] if len(known[row]) else math.nan
            own: list[Evidence] = [Nearest(_NAME, witness, size, ruler.unit, others, calls[row])]
            found.append(own if math.isfinite(size) else [])
        return found


def _search(ruler: Ruler, known: Sequence[Tensor], best: _Best) -> None:
    middle = ruler.middle()
    first = torch.stack([points[0] if len(points) else middle[row, 0] for row, points in enumerate(known)])
    points = torch.cat([middle, first.unsqueeze(1)], 1)
    score = ruler.batch.score(ruler.inputs(points))
    best.firm = _FIRM * score[:, 0].abs()
    best.see(points, ruler.size(points), score)
    known = _drawn(ruler, known, best) if ruler.center is None else known
    before = best.sizes.clone()
    if ruler.climbs and getattr(ruler.batch.inputs, "smooth", True):
        _climb(ruler, known, best)
    stuck = torch.isinf(best.sizes) | (best.sizes > 0) & (best.sizes == before)  # no slope leads anywhere
    _wander(ruler, known, best, [row for row in stuck.nonzero().squeeze(1).tolist() if len(known[row])])
    _draw_in(best)


def _spread(count: int, most: int) -> Tensor:
    """Places of some of so many points: the nearest half of what is chosen, and the rest evenly among the others."""
    near = min(count, most // 2)
    rest = torch.linspace(near, count - 1, min(most - near, count - near)).round().long()
    return torch.cat([torch.arange(near), rest])


def _drawn(ruler: Ruler, known: Sequence[Tensor], best: _Best) -> list[Tensor]:
    """Normals of problems of which none are known: near and far ones, those that violate or come nearest to it."""
    missing = [row for row, points in enumerate(known) if not len(points)]
    found = list(known)
    if missing:
        part, d = ruler.take(torch.tensor(missing)), ruler.shape[0]
        wide = torch.linspace(*_WIDTHS, 2 * _LOOKED, dtype=part.batch.dtype, device=part.batch.device)
        z = wide.reshape(1, -1, 1) * Rng(0, part.batch.device).normal((len(missing), len(wide), d), part.batch.dtype)
        scores = part.batch.score(part.inputs(z))
        for k, row in enumerate(missing):
            order = scores[k].argsort(descending=True)
            hits = int((scores[k] >= 0).sum())
            found[row] = z[k][order[: max(hits, _STARTS if ruler.climbs else 0)]]
    return found


def _climb(ruler: Ruler, known: Sequence[Tensor], best: _Best) -> None:
    """From some points of each problem to the nearest point of the half-space that each shows, again and again."""
    owners, ways, points = _chosen(ruler, known)
    if not len(owners):
        return
    aimed = ruler.take(owners)
    aimed = replace(aimed, batch=aimed.batch.ways(ways))
    found = _Best.of(aimed, best.firm[owners.to(best.firm.device)])
    mean, beyond = torch.zeros_like(points), torch.full_like(points.flatten(2)[:, :, 0], _BEYOND)
    going = torch.arange(len(owners))
    with suppress(Exhausted):
        for step in range(_LONG):
            if step == _SHORT:
                going = _nearest_of_each(owners, found.sizes)
                points, mean, beyond = (kept[going.to(points.device)] for kept in (points, mean, beyond))
            here = found.rows(going)
            score, slope = here.ruler.gradient(points)
            here.see(points, here.ruler.size(points), score)
            found.put(going, here)
            beyond = beyond * torch.where(score >= here.firm.unsqueeze(1), _BETTER, _WORSE)
            beyond = beyond.clamp(_LEAST_BEYOND, _MOST_BEYOND)
            goal, mean = _goal(here.ruler, points, score, slope, mean, beyond, step)
            points = torch.lerp(points, goal, 0.5) if step < _HALF_STEPS else goal
    best.put(owners, found)


def _goal(
    ruler: Ruler, points: Tensor, score: Tensor, slope: Tensor, mean: Tensor, beyond: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """The nearest point a little beyond where a score would be 0 by its slope, and the mean of slopes so far."""
    wide = (-1, 1, *(1,) * len(ruler.shape))
    own = slope / slope.flatten(2).norm(dim=2).clamp_min(1e-30).reshape(wide)
    mean = torch.lerp(mean, own, 1 / (1 + _AVERAGED * step))
    turned = ((mean * own).flatten(2).sum(2) <= 0).reshape(wide)  # a mean that points elsewhere is given up
    mean = torch.where(turned, own, mean)
    level = (slope * points).flatten(2).sum(2) - score
    return ruler.nearest(mean, slope, level * (1 + beyond)), mean


def _chosen(ruler: Ruler, known: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Whose points set out, to which way to fail, and they (S, 1, *shape): the nearest to each way, then more."""
    rows = [row for row, points in enumerate(known) if len(points)]
    if not rows:
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), ruler.middle()[:0]
    part, looked = ruler.take(torch.tensor(rows)), [_spread(len(known[row]), _LOOKED) for row in rows]
    padded = _padded([known[row] for row in rows], looked)
    ways = part.batch.parts(part.inputs(padded)).argmax(-1).cpu()
    owners: list[int] = []
    places: list[tuple[int, int]] = []
    for k, row in enumerate(rows):
        own = ways[k, : len(looked[k])].tolist()
        first = list(dict.fromkeys(own))
        order = [own.index(way) for way in first]
        order += [place for place in range(len(own)) if place not in order]
        places += [(k, place) for place in order[:_STARTS]]
        owners += [row] * len(order[:_STARTS])
    own_row, own_place = (torch.tensor(side) for side in zip(*places, strict=True))
    chosen = padded[own_row.to(padded.device), own_place.to(padded.device)].unsqueeze(1)
    return torch.tensor(owners), ways[own_row, own_place], chosen


def _padded(points: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Points (R, M, *shape) at some places of each problem's, as many of each: who has fewer repeats them."""
    most, device = max(map(len, places)), points[0].device
    index = torch.stack([own[torch.arange(most) % len(own)] for own in places]).to(device)
    return pad_sequence(list(points), batch_first=True)[torch.arange(len(points), device=device).unsqueeze(1), index]


def _nearest_of_each(owners: Tensor, sizes: Tensor) -> Tensor:
    """Places of the few starts of each problem that have come nearest."""
    far, own = sizes.tolist(), dict[int, list[int]]()
    for place, owner in enumerate(owners.tolist()):
        own.setdefault(owner, []).append(place)
    return torch.tensor([place for places in own.values() for place in sorted(places, key=far.__getitem__)[:_FOLLOWED]])


def _wander(ruler: Ruler, known: Sequence[Tensor], best: _Best, which: Sequence[int]) -> None:
    """Without gradients: from the mean of known violations, and the way it shows, by random moves a little inwards."""
    if not which:
        return
    rows, most = torch.tensor(which), max(len(known[row]) for row in which)
    part, own = ruler.take(rows), best.rows(rows)
    pool = _padded([known[row] for row in which], [torch.arange(len(known[row])) for row in which])
    rng = Rng(0, ruler.batch.device)
    try:
        # What violations have in common leads to them; what they differ in only takes them away from the middle.
        means = [pool[:, :count].mean(1, keepdim=True) for count in (*_MEANS, most) if count <= most]
        own.tried(torch.cat([pool[:, :_FOLLOWED], *means], 1))
        if not math.isnan(part.norm):
            reach = part.size(pool[:, :1])
            own.tried(torch.cat([part.along(means[-1], share * reach) for share in _INWARDS[1:]], 1))
        _draw_in(own)
        spread = (pool - part.middle()).square().mean(1, keepdim=True).sqrt()
        length = torch.full((len(rows), 1), 0.5, dtype=ruler.batch.dtype, device=ruler.batch.device)
        wide = (-1, 1, *(1,) * len(ruler.shape))
        for _ in range(_ROUNDS):
            noise = rng.normal((len(rows), _TRIED, *ruler.shape), ruler.batch.dtype)
            # Half of the moves in a few coordinates alone: most of a network's inputs hardly matter.
            few = rng.uniform(noise.shape, noise.dtype) < _FEW
            few[:, ::2] = True
            moved = part.possible(own.points.unsqueeze(1) + length.reshape(wide) * spread * noise * few)
            share = (1 - _NARROW * length).expand(-1, _TRIED).double()
            if not math.isnan(part.norm):
                share = (share * own.sizes.unsqueeze(1) / part.size(moved).clamp_min(1e-30)).clamp(max=1.0)
            before = own.sizes.clone()
            own.tried(part.drawn_in(moved, share))
            length = length * torch.where((own.sizes < before).unsqueeze(1), _WIDER, _NARROWER)
    finally:  # what was found before the budget ended counts
        best.put(rows, own)


def _draw_in(best: _Best) -> None:
    """Move the nearest points inwards as far as they violate: at some shares of the distance, then between two."""
    low = torch.zeros(len(best.sizes), 1, dtype=torch.float64, device=best.sizes.device)
    high = torch.ones_like(low)
    start = best.points.unsqueeze(1)
    if not bool(torch.isfinite(best.sizes).any()):
        return
    for _ in range(2):
        grid = low + (high - low) * low.new_tensor(_INWARDS)
        tried = best.ruler.drawn_in(start.expand(-1, len(_INWARDS), *best.ruler.shape), grid)
        good = best.tried(tried)
        # From the first share on from which all that were tried violate.
        whole = good.flip(1).cumprod(1).flip(1).bool()
        first = torch.where(whole, grid, high).amin(1, keepdim=True)
        below = torch.where(grid < first, grid, low).amax(1, keepdim=True)
        low, high = below, first
