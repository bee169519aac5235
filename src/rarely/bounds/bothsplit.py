"""Branch and bound on ReLUs in halves of the input box, where few inputs feed wide layers.

One box of such a network takes seconds to bound, so that halving boxes alone gets nowhere; but a half has far fewer
unsettled ReLUs, and their tree closes. On cifar_biasfield (16 inputs, 16,384 neurons in a layer), halving the widest
input once takes a bound from -16 to -1.1, and the bounds of a half take half as long.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.backward import backward
from rarely.bounds.boxes import halves
from rarely.bounds.graph import Graph
from rarely.bounds.ledger import Ledger
from rarely.bounds.operators import Interval
from rarely.bounds.region import BoxRegion
from rarely.bounds.relusplit import bounds_at_root, decide_from, proved_plainly

# Times as long as the bounds of a box took, what its tree of ReLUs may take: where halving is what helps, and where the
# last halving left more than a half of how far a violation is in reach.
_SHORT, _LONG, _LITTLE = 0.3, 2.0, 0.5


@dataclass(frozen=True)
class _Part:
    """A box that is open: its ends (1, *event), and what the box that it is a half of knows."""

    low: Tensor
    high: Tensor
    known: dict[int, Interval]  # bounds on all nodes
    reach: float  # upper bound on the score before any ReLU was split


def decide_by_both(graph: Graph, ledger: Ledger, deadline: float, *, steps: int = 12) -> str:
    """Every open problem in its share of the time."""
    todo, reason = ledger.todo.nonzero().squeeze(1).tolist(), ""
    for k, p in enumerate(todo):
        share = (deadline - time.monotonic()) / (len(todo) - k)
        reason = _decide_one(graph, ledger, p, time.monotonic() + share, steps) or reason
    return reason


def _decide_one(graph: Graph, ledger: Ledger, problem: int, deadline: float, steps: int) -> str:
    """What is closed in real arithmetic only is halved in the end, for no longer than everything before took."""
    begin = time.monotonic()
    whole = ledger.region.pick(torch.tensor([problem], device=ledger.open.device))
    waiting: list[_Part] = []
    reals: list[float] = []
    reason = _search(
        graph, ledger, problem, [_Part(whole.low, whole.high, {}, math.inf)], deadline, steps, waiting, reals
    )
    if reason or not ledger.open[problem]:
        return reason
    if reals:
        ledger.proved_in_reals(problem, max(reals))
        until = min(deadline, 2 * time.monotonic() - begin)
        if _search(graph, ledger, problem, waiting, until, steps, None, reals):
            return ""
    if bool(ledger.open[problem]):
        ledger.proved(problem)
    return ""


def _search(
    graph: Graph,
    ledger: Ledger,
    problem: int,
    stack: list[_Part],
    deadline: float,
    steps: int,
    waiting: list[_Part] | None,
    reals: list[float],
) -> str:
    """Close boxes, depth first, or say why not. The halves of those closed in real arithmetic only are for later.

    Where nothing is `waiting` any more they are halved like others.
    """
    who = torch.tensor([problem], device=ledger.open.device)
    while stack:
        if time.monotonic() > deadline:
            return "out of time"
        here = stack.pop()
        region = BoxRegion(here.low, here.high)
        part = Ledger(ledger.network, ledger.dtype, region, ledger.spec.pick(who), ledger.arithmetic)
        halved = _bounded(graph, part, deadline, steps, here)
        ledger.boxes[problem] += part.boxes[0]
        ledger.replays[problem] += part.replays[0]
        found = part.proofs[0]
        if found is not None and found.status == "violated":
            ledger.open[problem], ledger.proofs[problem] = False, found
            return ""
        if found is not None:
            ledger.close(who, part.closed)
            continue
        if waiting is not None and bool(part.in_reals[0] < 0):
            reals.append(float(part.in_reals[0]))
            waiting += halved
        elif all(torch.equal(half.high, here.high) for half in halved):
            return "a box as small as floating point allows remains undecided"
        else:
            stack += halved
    return ""


def _bounded(graph: Graph, part: Ledger, deadline: float, steps: int, here: _Part) -> list[_Part]:
    """Bounds of a box and, if they do not close it, a search on its ReLUs; gives its halves along the input widest in
    effect.
    """
    begin = time.monotonic()
    state = bounds_at_root(graph, part.region, deadline, known=here.known)
    plain = time.monotonic() - begin
    if proved_plainly(part, torch.zeros(1, dtype=torch.long, device=part.open.device), state):
        return []
    reach = float(part.pending[0])
    patience = _SHORT if reach <= _LITTLE * here.reach else _LONG
    decide_from(graph, part, 0, min(deadline, time.monotonic() + patience * plain), plain, steps, state)
    with torch.no_grad():
        slopes = backward(state, graph.output, part.spec.C).A.abs().sum(1)
    low, high = here.low.flatten(1), here.high.flatten(1)
    ends = halves(low, high, (slopes * (high - low)).argmax(1))
    known, shape = dict(enumerate(state.bounds)), here.low.shape
    return [_Part(ends[0][k].reshape(shape), ends[1][k].reshape(shape), known, reach) for k in (0, 1)]
