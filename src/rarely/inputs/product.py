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
from rarely.core.parts import Coded, redrawn
from rarely.core.rng import TORCHS, Rng
from rarely.inputs.common import no_density
from rarely.inputs.tokens import Tokens


@dataclass(frozen=True, init=False)
class Product:
    """One input is one draw of each part, flattened and joined in their order; the parts are independent.

    A part is any input model. Neighbours that are the same object are drawn and mapped at once: a law that holds for
    each of a thousand steps costs no more calls than for one. Where one has no map from normals, such as tokens, moves
    draw parts anew.
    """

    models: tuple[InputModel, ...]
    counts: tuple[int, ...]  # how often each part stands in a row
    event_shape: Shape

    def __init__(self, parts: Sequence[Any]) -> None:
        if not parts:
            raise InputError("a product needs at least one part")
        runs = [list(same) for _, same in groupby(parts, key=id)]
        models, counts = tuple(adapt_inputs(run[0]) for run in runs), tuple(len(run) for run in runs)
        width = sum(math.prod(model.event_shape) * count for model, count in zip(models, counts, strict=True))
        assign(self, models=models, counts=counts, event_shape=(width,))

    @property
    def normal_dim(self) -> int | None:
        total = 0
        for model, count in zip(self.models, self.counts, strict=True):
            if model.normal_dim is None:
                return None
            total += model.normal_dim * count
        return total

    @property
    def whole(self) -> bool:
        return all(getattr(model, "whole", False) for model in self.models)

    @property
    def dense(self) -> bool:
        """Whether each model has a density: moves that draw parts anew need none."""
        each = [getattr(model, "dense", type(model).log_density is not no_density) for model in self.models]
        return all(each)

    @property
    def parts(self) -> int | None:
        """How many can be drawn anew, where one model has some; any other is drawn anew as a whole."""
        sizes = self._sizes()
        return sum(sizes) if any(map(redrawn, self.models)) else None

    def _sizes(self) -> list[int]:
        models: Any = self.models
        each = [model.parts if redrawn(model) else 1 for model in models]
        return [size * count for size, count in zip(each, self.counts, strict=True)]

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        models: Any = self.models
        values = self._cut(x, [math.prod(model.event_shape) for model in models])
        made = []
        for model, count, part, own in zip(
            models, self.counts, values, torch.split(chosen, self._sizes(), -1), strict=True
        ):
            rows, anew = _in_rows(part, count, model.event_shape), _in_rows(own, count, (own.shape[-1] // count,))
            if redrawn(model):
                rows = model.redraw(rows, anew, rng)
            else:
                fresh = model.sample(tuple(anew.shape[:-1]), rng).to(rows)
                rows = torch.where(anew.reshape(*anew.shape[:-1], *([1] * len(model.event_shape))), fresh, rows)
            made.append(rows.reshape(*x.shape[:-1], -1))
        return torch.cat(made, -1)

    @property
    def codes(self) -> Tokens | None:
        """Of models that are all categories, tokens among them, those of each after those of the one before."""
        if self.normal_dim is not None:  # steps in time are many, and normals serve well there
            return None
        laws: list[Any] = []
        for model, count in zip(self.models, self.counts, strict=True):
            own = model if isinstance(model, Tokens) else model.codes if isinstance(model, Coded) else None
            if not isinstance(own, Tokens):
                return None
            laws += [*own.positions()] * count
        return Tokens(laws)

    @property
    def coded_parts(self) -> int:
        models: Any = self.models
        each = [model.parts if isinstance(model, Tokens) else model.coded_parts for model in models]
        return sum(size * count for size, count in zip(each, self.counts, strict=True))

    def coded(self, codes: Tensor) -> Tensor:
        models: Any = self.models
        made = []
        sizes = [model.parts if isinstance(model, Tokens) else model.coded_parts for model in models]
        for model, count, part, size in zip(models, self.counts, self._cut(codes, sizes), sizes, strict=True):
            rows = _in_rows(part, count, (size,))
            made.append((rows if isinstance(model, Tokens) else model.coded(rows)).reshape(*codes.shape[:-1], -1))
        return torch.cat(made, -1)

    @property
    def smooth(self) -> bool:
        return all(getattr(model, "smooth", True) for model in self.models)

    @property
    def center(self) -> Tensor:
        return self._joined(map(_typical, self.models))

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        supports = [model.support for model in self.models]
        like = next((support[0] for support in supports if support is not None), None)
        if like is None:
            return None
        like = like if like.is_floating_point() else like.to(torch.get_default_dtype())  # words have no infinity
        ends = []
        for side, missing in ((0, -torch.inf), (1, torch.inf)):
            known = [
                like.new_full(model.event_shape, missing) if support is None else support[side]
                for model, support in zip(self.models, supports, strict=True)
            ]
            ends.append(self._joined(known))
        return ends[0], ends[1]

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        lead = leading(shape)
        drawn = [
            model.sample((*lead[:-1], lead[-1] * count) if lead else (count,), rng).reshape(*lead, -1)
            for model, count in zip(self.models, self.counts, strict=True)
        ]
        return torch.cat(drawn, -1)

    def log_density(self, x: Tensor) -> Tensor:
        sizes = [math.prod(model.event_shape) for model in self.models]
        total = x.new_zeros(x.shape[:-1])
        for model, count, part in zip(self.models, self.counts, self._cut(x, sizes), strict=True):
            rows = _in_rows(part, count, model.event_shape)
            total = total + model.log_density(rows).reshape(*x.shape[:-1], count).sum(-1)
        return total

    def from_normal(self, z: Tensor) -> Tensor:
        made = []
        for model, count, part in zip(self.models, self.counts, self._cut(z, self._normals()), strict=True):
            made.append(model.from_normal(_in_rows(part, count, (part.shape[-1] // count,))).reshape(*z.shape[:-1], -1))
        return torch.cat(made, -1)

    def _normals(self) -> list[int]:
        dims = [model.normal_dim for model in self.models]
        if None in dims:
            raise InputError("a part of this product has no map from normals; use a kernel in the space of the inputs")
        return [dim for dim in dims if dim is not None]

    def _cut(self, values: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(values, [size * count for size, count in zip(sizes, self.counts, strict=True)], -1)

    def _joined(self, values: Iterable[Tensor]) -> Tensor:
        """One value (*stacked, *event) for every part, as an input of the whole."""
        flat = [
            value.reshape(*value.shape[: value.ndim - len(model.event_shape)], -1)
            for value, model in zip(values, self.models, strict=True)
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
