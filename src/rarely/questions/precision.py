"""Whether a verdict hangs on the precision that the network was run in."""

from __future__ import annotations

from dataclasses import replace

import torch

from rarely.core.problem import Batch, Problem
from rarely.core.rng import Rng
from rarely.questions.result import Estimate, Outcome

_PROBE = 64  # inputs scored both ways


def compare_precision(problem: Problem, part: Batch, estimate: Estimate) -> Estimate:
    """Score some inputs and the witnesses both ways, say how much they differ, and distrust a verdict that turns on it.

    `part` is the one row of the batch that was run in the shorter precision. A violation is doubted when half of its
    witnesses are none in the network's own precision, and its absence when the last level is nearer to 0 than twice
    what the scores of a few inputs differ by.
    """
    x = problem.inputs.sample(_PROBE, Rng(0))
    inputs = torch.cat([x, estimate.witnesses.inputs.to(x)]) if len(estimate.witnesses) else x
    short = part.score(inputs.to(part.device, part.dtype).unsqueeze(0))[0].cpu().double()
    own = problem.score(inputs).cpu().double()
    error = float((short - own).abs().max())
    lost = int((own[_PROBE:] < 0).sum())
    note = f"run in a shorter precision than the network's own, where scores differ by up to {error:.2g}"
    last = estimate.levels[-1] if estimate.levels else None
    if lost and 2 * lost >= len(estimate.witnesses):
        note += f"; {lost} of {len(estimate.witnesses)} witnesses are none in its own: the verdict hangs on precision"
    elif estimate.outcome is not Outcome.VIOLATED and last is not None and -2 * error < last < 0:
        note += f", and the last level is {last:.2g}: the verdict hangs on precision"
    else:
        return replace(estimate, notes=(*estimate.notes, note))
    return replace(estimate, outcome=Outcome.STALLED, notes=(*estimate.notes, note))
