"""The arithmetic of splitting, as pure functions: next level, survivors, ancestors, log-increment, variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rarely.core.rng import Rng


@dataclass(frozen=True)
class Selection:
    """What one level decides, for B populations of N scores."""

    level: Tensor  # (B,) survivors lie above it (strictly; `>=` under the paper's rule)
    survivors: Tensor  # (B,) how many
    order: Tensor  # (B, k) indices of particles by falling score; the first `survivors` of a row survive
    log_increment: Tensor  # (B,) float64
    finished: Tensor  # (B,) bool: the level reached the goal
    plateau: Tensor  # (B,) bool: ties below the goal reach the top, so that no level has survivors above it


def passes(score: Tensor, level: Tensor, strict: bool) -> Tensor:
    """Whether a score is above the level. NaN passes, so that it is not lost but seen and reported by the estimator."""
    return ~(score <= level) if strict else ~(score < level)


def select(scores: Tensor, quantile: float, paper: bool, goal: float = 0.0) -> Selection:
    """Choose the next level of each population (Alg. 1 l. 6-9).

    Deviation: by default the level is the (K+1)-th largest score, K = floor(quantile N), and survivors lie strictly
    above it. Counting the particle at the level as a survivor, as Alg. 1 prints it, biases p upwards; with the strict
    rule the level is a stopping time of the sorted scores and the product of the increments is unbiased, ties or not.
    """
    n = scores.shape[1]
    keep = max(1, math.floor(quantile * n))
    top, order = scores.topk(min(n, keep + 1), dim=1)
    hits = (scores >= goal).sum(1)
    if paper:
        level = top[:, keep - 1].clamp_max(goal)
        finished = level >= goal
        survivors = (scores >= level.unsqueeze(1)).sum(1)
        plateau = (scores.amin(1) == top[:, 0]) & ~finished
    else:
        level = top[:, -1]
        finished = level >= goal
        survivors = (scores > level.unsqueeze(1)).sum(1)
        # Ties that reach the top leave nobody above. Going back to a lower level, or trying again, only when that
        # happens would bias p upwards (by up to a factor of 2): the population has died out, and counts as zero.
        plateau = ~finished & (survivors == 0)
    survivors = torch.where(finished, hits, survivors)
    if paper and bool((survivors > order.shape[1]).any()):
        order = scores.argsort(dim=1, descending=True)
    fraction = survivors.double() / n
    return Selection(level, survivors, order, torch.log(fraction), finished, plateau)


def ancestors(selection: Selection, n: int, rng: Rng, multinomial: bool) -> Tensor:
    """Indices (B, n) of survivors to clone: systematic, each survivor n/survivors times up to rounding; or multinomial.

    Deviation: Alg. 1 l. 11 draws with replacement; systematic draws have the same mean and less variance.
    """
    b = selection.order.shape[0]
    alive = selection.survivors.unsqueeze(1)
    if multinomial:
        pick = (rng.uniform((b, n)) * alive).long()
    else:
        grid = torch.arange(n, device=alive.device)
        pick = ((grid + rng.uniform((b, 1))) * (alive / n)).long()
    return selection.order.gather(1, torch.minimum(pick, alive - 1))


def ideal_variance(log_prob: float, quantile: float, particles: int) -> float:
    """Relative variance of splitting with perfect sampling: [n (1-q)/q + (1-r)/r] / N for p = q^n r."""
    n = math.floor(log_prob / math.log(quantile))
    r = math.exp(log_prob - n * math.log(quantile))
    return (n * (1 - quantile) / quantile + (1 - r) / r) / particles
