"""Importance sampling in z-space from mixtures fitted to violating samples, with weights that are diagnosed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.arguments import settle
from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.parts import categorical
from rarely.core.rng import Rng
from rarely.core.spend import GRADIENT, Exhausted
from rarely.core.thresholds import FULL_COVARIANCE, WEIGHTS_SHARE
from rarely.methods.base import Run, progress
from rarely.methods.islands import evidence_of, survivors_of
from rarely.methods.modes import log_tail, search_calls, search_modes
from rarely.methods.neighbours import Neighbours
from rarely.methods.splitting import Splitting
from rarely.methods.weighed import FEWEST, GROUPS, Weighed
from rarely.stats.mixture import NormalMixture, best_mixture
from rarely.stats.statistic import Replicates
from rarely.stats.weights import effective_size

_COMPONENTS = (4, 16)  # of a proposal: whichever fits better
_REFITS, _GOOD_FIT = 3, 0.3  # at most so many refits, until this share of the violating samples is effective
_KEPT = 0.15  # share of the first proposal in those that follow
_PROBABLE = 0.2  # share of the first proposal that stands at most probable points
_WORTH = 7.0  # nats by which the half-space of one may lie under the best one's
_SUBSPACE = 8  # dimensions of a proposal that does not live in all of z-space


@dataclass(frozen=True)
class ImportanceSampling:
    """Sample from a normal mixture fitted to violating points, weight by the ratio of densities.

    In low dimension the mixture lives in all of z-space; in high dimension in the subspace that the gradients of the
    score at violating points span (failure-informed; Uribe et al. 2021), with the normal law left as it is in the
    complement. Violating points come from a splitting run; where there are gradients the first proposal also stands at
    most probable points. Cross-entropy refits follow. Effective sample size and the Pareto index of the weights decide
    whether the method itself doubts its number.
    """

    target_error: float = 0.1
    samples: int = 4000  # per refinement
    max_rounds: int = 10
    pilot: Splitting = field(default_factory=lambda: Splitting(particles=200, steps=1, keep="all"))

    def __post_init__(self) -> None:
        settle(self)
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if self.samples < FEWEST:
            raise InputError(f"samples must be at least {FEWEST}, got {self.samples}")

    @property
    def at_once(self) -> int:
        return max(self.samples, self.pilot.at_once)

    def forecast(self, log_prob: float) -> float:
        return self.pilot.forecast(log_prob) + (_REFITS - 1) * self.samples

    def run(self, batch: Batch, rng: Rng) -> Run:
        tokens = categorical(batch.inputs)
        if batch.inputs.normal_dim is None and not tokens:
            raise InputError(
                "importance sampling needs an input model that maps from normals or names its parts; use Splitting"
            )
        before = batch.calls()
        islands = yield from self.pilot.populations(batch, rng)
        spent = (batch.calls() - before).tolist()
        found = [survivors_of(group) for group in islands]
        if tokens:
            weighed = yield from self.weigh_neighbours(batch, found, rng)
        else:
            weighed = yield from self.weigh(
                batch, [torch.cat(own) if any(map(len, own)) else None for own in found], rng
            )
        pilots = [evidence_of(group, "splitting pilot", calls) for group, calls in zip(islands, spent, strict=True)]
        return [[*pilot, *own] for pilot, own in zip(pilots, weighed, strict=True)]

    def weigh_neighbours(self, batch: Batch, found: Sequence[Sequence[Tensor]], rng: Rng) -> Run:
        """Evidence from proposals around the violating inputs that each population of each problem has found."""
        return Neighbours(self.target_error, self.samples, self.max_rounds).weigh(batch, found, rng)

    def weigh(
        self, batch: Batch, starts: Sequence[Tensor | None], rng: Rng, held: Sequence[Tensor | None] | None = None
    ) -> Run:
        """Evidence from proposals fitted to violating points (n, d) of each problem, all problems at once.

        `held` are violating points of a referee that the proposals have not seen: do they cover them, and what is the
        probability where those lie?
        """
        before = batch.calls()
        found = [Weighed(seen=points) for points in held or [None] * len(batch)]
        known = [row for row, points in enumerate(starts) if points is not None and len(points) >= 4]
        samples = self._affordable(batch, known)
        for row in known:
            found[row].broke = not samples
        if known and samples:
            part = batch.take(torch.tensor(known))
            chosen = [points for points in starts if points is not None and len(points) >= 4]
            with suppress(Exhausted):
                yield from self._sampled(part, chosen, samples, [found[row] for row in known], rng)
        yield progress("importance sampling", batch, [one.log_prob for one in found], 0)
        spent = (batch.calls() - before).tolist()
        return [one.evidence(calls) for one, calls in zip(found, spent, strict=True)]

    def _affordable(self, batch: Batch, known: Sequence[int]) -> int:
        """Samples of a refinement that every problem can pay for, with all the refits; 0 when too few."""
        search = search_calls(None, 1) + 100 * GRADIENT
        left = min((batch.spend.left(batch.rows[row].unsqueeze(0)) for row in known), default=0.0)
        samples = int(min(self.samples, (left - (search if batch.network.differentiable else 0)) // (_REFITS + 1)))
        return samples // GROUPS * GROUPS if samples >= FEWEST else 0

    def _sampled(self, part: Batch, starts: Sequence[Tensor], samples: int, found: list[Weighed], rng: Rng) -> Run:
        space = _Space(None if starts[0].shape[1] <= FULL_COVARIANCE else _bases(part, starts))
        proposal = self._proposal(part, space, starts, samples, rng)
        wanted, done = torch.ones(len(part)), 0
        while True:
            rows = (wanted > done).nonzero().squeeze(1)
            if not len(rows) or (done and part.spend.late):
                return []
            some = part.take(rows)
            z, log_w, scores = space.draw(some, proposal, rows, samples, rng)
            with torch.no_grad():
                x = some.inputs.from_normal(z)
            for j, row in enumerate(rows.tolist()):
                found[row].add(log_w[j], scores[j], x[j], z[j])
                seen = found[row].seen
                if done == 0 and seen is not None:
                    own = torch.tensor([row], device=seen.device)
                    found[row].missed(space.log_weight(proposal.rows(own), own, seen.unsqueeze(0)))
                if done == 0:
                    wanted[row] = self._rounds(found[row], part.spend.left(part.rows[row].unsqueeze(0)), samples)
            done += 1
            yield progress("importance sampling", part, [one.log_prob for one in found], int((wanted > done).sum()))

    def _rounds(self, one: Weighed, left: float, samples: int) -> float:
        """Rounds of samples that the target asks for, as far as the first one tells."""
        std = Replicates(one.groups()).std
        goal = (std / (WEIGHTS_SHARE * self.target_error)) ** 2 if math.isfinite(std) else 1.0
        return max(1, math.floor(min(math.ceil(goal), self.max_rounds, 1 + left / samples)))

    def _proposal(self, part: Batch, space: _Space, starts: Sequence[Tensor], samples: int, rng: Rng) -> NormalMixture:
        most = max(len(points) for points in starts)
        padded = torch.stack([torch.cat([p, p.new_zeros(most - len(p), p.shape[1])]) for p in starts])
        there = torch.stack([torch.arange(most, device=padded.device) < len(p) for p in starts])
        even = torch.where(there, 0.0, -torch.inf)
        proposal = best_mixture(space.inside(padded), even, _COMPONENTS)
        if part.network.differentiable:
            points, near = probable_points(part, rng)
            proposal = proposal.joined(space.inside(points), near, _PROBABLE)
        todo, initial = torch.arange(len(part)), proposal
        for _ in range(_REFITS):  # cross-entropy: fit again to what the proposal found, by weight
            some = part.take(todo)
            z, log_w, scores = space.draw(some, proposal, todo, samples, rng)
            log_w = torch.where(scores >= 0, log_w, -torch.inf)
            hits = (scores >= 0).sum(1)
            enough = (hits >= 50).nonzero().squeeze(1)
            if not len(enough):
                break
            rows = todo.to(enough.device)[enough]
            fresh = best_mixture(space.of(rows).inside(z[enough]), log_w[enough], _COMPONENTS)
            # Some of the first proposal stays: what points were found in must stay covered, however little it weighs.
            proposal = proposal.updated(rows, fresh.merged(initial.rows(rows), _KEPT))
            poor = effective_size(log_w[enough]) <= _GOOD_FIT * hits[enough]
            todo = rows[poor].cpu()
            if not len(todo):
                break
        return proposal


@dataclass(frozen=True)
class _Space:
    """Where the proposals of R problems live: an orthonormal basis (R, d, r) each, or all of z-space."""

    basis: Tensor | None

    def of(self, rows: Tensor) -> _Space:
        return _Space(None if self.basis is None else self.basis[rows])

    def log_weight(self, proposal: NormalMixture, rows: Tensor, z: Tensor) -> Tensor:
        """Of points (R, n, d) that the proposals of some rows would draw, (R, n)."""
        v = self.of(rows).inside(z)
        return _log_normal(v) - proposal.log_density(v)

    def inside(self, z: Tensor) -> Tensor:
        """Coordinates (R, n, r) of points (R, n, d)."""
        return z if self.basis is None else z @ self.basis

    def draw(
        self, part: Batch, proposal: NormalMixture, rows: Tensor, n: int, rng: Rng
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Points (R, n, d) from the proposals of the rows of `part`, their log-weights and scores (R, n)."""
        own = proposal.rows(rows)
        v = own.sample(n, rng)
        z = v
        if self.basis is not None:
            basis = self.basis[rows]
            z = rng.normal((len(rows), n, basis.shape[1]), part.dtype)
            z = z + (v - z @ basis) @ basis.mT
        log_w, weight = _log_normal(v) - own.log_density(v), part.log_weight(z)
        return z, log_w if weight is None else log_w + weight, part.score_normal(z)


