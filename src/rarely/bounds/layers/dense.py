"""Dense layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rarely.bounds.operators import Affine, Interval, Terms
from rarely.bounds.reader import Handle, Reader, reads


@dataclass(frozen=True)
class Dense(Affine):
    """y = x W^T + b over the last axis."""

    weight: Tensor  # (out, in)
    bias: Tensor  # (out,)

    def forward(self, *xs: Tensor) -> Tensor:
        return F.linear(xs[0], self.weight, self.bias)

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        centre = self.forward((low + high) / 2)
        reach = F.linear((high - low) / 2, self.weight.abs())
        return centre - reach, centre + reach

    @property
    def _tall(self) -> bool:
        """Whether float32 would lose much more on the way back than the network does ahead: that sums in float64."""
        return self.weight.dtype == torch.float32 and self.weight.shape[0] > 8 * self.weight.shape[1]

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        return ((A.double() @ self.weight.double()).to(A.dtype) if self._tall else A @ self.weight,)

    def constant(self) -> Tensor:
        return self.bias

    def terms(self, *H: Tensor) -> Terms:
        out, n = self.weight.shape
        return Terms(F.linear(H[0], self.weight.abs(), self.bias.abs()), n, 1 if self._tall else out)

    def keep_outputs(self, index: Tensor) -> Dense:
        return Dense(self.weight[index], self.bias[index])

    def keep_inputs(self, index: Tensor) -> Dense:
        return Dense(self.weight[:, index], self.bias)


@reads("linear", nn.Linear)
def dense(r: Reader, input: Handle, weight: Any, bias: Any = None) -> Handle:
    op = Dense(*r.weights(weight, bias))
    return r.add(op, (*input.shape[:-1], op.weight.shape[0]), input)
