"""Inputs under linear constraints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, InputModel, Shape, leading, tensor
from rarely.core.rng import TORCHS, Rng
from rarely.core.words import inputs_in_words

_SMALLEST_SHARE = 1e-4  # of a box that linear constraints on the inputs may leave
_TRIALS = 1_000_000  # draws spent on finding that share
_ENOUGH = 100  # accepted draws that give the share to ten per cent
_BLOCK = 4_000_000  # numbers drawn at once in rejection


@dataclass(frozen=True)
class Constrained:
    """An input model conditioned on A x <= b, sampled by rejection. It has no map from normals."""

    base: InputModel
    A: Tensor  # (m, d) over the flattened input
    b: Tensor  # (m,)
    share: Tensor  # () of the base's draws that meet the constraints
    center: Tensor  # (*event) a draw that does
    event_shape: Shape
    normal_dim: None = None

    @classmethod
    def to(cls, base: InputModel, A: ArrayLike, b: ArrayLike, source: str = "the inputs") -> Constrained:
        """`base` where A x <= b, A (m, d) over the flattened input; `source` names it in errors."""
        matrix, bounds = tensor(A, "A").double(), tensor(b, "b").double()
        rng, drawn, accepted, center = Rng(0), 0, 0, None
        block = max(1, min(_TRIALS // 10, _BLOCK // max(1, math.prod(base.event_shape))))
        while drawn < _TRIALS and accepted < _ENOUGH:
            x = base.sample(block, rng)
            good = x[_meets(x, matrix, bounds, len(base.event_shape))]
            drawn, accepted = drawn + block, accepted + len(good)
            center = good[0] if center is None and len(good) else center
        if center is None or accepted < _SMALLEST_SHARE * drawn:
            raise InputError(
                f"{source}: its linear constraints on the inputs leave {accepted} of {drawn:,} points of the box, too "
                f"few to sample ({_SMALLEST_SHARE:g} of the box is needed); give tighter bounds on single inputs"
            )
        share = torch.tensor(accepted / drawn, dtype=torch.float64)
        return cls(base, matrix, bounds, share, center, tuple(base.event_shape))

    @property
    def words(self) -> str:
        return f"{inputs_in_words(self.base)}; only where linear constraints on the inputs hold"

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        return self.base.support

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        *rows, n = leading(shape)
        count, size = math.prod(rows), math.prod(self.event_shape)
        block = int(min(max(n, 1.2 * n / float(self.share.min())), max(n, _BLOCK / (count * size)))) + 1
        kept: list[list[Tensor]] = [[] for _ in range(count)]
        missing = [n] * count
        while any(missing):
            x = self.base.sample((*rows, block), rng)
            ok = _meets(x, self.A, self.b, len(self.event_shape)).reshape(count, block)
            for row, (points, good) in enumerate(zip(x.reshape(count, block, *self.event_shape), ok, strict=True)):
                if missing[row]:
                    kept[row].append(points[good][: missing[row]])
                    missing[row] -= len(kept[row][-1])
        return torch.stack([torch.cat(pieces) for pieces in kept]).reshape(*rows, n, *self.event_shape)

    def log_density(self, x: Tensor) -> Tensor:
        density = self.base.log_density(x)
        return torch.where(_meets(x, self.A, self.b, len(self.event_shape)), density, -torch.inf)

    def from_normal(self, z: Tensor) -> Tensor:
        raise InputError("inputs under linear constraints have no map from normals; use the kernel random-walk")


def _meets(x: Tensor, A: Tensor, b: Tensor, event_dims: int) -> Tensor:
    """Whether (..., *event) meets A x <= b, for one problem (m, d) or stacked (B, 1, m, d)."""
    flat = x.reshape(*x.shape[: len(x.shape) - event_dims], 1, -1).to(A.dtype)
    return ((flat * A).sum(-1) <= b).all(-1)
