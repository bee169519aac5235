"""A step of pCN around a network of any kind: programs that propose, judge what came out, and keep what passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.coordinates import Coordinates, coordinates_of
from rarely.core.properties import LinearConstraint, Misclassification
from rarely.core.rng import Rng
from rarely.gpu.compiler import CannotCompile, Function, available, compiled, source
from rarely.stats.levels import passes

_THREADS = 256
_MOST = 2**31 - 1  # threads of a launch
_LANES = 8  # a chain has at most 2^8 threads, which are a block


@dataclass(frozen=True)
class Moves:
    """Proposals sqrt(1 - beta^2) z + beta xi for the chains of all rows, beta = scale x unit."""

    function: Callable[[str], Function]
    batch: Batch
    position: Tensor  # (B, N, d)
    scale: Tensor  # (B, 1)
    unit: Tensor | None  # (B, 1, d)
    coordinates: Coordinates
    key: Tensor  # (1,) 64 bits: all noise of the step

    def inputs(self) -> Tensor:
        """What the proposals are mapped to, (B, N, *event)."""
        rows, n, d = self.position.shape
        x = torch.empty_like(self.position)
        first, second = (ends.expand(rows, *ends.shape[1:]).reshape(rows, d) for ends in self.coordinates[1:])
        ends = first.contiguous(), second.contiguous()
        lanes = _lanes(d)
        self.function("propose")(
            rows * n << lanes, self.position, x, self.scale, self.unit, *ends, self.key, rows, n, d, lanes
        )
        return x.reshape(rows, n, *self.batch.inputs.event_shape)

    def judged(self, before: Tensor, x: Tensor, level: Tensor, strict: bool) -> tuple[Tensor, Tensor]:
        """The scores (B, N) that chains have afterwards, and 1 for each that moves, else 0."""
        rows, n = before.shape
        y = self.batch.outputs(x)
        labels, A, limit = _of_outputs(self.batch, y)
        if labels is None and A is None:
            score = self.batch.property.score(x, y)
            ok = passes(score, level, strict)
            return torch.where(ok, score, before), ok.to(before)
        after, moved = torch.empty_like(before), torch.empty_like(before)
        alternatives, each = (1, 1) if limit is None else limit.shape[-2:]
        self.function("judge")(
            rows * n, y.contiguous(), labels, A, limit, level, before.contiguous(), after, moved, rows, n,
            y[0, 0].numel(), alternatives, each, int(strict),
        )  # fmt: skip
        return after, moved

    def keep(self, moved: Tensor) -> None:
        """Move the chains for which `moved` (B, N) is not 0, in place."""
        rows, n, d = self.position.shape
        lanes = _lanes(d)
        self.function("keep")(
            rows * n << lanes, self.position, moved.contiguous(), self.scale, self.unit, self.key, rows, n, d, lanes
        )


def moves_of(batch: Batch, position: Tensor, scale: Tensor, unit: Tensor | None, rng: Rng) -> Moves | None:
    """The programs, with their arguments; None where plain torch code must do."""
    coordinates = coordinates_of(batch.inputs) if available(position.device) else None
    if coordinates is None or position.dtype != torch.float32 or not position.is_contiguous():
        return None
    if position[..., 0].numel() << _lanes(position.shape[-1]) > _MOST:
        return None
    text = f"#define UNIFORM {int(coordinates.uniform)}\n" + source("common.cuh", "moves.cuh")
    try:
        function = compiled(text, _THREADS, position.device, for_good=True)
    except CannotCompile:
        return None
    return Moves(function, batch, position, scale, unit, coordinates, rng.key())


def _lanes(d: int) -> int:
    """The logarithm of the threads that share d coordinates, four at a time."""
    return min(_LANES, max(0, -(-d // 4) - 1).bit_length())


def _of_outputs(batch: Batch, y: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Labels (B, 1), or A and the limits of rows, that `judge` knows what to do with; nothing for other properties."""
    prop, rows = batch.property, len(batch)
    if y.dtype == torch.float32 and isinstance(prop, Misclassification) and isinstance(prop.label, Tensor):
        if prop.label.dtype == torch.long and prop.label.numel() == rows:
            return prop.label.contiguous(), None, None
    elif y.dtype == torch.float32 and isinstance(prop, LinearConstraint):
        A, limit = prop.A.float().contiguous(), prop.limit.float().contiguous()
        if A.numel() == rows * A.shape[-3:].numel() and A.shape[-1] == y[0, 0].numel():
            return None, A, limit
    return None, None, None
