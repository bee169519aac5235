"""Codes of categories and standard normals beside them: what a table of both is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from rarely.core.input_model import Shape, leading
from rarely.core.rng import TORCHS, Rng
from rarely.inputs.tokens import Tokens

_STEPS = (1.0, 0.5, 0.2)  # of normals that are drawn anew, in part: from all of it to where they are


@dataclass(frozen=True)
class Beside:
    """Codes, and so many normals after them, all independent."""

    codes: Tokens
    normals: int
    whole: ClassVar[bool] = False
    normal_dim: ClassVar[None] = None

    @property
    def event_shape(self) -> Shape:
        return (self.parts,)

    @property
    def parts(self) -> int:
        return self.codes.parts + self.normals

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        lead, dtype = leading(shape), self.codes.log_probs.dtype
        return torch.cat([self.codes.sample(lead, rng).to(dtype), rng.normal((*lead, self.normals), dtype)], -1)

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        """Normals move by pCN's step, which keeps their law whatever its length is."""
        k = self.codes.parts
        z, steps = x[..., k:], torch.tensor(_STEPS, dtype=x.dtype, device=x.device)
        beta = steps[(rng.uniform(z.shape) * len(steps)).long().clamp_max(len(steps) - 1)]
        moved = torch.sqrt(1 - beta * beta) * z + beta * rng.normal(z.shape, z.dtype)
        return torch.cat(
            [self.codes.redraw(x[..., :k], chosen[..., :k], rng), torch.where(chosen[..., k:], moved, z)], -1
        )

    def evened(self, share: float) -> Beside:
        return replace(self, codes=self.codes.evened(share))

    def log_density(self, x: Tensor) -> Tensor:
        return self.log_parts(x).sum(-1)

    def log_parts(self, x: Tensor) -> Tensor:
        k = self.codes.parts
        return torch.cat(
            [self.codes.log_parts(x[..., :k]), -0.5 * x[..., k:].square() - 0.5 * math.log(2 * math.pi)], -1
        )
