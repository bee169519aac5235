"""What a round of populations says of its lines, and how they cross the boundary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rarely.core.rng import Rng
from rarely.methods.guesses import learn
from rarely.methods.lines import Line
from rarely.methods.tempering import Lines, Particles, Tempered
from rarely.stats.normal import truncated_quantile

_BEFORE, _EARLY = 0.1, 0.1  # how far before an entry nothing violates, and the share of lines that may be otherwise


def book(lines: Sequence[Line], stacked: Lines, result: Tempered, states: int, rng: Rng) -> dict[Line, bool]:
    """Write a round into its lines; those whose entries were taken wrongly, and whether because of steps."""
    replicates = len(stacked.alpha) // len(lines)
    faint = result.faint[::replicates].tolist()
    for j in (j for j, gone in enumerate(faint) if gone):
        _write(lines[j], result, slice(j * replicates, (j + 1) * replicates), states)
    lines = [line for line, gone in zip(lines, faint, strict=True) if not gone]
    if not lines:
        return {}
    if any(faint):
        clear = (~result.faint).nonzero().squeeze(1)
        stacked, result = stacked.take(clear), result.rows(clear)
    tested, early = _test_beyond(stacked, result.last, rng), _violating_before(stacked, result.last)
    doubted: dict[Line, bool] = {}
    for j, line in enumerate(lines):
        rows = slice(j * replicates, (j + 1) * replicates)
        misled = not line.exact and not learn(line, result.guess[rows], result.truth[rows])
        if misled or (not line.stepped and float(early[rows].mean()) > _EARLY):
            doubted[line] = not misled
        _write(line, result, rows, states)
        line.heights.append(result.last.h[rows].flatten().cpu())
        line.record(*(value[rows] for value in tested))
    return doubted


def _write(line: Line, result: Tempered, rows: slice, states: int) -> None:
    line.rounds.append((states, result.log_prob[rows].cpu()))
    line.alive.append(float(result.alive[rows].mean()))


def _violating_before(lines: Lines, last: Particles) -> Tensor:
    """Whether lines violate shortly before their entries into the region, (R, N) of 0 and 1.

    A score that moves in steps is small, and constant, far beyond the entry, which is then taken for a root.
    """
    entry, _ = lines.cell_entry(last.z)
    t = last.t.clamp_max(30.0) - _BEFORE
    with torch.no_grad():
        score = lines.batch.score(lines.batch.inputs.from_normal(last.z + t.unsqueeze(-1) * lines.alpha.unsqueeze(1)))
    return ((score >= 0) & (t > entry)).double()


def _test_beyond(lines: Lines, last: Particles, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs at a random place of each line beyond its entry, drawn by the normal law, their scores, and their weights.

    They are draws from the violating law (the witnesses), and the share that violates corrects for lines that leave the
    region again: the mean of P(Z > t) times that share is unbiased for what lies beyond the entries. Each counts by
    how much the law of the inputs is denser there than where its line was weighed.
    """
    t = last.t.clamp_max(30.0)
    tau = truncated_quantile(rng.normal(t.shape, t.dtype), t, torch.full_like(t, torch.inf)).to(t.dtype)
    z = last.z + tau.unsqueeze(-1) * lines.alpha.unsqueeze(1)
    with torch.no_grad():
        x = lines.batch.inputs.from_normal(z)
    here, there = lines.batch.log_weight(z), lines.weight(last.z, t)
    ratio = torch.ones_like(t) if here is None or there is None else torch.exp(here - there).to(t.dtype)
    return x, lines.batch.score(x), torch.nan_to_num(ratio)
