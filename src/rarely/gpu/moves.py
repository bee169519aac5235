"""A step of pCN in two programs, before and after a network of any kind: proposals, and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.coordinates import Coordinates, coordinates_of
from rarely.core.rng import Rng
from rarely.gpu.compiler import CannotCompile, Function, available, compiled, source

_THREADS = 256
_MOST = 2**31 - 1  # threads of a launch, each with four coordinates


@dataclass(frozen=True)
class Moves:
    """Proposals sqrt(1 - beta^2) z + beta xi for the chains of a population, beta = scale x unit."""

    propose: Function
    kept: Function
    position: Tensor  # (B, N, d)
    scale: Tensor  # (B, 1)
    unit: Tensor | None  # (B, 1, d)
    coordinates: Coordinates
    key: Tensor  # (1,) 64 bits: all noise of the step

    @property
    def _count(self) -> int:
        rows, n, d = self.position.shape
        return rows * n * (-(-d // 4))

    def inputs(self) -> Tensor:
        """What the proposals are mapped to, (B, N, d)."""
        rows, n, d = self.position.shape
        x = torch.empty_like(self.position)
        first, second = (ends.expand(rows, *ends.shape[1:]).reshape(rows, d) for ends in self.coordinates[1:])
        self.propose(
            self._count, self.position, x, self.scale, self.unit, first.contiguous(), second.contiguous(), self.key,
            self._count, n, d,
        )  # fmt: skip
        return x

    def keep(self, ok: Tensor) -> None:
        """Move the chains `ok` (B, N), in place."""
        _, n, d = self.position.shape
        self.kept(
            self._count, self.position, ok.contiguous(), self.scale, self.unit, self.key, self._count, n, d,
        )  # fmt: skip


def moves_of(batch: Batch, position: Tensor, scale: Tensor, unit: Tensor | None, rng: Rng) -> Moves | None:
    """The programs, with their arguments; None where plain torch code must do."""
    coordinates = (
        coordinates_of(batch.inputs) if available(position.device) and position.dtype == torch.float32 else None
    )
    threads = position[0].numel() * len(position) // min(4, position.shape[-1])
    if coordinates is None or threads > _MOST or not position.is_contiguous():
        return None
    text = f"#define UNIFORM {int(coordinates.uniform)}\n" + source("common.cuh", "moves.cuh")
    try:
        function = compiled(text, _THREADS, position.device)
    except CannotCompile:
        return None
    return Moves(function("propose"), function("keep"), position, scale, unit, coordinates, rng.key())
