"""Fitting a normal mixture to weighted points, with a defensive component."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.rng import Rng

_DEFENSIVE = 0.1  # share of a widened copy of the whole fit, so that no weight is large where the fit is thin
_WIDER = 1.6  # its standard deviations over the fit's
_SHRINK = 4.0  # pseudo-points of the pooled covariance in each component


@dataclass(frozen=True)
class NormalMixture:
    log_shares: Tensor  # (C,)
    means: Tensor  # (C, d)
    factors: Tensor  # (C, d, d) lower Cholesky

    def sample(self, n: int, rng: Rng) -> Tensor:
        edges = torch.cumsum(self.log_shares.exp(), 0)
        which = torch.searchsorted(edges, rng.uniform((n,), edges.dtype)).clamp_max(len(edges) - 1)
        noise = rng.normal((n, self.means.shape[1]), self.means.dtype)
        return self.means[which] + (self.factors[which] @ noise.unsqueeze(-1)).squeeze(-1)

    def joined(self, centres: Tensor, share: float) -> NormalMixture:
        """With standard normals at `centres` (n, d), which take `share` of the whole."""
        n, d = centres.shape
        if n == 0:
            return self
        eye = torch.eye(d, dtype=centres.dtype, device=centres.device).expand(n, d, d)
        even = self.log_shares.new_full((n,), math.log(share / n))
        return NormalMixture(
            torch.cat([self.log_shares + math.log1p(-share), even]),
            torch.cat([self.means, centres]),
            torch.cat([self.factors, eye]),
        )

    def log_density(self, v: Tensor) -> Tensor:
        """(n,) in float64."""
        offset = v.unsqueeze(0).double() - self.means.unsqueeze(1).double()  # (C, n, d)
        white = torch.linalg.solve_triangular(self.factors.double(), offset.mT, upper=False)
        log_det = self.factors.double().diagonal(dim1=-2, dim2=-1).log().sum(-1)
        d = v.shape[1]
        each = -0.5 * white.square().sum(1) - log_det.unsqueeze(1) - 0.5 * d * math.log(2 * math.pi)
        return torch.logsumexp(each + self.log_shares.double().unsqueeze(1), 0)


def fit_mixture(points: Tensor, log_w: Tensor | None, rng: Rng, components: int = 4, rounds: int = 25) -> NormalMixture:
    """EM from points (n, d) chosen far apart, covariances shrunk towards the pooled one."""
    v = points.double()
    n, d = v.shape
    w = torch.full((n,), 1 / n, dtype=torch.float64, device=v.device)
    if log_w is not None:
        w = torch.softmax(log_w.double().clamp_max(float(log_w.double().quantile(0.999))), 0)
    c = max(1, min(components, n // (2 * d + 2)))
    centre = (w.unsqueeze(1) * v).sum(0)
    pooled = _covariance(v - centre, w) + 1e-4 * torch.eye(d, dtype=v.dtype, device=v.device)
    means = _far_apart(v, pooled, c)
    covariances, shares = pooled.expand(c, d, d).clone(), torch.full((c,), 1 / c, dtype=v.dtype, device=v.device)
    for _ in range(rounds):
        mixture = NormalMixture(shares.log(), means, torch.linalg.cholesky(covariances))
        duty = _responsibilities(mixture, v) * w  # (C, n)
        mass = duty.sum(1).clamp_min(1e-12)
        shares = mass / mass.sum()
        means = (duty @ v) / mass.unsqueeze(1)
        within = torch.stack([_covariance(v - means[k], duty[k] / mass[k]) for k in range(c)])
        strength = _SHRINK * (d + 1) / (_SHRINK * (d + 1) + n * mass).reshape(-1, 1, 1)
        average = (shares.reshape(-1, 1, 1) * within).sum(0)
        covariances = (1 - strength) * within + strength * average
        covariances = covariances + 1e-4 * torch.eye(d, dtype=v.dtype, device=v.device)
    factors = torch.linalg.cholesky(covariances)
    all_shares = torch.cat([(1 - _DEFENSIVE) * shares, _DEFENSIVE * shares]).log()
    result = NormalMixture(all_shares, means.repeat(2, 1), torch.cat([1.1 * factors, _WIDER * factors]))
    return NormalMixture(*(part.to(points.dtype) for part in (result.log_shares, result.means, result.factors)))


def _covariance(offset: Tensor, w: Tensor) -> Tensor:
    return (offset * w.unsqueeze(1)).T @ offset


def _responsibilities(mixture: NormalMixture, v: Tensor) -> Tensor:
    singles = [
        NormalMixture(mixture.log_shares[k : k + 1], mixture.means[k : k + 1], mixture.factors[k : k + 1]).log_density(
            v
        )
        for k in range(len(mixture.means))
    ]
    return torch.softmax(torch.stack(singles), 0)


def _far_apart(v: Tensor, covariance: Tensor, c: int) -> Tensor:
    """c points, each the farthest from those before in the metric of the covariance."""
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), v.T, upper=False).T
    chosen = [int((white - white.mean(0)).square().sum(1).argmax())]
    while len(chosen) < c:
        distance = torch.stack([(white - white[k]).square().sum(1) for k in chosen]).amin(0)
        chosen.append(int(distance.argmax()))
    return v[chosen]
