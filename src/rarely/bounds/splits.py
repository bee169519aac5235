"""Sub-problems of branch and bound on the signs of ReLU inputs, and how they are halved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.bounds.rows import Rows


@dataclass(frozen=True)
class Domains(Rows):
    """N sub-problems; U counts the ReLUs of the network that are unsettled at the root."""

    signs: Tensor  # (N, U) in {-1, 0, 1}
    low: Tensor  # (N, U) bounds on the ReLU inputs, the signs included
    high: Tensor
    slopes: Tensor  # (N, U)
    multipliers: Tensor  # (N, U)
    logits: Tensor  # (N, r) of the r rows that a polytope has at most
    polytope: Tensor  # (N,)
    lower: Tensor  # (N,) proven lower bound on the weighted rows
    real: Tensor  # (N,) the same in real arithmetic
    rough: Tensor  # (N,) what was found before it was proved, in float32
    cuts: Tensor  # (N,) the ReLU to split next, -1 when none is left

    @property
    def empty(self) -> Tensor:
        """Contradictory bounds mean that no input has these signs."""
        return (self.low > self.high).any(1)


def halved(signs: Tensor, low: Tensor, high: Tensor, cut: Tensor, entry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Signs and intervals of domains that come in pairs, the cut ReLU's input >= 0 in the first and <= 0 in the second.

    `cut` (N,) is its place among the signs, `entry` (N,) that of its input among the intervals.
    """
    cut, entry = cut.unsqueeze(1), entry.unsqueeze(1)
    up = torch.arange(len(cut), device=cut.device).unsqueeze(1) % 2 == 0
    below, above = low.gather(1, entry), high.gather(1, entry)
    return (
        signs.scatter(1, cut, torch.where(up, 1, -1).to(signs.dtype)),
        low.scatter(1, entry, torch.where(up, below.clamp(min=0), below)),
        high.scatter(1, entry, torch.where(up, above, above.clamp(max=0))),
    )


def children(domains: Domains) -> Domains:
    """Both halves of each domain side by side."""
    twice = domains.pick(torch.arange(len(domains), device=domains.cuts.device).repeat_interleave(2))
    signs, low, high = halved(twice.signs, twice.low, twice.high, twice.cuts, twice.cuts)
    return replace(twice, signs=signs, low=low, high=high)
