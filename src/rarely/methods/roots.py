"""Where lines enter the violating region: batched root finding, and the search for good directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch

LOW, HIGH = -9.0, 22.0  # P(Z < -9) is 1e-19, P(Z > 22) is 1e-107: beyond both a line has nothing to say
_TOLERANCE = 0.03  # length of the last secant step; the error after it is second order in this
_ROUNDS = 30


def find_roots(
    batch: Batch, base: Tensor, alpha: Tensor, guess: Tensor, slope: Tensor, stepped: Tensor | None = None
) -> Tensor:
    """Per line base + t alpha, the t where the score rises through 0; inf where it stays below, LOW where above.

    base (R, K, d), alpha (R, d), guess and slope (R, K): where to look first and how fast the score rises there. A
    bracketed secant method (Illinois); lines that are done cost nothing more, so a good guess costs two or three calls.
    Where the score is `stepped` (R,) its size says nothing about how far the root is, and only a bracket ends a search.
    """
    shape, d = guess.shape, base.shape[-1]
    row = torch.arange(shape[0], device=base.device).repeat_interleave(shape[1])
    points, t = base.reshape(-1, d), guess.flatten().clamp(LOW, HIGH).clone()
    rate = slope.flatten().clamp_min(1e-6).clone()
    low, high = torch.full_like(t, LOW), torch.full_like(t, HIGH)
    f_low, f_high = torch.full_like(t, -torch.inf), torch.full_like(t, torch.inf)
    result = torch.full_like(t, torch.inf)
    todo = torch.arange(len(t), device=t.device)
    believed = torch.ones_like(t, dtype=torch.bool) if stepped is None else ~stepped[row]
    for k in range(_ROUNDS):
        at = t[todo]
        f = batch.score_ragged(points[todo] + at.unsqueeze(1) * alpha[row[todo]], row[todo])
        under = f < 0
        # A jump shows in a score that does not shrink as the bracket does: only the bracket tells where the root is.
        smooth = believed[todo] & (f.abs() <= 0.5 * torch.minimum(f_low[todo].abs(), f_high[todo].abs()))
        low[todo], f_low[todo] = torch.where(under, at, low[todo]), torch.where(under, f, f_low[todo])
        high[todo], f_high[todo] = torch.where(under, high[todo], at), torch.where(under, f_high[todo], f)
        a, b, fa, fb = low[todo], high[todo], f_low[todo], f_high[todo]
        both = torch.isfinite(fa) & torch.isfinite(fb)
        secant_rate = torch.where(both, (fb - fa) / (b - a).clamp_min(1e-12), rate[todo]).clamp_min(1e-9)
        newton = at - f / secant_rate
        # Before both sides are known: Newton with a push across, at least doubling the width each round.
        width = torch.maximum((1.1 * f / secant_rate).abs(), at.new_tensor(0.05 * 2.0**k)).clamp_max(6.0)
        outside = torch.where(under, torch.minimum(at + width, b), torch.maximum(at - width, a))
        inner = a - fa / secant_rate
        middle = 0.5 * (a + b)
        safe = (inner > a + 0.02 * (b - a)) & (inner < b - 0.02 * (b - a))
        inside = torch.where(safe, inner, middle) if k % 4 != 3 else middle
        step = torch.where(both, inside, outside)
        found = (smooth & (f.abs() / secant_rate < _TOLERANCE)) | (both & (b - a < _TOLERANCE))
        never, always = under & (at >= HIGH), ~under & (at <= LOW)
        root = torch.where(smooth, torch.minimum(torch.maximum(newton, a), b), middle)
        value = torch.where(found, root, torch.where(always, at, torch.inf))
        done = found | never | always
        result[todo[done]] = value[done]
        t[todo] = step
        todo = todo[~done]
        if len(todo) == 0:
            break
    if len(todo):
        result[todo] = 0.5 * (low[todo] + high[todo])
    return result.reshape(shape)


@dataclass(frozen=True)
class Directions:
    """The best lines from the origin that a search found, per row and start."""

    alpha: Tensor  # (R, S, d) unit vectors
    distance: Tensor  # (R, S) where each enters the violating region; inf when it does not


def search_directions(batch: Batch, alpha: Tensor, rounds: int) -> Directions:
    """Improve directions (R, S, d): root along each, gradient there, blended in with a falling weight.

    Averaging gradients is what makes this converge where the plain HLRF iteration cycles between kinks of the score.
    """
    rows, starts, d = alpha.shape
    many = batch.take(torch.arange(rows).repeat_interleave(starts))
    current = alpha.reshape(-1, d)
    origin = current.new_zeros(rows * starts, 1, d)
    best, nearest = current.clone(), current.new_full((rows * starts,), torch.inf)
    guess, rate = current.new_full((rows * starts, 1), 5.0), current.new_ones(rows * starts, 1)
    for i in range(rounds + 1):
        t = find_roots(many, origin, current, guess, rate).squeeze(1)
        closer = t < nearest
        best, nearest = torch.where(closer.unsqueeze(1), current, best), torch.minimum(t, nearest)
        if i == rounds:
            break
        at = t.clamp_max(10.0).unsqueeze(1)
        _, gradient = many.gradient_normal((at * current).unsqueeze(1))
        g = gradient.squeeze(1)
        weight = 1 / (1 + 0.5 * i)
        mixed = (1 - weight) * current + weight * unit(g)
        rate = (g * current).sum(1, keepdim=True).abs()
        guess = torch.where(torch.isfinite(t), t, nearest.clamp_max(10.0)).unsqueeze(1)
        current = unit(mixed)
    return Directions(best.reshape(rows, starts, d), nearest.reshape(rows, starts))


def unit(v: Tensor) -> Tensor:
    """Vectors (..., d) at length one, zero where they have no direction."""
    return torch.nan_to_num(v / v.norm(dim=-1, keepdim=True).clamp_min(1e-30))
