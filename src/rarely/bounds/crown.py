"""Bounds on every node of a network, and on linear functions of its output, over boxes and l2 balls.

CROWN (Zhang et al. 2018) with slopes optimised as in alpha-CROWN (Xu et al. 2021) when asked. See `backward` for what
the bounds promise about rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping

import torch
from torch import Tensor

from rarely.bounds.ahead import Form, follow
from rarely.bounds.backward import LinearBound, Propagated, backward
from rarely.bounds.graph import Graph, cast, charged, chunks, finite, intervals
from rarely.bounds.operators import EPS, TINY, Along, Interval, Joint, Relaxed, gamma, magnitude, tiny
from rarely.bounds.placing import room
from rarely.bounds.region import Bounded, BoxRegion, Region
from rarely.bounds.single import outward
from rarely.bounds.slopes import optimise

_JOINT = 2**12  # entries of a value times those of the input, up to which planes over the inputs are kept


def signed_rows(n: int, index: Tensor, like: Tensor) -> Tensor:
    """Rows e_j and then -e_j for j in index: (1, 2 len(index), n)."""
    eye = torch.zeros(len(index), n, device=like.device, dtype=like.dtype)
    eye[torch.arange(len(index), device=like.device), index] = 1
    return torch.cat([eye, -eye]).unsqueeze(0)


def _tightened(
    state: Propagated,
    node: int,
    now: Interval,
    wanted: Tensor,
    steps: int,
    lines: bool,
    deadline: float,
    fast: Propagated | None = None,
) -> Interval:
    """Intersect a node's interval with its CROWN bounds, for the entries in `wanted` (B, *event).

    Slopes are looked for in the `fast` state, if there is one.
    """
    low, high = (b.flatten(1).clone() for b in now)
    mask = wanted.flatten(1)
    index = mask.any(0).nonzero().squeeze(1)
    shape = state.graph.nodes[node].shape
    per = max(1, room(low) // (2 * state.batch * state.graph.widest))
    kept, planes = [], []
    n = state.region.low[0].numel()
    joint = low.shape[1] * n <= _JOINT and any(isinstance(reader, Joint) for reader in state.graph.bounded[node])
    for part in chunks(len(index), per):
        if time.monotonic() > deadline:
            break
        cols = index[part]
        rows = signed_rows(low.shape[1], cols, low).reshape(1, -1, *shape)
        found = optimise(state, node, rows, steps, fast=fast) if steps else backward(state, node, rows)
        k, some = len(cols), mask[:, cols]
        # A bound that is not a number bounds nothing.
        low[:, cols] = torch.where(some, torch.fmax(low[:, cols], found.lower[:, :k]), low[:, cols])
        high[:, cols] = torch.where(some, torch.fmin(high[:, cols], -found.lower[:, k:]), high[:, cols])
        state.asked.add_(2 * some.sum(1))
        if lines:
            kept.append((cols, (found.A[:, :k].abs() + found.A[:, k:].abs()) / 2))
        if joint:
            planes.append((cols, found.A[:, :k], found.b[:, :k], -found.A[:, k:], -found.b[:, k:]))
    if planes:
        state.along[node] = _along(state, (low, high), planes, shape)
    if kept:
        state.lines[node] = (torch.cat([c for c, _ in kept]), torch.cat([a for _, a in kept], 1))
    return low.reshape(now[0].shape), high.reshape(now[1].shape)


Planes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # entries, slopes (B, k, n) and shifts (B, k) below and above


def _along(state: Propagated, now: Interval, planes: list[Planes], shape: tuple[int, ...]) -> Along:
    """What planes below and above say of a node's entries, and their intervals (B, T) where there are none."""
    ends = state.region.low.flatten(1), state.region.high.flatten(1)
    centre, reach = ((ends[0] + ends[1]) / 2).unsqueeze(2), (ends[1] - ends[0]) / 2
    reach = (reach + 8 * EPS * (magnitude(ends) + reach) + TINY).unsqueeze(2)
    middle, n = (now[0] + now[1]) / 2, reach.shape[1]
    off = (now[1] - now[0]) / 2 + 8 * EPS * magnitude(now) + TINY
    slope = middle.new_zeros(*middle.shape, n)
    for cols, below, least, above, most in planes:
        start, end = (below @ centre).squeeze(2) + least, (above @ centre).squeeze(2) + most
        size = ((below.abs() + above.abs()) @ (centre.abs() + reach)).squeeze(2) + least.abs() + most.abs()
        slope[:, cols], middle[:, cols] = (below + above) / 2, (start + end) / 2
        # slope w is within |above - below| / 2 reach of either plane at the centre of both.
        apart = ((above - below).abs() @ reach).squeeze(2)
        off[:, cols] = (end - start + apart) / 2 + size * gamma(n + 4, size.dtype) + TINY
    shaped = slope.reshape(-1, *shape, n), middle.reshape(-1, *shape), off.reshape(-1, *shape)
    return Along(*shaped, reach.squeeze(2))


