"""Walks of splitting that never leave the chip: a small network, its chains and their random numbers in one program."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rarely.core.batch import Batch
from rarely.core.coordinates import coordinates_of
from rarely.core.properties import LinearConstraint, Misclassification, Property
from rarely.core.rng import Rng
from rarely.gpu.compiler import CannotCompile, Function, available, compiled, most_shared, source
from rarely.gpu.layers import Text, text_of

_BLOCK = 128  # threads
_EACH = 2  # chains of a thread whose weights are read from shared memory: each weight serves both
_ROWS = 64  # rows of the property, each a sum over all outputs at every step
_AT_ONCE = 2**32  # evaluations of one launch, a second or less: the clock is looked at between two
_OFF = 1e-4  # of the largest score that one may be off, by another order of sums


@dataclass(frozen=True)
class Chip:
    """The program for one batch. Walks are those of `PCN` (`normal`) or of `RandomWalk`."""

    function: Function
    each: int  # chains of a thread
    shared: int  # bytes
    weights: Tensor
    first: Tensor  # (B, d) of the coordinates
    second: Tensor
    A: Tensor  # (B, K, rows, outputs)
    limit: Tensor  # (B, K, rows)

    def take(self, index: Tensor) -> Chip:
        """For some of the rows."""
        return replace(self, **{name: getattr(self, name)[index] for name in ("first", "second", "A", "limit")})

    def steps_at_once(self, chains: int) -> int:
        """Steps of so many chains of every row that one launch may take."""
        return max(1, _AT_ONCE // max(1, len(self.first) * chains))

    def walk(
        self,
        position: Tensor,
        score: Tensor,
        moves: Tensor,
        scale: Tensor,
        unit: Tensor | None,
        level: Tensor,
        strict: bool,
        steps: int,
        rng: Rng,
    ) -> None:
        """Move all chains (B, N, d), their scores and how often they moved (B, N) in place."""
        rows, n = score.shape
        units = torch.ones_like(self.first) if unit is None else unit.reshape(rows, -1).to(self.first)
        blocks = -(-n // (_BLOCK * self.each))
        self.function(
            rows * blocks * _BLOCK, position, score, moves, scale, units.contiguous(), level, self.first, self.second,
            self.A, self.limit, self.weights, rng.key(), n, steps, int(strict), shared=self.shared,
        )  # fmt: skip

    def scores(self, position: Tensor, score: Tensor, scale: Tensor, rng: Rng) -> Tensor | None:
        """The scores of chains (B, N, d) as steps give them, or None where the network says something else: (B, N)."""
        told, level = torch.full_like(score, torch.nan).contiguous(), torch.full_like(score[:, 0], -torch.inf)
        still = torch.zeros_like(scale).contiguous()
        self.walk(position.clone(), told, torch.zeros_like(told), still, None, level, False, 1, rng)
        near = (told - score).abs() <= _OFF * score.abs().amax(1, keepdim=True) + _OFF
        return told if bool((near | (told == score) | (told.isnan() & score.isnan())).all()) else None


def chip_for(batch: Batch, normal: bool) -> Chip | None:
    """The program of a batch, for pCN on normals or the uniform random walk on inputs; None where there can be none."""
    coordinates, module = coordinates_of(batch.inputs), batch.network.module
    if not available(batch.device) or batch.dtype != torch.float32 or coordinates is None or module is None:
        return None
    if not (normal or coordinates.uniform) or isinstance(module, nn.ModuleList):  # or several networks
        return None
    rows = len(batch)
    first, second = (ends.expand(rows, *ends.shape[1:]).reshape(rows, -1) for ends in coordinates[1:])
    text = text_of(module, batch.inputs.event_shape)
    linear = None if text is None else _linear(batch.property, rows, text.outputs)
    if text is None or linear is None:
        return None
    A, limit = linear
    each = 1 if text.literal else _EACH
    shared = 0 if text.literal else 4 * (text.weights.numel() + text.widest * each * _BLOCK)
    if shared > most_shared(batch.device):
        return None
    names = {
        "INPUTS": first.shape[1], "OUTPUTS": text.outputs, "K": A.shape[1], "ROWS": A.shape[2], "EACH": each,
        "BLOCK": _BLOCK, "NORMAL": int(normal), "UNIFORM": int(coordinates.uniform), "OWN_SCALE": int(not normal),
        "LITERAL": int(text.literal), "FOURS": text.weights.numel() // 4,
    }  # fmt: skip
    try:
        function = compiled(_program(text, names), _BLOCK, batch.device)("walk")
    except CannotCompile:
        return None
    on_device = [t.to(batch.device, torch.float32).contiguous() for t in (text.weights, first, second, A, limit)]
    return Chip(function, each, shared, *on_device)


def _program(text: Text, names: dict[str, int]) -> str:
    definitions = "".join(f"#define {name} {value}\n" for name, value in names.items())
    if text.literal:
        numbers = ", ".join(f"{value!r}f" for value in text.weights.tolist())
        definitions += f"static __device__ const float WEIGHTS[] = {{{numbers}}};\n"
    network = (
        "__device__ __forceinline__ void network(const float (&x)[EACH][INPUTS], float (&y)[EACH][OUTPUTS]) {\n  "
        f"{text.body}\n}}\n"
    )
    return definitions + source("common.cuh", "layers.cuh") + network + source("chains.cuh")


def _linear(prop: Property, rows: int, outputs: int) -> tuple[Tensor, Tensor] | None:
    """A (B, K, m, outputs) and the limits (B, K, m) of a property, as `LinearConstraint` has them; None for others."""
    if isinstance(prop, LinearConstraint):
        A, limit = prop.A, prop.limit
    elif isinstance(prop, Misclassification) and isinstance(prop.label, Tensor):
        # "class i beats the label", outputs - 1 alternatives of one row: y_label - y_i <= 0
        label = prop.label.reshape(-1).cpu()
        others = torch.arange(outputs - 1) + (torch.arange(outputs - 1) >= label.unsqueeze(1))
        unit = torch.eye(outputs)
        A = (unit[label].unsqueeze(1) - unit[others]).unsqueeze(2).unsqueeze(1)
        limit = torch.zeros(A.shape[:-1])
    else:
        return None
    if A.shape[-1] != outputs or A.shape[-3] * A.shape[-2] > _ROWS:
        return None
    A, limit = A.reshape(-1, *A.shape[-3:]), limit.reshape(-1, *limit.shape[-2:])
    return A.expand(rows, *A.shape[1:]), limit.expand(rows, *limit.shape[1:])
