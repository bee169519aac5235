"""What populations that have arrived hold: their violating particles, and some of them as witnesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.witnesses import MAX_WITNESSES, Witnesses, gather_witnesses
from rarely.kernels import State


def arrivals(
    part: Batch, space: Literal["normal", "input"], state: State, rows: Tensor, weights: Tensor | None
) -> Iterator[tuple[Tensor, Witnesses]]:
    """Of each population at `rows`, on the CPU; with log-weights (R, n) where they climbed from another law."""
    if len(rows) == 0:
        return
    part = part.take(rows)
    score, position = state.score[rows], state.position[rows]
    row, place = (score >= 0).nonzero(as_tuple=True)
    many = torch.bincount(row, minlength=len(rows)).cpu()
    counts: list[int] = many.tolist()
    survivors = torch.split(position[row, place], counts)  # parts of one tensor: who arrives together stays together
    if weights is not None:
        for own, *held in zip(survivors, part.read(position), score, weights[rows], strict=True):
            yield own, gather_witnesses(*held)
        return
    # Evenly among them: the best are not like the others. A population that has fewer repeats its last one.
    most = min(MAX_WITNESSES, max(counts))
    each = (torch.arange(most) * (many / most).clamp_min(1.0).unsqueeze(1)).long().minimum(many.unsqueeze(1) - 1)
    order = place[(each + (many.cumsum(0) - many).unsqueeze(1)).to(place.device)]
    best = score.gather(1, order)
    x = position[torch.arange(len(rows), device=rows.device).unsqueeze(1), order]
    with torch.no_grad():
        x = part.inputs.from_normal(x) if space == "normal" else part.read(x)
    for own, count, *held in zip(survivors, counts, x.cpu(), best.cpu(), strict=True):
        yield own, Witnesses(*(kept[:count] for kept in held))