def _begun(graph: Graph, region: Bounded) -> Propagated:
    """Bounds on the input alone."""
    asked = torch.zeros(len(region.low), dtype=torch.long, device=region.low.device)
    first, cost = cast(graph, region.low, region.high)
    floor = tiny(region.low.dtype) * (1 + magnitude(first).flatten(1).sum(1))
    return Propagated(graph, region, [first], {}, [cost], {}, {}, asked, floor, finite(graph, [cost.peak]))


def _interval(state: Propagated, i: int) -> Interval:
    """The next node's interval; its charges and its relaxation go into the state."""
    inputs = [state.bounds[j] for j in state.graph.nodes[i].inputs]
    now, cost = charged(state.graph, i, inputs)
    state.charges.append(cost)
    if cost.peak is not None:
        state.finite.logical_and_(finite(state.graph, [cost.peak]))
    op = state.graph.nodes[i].op
    if isinstance(op, Joint):
        state.relaxations[i] = op.relax(inputs[0], state.along.get(state.graph.nodes[i].inputs[0]))
    elif isinstance(op, Relaxed):
        state.relaxations[i] = op.relax(inputs[0])
    return now


def _settle(state: Propagated, now: Interval) -> None:
    state.bounds.append(now)
    state.floor.add_(magnitude(now).flatten(1).sum(1), alpha=tiny(now[0].dtype))


def intersection(one: Interval, two: Interval) -> Interval:
    """What is in both; an end that is not a number bounds nothing."""
    return torch.fmax(one[0], two[0]), torch.fmin(one[1], two[1])


@torch.no_grad()
def propagate(
    graph: Graph,
    region: Bounded,
    *,
    steps: int = 0,
    rows: int = 4096,
    lines: bool = False,
    within: Mapping[int, Interval] | None = None,
    only: Container[int] | None = None,
    ahead: bool = False,
    single: Graph | None = None,
    deadline: float = math.inf,
) -> Propagated:
    """Bounds on every node: intervals, tightened by CROWN where they feed a non-affine operator.

    A node that would need more than `rows` rows of coefficients keeps its interval. `steps` of slope
    optimisation tighten each of these bounds further. `lines` keeps the slopes of the bounds, for branching.
    What nodes are known to lie `within` is taken as given, and CROWN tightens `only` some nodes, if so told. Affine
    forms carried `ahead` tighten them all; see there.
    With the graph in `single` precision, CROWN in float32 settles what it can first, and boxes are the region.
    Past the deadline (by `time.monotonic`) intervals are left as they are.
    """
    state = _begun(graph, region)
    fast = None if single is None else _begun(single, BoxRegion(*outward(region.low, region.high)))
    forms = [Form.of(*state.bounds[0])] if ahead else []
    for i in range(1, len(graph.nodes)):
        now = _interval(state, i)
        if within is not None and i in within:
            now = intersection(now, within[i])
        if ahead:
            forms.append(follow(graph, i, forms, now, state.charges[i], state.relaxations.get(i)))
            now = intersection(now, forms[i].bounds)
        if fast is not None:
            _interval(fast, i)
        if (
            i in graph.bounded
            and (only is None or i in only)
            and (lines or i not in graph.box_exact or not isinstance(region, BoxRegion))
        ):
            wanted = _wanted(graph, i, now)
            if 0 < int(wanted.any(0).sum()) <= rows:
                if fast is not None:
                    found = _tightened(fast, i, outward(*now), wanted, 0, False, deadline)
                    now = intersection(now, (found[0].double(), found[1].double()))
                    wanted = _wanted(graph, i, now)
                now = _tightened(state, i, now, wanted, steps, lines, deadline, fast)
        _settle(state, now)
        if fast is not None:
            _settle(fast, outward(*now))
    return state


def _wanted(graph: Graph, i: int, now: Interval) -> Tensor:
    return torch.stack([reader.unsettled(now) for reader in graph.bounded[i]]).any(0)


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
        bound = optimise(state, graph.output, A, steps, real=True)
    else:
        with torch.no_grad():
            bound = backward(state, graph.output, A, real=True)
    return bound if d is None else bound.shifted(d.to(A.dtype))


@torch.no_grad()
def interval_bounds(graph: Graph, region: Region, C: Tensor, d: Tensor | None = None) -> Tensor:
    """Lower bounds (B, m) of C y + d by interval propagation alone: cheap, loose."""
    low, high = intervals(graph, region.low, region.high)[graph.output]
    A = C.to(low.dtype)
    reach = gamma(A.shape[-1], low.dtype) * (A.abs() @ magnitude((low, high)).unsqueeze(-1)).squeeze(-1)
    value = (A.clamp(min=0) @ low.unsqueeze(-1) + A.clamp(max=0) @ high.unsqueeze(-1)).squeeze(-1) - reach
    return value if d is None else value + d - (value.abs() + d.abs()) * gamma(1, low.dtype)