def _log_normal(v: Tensor) -> Tensor:
    """Log-density of the standard normal at (R, n, d)."""
    return -0.5 * v.double().square().sum(2) - 0.5 * v.shape[2] * math.log(2 * math.pi)


def _bases(part: Batch, starts: Sequence[Tensor]) -> Tensor:
    """Orthonormal columns (R, d, r): what gradients at the violating points span most."""
    spanning = [(points.mean(0, keepdim=True)) for points in starts]
    if part.network.differentiable:
        count = min(100, *(len(points) for points in starts))
        _, gradients = part.gradient_normal(torch.stack([points[:count] for points in starts]))
        spanning = [torch.cat([a, b]) for a, b in zip(spanning, gradients, strict=True)]
    unit = torch.stack(spanning)
    unit = unit / unit.norm(dim=2, keepdim=True).clamp_min(1e-30)
    v: Tensor = torch.linalg.svd(unit, full_matrices=False)[2]
    return v[:, :_SUBSPACE].mT.contiguous()


def probable_points(part: Batch, rng: Rng) -> tuple[Tensor, Tensor]:
    """Most probable points of the regions (R, m, d), where searched directions enter them, and which of them count."""
    modes = [mode for mode in search_modes(part, [None] * len(part), rng) if math.isfinite(mode.distance)]
    own = [[mode for mode in modes if mode.owner == row] for row in range(len(part))]
    most, d = max(1, *map(len, own)), part.inputs.normal_dim or 0
    points = torch.zeros(len(part), most, d, dtype=part.dtype, device=part.device)
    near = torch.zeros(len(part), most, dtype=torch.bool, device=part.device)
    for row, some in enumerate(own):
        best = log_tail(min((mode.distance for mode in some), default=math.inf))
        for k, mode in enumerate(some):
            points[row, k], near[row, k] = mode.distance * mode.alpha, log_tail(mode.distance) > best - _WORTH
    return points, near
