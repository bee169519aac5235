"""Affine forms carried forward: value = sum_j M_j s_j + e, with every s_j in [-1, 1] and e in an interval.

One forward pass per input coordinate bounds every entry of every layer, where CROWN takes two backward rows for each
entry. With 16 inputs and layers of 16,384 that is what settles most of them; CROWN then bounds the others. A ReLU
keeps the slope of its chord, and what lies between the chord and the parallel line below goes to e, as in zonotopes
whose new terms are merged at once (Singh et al. 2018, DeepZ, without its error terms).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.graph import Charges, Graph
from rarely.bounds.operators import Affine, Elementwise, Interval, Kinked, Relaxation, gamma, magnitude, tiny


@dataclass(frozen=True)
class Form:
    """One node's affine form over B boxes."""

    M: Tensor  # (n, B, *event)
    rest: Interval  # (B, *event)

    @property
    def size(self) -> Tensor:
        """Bounds the part that depends on the inputs, (B, *event)."""
        total = self.M.abs().sum(0)
        return total * (1 + gamma(len(self.M), total.dtype))

    @property
    def bounds(self) -> Interval:
        size = self.size
        margin = (magnitude(self.rest) + size) * gamma(1, size.dtype)
        return self.rest[0] - size - margin, self.rest[1] + size + margin

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> Form:
        """The inputs themselves."""
        n = low[0].numel()
        half = (high - low).flatten(1) / 2
        M = torch.diag_embed(half).movedim(1, 0).reshape(n, *low.shape)
        centre = (low + high) / 2
        slip = (centre.abs() + high.abs() + low.abs()) * gamma(1, low.dtype)
        return cls(M, (centre - slip, centre + slip))


def follow(
    graph: Graph, i: int, forms: list[Form], bounds: Interval, charges: Charges, line: Relaxation | None
) -> Form:
    """The form of node i: `bounds` on its value, what its rounding is charged, and its relaxation if it has one."""
    node = graph.nodes[i]
    inputs = [forms[j] for j in node.inputs]
    if isinstance(node.op, Affine):
        return _affine(node.op, inputs, charges)
    if isinstance(node.op, Kinked) and isinstance(line, Elementwise):
        return _kinked(inputs[0], line, charges)
    return Form(torch.zeros_like(bounds[0]).expand(len(forms[0].M), *bounds[0].shape), bounds)


def _affine(op: Affine, inputs: list[Form], charges: Charges) -> Form:
    n, batch = inputs[0].M.shape[:2]
    zero = [torch.zeros_like(form.rest[0]) for form in inputs]
    columns = op.forward(*(form.M.flatten(0, 1) for form in inputs))
    M = columns.reshape(n, batch, *columns.shape[1:]) - op.forward(*zero)
    low, high = op.interval(*(form.rest for form in inputs))
    # Each column rounds against |W| |M_j| + |b|, and the interval of the rest against |W| |e| + |b|.
    terms, still = op.terms(*(form.size + magnitude(form.rest) for form in inputs)), op.terms(*zero)
    if terms is not None and still is not None and terms.ahead:
        slip = (terms.size + 2 * n * still.size) * gamma(terms.ahead, low.dtype) + n * tiny(low.dtype)
        low, high = low - slip, high + slip
    if charges.run is not None:
        low, high = low - charges.run, high + charges.run
    return Form(M, (low, high))


def _kinked(x: Form, line: Elementwise, charges: Charges) -> Form:
    """A convex function that any line through the origin with a slope between its two lies below."""
    slope = line.upper_slope
    slip = slope * (x.size + magnitude(x.rest)) * gamma(4, slope.dtype) + len(x.M) * tiny(slope.dtype)
    if charges.run is not None:
        slip = slip + charges.run
    low = slope * x.rest[0] + (line.mid_shift + line.half_shift) - slip
    high = slope * x.rest[1] + (line.mid_shift - line.half_shift) + slip
    return Form(x.M * slope, (low, high))
