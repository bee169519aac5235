"""The property that a network gives one answer: what is rare where the answer is one of thousands of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.labels import as_label
from rarely.core.properties import Composable


@dataclass(frozen=True, init=False)
class Predicted(Composable):
    """No other output scores higher than the target: s = y_target - max_{i != target} y_i.

    A language model's most likely next token is the target, say. It is the opposite of `Misclassification(target)`, but
    that a tie violates both.
    """

    target: Tensor  # () or stacked (B, 1)

    def __init__(self, target: int | Tensor) -> None:
        object.__setattr__(self, "target", as_label(target, "target"))

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.reshape(*y.shape[:2], -1)
        index = self.target.expand(y.shape[:-1]).unsqueeze(-1)
        return y.gather(-1, index).squeeze(-1) - y.scatter(-1, index, -torch.inf).amax(-1)
