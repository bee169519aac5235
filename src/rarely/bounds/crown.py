"""Bounds on every node of a network, and on linear functions of its output, over boxes and l2 balls.

CROWN (Zhang et al. 2018) with slopes optimised as in alpha-CROWN (Xu et al. 2021) when asked. See `backward` for what
the bounds promise about rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from rarely.bounds.backward import LinearBound, Propagated, backward
from rarely.bounds.graph import Graph, cast, charged, chunks, finite, intervals
from rarely.bounds.operators import TINY, Interval, Relaxed, gamma, magnitude
from rarely.bounds.region import Bounded, BoxRegion, Region
from rarely.bounds.slopes import optimise


def room(like: Tensor) -> int:
    """Entries of the largest coefficient tensor held at a time: cache and timeliness on a CPU, breadth on a GPU."""
    return 2**28 if like.is_cuda else 2**22


def signed_rows(n: int, index: Tensor, like: Tensor) -> Tensor:
    """Rows e_j and then -e_j for j in index: (1, 2 len(index), n)."""
    eye = torch.zeros(len(index), n, device=like.device, dtype=like.dtype)
    eye[torch.arange(len(index), device=like.device), index] = 1
    return torch.cat([eye, -eye]).unsqueeze(0)


def _tightened(
    state: Propagated, node: int, now: Interval, wanted: Tensor, steps: int, lines: bool, deadline: float
) -> Interval:
    """Intersect a node's interval with its CROWN bounds, for the entries in `wanted` (B, *event)."""
    low, high = (b.flatten(1).clone() for b in now)
    mask = wanted.flatten(1)
    index = mask.any(0).nonzero().squeeze(1)
    shape = state.graph.nodes[node].shape
    per = max(1, room(low) // (2 * state.batch * state.graph.widest))
    kept = []
    for part in chunks(len(index), per):
        if time.monotonic() > deadline:
            break
        cols = index[part]
        rows = signed_rows(low.shape[1], cols, low).reshape(1, -1, *shape)
        if steps:
            found, slopes = optimise(state, node, rows, steps)
            if len(index) <= per:
                state.slopes[node] = (index, slopes)
        else:
            found = backward(state, node, rows)
        k, some = len(cols), mask[:, cols]
        # A bound that is not a number bounds nothing.
        low[:, cols] = torch.where(some, torch.fmax(low[:, cols], found.lower[:, :k]), low[:, cols])
        high[:, cols] = torch.where(some, torch.fmin(high[:, cols], -found.lower[:, k:]), high[:, cols])
        state.asked.add_(2 * some.sum(1))
        if lines:
            kept.append((cols, (found.A[:, :k].abs() + found.A[:, k:].abs()) / 2))
    if kept:
        state.lines[node] = (torch.cat([c for c, _ in kept]), torch.cat([a for _, a in kept], 1))
    return low.reshape(now[0].shape), high.reshape(now[1].shape)


@torch.no_grad()
def propagate(
    graph: Graph,
    region: Bounded,
    *,
    steps: int = 0,
    rows: int = 4096,
    lines: bool = False,
    within: Mapping[int, Interval] | None = None,
    deadline: float = math.inf,
) -> Propagated:
    """Bounds on every node: intervals, tightened by CROWN where they feed a non-affine operator.

    A node that would need more than `rows` rows of coefficients keeps its interval. `steps` of slope
    optimisation tighten each of these bounds further. `lines` keeps the slopes of the bounds, for branching.
    What nodes are known to lie `within` is taken as given. Past the deadline (by `time.monotonic`) intervals are left
    as they are.
    """
    asked = torch.zeros(len(region.low), dtype=torch.long, device=region.low.device)
    first, cost = cast(graph, region.low, region.high)
    floor = TINY * (1 + magnitude(first).flatten(1).sum(1))
    state = Propagated(graph, region, [first], {}, [cost], {}, {}, asked, floor, finite(graph, [cost.peak]))
    for i, node in enumerate(graph.nodes[1:], 1):
        op = node.op
        inputs = [state.bounds[j] for j in node.inputs]
        now, cost = charged(graph, i, inputs)
        state.charges.append(cost)
        if cost.peak is not None:
            state.finite.logical_and_(finite(graph, [cost.peak]))
        if within is not None and i in within:
            now = torch.fmax(now[0], within[i][0]), torch.fmin(now[1], within[i][1])
        if isinstance(op, Relaxed):
            state.relaxations[i] = op.relax(inputs[0])
        if i in graph.bounded and (lines or i not in graph.box_exact or not isinstance(region, BoxRegion)):
            wanted = torch.stack([reader.unsettled(now) for reader in graph.bounded[i]]).any(0)
            if 0 < int(wanted.any(0).sum()) <= rows:
                now = _tightened(state, i, now, wanted, steps, lines, deadline)
        state.bounds.append(now)
        state.floor.add_(magnitude(now).flatten(1).sum(1), alpha=TINY)
    return state


def linear_bounds(
    graph: Graph, region: Region, C: Tensor, d: Tensor | None = None, *, steps: int = 0, rows: int = 4096
) -> LinearBound:
    """Lower bounds (B, m) of C y + d over a batch of regions, with the linear functions that give them.

    C is (B or 1, m, k) and d (B or 1, m). With `steps`, the ReLU slopes are optimised that often, for the
    intermediate bounds too. For upper bounds pass -C and -d.
    """
    state = propagate(graph, region, steps=steps, rows=rows)
    A = C.to(region.low.dtype)
    if steps:
        bound = optimise(state, graph.output, A, steps)[0]
    else:
        with torch.no_grad():
            bound = backward(state, graph.output, A)
    return bound if d is None else bound.shifted(d.to(A.dtype))


@torch.no_grad()
def interval_bounds(graph: Graph, region: Region, C: Tensor, d: Tensor | None = None) -> Tensor:
    """Lower bounds (B, m) of C y + d by interval propagation alone: cheap, loose."""
    low, high = intervals(graph, region.low, region.high)[graph.output]
    A = C.to(low.dtype)
    reach = gamma(A.shape[-1], low.dtype) * (A.abs() @ magnitude((low, high)).unsqueeze(-1)).squeeze(-1)
    value = (A.clamp(min=0) @ low.unsqueeze(-1) + A.clamp(max=0) @ high.unsqueeze(-1)).squeeze(-1) - reach
    return value if d is None else value + d - (value.abs() + d.abs()) * gamma(1, low.dtype)
