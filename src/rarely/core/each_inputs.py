"""Input models of several problems as one: by their tensors where they stack, one after another where they do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import InputModel, Shape, leading, log_kept
from rarely.core.parts import categorical, evened, redrawn
from rarely.core.rng import TORCHS, Rng
from rarely.core.stacking import CannotStack, stack


@dataclasses.dataclass(frozen=True)
class EachInputs:
    """B input models that do not stack, each for its own row of the batch."""

    models: tuple[InputModel, ...]

    def take(self, index: Tensor) -> EachInputs:
        return EachInputs(tuple(self.models[i] for i in index.tolist()))

    @property
    def event_shape(self) -> Shape:
        return self.models[0].event_shape

    @property
    def normal_dim(self) -> int | None:
        dims = {model.normal_dim for model in self.models}
        return dims.pop() if len(dims) == 1 else None

    @property
    def smooth(self) -> bool:
        return all(getattr(model, "smooth", True) for model in self.models)

    @property
    def parts(self) -> int | None:
        counts = {model.parts if redrawn(model) else None for model in self.models}
        return counts.pop() if len(counts) == 1 else None

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        models: Any = self.models
        return torch.stack([m.redraw(row, own, rng) for m, row, own in zip(models, x, chosen, strict=True)])

    @property
    def log_parts(self) -> Callable[[Tensor], Tensor] | None:
        models: Any = self.models
        if not all(map(categorical, models)):
            return None
        return lambda x: torch.stack([model.log_parts(row) for model, row in zip(models, x, strict=True)])

    def evened(self, share: float) -> EachInputs | None:
        models = [evened(model, share) for model in self.models]
        return None if any(model is None for model in models) else EachInputs(tuple(models))

    def coded(self, codes: Tensor) -> Tensor:
        models: Any = self.models
        return torch.stack([model.coded(row) for model, row in zip(models, codes, strict=True)])

    @property
    def center(self) -> Tensor:
        return torch.stack([model.center for model in self.models]).unsqueeze(1)

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        supports = [model.support for model in self.models]
        if all(support is None for support in supports):
            return None
        shape = self.event_shape
        filled = [s or (torch.full(shape, -torch.inf), torch.full(shape, torch.inf)) for s in supports]
        low, high = (torch.stack([s[k].expand(shape).cpu() for s in filled]).unsqueeze(1) for k in (0, 1))
        return low, high

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        return torch.stack([model.sample(leading(shape)[1:], rng) for model in self.models])

    def log_density(self, x: Tensor) -> Tensor:
        return torch.stack([model.log_density(row) for model, row in zip(self.models, x, strict=True)])

    def from_normal(self, z: Tensor) -> Tensor:
        return torch.stack([model.from_normal(row) for model, row in zip(self.models, z, strict=True)])

    def log_kept(self, z: Tensor) -> Tensor | None:
        chances = [log_kept(model, row) for model, row in zip(self.models, z, strict=True)]
        if all(chance is None for chance in chances):
            return None
        return torch.stack([z.new_zeros(z.shape[1]).double() if c is None else c.double() for c in chances])

    @property
    def log_share(self) -> Tensor:
        shares = [torch.as_tensor(getattr(model, "log_share", 0.0)) for model in self.models]
        return torch.stack([share.cpu().reshape(()) for share in shares]).unsqueeze(1)


def stack_inputs(models: Sequence[InputModel]) -> InputModel:
    """One model for a batch of problems: stacked tensors where the models allow it, a loop where not."""
    shapes = {tuple(model.event_shape) for model in models}
    if len(shapes) > 1:
        raise InputError(f"problems in one batch must share an input shape, got {sorted(shapes)}")
    try:
        return stack(models)
    except CannotStack:
        return EachInputs(tuple(models))
