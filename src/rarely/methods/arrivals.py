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
    hit = score >= 0
    counts = hit.sum(1).tolist()
    survivors = [own.clone() for own in torch.split(position[hit], counts)]  # a slice would keep the whole stack alive
    if weights is not None:
        for own, *held in zip(survivors, part.read(position), score, weights[rows], strict=True):
            yield own, gather_witnesses(*held)
        return
    # Evenly among them: the best are not like the others. A population that has fewer repeats its last one.
    most = min(MAX_WITNESSES, max(counts))
    each = [(torch.arange(most) * max(1.0, count / most)).long().clamp_max(count - 1) for count in counts]
    order = torch.stack([own.nonzero().squeeze(1)[some.to(own.device)] for own, some in zip(hit, each, strict=True)])
    best = score.gather(1, order)
    x = position[torch.arange(len(rows), device=rows.device).unsqueeze(1), order]
    with torch.no_grad():
        x = part.inputs.from_normal(x) if space == "normal" else part.read(x)
    x, best = x.cpu(), best.cpu()
    for r, (count, own) in enumerate(zip(counts, survivors, strict=True)):
        some = torch.arange(min(count, most))
        yield own, Witnesses(x[r][some].clone(), best[r][some].clone())
