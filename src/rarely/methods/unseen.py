"""Did other methods see what splitting found, and how much of p do lines find where it looked?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.batch import Batch
from rarely.core.spend import Exhausted
from rarely.methods.guesses import risen
from rarely.methods.lined import TIMES_KNOWN, LinedRegion
from rarely.methods.lines import ANY, Line, stack_lines
from rarely.methods.tempering import search

_CHECKED = 64  # violating points checked per problem
_REACH = 0.9  # share of a line's own entries that lie no nearer than what counts as its part of the region
_UNSEEN = 0.1  # share of them that lines may not have seen
_BROKE = "the budget did not reach for a look at what it may have missed"
_MARGIN = 4.0  # nats of h by which a point may lie outside what the lines' particles cover


@dataclass(frozen=True)
class Look:
    """What became of violating points that the lines did not start from."""

    unseen: str = ""  # a sentence where lines do not account for enough of them
    lines: list[Line] = field(default_factory=list)  # those that account for the others


def compare(batch: Batch, regions: Sequence[LinedRegion], points: Sequence[Tensor | None]) -> list[Look]:
    """For each problem whether its lines account for violating points (n, d) of splitting.

    A point is seen when its own line, for its own way to fail and in its own cell, enters the region before it, at a
    height h among those that the particles at temperature 1 have. A mode that no direction points to has lines that
    are violating almost everywhere, far above anything the particles saw; a way to fail without a line is unseen too.
    """
    looks = [Look()] * len(batch)
    for row, (region, found) in enumerate(zip(regions, points, strict=True)):
        if found is None or len(found) == 0 or not region.lines or region.curved:
            continue
        try:
            looks[row] = _look(batch, row, region, _some(found))
        except Exhausted:
            looks[row] = Look(_BROKE)
    return looks


def foreign(region: LinedRegion, log_prob: float, points: Tensor) -> str:
    """A sentence where lines hold more of p than the violating points (n, d) of populations that say `log_prob`.

    In a mode that these have lost, none of them goes as far along its line as nine in ten of the line's own do.
    """
    whole, lost = max(log_prob, region.log_prob), 0.0
    for line in region.lines:
        if line.heights:
            reach = torch.quantile(torch.cat(line.heights), _REACH)
            along = (points @ line.alpha).double().cpu()
            share, known = math.exp(line.log_mean - whole), float((log_ndtr(-along) <= reach).double().mean())
            lost += share if share > TIMES_KNOWN * known else 0.0
    return f"line sampling holds {lost:.0%} of p where it has no violation" if lost > _UNSEEN else ""


def unmet(batch: Batch, known: Sequence[Tensor | None], points: Sequence[Tensor | None]) -> list[str]:
    """For each problem a sentence where violating points (n, d) fail in ways that none of those known to another do."""
    told = [""] * len(batch)
    for row, (own, found) in enumerate(zip(known, points, strict=True)):
        if own is None or found is None or len(own) == 0 or len(found) == 0:
            continue
        try:
            met, asked = (_ways(batch, row, z) for z in (own, _some(found)))
        except Exhausted:
            told[row] = _BROKE
            continue
        told[row] = _told(sum(way not in set(met) for way in asked) / len(asked))
    return told


def _some(z: Tensor) -> Tensor:
    return z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:_CHECKED]]


def _ways(batch: Batch, row: int, z: Tensor) -> list[int]:
    """The way in which each point (n, d) fails."""
    one = batch.take(torch.tensor([row]))
    with torch.no_grad():
        ways: list[int] = one.parts(one.inputs.from_normal(z.unsqueeze(0))).argmax(-1).squeeze(0).tolist()
    return ways


def _told(share: float) -> str:
    return f"it did not see {share:.0%} of the violations that splitting found" if share > _UNSEEN else ""


def _look(batch: Batch, row: int, region: LinedRegion, z: Tensor) -> Look:
    ways = _ways(batch, row, z)
    owned: dict[int, list[int]] = {}
    unseen = 0
    claims = torch.stack([z @ line.alpha - line.distance for line in region.lines]).cpu()  # (L, n)
    for k, way in enumerate(ways):
        rivals = [i for i, line in enumerate(region.lines) if line.way in (way, ANY)]
        if not rivals:
            unseen += 1
            continue
        owned.setdefault(max(rivals, key=lambda i: float(claims[i, k])), []).append(k)
    for i, members in owned.items():
        unseen += _unseen_by(batch, region.lines[i], z[members])
    return Look(_told(unseen / len(z)), [region.lines[i] for i in owned])


def _unseen_by(batch: Batch, line: Line, z: Tensor) -> int:
    if not line.heights:  # no population of it has run
        return len(z)
    lines = stack_lines(batch, [line])
    along = (z @ line.alpha).unsqueeze(0)
    base = lines.complement(z.unsqueeze(0))
    # A search that starts at a root believes the slope that it is given, so that this must be the right one.
    score, slope = risen(lines, base, along)
    seen = search(lines, base, along - (score / slope).clamp(-3.0, 3.0), slope)
    heights = torch.cat(line.heights)
    low, high = float(heights.min()) - _MARGIN, float(heights.max()) + _MARGIN
    before = (along < seen.t - 0.05).squeeze(0)
    outside = (seen.h.squeeze(0) < low) | (seen.h.squeeze(0) > high)
    return int((before | outside).sum())
