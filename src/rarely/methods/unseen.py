"""Did the lines see what splitting found?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.spend import Exhausted
from rarely.methods.line_sampling import LinedRegion
from rarely.methods.lines import Line, stack_lines
from rarely.methods.tempering import evaluate

_CHECKED = 64  # violating points checked per problem
_UNSEEN = 0.1  # share of them that lines may not have seen
_MARGIN = 4.0  # nats of h by which a point may lie outside what the lines' particles cover


def unseen_share(batch: Batch, regions: Sequence[LinedRegion], points: Sequence[Tensor | None]) -> list[str]:
    """For each problem a sentence when its lines do not account for some of the violating points (n, d), or nothing.

    A point is seen when its own line, for its own way to fail and in its own cell, enters the region before it, at a
    height h among those that the particles at temperature 1 have. A mode that no direction points to has lines that
    are violating almost everywhere, far above anything the particles saw; a way to fail without a line is unseen too.
    """
    told = [""] * len(batch)
    for row, (region, found) in enumerate(zip(regions, points, strict=True)):
        if found is None or len(found) == 0 or not region.lines:
            continue
        z = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:_CHECKED]]
        try:
            share = _share(batch, row, region, z)
        except Exhausted:
            told[row] = "the budget did not reach for a look at what it may have missed"
            continue
        if share > _UNSEEN:
            told[row] = f"it did not see {share:.0%} of the violations that splitting found"
    return told


def _share(batch: Batch, row: int, region: LinedRegion, z: Tensor) -> float:
    one = batch.take(torch.tensor([row]))
    with torch.no_grad():
        ways = one.parts(one.inputs.from_normal(z.unsqueeze(0))).argmax(-1).squeeze(0)
    owned: dict[int, list[int]] = {}
    unseen = 0
    for k in range(len(z)):
        rivals = [i for i, line in enumerate(region.lines) if line.way == int(ways[k])]
        if not rivals:
            unseen += 1
            continue
        best = max(rivals, key=lambda i: float(region.lines[i].alpha @ z[k]) - region.lines[i].distance)
        owned.setdefault(best, []).append(k)
    for i, members in owned.items():
        unseen += _unseen_by(batch, region.lines[i], z[members])
    return unseen / len(z)


def _unseen_by(batch: Batch, line: Line, z: Tensor) -> int:
    if not line.heights:  # no population of it has run
        return len(z)
    lines = stack_lines(batch, [line])
    along = z @ line.alpha
    base = lines.complement(z.unsqueeze(0))
    guess = torch.full((1, len(z)), min(line.distance, 15.0), dtype=z.dtype, device=z.device)
    seen = evaluate(lines, base, guess, torch.ones_like(guess))
    heights = torch.cat(line.heights)
    low, high = float(heights.min()) - _MARGIN, float(heights.max()) + _MARGIN
    before = along < seen.t.squeeze(0) - 0.05
    outside = (seen.h.squeeze(0) < low) | (seen.h.squeeze(0) > high)
    return int((before | outside).sum())
