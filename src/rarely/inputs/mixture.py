"""Mixtures of input models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.core.arguments import kind
from rarely.core.errors import InputError
from rarely.core.input_model import (
    ArrayLike,
    Custom,
    InputModel,
    Shape,
    adapt_inputs,
    assign,
    leading,
    log_kept,
    tensor,
)
from rarely.core.parts import redrawn
from rarely.core.rng import TORCHS, Rng
from rarely.core.words import inputs_in_words
from rarely.inputs.box import Box
from rarely.inputs.constrained import Constrained
from rarely.inputs.gaussian import Gaussian, TruncatedGaussian
from rarely.inputs.lp_ball import LpBall
from rarely.inputs.tokens import Tokens
from rarely.stats.normal import LOG_SQRT_2PI, Span

_TOLD = 8  # components that words tell one by one


@dataclass(frozen=True, init=False)
class Mixture:
    """Component i with probability weights[i].

    The density of a mixture needs normalised components. What a component's log_density lacks is known for boxes, the
    l-infinity ball and Gaussians, also under constraints; a user's own component is taken as normalised; for others
    give `log_volumes`.
    """

    components: tuple[InputModel, ...]
    log_weights: Tensor  # (K,)
    log_volumes: Tensor  # (K,) added to a component's -log_density so that it integrates to one
    event_shape: Shape

    def __init__(
        self, components: Sequence[object], weights: ArrayLike | None = None, log_volumes: ArrayLike | None = None
    ) -> None:
        if not isinstance(components, list | tuple):
            raise InputError(f"a mixture takes a list of input models, got {kind(components)}")
        models = tuple(adapt_inputs(component) for component in components)
        if not models:
            raise InputError("a mixture needs at least one component")
        shapes = {tuple(model.event_shape) for model in models}
        if len(shapes) > 1:
            raise InputError(f"mixture components must share an input shape, got {sorted(shapes)}")
        share = tensor([1.0] * len(models) if weights is None else weights, "weights").double()
        if share.shape != (len(models),) or bool((share < 0).any()) or float(share.sum()) <= 0:
            raise InputError(f"weights must be {len(models)} numbers of at least 0 with a positive sum")
        if log_volumes is None:
            volumes = torch.tensor([log_volume(model) for model in models], dtype=torch.float64)
        else:
            volumes = tensor(log_volumes, "log_volumes").double()
        weights, dtype = torch.log(share / share.sum()), torch.get_default_dtype()
        assign(
            self, components=models, log_weights=weights.to(dtype), log_volumes=volumes.to(dtype),
            event_shape=shapes.pop(),
        )  # fmt: skip

    @property
    def words(self) -> str:
        shares = torch.exp(self.log_weights.double()).tolist()
        told = map(inputs_in_words, self.components)
        parts = [f"with probability {share:.3g} {one}" for share, one in zip(shares, told, strict=True)]
        return "; ".join(parts) if len(parts) <= _TOLD else f"one of {len(parts)} parts, the first {parts[0]}"

    @property
    def normal_dim(self) -> int | None:
        dims = {model.normal_dim for model in self.components}
        if len(dims) > 1 or None in dims:
            return None
        (dim,) = dims
        assert dim is not None
        if any(log_kept(model, torch.zeros(1, dim)) is not None for model in self.components):
            return None  # normals that one component keeps are not those of another
        return dim + 1  # one more normal chooses the component

    @property
    def whole(self) -> bool:
        return all(getattr(model, "whole", False) for model in self.components)

    @property
    def parts(self) -> int | None:
        counts = {model.parts if redrawn(model) else None for model in self.components}
        return counts.pop() if len(counts) == 1 else None

    @property
    def center(self) -> Tensor:
        return self.components[0].center

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        supports = [model.support for model in self.components]
        if any(support is None for support in supports):
            return None
        lows, highs = zip(*(support for support in supports if support is not None), strict=True)
        return torch.stack(lows).amin(0), torch.stack(highs).amax(0)

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        lead = leading(shape)
        u = rng.uniform(lead)
        edges = torch.cumsum(self.log_weights.exp(), -1)
        choice = (u.unsqueeze(-1) >= edges[..., :-1]).sum(-1)
        drawn = torch.stack([model.sample(lead, rng) for model in self.components])
        return _choose(drawn, choice)

    def log_density(self, x: Tensor) -> Tensor:
        if bool(torch.isnan(self.log_volumes).any()):
            raise InputError(
                "the density of this mixture needs log_volumes: the log of what each component's density lacks"
            )
        return torch.logsumexp(self._shares(x), -1)

    def _shares(self, x: Tensor) -> Tensor:
        """Log-density of every component at x, times its weight, (..., K)."""
        parts = torch.stack([model.log_density(x) for model in self.components], -1)
        return parts - self.log_volumes + self.log_weights

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        """By a component that may have drawn x: moves of x and of whose it is, one after the other."""
        noise = rng.uniform((*chosen.shape[:-1], len(self.components)), self.log_weights.dtype)
        choice = (self._shares(x) - torch.log(-torch.log(noise))).argmax(-1)  # by weight (Gumbel 1954)
        models: Any = self.components
        return _choose(torch.stack([model.redraw(x, chosen, rng) for model in models]), choice)

    def from_normal(self, z: Tensor) -> Tensor:
        edges = torch.cumsum(self.log_weights.exp(), -1)
        u = Span(z.new_zeros(()), z.new_ones(())).at(z[..., -1])
        choice = (u.unsqueeze(-1) >= edges[..., :-1]).sum(-1)
        return _choose(torch.stack([model.from_normal(z[..., :-1]) for model in self.components]), choice)


def _choose(drawn: Tensor, choice: Tensor) -> Tensor:
    """drawn (K, *lead, *event), choice (*lead) -> (*lead, *event)."""
    index = choice.reshape(1, *choice.shape, *([1] * (drawn.ndim - 1 - choice.ndim)))
    return drawn.gather(0, index.expand(1, *drawn.shape[1:])).squeeze(0)


def log_volume(model: InputModel) -> float:
    """What a component's log_density lacks: the log-volume of a uniform one, the constant of a normal one."""
    if isinstance(model, Constrained):
        return log_volume(model.base) + math.log(float(model.share))
    if isinstance(model, Box) or (isinstance(model, LpBall) and model.norm == torch.inf):
        width = (model.high - model.low).double()
        return float(torch.log(width[width > 0]).sum())
    if isinstance(model, Gaussian):
        scale = model.std[model.std > 0] if model.independent else model.factor.diagonal()
        return float(torch.log(scale.double()).sum()) + LOG_SQRT_2PI * scale.numel()
    if isinstance(model, TruncatedGaussian):
        a, b = ((side - model.mean).double() / model.std for side in (model.low, model.high))
        a, b = torch.where(a > 0, -b, a), torch.where(a > 0, -a, b)  # the lower tail keeps its digits
        mass = torch.log(torch.special.ndtr(b) - torch.special.ndtr(a)) + torch.log(model.std) + LOG_SQRT_2PI
        return float(torch.where(a < b, mass, -0.5 * a.square()).sum())
    return 0.0 if isinstance(model, Custom | Tokens) else math.nan
