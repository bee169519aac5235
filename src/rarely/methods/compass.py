"""In which direction scores rise, learnt without gradients from points whose scores were needed anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.kernels.base import State
from rarely.methods.roots import unit


def slopes(state: State, length: int) -> Tensor:
    """Mean slope of the score (B, d) as the moves of chains show it; state holds `length` states of every chain.

    A move by dz that changes the score by ds tells ds dz of the slope: dz points nowhere in particular. Where levels
    reject moves downwards, those that remain still rise along the slope.
    """
    b, n, d = state.position.shape
    z, s = state.position.reshape(b, length, n // length, d), state.score.reshape(b, length, n // length)
    rise, size = z.new_zeros(b, d), z.new_zeros(b)
    for k in range(1, length):  # one after another: differences of all at once would double what is in memory
        dz = z[:, k] - z[:, k - 1]
        rise += torch.einsum("bn,bnd->bd", s[:, k] - s[:, k - 1], dz)
        size += dz.square().sum((1, 2))
    mean: Tensor = d * rise / size.clamp_min(1e-30).unsqueeze(1)
    return mean


@dataclass
class Compass:
    """Estimates of one direction, each in two halves that share nothing: their agreement says how good it is."""

    otherwise: Tensor  # (d,) the unit vector that stands where no estimate says anything
    halves: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def see(self, some: Sequence[Tensor]) -> None:
        """Estimates (d,) that are independent of each other."""
        if len(some) > 1:
            self.halves.append((torch.stack(list(some[::2])).mean(0), torch.stack(list(some[1::2])).mean(0)))

    @property
    def direction(self) -> Tensor:
        """A unit vector (d,): what the estimates say, each in units of its own signal and by its own noise."""
        total = torch.zeros_like(self.otherwise)
        for a, b in self.halves:
            signal, noise = float(a @ b), float((a - b).square().sum()) / 4
            if signal > 0 and noise > 0:
                total += 0.5 * (a + b) * (signal**0.5 / noise)
        return unit(total) if bool(total.any()) else self.otherwise
