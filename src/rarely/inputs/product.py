"""Independent parts side by side: a first state and a disturbance for every step, as one input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import InputModel, Shape, adapt_inputs, assign, leading
from rarely.core.rng import Rng


@dataclass(frozen=True, init=False)
class Product:
    """One input is one draw of each part, flattened and joined in their order; the parts are independent.

    A part is any input model. Neighbours that are the same object are drawn and mapped at once: a law that holds for
    each of a thousand steps costs no more calls than for one.
    """

    parts: tuple[InputModel, ...]
    counts: tuple[int, ...]  # how often each part stands in a row
    event_shape: Shape

    def __init__(self, parts: Sequence[Any]) -> None:
        if not parts:
            raise InputError("a product needs at least one part")
        runs = [list(same) for _, same in groupby(parts, key=id)]
        models, counts = tuple(adapt_inputs(run[0]) for run in runs), tuple(len(run) for run in runs)
        width = sum(math.prod(model.event_shape) * count for model, count in zip(models, counts, strict=True))
        assign(self, parts=models, counts=counts, event_shape=(width,))

    @property
    def normal_dim(self) -> int | None:
        total = 0
        for model, count in zip(self.parts, self.counts, strict=True):
            if model.normal_dim is None:
                return None
            total += model.normal_dim * count
        return total

    @property
    def smooth(self) -> bool:
        return all(getattr(model, "smooth", True) for model in self.parts)

    @property
    def center(self) -> Tensor:
        return self._joined(map(_typical, self.parts))

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        supports = [model.support for model in self.parts]
        like = next((support[0] for support in supports if support is not None), None)
        if like is None:
            return None
        ends = []
        for side, missing in ((0, -torch.inf), (1, torch.inf)):
            known = [
                like.new_full(model.event_shape, missing) if support is None else support[side]
                for model, support in zip(self.parts, supports, strict=True)
            ]
            ends.append(self._joined(known))
        return ends[0], ends[1]

    def sample(self, shape: int | Shape, rng: Rng) -> Tensor:
        lead = leading(shape)
        drawn = [
            model.sample((*lead[:-1], lead[-1] * count) if lead else (count,), rng).reshape(*lead, -1)
            for model, count in zip(self.parts, self.counts, strict=True)
        ]
        return torch.cat(drawn, -1)

    def log_density(self, x: Tensor) -> Tensor:
        sizes = [math.prod(model.event_shape) for model in self.parts]
        total = x.new_zeros(x.shape[:-1])
        for model, count, part in zip(self.parts, self.counts, self._cut(x, sizes), strict=True):
            rows = _in_rows(part, count, model.event_shape)
            total = total + model.log_density(rows).reshape(*x.shape[:-1], count).sum(-1)
        return total

    def from_normal(self, z: Tensor) -> Tensor:
        made = []
        for model, count, part in zip(self.parts, self.counts, self._cut(z, self._normals()), strict=True):
            made.append(model.from_normal(_in_rows(part, count, (part.shape[-1] // count,))).reshape(*z.shape[:-1], -1))
        return torch.cat(made, -1)

    def _normals(self) -> list[int]:
        dims = [model.normal_dim for model in self.parts]
        if None in dims:
            raise InputError("a part of this product has no map from normals; use a kernel in the space of the inputs")
        return [dim for dim in dims if dim is not None]

    def _cut(self, values: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(values, [size * count for size, count in zip(sizes, self.counts, strict=True)], -1)

    def _joined(self, values: Iterable[Tensor]) -> Tensor:
        """One value (*stacked, *event) for every part, as an input of the whole."""
        flat = [
            value.reshape(*value.shape[: value.ndim - len(model.event_shape)], -1)
            for value, model in zip(values, self.parts, strict=True)
        ]
        # A law that stacks leads with (B, 1), and one that all problems share does not.
        lead = max((part.shape[:-1] for part in flat), key=len)
        tiled = [part.tile(count) for part, count in zip(flat, self.counts, strict=True)]
        return torch.cat([part.expand(*lead, part.shape[-1]) for part in tiled], -1)


def _typical(model: InputModel) -> Tensor:
    """Its center; of a user's law that names none, a draw: the parts of a product have no label to be taken there."""
    try:
        return model.center
    except InputError:
        return model.sample((1,), Rng(0))[0]


def _in_rows(values: Tensor, count: int, shape: Shape) -> Tensor:
    """(*lead, count * numbers) with the repeats as more rows of the last leading dimension, as models stack theirs."""
    lead = values.shape[:-1]
    return values.reshape(*lead[:-1], lead[-1] * count, *shape) if lead else values.reshape(count, *shape)
