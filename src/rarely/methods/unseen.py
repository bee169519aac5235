"""Did the lines see what splitting found, and how much of p do they find where it looked?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.spend import Exhausted
from rarely.methods.guesses import risen
from rarely.methods.lined import LinedRegion
from rarely.methods.lines import ANY, Line, stack_lines
from rarely.methods.tempering import search

_CHECKED = 64  # violating points checked per problem
_UNSEEN = 0.1  # share of them that lines may not have seen
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
        if found is None or len(found) == 0 or not region.lines:
            continue
        z = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:_CHECKED]]
        try:
            looks[row] = _look(batch, row, region, z)
        except Exhausted:
            looks[row] = Look("the budget did not reach for a look at what it may have missed")
    return looks


def _look(batch: Batch, row: int, region: LinedRegion, z: Tensor) -> Look:
    one = batch.take(torch.tensor([row]))
    with torch.no_grad():
        ways = one.parts(one.inputs.from_normal(z.unsqueeze(0))).argmax(-1).squeeze(0).tolist()
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
    share = unseen / len(z)
    told = f"it did not see {share:.0%} of the violations that splitting found" if share > _UNSEEN else ""
    return Look(told, [region.lines[i] for i in owned])


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
