"""Checks of what was found: violating inputs run again, alone, and in the network's own precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rarely.core.batch import Batch
from rarely.core.evidence import Draws, Evidence, Found, Levels, Searched, Witnesses, join_witnesses, pooled
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted

_PROBE = 64  # inputs scored in both precisions


def checked(part: Batch, evidence: Sequence[Evidence], *, shortened: bool) -> list[Evidence]:
    """The evidence of the one problem of `part`, its draws pooled and its witnesses replayed.

    `shortened`: the batch ran in a shorter precision than the network's own, so that the two are compared.
    """
    found = [e for e in evidence if isinstance(e, Found) and not e.witnesses.counted]
    rest: list[Evidence] = [
        e for e in evidence if not isinstance(e, Found | Draws) or (isinstance(e, Found) and e.witnesses.counted)
    ]
    if pooled(evidence).n:
        rest.insert(0, pooled(evidence))
    with part.spend.closing():
        replayed = _replayed(part, found)
        return [*rest, *replayed, *(_compared(part, rest, replayed) if shortened else [])]


def _replayed(part: Batch, found: Sequence[Found]) -> list[Evidence]:
    """Score the witnesses again in the network's own precision and keep those that still violate the property."""
    witnesses, methods = join_witnesses(e.witnesses for e in found), ", ".join(dict.fromkeys(e.method for e in found))
    if not len(witnesses):
        return list(found)
    calls = sum(e.calls for e in found)
    n = max(0, int(min(len(witnesses), part.left())))  # what is in flight when the budget ends may exceed it
    try:
        n = part.spend.rows(n) if n else 0
        part.spend.charge(part.rows, n)
    except Exhausted:
        n = 0
    if not n:
        return [Found(methods, witnesses, calls)]
    inputs = witnesses.inputs[:n]
    scores = part.problems[int(part.rows[0])].score(inputs).cpu()
    good = scores >= 0
    lost = n - int(good.sum())
    kept: list[Evidence] = [Found(methods, Witnesses(inputs[good], scores[good]), calls + n, replayed=True)]
    if lost == n:
        return [
            Searched("replay", "no witness survived its replay: the verdict hangs on rounding", calls + n, doubt=True)
        ]
    if lost:
        told = f"{lost} of {n} witnesses do not violate the property when replayed alone: scores near 0"
        kept.append(Searched("replay", told))
    return kept


def _compared(part: Batch, evidence: Sequence[Evidence], found: Sequence[Evidence]) -> list[Evidence]:
    """Score some inputs and the witnesses both ways, say how much they differ, and doubt what turns on it.

    A violation is doubted when half of its witnesses are none in the network's own precision, and its absence when the
    last level is nearer to 0 than twice what the scores of a few inputs differ by.
    """
    problem = part.problems[int(part.rows[0])]
    x = problem.inputs.sample(_PROBE, Rng(0))
    witnesses = [e.witnesses.inputs.to(x) for e in found if isinstance(e, Found)]
    inputs = torch.cat([x, *witnesses])
    try:
        short = part.score(part.taken(inputs).unsqueeze(0))[0].cpu().double()
        part.spend.charge(part.rows, len(inputs))
    except Exhausted:
        return [Searched("precision", "the budget did not reach for a comparison with the network's own precision")]
    own, calls = problem.score(inputs).cpu().double(), 2 * len(inputs)
    error, lost, count = float((short - own).abs().max()), int((own[_PROBE:] < 0).sum()), len(inputs) - _PROBE
    told = f"run in a shorter precision than the network's own, where scores differ by up to {error:.2g}"
    levels = next((e.levels for e in reversed(evidence) if isinstance(e, Levels)), ())
    if lost and 2 * lost >= count:
        told += f"; {lost} of {count} witnesses are none in its own: the verdict hangs on precision"
        return [Searched("precision", told, calls, doubt=True)]
    if not count and levels and -2 * error < levels[-1] < 0:
        told += f", and the last level is {levels[-1]:.2g}: the verdict hangs on precision"
        return [Searched("precision", told, calls, doubt=True)]
    return [Searched("precision", told, calls)]
