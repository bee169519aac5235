"""Temperatures: how far a change of one may go, and what it is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.rng import Rng

_ESS = 0.25  # effective share of particles that a change of temperature leaves; ratios come from both sides of it
_BENNETT = 20  # rounds; each shrinks the error of a guess at least by half where half the states are effective


@dataclass(frozen=True)
class Spread:
    """How h varies over the particles of each line, all its populations together."""

    h: Tensor  # (R, N)
    b: Tensor  # (R, 1)
    replicates: int

    def share(self, c: Tensor) -> Tensor:
        """Effective share of the particles that cross at all which temperature c leaves, (R, 1); 1 where none does."""
        h = self.h.reshape(-1, self.replicates * self.h.shape[1])
        crossing = torch.isfinite(h)
        w = torch.softmax(torch.where(crossing, (c - self.b)[:: self.replicates] * h, -torch.inf), 1)
        alive = crossing.sum(1, keepdim=True).double()
        effective = torch.where(alive > 0, 1 / (w * w).sum(1, keepdim=True) / alive, torch.ones_like(alive))
        return effective.repeat_interleave(self.replicates, 0)

    def next_temperature(self) -> Tensor:
        """The largest b' <= 1 that leaves the effective share _ESS of the particles, (R, 1)."""
        low, high = self.b.clone(), torch.ones_like(self.b)
        for _ in range(40):
            mid = 0.5 * (low + high)
            ok = self.share(mid) > _ESS
            low, high = torch.where(ok, mid, low), torch.where(ok, high, mid)
        return torch.where(self.share(torch.ones_like(self.b)) >= _ESS, torch.ones_like(self.b), low)


def systematic(log_w: Tensor, n: int, rng: Rng) -> Tensor:
    w = torch.nan_to_num(torch.softmax(log_w, 1), nan=1.0 / log_w.shape[1])
    u = (rng.uniform((log_w.shape[0], 1), torch.float64) + torch.arange(n, device=log_w.device)) / n
    return torch.searchsorted(torch.cumsum(w, 1), u).clamp_max(log_w.shape[1] - 1)


def bennett(below: Tensor, above: Tensor, ratio: Tensor, counts: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """log Z'/Z (R,) from the differences of the two log-densities at states of Z (R, n) and of Z' (R, m).

    Bennett (1976), eq. 12a and b; `ratio` is the guess that the lower states alone give, -inf where all are dead.
    `counts` are the logs of how many states each of them stands for: one, if not given.
    """
    dead = torch.isneginf(ratio)
    lower, upper = counts or (torch.zeros_like(below), torch.zeros_like(above))
    more = (upper.logsumexp(1) - lower.logsumexp(1)).unsqueeze(1)
    for _ in range(_BENNETT):
        gap = ratio.unsqueeze(1) - more
        forth = (torch.nn.functional.logsigmoid(below - gap) + lower).logsumexp(1)
        back = (torch.nn.functional.logsigmoid(gap - above) + upper).logsumexp(1)
        ratio = ratio + forth - back
    return torch.where(dead, -torch.inf, ratio)


def mean_of(log_prob: Tensor, replicates: int) -> Tensor:
    """Log of the mean over the populations of each line, (R, 1)."""
    means = log_prob.reshape(-1, replicates).logsumexp(1, keepdim=True) - math.log(replicates)
    return means.repeat_interleave(replicates, 0)
