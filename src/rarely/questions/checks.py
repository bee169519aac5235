"""Checks of what was found: violating inputs run again, alone, and in the network's own precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.evidence import Draws, Evidence, Found, Levels, Nearest, Searched, pooled
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted, Spend
from rarely.core.witnesses import KINDS, MAX_WITNESSES, Witnesses, join_witnesses

_PROBE = 64  # inputs scored in both precisions
_KEPT_OUTPUTS = 1000  # numbers of an answer that are kept with a witness: not those of every pixel


def checked(batch: Batch, row: int, evidence: Sequence[Evidence], *, shortened: bool) -> list[Evidence]:
    """The evidence of one row of a batch, its draws pooled and its witnesses replayed.

    `shortened`: the batch ran in a shorter precision than the network's own, so that the two are compared.
    """
    # What an earlier answer calls the nearest has been run again for that answer.
    again = [e for e in evidence if isinstance(e, Found) or (isinstance(e, Nearest) and not e.replayed)]
    again = [e for e in again if not e.witnesses.counted]
    rest: list[Evidence] = [e for e in evidence if not isinstance(e, Draws) and all(e is not one for one in again)]
    if pooled(evidence).n:
        rest.insert(0, pooled(evidence))
    own = batch.rows[row : row + 1]
    with batch.spend.closing():
        replayed = _replayed(batch.problems[int(own)], own, batch.spend, again)
        if not shortened:
            return [*rest, *replayed]
        return [*rest, *replayed, *_compared(batch.take(torch.tensor([row])), rest, replayed)]


def _replayed(problem: Problem, row: Tensor, spend: Spend, found: Sequence[Found | Nearest]) -> list[Evidence]:
    """Score the witnesses again in the network's own precision and keep those that still violate the property."""
    records = _by_kind(found)
    if not records:
        return []
    inputs = torch.cat([e.witnesses.inputs.reshape(-1, *problem.inputs.event_shape) for e in records])
    n = max(0, int(min(len(inputs), spend.left(row))))  # what is in flight when the budget ends may exceed it
    try:
        n = spend.rows(n) if n else 0
        spend.charge(row, n)
    except Exhausted:
        n = 0
    if not n:
        return list(records)
    y, scores = (t.cpu() for t in problem.answered(inputs[:n]))
    # The nearest one stands at the edge of what violates: that rounding moves it says nothing of the others.
    count = min(n, sum(len(e.witnesses) for e in records if isinstance(e, Found)))
    kept, first, lost = list[Evidence](), 0, count - int((scores[:count] >= 0).sum())
    if count and lost == count:
        calls = sum(e.calls for e in records) + n
        return [Searched("replay", "no witness survived its replay: the verdict hangs on rounding", calls, doubt=True)]
    for e in records:
        own = slice(first, min(n, first + len(e.witnesses)))
        first = own.stop
        outputs = y[own] if y[0].numel() <= _KEPT_OUTPUTS else None
        seen = Witnesses(inputs[own], scores[own], outputs=outputs)
        good = seen.take(seen.scores >= 0)
        if len(good):
            kept.append(replace(e, witnesses=good, calls=e.calls + len(seen), replayed=True))
        elif len(seen):
            kept.append(Searched(e.method, "what it found violates no more when it is run alone", e.calls + len(seen)))
    if lost:
        told = f"{lost} of {count} witnesses do not violate the property when replayed alone: scores near 0"
        kept.append(Searched("replay", told))
    return kept


def _by_kind(found: Sequence[Found | Nearest]) -> list[Found | Nearest]:
    """One record for each kind, since a fair sample is not what a search has found; the nearest one last."""
    records: list[Found | Nearest] = []
    some = [e for e in found if isinstance(e, Found) and len(e.witnesses)]
    kinds = [kind for kind in KINDS if any(e.drawn == kind for e in some)]
    for kind in kinds:
        own = [e for e in some if e.drawn == kind]
        witnesses = join_witnesses(e.witnesses for e in own).take(slice(-(-MAX_WITNESSES // len(kinds))))
        methods = ", ".join(dict.fromkeys(e.method for e in own))
        records.append(Found(methods, witnesses, sum(e.calls for e in own), drawn=kind))
    return [*records, *sorted((e for e in found if isinstance(e, Nearest)), key=lambda e: e.distance)[:1]]


def _compared(part: Batch, evidence: Sequence[Evidence], found: Sequence[Evidence]) -> list[Evidence]:
    """Score some inputs and the witnesses both ways, say how much they differ, and doubt what turns on it.

    A violation is doubted when half of its witnesses are none in the network's own precision, and its absence when the
    last level is nearer to 0 than twice what the scores of a few inputs differ by.
    """
    problem = part.problems[int(part.rows[0])]
    x = problem.inputs.sample(_PROBE, Rng(0))
    witnesses = [e.witnesses.inputs.to(x) for e in found if isinstance(e, Found | Nearest)]
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
