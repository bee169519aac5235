"""Where lines are expected to enter the violating region, by a few entries that were searched for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.methods.lines import Line, stack_lines
from rarely.methods.tempering import Lines, expected, search

_PROBES, _FEW = 24, 8  # lines searched to begin with, and too few to tell anything
_BACK = 0.5  # how far behind it a second score tells how fast the first came about
_LEVEL = 1e-6  # slope at which a score tells nothing
_MISLED, _MANY = 3.0, 0.15  # nats that a guess may be short of the truth, and the share of violating points with more
_FIT = 0.05  # effective share of states from which weights correct what was guessed
_FLATTEST, _STEEPEST = 0.3, 1.5  # change of the truth for one of the guess


def survey(batch: Batch, lines: Sequence[Line], rng: Rng) -> None:
    """Give each line its guess, from lines through violating points that it is for; through any, where it has none.

    Violating points are fair draws, so that a guess which is far from their own entries would miss much of p.
    """
    first = stack_lines(batch, lines)
    r, d = first.alpha.shape
    z = rng.normal((r, _PROBES, d), first.alpha.dtype)
    given = torch.zeros(r, dtype=torch.bool, device=z.device)
    for i, line in enumerate(lines):
        if line.points is not None:
            given[i], z[i] = True, line.points[torch.arange(_PROBES, device=z.device) % len(line.points)]
    base, along = first.complement(z), (z * first.alpha.unsqueeze(1)).sum(-1)
    near = first.distance.clamp_max(15.0).unsqueeze(1)
    guess = torch.where(given.unsqueeze(1), along, near)
    _, slopes = risen(first, base[:, :_FEW], guess[:, :_FEW])
    rise = slopes.median(1).values
    truth = search(first, base, guess, rise.unsqueeze(1).expand(r, _PROBES)).t
    for i, line in enumerate(lines):
        entered = truth[i][torch.isfinite(truth[i])]
        line.plane = float(entered.median()) if len(entered) else line.distance
        line.zero, line.slope = line.plane, float(rise[i])
    placed = stack_lines(batch, lines)
    guessed = expected(placed, base).t
    for i, line in enumerate(lines):
        offset, change = _regression(guessed[i], truth[i], torch.ones_like(truth[i]))
        line.zero, line.slope = offset + change * line.zero, line.slope / change
    placed = stack_lines(batch, lines)
    missed = (log_ndtr(-truth) > log_ndtr(-expected(placed, base).t) + _MISLED).double().mean(1)
    for i, line in enumerate(lines):
        line.exact = bool((given[i] & (missed[i] > _MANY)) | (rise[i] <= _LEVEL))


def risen(lines: Lines, base: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Scores at t of the lines through base, and how fast they have risen on the last bit of the way, (R, N)."""
    there, before = (lines.batch.score_normal(lines.at(base, t - back)) for back in (0.0, _BACK))
    return there, ((there - before) / _BACK).clamp_min(_LEVEL)


def learn(line: Line, guess: Tensor, truth: Tensor) -> bool:
    """Better the guess by the last states of a line's populations (R, N); say whether weights could correct it."""
    log_w = log_ndtr(-truth.double()) - log_ndtr(-guess.double())
    w = torch.softmax(torch.where(torch.isfinite(truth), log_w, -torch.inf).flatten(), 0)
    offset, change = _regression(guess.flatten(), truth.flatten(), w)
    ahead = float((w * truth.flatten().double().nan_to_num(posinf=0.0)).sum()) - line.plane
    # Scores at the new plane are larger by what they rise on the way there.
    line.zero, line.slope = offset + change * (line.zero + ahead), line.slope / change
    line.plane += ahead
    return float(1 / (w * w).sum()) > _FIT * len(w)


def _regression(guess: Tensor, truth: Tensor, weight: Tensor) -> tuple[float, float]:
    """Offset and change by which true entries (n,) follow guessed ones; no change where too few are known."""
    finite = torch.isfinite(truth)
    w, x, y = (value[finite].double() for value in (weight, guess, truth))
    w = w / w.sum()
    if len(w) < _FEW or float(1 / (w * w).sum()) < _FEW:
        return 0.0, 1.0
    x0, y0 = float((w * x).sum()), float((w * y).sum())
    spread = float((w * (x - x0).square()).sum())
    change = 1.0 if spread < 1e-4 else float((w * (x - x0) * (y - y0)).sum()) / spread
    change = min(max(change, _FLATTEST), _STEEPEST)
    return y0 - change * x0, change
