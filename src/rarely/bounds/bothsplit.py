"""Branch and bound on ReLUs in halves of the input box, where few inputs feed wide layers.

One box of such a network takes seconds to bound, so that halving boxes alone gets nowhere; but a half has far fewer
unsettled ReLUs, and their tree closes. On cifar_biasfield (16 inputs, 16,384 neurons in a layer), halving the widest
input once takes a bound from -16 to -1.1, and the bounds of a half take half as long.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from rarely.bounds.backward import backward
from rarely.bounds.graph import Graph
from rarely.bounds.inputsplit import halves
from rarely.bounds.ledger import Ledger
from rarely.bounds.region import BoxRegion
from rarely.bounds.relusplit import bounds_at_root, decide_from, proved_plainly

# Times as long as the bounds of a box took that its tree of ReLUs may take before it is halved: the whole, and parts.
_PATIENCE, _MORE = 0.3, 2.0


def decide_by_both(graph: Graph, ledger: Ledger, deadline: float, *, steps: int = 12) -> str:
    """Every open problem in its share of the time."""
    todo, reason = ledger.todo.nonzero().squeeze(1).tolist(), ""
    for k, p in enumerate(todo):
        share = (deadline - time.monotonic()) / (len(todo) - k)
        reason = _decide_one(graph, ledger, p, time.monotonic() + share, steps) or reason
    return reason


def _decide_one(graph: Graph, ledger: Ledger, problem: int, deadline: float, steps: int) -> str:
    who = torch.tensor([problem], device=ledger.open.device)
    whole = ledger.region.pick(who)
    stack, reals, patience = [(whole.low, whole.high)], [], _PATIENCE
    while stack:
        if time.monotonic() > deadline:
            return "out of time"
        low, high = stack.pop()
        part = Ledger(ledger.network, ledger.dtype, BoxRegion(low, high), ledger.spec.pick(who), ledger.arithmetic)
        axis, patience = _bounded(graph, part, deadline, steps, patience), _MORE
        ledger.boxes[problem] += part.boxes[0]
        ledger.replays[problem] += part.replays[0]
        found = part.proofs[0]
        if found is not None and found.status == "violated":
            ledger.open[problem], ledger.proofs[problem] = False, found
            return ""
        if found is not None:
            ledger.close(who, part.closed)
        elif bool(part.in_reals[0] < 0):
            reals.append(float(part.in_reals[0]))
        else:
            flat = halves(low.flatten(1), high.flatten(1), axis)
            ends = [end.reshape(2, *low.shape[1:]) for end in flat]
            if bool((ends[0] == low).all() & (ends[1] == high).all()):
                return "a box as small as floating point allows remains undecided"
            stack += [(ends[0][k : k + 1], ends[1][k : k + 1]) for k in (0, 1)]
    if reals:
        ledger.proved_in_reals(problem, max(reals))
    else:
        ledger.proved(problem)
    return ""


def _bounded(graph: Graph, part: Ledger, deadline: float, steps: int, patience: float) -> Tensor:
    """Bounds of a box and, if they do not close it, a short search; gives the input (1,) to halve, widest in effect."""
    begin = time.monotonic()
    state = bounds_at_root(graph, part.region, deadline)
    plain = time.monotonic() - begin
    if not proved_plainly(part, torch.zeros(1, dtype=torch.long, device=part.open.device), state):
        until = min(deadline, time.monotonic() + patience * plain)
        decide_from(graph, part, 0, until, plain, steps, state)
    with torch.no_grad():
        slopes = backward(state, graph.output, part.spec.C).A.abs().sum(1)
    return (slopes * (part.region.high - part.region.low).flatten(1)).argmax(1)
