"""One backward pass of linear bounds through a graph: CROWN (Zhang et al. 2018, thm. 3.2).

All bounds hold for the network in real arithmetic with its stored weights taken as exact reals, and include the
rounding of their own computation: at each backward step the computed coefficients are declared exact, and what
they miss, at most |A| slack (see `operators`), is charged to the constant term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rarely.bounds.graph import Graph
from rarely.bounds.operators import Affine, Interval, Relaxation, contract, gamma, magnitude
from rarely.bounds.region import Bounded

Slopes = Mapping[int, Tensor]  # ReLU node -> (B, m or 1, *event), in [0, 1]


@dataclass(frozen=True)
class Propagated:
    """Bounds on every node over a batch of regions, and the relaxations that follow from them."""

    graph: Graph
    region: Bounded
    bounds: list[Interval]  # per node, (B, *event)
    relaxations: dict[int, Relaxation]
    slacks: dict[int, Tensor | None]
    lines: dict[int, tuple[Tensor, Tensor]]  # node -> entries (k,), |coefficients| of their bounds (B, k, n)
    slopes: dict[int, tuple[Tensor, Slopes]]  # node -> entries (k,), optimised slopes of their 2 k bounds
    asked: Tensor  # (B,) bounds that rest on the region's minimum of a linear function
    floor: Tensor  # (B,) what underflow in coefficients may cost: `TINY` times the size of all values

    @property
    def batch(self) -> int:
        return self.region.low.shape[0]


@dataclass(frozen=True)
class LinearBound:
    """C y + d >= A x + b over the region, in real arithmetic, and the lower bound that follows."""

    A: Tensor  # (B, m, n)
    b: Tensor  # (B, m)
    lower: Tensor  # (B, m)

    def shifted(self, d: Tensor) -> LinearBound:
        """The bound with d (B or 1, m) added, rounded down."""
        b, lower = self.b + d, self.lower + d
        margin = gamma(1, d.dtype)
        return LinearBound(self.A, b - (self.b.abs() + d.abs()) * margin, lower - (self.lower.abs() + d.abs()) * margin)


def backward(
    state: Propagated,
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
        if isinstance(node.op, Affine):
            parts = node.op.transpose(here)
            constant, slack = node.op.constant(), state.slacks[i]
            extra = None if constant is None else contract(here, constant.expand(node.shape).unsqueeze(0))
            if slack is not None:
                charge = contract(here.abs(), slack)
                extra = -charge if extra is None else extra - charge
        else:
            if seen is not None:
                seen[i] = here
            back, extra = state.relaxations[i].backward(here, slopes.get(i) if slopes else None)
            parts = (back if push is None or i not in push else back + push[i],)
        if extra is not None:
            bias, size = bias + extra, size + extra.abs()
        for j, part in zip(node.inputs, parts, strict=True):
            if j not in coef:
                coef[j] = part
                continue
            coef[j] = coef[j] + part  # one rounding of each sum, against what it is multiplied by
            charge = contract(coef[j].abs(), magnitude(state.bounds[j])) * gamma(1, bias.dtype)
            bias, size = bias - charge, size + charge
    flat = coef[0].flatten(2) if 0 in coef else A.new_zeros(1, A.shape[1], state.region.low[0].numel())
    flat = flat.expand(state.batch, -1, -1)
    bias = bias - size * gamma(len(graph.nodes), bias.dtype) - state.floor.unsqueeze(1)
    least = state.region.minimum(flat)
    lower = least + bias - (least.abs() + bias.abs()) * gamma(2, bias.dtype)
    return LinearBound(flat, bias, lower)
