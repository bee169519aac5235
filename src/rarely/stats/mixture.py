"""Normal mixtures fitted to weighted points, R of them at once, with a defensive component."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rarely.core.rng import Rng

_DEFENSIVE = 0.1  # share of a widened copy of the whole fit, so that no weight is large where the fit is thin
_WIDER = 1.6  # its standard deviations over the fit's
_SHRINK = 4.0  # pseudo-points of the pooled covariance in each component
_POINTS = 2000  # of each fit at most
_ROUNDS = 25  # of expectation maximisation
_NUMBERS = 2**20  # of a step of EM at a time on a CPU: what stays in the caches is fastest


@dataclass(frozen=True)
class NormalMixture:
    """R mixtures of C components in d dimensions."""

    log_shares: Tensor  # (R, C), -inf for a component that a row does not have
    means: Tensor  # (R, C, d)
    factors: Tensor  # (R, C, d, d) lower Cholesky

    def rows(self, index: Tensor) -> NormalMixture:
        return NormalMixture(self.log_shares[index], self.means[index], self.factors[index])

    def updated(self, index: Tensor, new: NormalMixture) -> NormalMixture:
        """With the rows at `index` replaced; the narrower of both is padded."""
        most = max(self.log_shares.shape[1], new.log_shares.shape[1])
        old, fresh = self._padded(most), new._padded(most)
        merged = (getattr(old, f.name).clone().index_copy_(0, index, getattr(fresh, f.name)) for f in fields(self))
        return NormalMixture(*merged)

    def _padded(self, components: int) -> NormalMixture:
        more = components - self.log_shares.shape[1]
        if not more:
            return self
        shares = torch.nn.functional.pad(self.log_shares, (0, more), value=-torch.inf)
        copies = (
            torch.cat([part, part[:, :1].expand(-1, more, *part.shape[2:])], 1) for part in (self.means, self.factors)
        )
        return NormalMixture(shares, *copies)

    def sample(self, n: int, rng: Rng) -> Tensor:
        """(R, n, d)."""
        r, _, d = self.means.shape
        edges = torch.cumsum(self.log_shares.exp(), 1)
        u = rng.uniform((r, n), edges.dtype) * edges[:, -1:]
        which = torch.searchsorted(edges, u).clamp_max(edges.shape[1] - 1)
        noise = rng.normal((r, n, d), self.means.dtype)
        row = torch.arange(r, device=which.device).unsqueeze(1)
        return self.means[row, which] + (self.factors[row, which] @ noise.unsqueeze(-1)).squeeze(-1)

    def merged(self, other: NormalMixture, share: float) -> NormalMixture:
        """With another mixture for each row, which takes `share` of it."""
        shares = torch.cat([self.log_shares + math.log1p(-share), other.log_shares + math.log(share)], 1)
        return NormalMixture(
            shares, torch.cat([self.means, other.means], 1), torch.cat([self.factors, other.factors], 1)
        )

    def joined(self, centres: Tensor, there: Tensor, share: float) -> NormalMixture:
        """With standard normals at those of `centres` (R, m, d) that are `there` (R, m): `share` of each row."""
        r, m, d = centres.shape
        count = there.sum(1, keepdim=True)
        eye = torch.eye(d, dtype=centres.dtype, device=centres.device).expand(r, m, d, d)
        even = torch.where(there, math.log(share) - count.clamp_min(1).to(centres.dtype).log(), -torch.inf)
        less = torch.where(count > 0, math.log1p(-share), 0.0)
        return NormalMixture(
            torch.cat([self.log_shares + less, even], 1),
            torch.cat([self.means, centres], 1),
            torch.cat([self.factors, eye], 1),
        )

    def log_density(self, v: Tensor) -> Tensor:
        """Of points (R, n, d): (R, n) in float64."""
        return torch.logsumexp(self._by_component(v), 1)

    def _by_component(self, v: Tensor) -> Tensor:
        """Log-density of each component times its share, (R, C, n)."""
        d = v.shape[2]
        factors = self.factors.double()
        eye = torch.eye(d, dtype=torch.float64, device=v.device).expand_as(factors)
        inverse = torch.linalg.solve_triangular(factors, eye, upper=False)
        # L^-1 (v - m) = L^-1 v - L^-1 m, as two products of matrices.
        white = inverse @ v.double().mT.unsqueeze(1) - inverse @ self.means.double().unsqueeze(-1)
        log_det = factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant: Tensor = self.log_shares.double() - log_det - 0.5 * d * math.log(2 * math.pi)
        weighed: Tensor = constant.unsqueeze(2) - 0.5 * white.square().sum(2)
        return weighed


def best_mixture(points: Tensor, log_w: Tensor, sizes: Sequence[int]) -> NormalMixture:
    """`fit_mixture` with the number of components that does best on every second point when fitted to the others."""
    fit = fit_mixture(points, log_w, sizes[0])
    if len(sizes) == 1:
        return fit
    halves = [(points[:, k::2], log_w[:, k::2]) for k in (0, 1)]
    worth = []
    for size in sizes:
        likelihood = fit_mixture(*halves[0], size).log_density(halves[1][0])
        weight = torch.softmax(halves[1][1].double(), 1).nan_to_num(0.0)
        worth.append((weight * likelihood).sum(1))
    best = torch.stack(worth).argmax(0)
    for k, size in enumerate(sizes[1:], 1):
        rows = (best == k).nonzero().squeeze(1)
        if len(rows):
            fit = fit.updated(rows, fit_mixture(points[rows], log_w[rows], size))
    return fit


def fit_mixture(points: Tensor, log_w: Tensor, components: int) -> NormalMixture:
    """EM from points (R, n, d) chosen far apart, covariances shrunk towards the pooled one.

    `log_w` (R, n) weighs them; -inf marks padding. The first `_POINTS` that count are used.
    """
    n = min(points.shape[1], _POINTS)
    chosen = torch.argsort(torch.isneginf(log_w), dim=1, stable=True)[:, :n]
    v = points.gather(1, chosen.unsqueeze(2).expand(-1, -1, points.shape[2])).double()
    w = log_w.gather(1, chosen).double()
    size = max(1, _NUMBERS // (components * n * v.shape[2])) if v.device.type == "cpu" else len(v)
    parts = [_fit(*part, components) for part in zip(torch.split(v, size), torch.split(w, size), strict=True)]
    whole = (torch.cat([getattr(part, f.name) for part in parts]).to(points.dtype) for f in fields(NormalMixture))
    return NormalMixture(*whole)


def _fit(v: Tensor, log_w: Tensor, components: int) -> NormalMixture:
    r, n, d = v.shape
    count = torch.isfinite(log_w).sum(1)
    top = log_w.sort(1).values.gather(1, (n - 1 - 0.001 * (count - 1)).long().clamp(0, n - 1).unsqueeze(1))
    w = torch.softmax(torch.minimum(log_w, top), 1)
    own = (count // (2 * d + 2)).clamp(1, components)  # components that the points of a row can carry
    has = torch.arange(components, device=v.device) < own.unsqueeze(1)  # (R, C)
    nudge = 1e-4 * torch.eye(d, dtype=v.dtype, device=v.device)
    centred = v - (w.unsqueeze(1) @ v)
    pooled = _covariances(centred.unsqueeze(1), w.unsqueeze(1)).squeeze(1) + nudge
    mixture = NormalMixture(
        torch.where(has, -own.unsqueeze(1).to(v.dtype).log(), -torch.inf),
        _far_apart(v, torch.isfinite(log_w), pooled, components),
        torch.linalg.cholesky(pooled).unsqueeze(1).expand(r, components, d, d),
    )
    for _ in range(_ROUNDS):
        duty = torch.softmax(mixture._by_component(v), 1) * w.unsqueeze(1)  # (R, C, n)
        mass = duty.sum(2).clamp_min(1e-12)
        shares = torch.where(has, mass, 0.0)
        shares = shares / shares.sum(1, keepdim=True)
        means = (duty @ v) / mass.unsqueeze(2)
        means = torch.where(has.unsqueeze(2), means, mixture.means)
        within = _covariances(v.unsqueeze(1) - means.unsqueeze(2), duty / mass.unsqueeze(2))
        points = (count.unsqueeze(1) * mass).reshape(r, components, 1, 1)
        strength = _SHRINK * (d + 1) / (_SHRINK * (d + 1) + points)
        average = (shares.reshape(r, components, 1, 1) * within).sum(1, keepdim=True)
        covariances = (1 - strength) * within + strength * average + nudge
        covariances = torch.where(has.reshape(r, components, 1, 1), covariances, pooled.unsqueeze(1))
        mixture = NormalMixture(shares.log(), means, torch.linalg.cholesky(covariances))
    logs = torch.cat([mixture.log_shares + math.log1p(-_DEFENSIVE), mixture.log_shares + math.log(_DEFENSIVE)], 1)
    return NormalMixture(
        logs, mixture.means.repeat(1, 2, 1), torch.cat([1.1 * mixture.factors, _WIDER * mixture.factors], 1)
    )


def _covariances(offset: Tensor, w: Tensor) -> Tensor:
    """Of offsets (R, C, n, d) with weights (R, C, n)."""
    return (offset * w.unsqueeze(3)).mT @ offset


def _far_apart(v: Tensor, there: Tensor, covariance: Tensor, c: int) -> Tensor:
    """c points of each row, each the farthest from those before in the metric of the covariance, (R, c, d)."""
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), v.mT, upper=False).mT
    row = torch.arange(len(v), device=v.device)
    weight = there.to(v.dtype).unsqueeze(2)
    centre = (white * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp_min(1)
    distance = torch.where(there, (white - centre).square().sum(2), -1.0)
    chosen = [distance.argmax(1)]
    distance = torch.where(there, torch.inf, -1.0)
    while len(chosen) < c:
        last = white[row, chosen[-1]].unsqueeze(1)
        distance = torch.minimum(distance, torch.where(there, (white - last).square().sum(2), -1.0))
        chosen.append(distance.argmax(1))
    return v[row.unsqueeze(1), torch.stack(chosen, 1)]
