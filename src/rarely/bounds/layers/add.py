"""Sums and differences of values of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.move import expand
from rarely.bounds.layers.scale import scale
from rarely.bounds.operators import Affine, Interval, gamma, magnitude
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Add(Affine):
    """The sum of two values of equal shape."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] + xs[1]

    def interval(self, *xs: Interval) -> Interval:
        margin = self.slack(*(magnitude(x) for x in xs))
        return self.forward(*(x[0] for x in xs)) - margin, self.forward(*(x[1] for x in xs)) + margin

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return A, A

    def constant(self) -> None:
        return None

    def slack(self, *H: Tensor) -> Tensor:
        return self.forward(*H) * gamma(2, H[0].dtype)


@reads("add", "iadd")
def add(r: Reader, input: Any, other: Any, alpha: float = 1) -> Handle:
    if not isinstance(input, Handle):
        return scale(r, other, alpha, input)
    if not isinstance(other, Handle):
        return scale(r, input, 1.0, r.real(other) * alpha)
    if len(input.shape) != len(other.shape):
        raise Unprovable("a sum that broadcasts over the batch dimension")
    xs = expand(r, input, other if alpha == 1 else scale(r, other, alpha, 0.0))
    return r.add(Add(), xs[0].shape, *xs)


@reads("sub", "isub")
def sub(r: Reader, input: Any, other: Any, alpha: float = 1) -> Handle:
    return add(r, input, other, -alpha)
