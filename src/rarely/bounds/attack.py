"""Projected gradient ascent on the score from many starts, and the replay of what it finds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rarely.bounds.region import BallRegion, Region
from rarely.bounds.spec import Spec

Network = Callable[[Tensor], Tensor]  # (N, *event) -> (N, ...)


def outputs_at(network: Network, x: Tensor) -> Tensor:
    """Flat outputs (B, N, k) of points x (B, N, *event)."""
    return network(x.flatten(0, 1)).flatten(1).reshape(*x.shape[:2], -1)


def _project(x: Tensor, region: Region) -> Tensor:
    if isinstance(region, BallRegion):
        step = (x - region.centre.unsqueeze(1)).flatten(2)
        length: Tensor = torch.linalg.vector_norm(step, dim=-1, keepdim=True).clamp(min=1e-30)
        shrink: Tensor = (region.radius.reshape(-1, 1, 1) / length).clamp(max=1)
        return region.centre.unsqueeze(1) + (step * shrink).reshape(x.shape)
    return torch.minimum(torch.maximum(x, region.low.unsqueeze(1)), region.high.unsqueeze(1))


def starts(region: Region, count: int, generator: torch.Generator) -> Tensor:
    """`count` points of each region: the centre, random points, and random corners; (B, count, *event)."""
    low, high = region.low, region.high
    u = torch.rand(low.shape[0], count, *low.shape[1:], generator=generator, dtype=torch.float64)
    u[:, 0] = 0.5
    u[:, 1 : count // 2] = u[:, 1 : count // 2].round()
    u = u.to(low.device)
    return _project(low.unsqueeze(1) + (high - low).unsqueeze(1) * u, region)


def ascend_score(
    network: Network, dtype: torch.dtype, region: Region, spec: Spec, x: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Sign-gradient ascent, each start towards its own polytope in turn; best points and their scores (B, N).

    The step falls geometrically from a quarter of the box to a thousandth, so that both the far corner and a sliver
    next to the start can be reached.
    """
    count = x.shape[1]
    goal = (torch.arange(count, device=x.device) % spec.count).reshape(1, -1, 1)
    half = ((region.high - region.low) / 2).unsqueeze(1)
    best, best_x = x.new_full(x.shape[:2], -torch.inf), x
    for step in range(steps + 1):
        with torch.enable_grad():
            here = x.to(dtype).requires_grad_()
            scores = spec.scores(outputs_at(network, here).to(torch.float64))
            aim = scores.gather(2, goal.expand(x.shape[0], -1, -1)).sum()
            slope = torch.autograd.grad(aim, here)[0] if aim.requires_grad else None
        with torch.no_grad():
            value = scores.amax(-1)
            won = value > best
            best = torch.where(won, value, best)
            best_x = torch.where(won.reshape(*won.shape, *(1,) * (x.ndim - 2)), x, best_x)
            if slope is None:  # a network without gradients: its starts are all we have
                break
            size = 0.5 * 0.002 ** (step / max(steps, 1))
            x = _project(x + size * half * slope.sign().to(x.dtype), region)
    return best_x, best


def representable(x: Tensor, region: Region, dtype: torch.dtype) -> Tensor:
    """x rounded to `dtype` without leaving the bounding box, where the box holds such a number at all."""
    y = x.to(dtype)
    up = torch.nextafter(y, torch.full_like(y, torch.inf))
    down = torch.nextafter(y, torch.full_like(y, -torch.inf))
    y = torch.where((y.double() < region.low) & (up.double() <= region.high), up, y)
    return torch.where((y.double() > region.high) & (down.double() >= region.low), down, y)


@torch.no_grad()
def replay(network: Network, dtype: torch.dtype, region: Region, spec: Spec, x: Tensor) -> tuple[Tensor, Tensor]:
    """One candidate per problem, (B, *event), rounded to the network's precision and truly evaluated.

    Gives the rounded points and their scores (B,); a score >= 0 is a violation that anyone can repeat. A point of
    a ball that rounding pushed out of it scores -inf.
    """
    y = representable(x, region, dtype)
    score = spec.score(outputs_at(network, y.unsqueeze(1)).to(torch.float64)).squeeze(1)
    if isinstance(region, BallRegion):
        away = torch.linalg.vector_norm((y.double() - region.centre).flatten(1), dim=1)
        score = torch.where(away <= region.radius, score, -torch.inf)
    return y, score
