"""Backward linear bounds: CROWN (Zhang et al. 2018), with slopes optimised as in alpha-CROWN (Xu et al. 2021).

All bounds hold for the network in real arithmetic with its stored weights taken as exact reals, and include the
rounding of their own computation: at each backward step the computed coefficients are declared exact, and what
they miss, at most |A| slack (see `linear`), is charged to the constant term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .graph import Graph, as_linear, chunks
from .linear import Interval, gamma, magnitude
from .region import Ball, Region
from .relax import Relaxation, contract

ROOM = 2**24  # entries of the largest coefficient tensor held at a time
Slopes = Mapping[int, Tensor]  # ReLU node -> (B, m or 1, *event), in [0, 1]


@dataclass(frozen=True)
class State:
    """Bounds on every node over a batch of regions, and the relaxations that follow from them."""

    graph: Graph
    region: Region
    bounds: list[Interval]  # per node, (B, *event)
    relaxations: dict[int, Relaxation]
    slacks: dict[int, Tensor | None]

    @property
    def batch(self) -> int:
        return self.region.low.shape[0]


@dataclass(frozen=True)
class LinearBound:
    """C y + d >= A x + b over the region, in real arithmetic, and the lower bound that follows."""

    A: Tensor  # (B, m, n)
    b: Tensor  # (B, m)
    lower: Tensor  # (B, m)


def backward(
    state: State,
    start: int,
    A: Tensor,
    slopes: Slopes | None = None,
    push: Slopes | None = None,
    seen: dict[int, Tensor] | None = None,
) -> LinearBound:
    """Linear lower bounds of A v, with v the value of node `start` and A (B or 1, m, *event).

    `push` is added to the coefficients of a ReLU's input: the Lagrange multipliers of its split (beta-CROWN, Wang
    et al. 2021, eq. 8). `seen` receives the coefficients met at each ReLU's output.
    """
    graph = state.graph
    coef: dict[int, Tensor] = {start: A}
    bias = A.new_zeros(state.batch, A.shape[1])
    size = bias  # sum of absolute contributions, for the rounding of the running sum
    for i in range(start, 0, -1):
        here = coef.pop(i, None)
        if here is None:
            continue
        node = graph.nodes[i]
        op = as_linear(node.op)
        if op is None:
            if seen is not None:
                seen[i] = here
            back, extra = state.relaxations[i].backward(here, slopes.get(i) if slopes else None)
            if push is not None and i in push:
                back = back + push[i]
            parts: tuple[Tensor, ...] = (back,)
        else:
            parts, extra = op.transpose(here), bias * 0
            constant, slack = op.constant(), state.slacks[i]
            if constant is not None:
                extra = extra + contract(here, constant.expand(node.shape).unsqueeze(0))
            if slack is not None:
                extra = extra - contract(here.abs(), slack)
        bias, size = bias + extra, size + extra.abs()
        for j, part in zip(node.inputs, parts, strict=True):
            coef[j] = coef[j] + part if j in coef else part
    flat = coef[0].flatten(2) if 0 in coef else A.new_zeros(1, A.shape[1], state.region.low[0].numel())
    flat = flat.expand(state.batch, -1, -1)
    bias = bias - size * gamma(len(graph.nodes), bias.dtype)
    least = state.region.minimum(flat)
    lower = least + bias - (least.abs() + bias.abs()) * gamma(2, bias.dtype)
    return LinearBound(flat, bias, lower)


def optimise(
    state: State,
    start: int,
    A: Tensor,
    steps: int,
    shared: bool = False,
    rate: float = 0.25,
    slopes: Slopes | None = None,
) -> tuple[LinearBound, Slopes]:
    """alpha-CROWN: Adam on the free lower slopes, one set per row of A unless `shared`.

    Every iterate is a valid bound, so the best one seen per row is kept.
    """
    nodes = [i for i in state.graph.relus if i < start]
    rows = 1 if shared else A.shape[1]
    free: dict[int, Tensor] = {}
    for i in nodes:
        line = state.relaxations[i]
        first = slopes[i] if slopes else line.lower_slope.unsqueeze(1)  # type: ignore[attr-defined]
        free[i] = first.expand(state.batch, rows, *first.shape[2:]).clone().requires_grad_()
    with torch.no_grad():
        best = backward(state, start, A, slopes)
    kept = {i: a.detach().clone() for i, a in free.items()}
    if not free or steps == 0:
        return best, kept
    adam = torch.optim.Adam(list(free.values()), lr=rate)
    for step in range(steps):
        with torch.enable_grad():
            now = backward(state, start, A, free)
            last = step == steps - 1
            if not last:
                adam.zero_grad()
                (-now.lower.sum()).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            won = now.lower > best.lower
            best = LinearBound(
                torch.where(won.unsqueeze(-1), now.A, best.A),
                torch.where(won, now.b, best.b),
                torch.where(won, now.lower, best.lower),
            )
            wins = won.any(1, keepdim=True) if shared else won
            for i, a in free.items():
                mask = wins.reshape(*wins.shape, *(1,) * (a.ndim - 2))
                kept[i] = torch.where(mask, a, kept[i])
            if not last:
                adam.step()
                for a in free.values():
                    a.clamp_(0, 1)
            for group in adam.param_groups:
                group["lr"] *= 0.95
    return LinearBound(best.A.detach(), best.b.detach(), best.lower.detach()), kept


def _signed_rows(n: int, index: Tensor, like: Tensor) -> Tensor:
    """Rows e_j and then -e_j for j in index: (1, 2 len(index), n)."""
    eye = torch.zeros(len(index), n, device=like.device, dtype=like.dtype)
    eye[torch.arange(len(index), device=like.device), index] = 1
    return torch.cat([eye, -eye]).unsqueeze(0)


def _tightened(state: State, node: int, now: Interval, wanted: Tensor, steps: int) -> Interval:
    """Intersect a node's interval with its CROWN bounds, for the entries in `wanted` (event-shaped)."""
    low, high = (b.flatten(1).clone() for b in now)
    index = wanted.flatten().nonzero().squeeze(1)
    shape = state.graph.nodes[node].shape
    per = max(1, ROOM // (2 * state.batch * state.graph.widest))
    for part in chunks(len(index), per):
        cols = index[part]
        rows = _signed_rows(low.shape[1], cols, low).reshape(1, -1, *shape)
        if steps:
            found = optimise(state, node, rows, steps)[0].lower
        else:
            found = backward(state, node, rows).lower
        k = len(cols)
        low[:, cols] = torch.maximum(low[:, cols], found[:, :k])
        high[:, cols] = torch.minimum(high[:, cols], -found[:, k:])
    return low.reshape(now[0].shape), high.reshape(now[1].shape)


@torch.no_grad()
def propagate(
    graph: Graph, region: Region, *, steps: int = 0, rows: int = 4096, known: Mapping[int, Interval] | None = None
) -> State:
    """Bounds on every node: intervals, tightened by CROWN where they feed a non-affine operator.

    A node that would need more than `rows` rows of coefficients keeps its interval. `steps` of slope
    optimisation tighten each of these bounds further. `known` bounds, valid over the region, are intersected.
    """
    state = State(graph, region, [(region.low, region.high)], {}, {})
    for i, node in enumerate(graph.nodes[1:], 1):
        assert node.op is not None
        inputs = [state.bounds[j] for j in node.inputs]
        now = node.op.interval(*inputs)
        op = as_linear(node.op)
        if op is None:
            state.relaxations[i] = node.op.relax(inputs[0])  # type: ignore[union-attr]
        else:
            state.slacks[i] = op.slack(*(magnitude(x) for x in inputs))
        if i in graph.bounded:
            if known is not None and i in known:
                now = (torch.maximum(now[0], known[i][0]), torch.minimum(now[1], known[i][1]))
            if i not in graph.box_exact or isinstance(region, Ball):
                wanted = torch.zeros(node.shape, dtype=torch.bool, device=now[0].device)
                for k in graph.relaxed:
                    if i in graph.nodes[k].inputs:
                        wanted |= graph.nodes[k].op.unsettled(now).any(0)  # type: ignore[union-attr]
                if 0 < int(wanted.sum()) <= rows:
                    now = _tightened(state, i, now, wanted, steps)
        state.bounds.append(now)
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
    if d is None:
        return bound
    shift = d.to(A.dtype)
    margin = (shift.abs() + bound.b.abs()) * gamma(1, A.dtype)
    low_margin = (shift.abs() + bound.lower.abs()) * gamma(1, A.dtype)
    return LinearBound(bound.A, bound.b + shift - margin, bound.lower + shift - low_margin)


@torch.no_grad()
def interval_bounds(graph: Graph, region: Region, C: Tensor, d: Tensor | None = None) -> Tensor:
    """Lower bounds (B, m) of C y + d by interval propagation alone: cheap, loose."""
    from .graph import intervals

    low, high = intervals(graph, region.low, region.high)[graph.output]
    A = C.to(low.dtype)
    reach = gamma(A.shape[-1], low.dtype) * (A.abs() @ magnitude((low, high)).unsqueeze(-1)).squeeze(-1)
    value = (A.clamp(min=0) @ low.unsqueeze(-1) + A.clamp(max=0) @ high.unsqueeze(-1)).squeeze(-1) - reach
    return value if d is None else value + d - (value.abs() + d.abs()) * gamma(1, low.dtype)
