"""One backward pass of linear bounds through a graph: CROWN (Zhang et al. 2018, thm. 3.2).

The bounds pay for rounding twice (see `operators`). For their own: at each backward step the computed coefficients are
declared exact, and what they miss, at most |A| times a charge, is taken off the constant term. And for the network's:
each value that it computes is off by at most a charge of its arithmetic, and |A| times it is taken off as well. So they
hold for the network as it runs; `LinearBound.real` leaves the second charge of this one pass away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.graph import Charges, Graph
from rarely.bounds.operators import Affine, Along, Interval, Relaxation, contract, gamma, magnitude
from rarely.bounds.region import Bounded

Slopes = Mapping[int, Tensor]  # ReLU node -> (B, m or 1, *event), in [0, 1]


@dataclass(frozen=True)
class Propagated:
    """Bounds on every node over a batch of regions, and the relaxations that follow from them."""

    graph: Graph
    region: Bounded
    bounds: list[Interval]  # per node, (B, *event)
    relaxations: dict[int, Relaxation]
    charges: list[Charges]  # per node
    lines: dict[int, tuple[Tensor, Tensor]]  # node -> entries (k,), |coefficients| of their bounds (B, k, n)
    along: dict[int, Along]  # nodes that feed a joint operator
    asked: Tensor  # (B,) bounds that rest on the region's minimum of a linear function
    floor: Tensor  # (B,) what underflow in coefficients may cost: `tiny` times the size of all values
    finite: Tensor  # (B,) whether the network stays in the range of its numbers

    @property
    def batch(self) -> int:
        return self.region.low.shape[0]


@dataclass(frozen=True)
class LinearBound:
    """C y + d >= A x + b for all real x of the region, y as the network computes it, and the bounds that follow."""

    A: Tensor  # (B, m, n)
    b: Tensor  # (B, m)
    lower: Tensor  # (B, m)
    real: Tensor  # (B, m) a lower bound that holds in real arithmetic only

    def shifted(self, d: Tensor) -> LinearBound:
        """The bound with d (B or 1, m) added, rounded down."""
        b, lower, real = (t + d - (t.abs() + d.abs()) * gamma(1, d.dtype) for t in (self.b, self.lower, self.real))
        return LinearBound(self.A, b, lower, real)


def backward(
    state: Propagated,
    start: int,
    A: Tensor,
    slopes: Slopes | None = None,
    push: Slopes | None = None,
    seen: dict[int, Tensor] | None = None,
    real: bool = False,
) -> LinearBound:
    """Linear lower bounds of A v, with v the value of node `start` and A (B or 1, m, *event).

    `push` is added to the coefficients of a ReLU's input: the Lagrange multipliers of its split (beta-CROWN, Wang
    et al. 2021, eq. 8). `seen` receives the coefficients met at each ReLU's output. `real` asks for the bound in real
    arithmetic as well, which is else no better than the other.
    """
    graph = state.graph
    coef: dict[int, Tensor] = {start: A}
    bias = A.new_zeros(state.batch, A.shape[1])
    size = bias  # sum of absolute contributions, for the rounding of the running sum
    toll = bias  # what the network's rounding costs, where that is kept apart
    for i in range(start, 0, -1):
        here = coef.pop(i, None)
        if here is None:
            continue
        node, charges = graph.nodes[i], state.charges[i]
        charge = charges.own if real else charges.both
        if isinstance(node.op, Affine):
            parts = node.op.transpose(here)
            constant = node.op.constant()
            extra = None if constant is None else contract(here, constant.expand(node.shape).unsqueeze(0))
        else:
            if seen is not None:
                seen[i] = here
            back, extra = state.relaxations[i].backward(here, slopes.get(i) if slopes else None)
            parts = (back if push is None or i not in push else back + push[i],)
        if real and charges.run is not None:
            toll = toll + contract(here.abs(), charges.run)
        if charge is not None:
            cost = contract(here.abs(), charge)
            extra = -cost if extra is None else extra - cost
        if extra is not None:
            bias, size = bias + extra, size + extra.abs()
        for j, part in zip(node.inputs, parts, strict=True):
            if j not in coef:
                coef[j] = part
                continue
            coef[j] = coef[j] + part  # one rounding of each sum, against what it is multiplied by
            cost = contract(coef[j].abs(), magnitude(state.bounds[j])) * gamma(1, bias.dtype)
            bias, size = bias - cost, size + cost
    flat = coef[0].flatten(2) if 0 in coef else A.new_zeros(1, A.shape[1], state.region.low[0].numel())
    flat = flat.expand(state.batch, -1, -1)
    bias = bias - size * gamma(len(graph.nodes), bias.dtype) - state.floor.unsqueeze(1)
    cast = state.charges[0].run
    assert cast is not None
    least, last = state.region.minimum(flat, cast.flatten(1))
    toll = (toll + last) * (1 + gamma(len(graph.nodes), bias.dtype))
    run = (bias - toll).masked_fill(~state.finite.unsqueeze(1), -torch.inf)
    lower = _sum(least, run)
    return LinearBound(flat, run, lower, _sum(least, bias) if real else lower)


def _sum(least: Tensor, bias: Tensor) -> Tensor:
    """Rounded down."""
    return least + bias - (least.abs() + bias.abs()) * gamma(2, bias.dtype)
