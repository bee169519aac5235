"""Boxes of inputs that are still open, and what a longer attempt goes on with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.rows import Rows


@dataclass(frozen=True)
class Boxes(Rows):
    """Sub-problems: the problem of each, its box, and upper bounds on its score, as the network runs and in reals.

    Also which polytopes a violation in it might be in.
    """

    owner: Tensor  # (N,)
    low: Tensor  # (N, n)
    high: Tensor
    reach: Tensor  # (N,)
    real: Tensor  # (N,)
    live: Tensor  # (N, P)

    @classmethod
    def whole(cls, owner: Tensor, low: Tensor, high: Tensor, polytopes: int) -> Boxes:
        """Boxes that nothing is known of."""
        live = torch.ones(len(owner), polytopes, dtype=torch.bool, device=low.device)
        return cls(owner, low, high, *(torch.full_like(low[:, 0], torch.inf),) * 2, live)


@dataclass(frozen=True)
class Rest:
    """What an attempt on one problem has left: boxes to halve, and those closed in real arithmetic only."""

    todo: Boxes
    waiting: Boxes
    closed: float  # largest upper bound on the score in all other boxes
    boxes: int  # bounded so far
    about: tuple[Tensor, ...]  # the whole box and the rows of the property: of other problems it says nothing

    def concerns(self, about: tuple[Tensor, ...]) -> bool:
        return all(
            one.shape == other.shape and torch.equal(one, other) for one, other in zip(self.about, about, strict=True)
        )


def halves(low: Tensor, high: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Both halves of each flat box (N, n) along its axis (N,): (2 N, n), the halves of a box side by side."""
    middle = ((low + high) / 2).gather(1, axis.unsqueeze(1))
    tops = torch.stack([high.scatter(1, axis.unsqueeze(1), middle), high], 1)
    bottoms = torch.stack([low, low.scatter(1, axis.unsqueeze(1), middle)], 1)
    return bottoms.flatten(0, 1), tops.flatten(0, 1)
