"""Importance sampling in z-space from mixtures fitted to violating samples, with weights that are diagnosed."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.problem import Batch
from rarely.core.rng import Rng
from rarely.methods.base import Budget, Progress, Run, gather_witnesses, join_witnesses, make_estimate
from rarely.methods.roots import gradient_starts, search_directions
from rarely.methods.splitting import Splitting
from rarely.methods.tempering import ROOT_CALLS
from rarely.questions.result import Estimate, Outcome, Witnesses
from rarely.stats.intervals import modelled_interval, replicate_interval
from rarely.stats.mixture import NormalMixture, fit_mixture

_GROUPS = 16  # independent groups of samples whose means give the interval
_MAX_PARETO = 0.7  # Vehtari et al. 2024: above it the weights have no usable variance
_REFITS, _GOOD_FIT = 3, 0.3  # at most so many refits, until this share of the violating samples is effective
_PROBABLE = 0.2  # share of the first proposal that stands at most probable points
_SUBSPACE = 8  # directions of the failure-informed subspace in high dimension


@dataclass(frozen=True)
class ImportanceSampling:
    """Sample from a normal mixture fitted to violating points, weight by the ratio of densities.

    In low dimension the mixture lives in all of z-space; in high dimension in the subspace that the gradients of the
    score at violating points span (failure-informed; Uribe et al. 2021), with the normal law left as it is in the
    complement. Violating points come from a splitting run; where there are gradients the first proposal also stands at
    most probable points. Cross-entropy refits follow. Effective sample size and
    the Pareto index of the weights decide whether the number is reported as one to trust.
    """

    target_error: float = 0.1
    samples: int = 4000  # per refinement
    max_rounds: int = 10
    pilot: Splitting = field(default_factory=lambda: Splitting(particles=200, steps=1, keep="all"))

    def __post_init__(self) -> None:
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if self.samples < 100:
            raise InputError(f"samples must be at least 100, got {self.samples}")

    def run(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        if batch.inputs.normal_dim is None:
            raise InputError("importance sampling needs an input model that maps from normals; use Splitting")
        islands = yield from self.pilot.populations(batch, rng, budget)
        starts: list[Tensor | None] = []
        for group in islands:
            found = [i.survivors for i in group if i.survivors is not None and len(i.survivors)]
            starts.append(torch.cat(found) if found else None)
        return (yield from self.weigh(batch, starts, rng, confidence, budget))

    def weigh(
        self, batch: Batch, starts: Sequence[Tensor | None], rng: Rng, confidence: float, budget: Budget
    ) -> Generator[Progress, None, list[Estimate]]:
        """Estimates from proposals fitted to violating points (n, d) of each problem."""
        results = []
        for row, points in enumerate(starts):
            part = batch.take(torch.tensor([row]))
            if points is None or len(points) < 4:
                results.append(_nothing(batch, row, confidence, budget))
                continue
            calls = int(batch.counter.calls()[int(batch.rows[row])])
            gradients = 300 + 8 * 7 * (ROOT_CALLS + 3) if batch.network.differentiable else 0  # basis, probable points
            samples = int(min(self.samples, budget.left(calls + gradients) // (_REFITS + 1))) // _GROUPS * _GROUPS
            if samples < 100:
                results.append(_nothing(batch, row, confidence, budget))
                continue
            results.append(replace(self, samples=samples)._one(part, points, rng, confidence, budget))
            log_probs = torch.tensor([r.log_prob for r in results] + [0.0] * (len(starts) - len(results)))
            calls = int(batch.counter.calls()[batch.rows].sum())
            yield Progress("importance sampling", torch.zeros(len(batch)), log_probs, len(starts) - row - 1, calls)
        return results

    def _one(self, part: Batch, points: Tensor, rng: Rng, confidence: float, budget: Budget) -> Estimate:
        basis = _basis(part, points)
        proposal = fit_mixture(points @ basis, None, rng)
        if part.network.differentiable:
            proposal = proposal.joined(probable_points(part, rng) @ basis, _PROBABLE)
        for _ in range(_REFITS):  # cross-entropy: fit again to what the proposal found, by weight
            z, log_w, scores = self._draw(part, proposal, basis, rng)
            hit = scores >= 0
            if int(hit.sum()) < 50:
                break
            proposal = fit_mixture(z[hit] @ basis, log_w[hit], rng)
            if effective_size(log_w[hit]) > _GOOD_FIT * int(hit.sum()):
                break
        weights: list[Tensor] = []
        kept: list[Witnesses] = []
        wanted = 1
        while len(weights) < wanted:
            z, log_w, scores = self._draw(part, proposal, basis, rng)
            weights.append(torch.where(scores >= 0, log_w, -torch.inf))
            with torch.no_grad():
                x = part.inputs.from_normal(z.unsqueeze(0)).squeeze(0)
            kept.append(gather_witnesses(x, scores))
            if len(weights) == 1:
                std = replicate_interval(_groups(weights), confidence)[1]
                calls = int(part.counter.calls()[int(part.rows[0])])
                affordable = 1 + budget.left(calls) / self.samples
                goal = (std / (0.5 * self.target_error)) ** 2 if math.isfinite(std) else 1.0
                wanted = int(max(1, min(math.ceil(goal), self.max_rounds, affordable)))
            if budget.late:
                break
        return self._estimate(part, weights, kept, confidence, budget)

    def _draw(self, part: Batch, proposal: NormalMixture, basis: Tensor, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
        """Points (n, d), their log-weights (n,) and scores (n,)."""
        v = proposal.sample(self.samples, rng)
        z = rng.normal((self.samples, basis.shape[0]), part.dtype)
        z = z + (v - z @ basis) @ basis.T
        log_w = (-0.5 * v.double().square().sum(1) - 0.5 * v.shape[1] * math.log(2 * math.pi)) - proposal.log_density(v)
        return z, log_w, part.score_normal(z.unsqueeze(0)).squeeze(0)

    def _estimate(
        self, part: Batch, weights: list[Tensor], kept: list[Witnesses], confidence: float, budget: Budget
    ) -> Estimate:
        groups, log_w = _groups(weights), torch.cat(weights)
        if max(groups) == -math.inf:
            return _nothing(part, 0, confidence, budget)
        log_prob, std, low, high, upper = modelled_interval(groups, confidence)
        size, k = effective_size(log_w), pareto_index(log_w)
        notes = [f"effective sample size {size:.0f} of {len(log_w)}, Pareto index {k:.2f}"]
        reliable = k < _MAX_PARETO and size >= 100
        if not reliable:
            notes.append("the proposal does not cover the violating region: the weights are unreliable")
        return make_estimate(
            part, 0, budget, confidence, Outcome.VIOLATED if reliable else Outcome.STALLED,
            log_prob, std, low, high, upper, join_witnesses(kept), notes=tuple(notes),
        )  # fmt: skip


def probable_points(part: Batch, rng: Rng) -> Tensor:
    """Most probable points of the violating region, (n, d): where searched directions enter it; n may be 0."""
    found = search_directions(part, gradient_starts(part, 8, rng), 6)
    alpha, distance = found.alpha[0], found.distance[0]
    near = distance < distance.min() + 1.0
    return alpha[near] * distance[near].unsqueeze(1) if bool(torch.isfinite(distance).any()) else alpha[:0]


def effective_size(log_w: Tensor) -> float:
    w = torch.exp(log_w - log_w.max())
    return float(w.sum() ** 2 / (w * w).sum())


def pareto_index(log_w: Tensor) -> float:
    """Shape of a generalised Pareto law fitted to the largest weights (Zhang and Stephens 2009, as in PSIS)."""
    finite = log_w[torch.isfinite(log_w)].double()
    m = int(min(0.2 * len(finite), 3 * math.sqrt(len(finite))))
    if m < 5:
        return math.inf
    top = torch.exp(finite.sort().values[-m - 1 :] - finite.max())
    x = (top[1:] - top[0]).clamp_min(1e-300)
    if float(x.max()) <= 1e-12:
        return -math.inf  # equal weights
    count = 30 + int(math.sqrt(m))
    grid = torch.arange(1, count + 1, dtype=torch.float64, device=x.device)
    theta = 1 / x[-1] + (1 - torch.sqrt(count / (grid - 0.5))) / (3 * x[max(0, int(m / 4 + 0.5) - 1)])
    shape = torch.log1p(-theta.unsqueeze(1) * x).mean(1)
    likelihood = m * (torch.log(-theta / shape) - shape - 1)
    best = (torch.softmax(likelihood, 0) * theta).sum()
    return float(torch.log1p(-best * x).mean()) * m / (m + 10) + 0.5 * 10 / (m + 10)


def _groups(weights: Sequence[Tensor]) -> list[float]:
    each = torch.cat([w.reshape(_GROUPS, -1) for w in weights], 1)
    logs: list[float] = (torch.logsumexp(each.double(), 1) - math.log(each.shape[1])).tolist()
    return logs


def _basis(part: Batch, points: Tensor) -> Tensor:
    """Orthonormal columns (d, r): all of z-space when it is small, else what gradients at the points span most."""
    d = points.shape[1]
    if d <= 12:
        return torch.eye(d, dtype=points.dtype, device=points.device)
    centre = points.mean(0, keepdim=True)
    spanning = [centre / centre.norm()]
    if part.network.differentiable:
        _, g = part.gradient_normal(points[:100].unsqueeze(0))
        g = g.squeeze(0)
        spanning.append(g / g.norm(dim=1, keepdim=True).clamp_min(1e-30))
    v: Tensor = torch.linalg.svd(torch.cat(spanning), full_matrices=False)[2]
    return v[: min(_SUBSPACE, len(v))].T.contiguous()


def _nothing(batch: Batch, row: int, confidence: float, budget: Budget) -> Estimate:
    return make_estimate(
        batch, row, budget, confidence, Outcome.STALLED, -math.inf, math.inf, -math.inf, 0.0, 0.0,
        notes=("too few violating points to fit a proposal",),
    )  # fmt: skip
