"""What an input model is, and how a user's own distribution becomes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rarely.core.arguments import ends, kind, real, whole
from rarely.core.errors import InputError
from rarely.core.rng import TORCHS, Rng
from rarely.stats import fused

ArrayLike = Tensor | np.ndarray[Any, Any] | Sequence[Any] | float | int
Shape = tuple[int, ...]
_DRAWS = 10_000  # of normals, until one is kept


@runtime_checkable
class InputModel(Protocol):
    """A distribution over inputs of shape `event_shape`, for one problem or stacked for B of them.

    A model may keep some normals more often than others: then `log_kept(z)`, at most 0, is the log of the chance that
    normals (..., normal_dim) are kept, `log_share` that of the share of all that are, and `from_normal` of those kept
    is distributed as the model. Whatever draws normals takes that into account, by `kept_normals` and `Batch.log_kept`.
    """

    @property
    def event_shape(self) -> Shape:
        """Shape of one input."""
        ...

    @property
    def normal_dim(self) -> int | None:
        """Number of standard normals that `from_normal` maps to one input; None when there is no such map."""
        ...

    @property
    def center(self) -> Tensor:
        """A typical input, (*event): what the network is meant to get right."""
        ...

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        """Bounds (low, high) outside which the density is zero; None when there are none."""
        ...

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        """Independent inputs, (*shape, *event)."""
        ...

    def log_density(self, x: Tensor) -> Tensor:
        """Log-density up to a constant of (..., *event), -inf outside the support."""
        ...

    def from_normal(self, z: Tensor) -> Tensor:
        """Map standard normals (..., normal_dim) to inputs (..., *event) distributed as the model."""
        ...


def array(value: Any, name: str) -> Tensor:
    """Numbers as torch has them; also the columns of a pandas frame, where a single row is that row."""
    try:
        if callable(getattr(value, "to_numpy", None)):
            numbers = value.to_numpy()
            numbers = numbers.astype(np.float64) if numbers.dtype.kind in "Ob" else numbers.copy()
            return torch.from_numpy(numbers[0] if numbers.ndim == 2 and len(numbers) == 1 else numbers)
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error


def tensor(value: ArrayLike, name: str) -> Tensor:
    """A floating tensor without NaN or inf, or an InputError that names the argument."""
    result = array(value, name)
    if result.is_complex():
        raise InputError(f"{name} must be real")
    if not result.is_floating_point():
        result = result.to(torch.get_default_dtype())
    if not bool(torch.isfinite(result).all()):
        raise InputError(f"{name} contains NaN or inf; every value must be finite")
    return result.detach().cpu().clone()  # the run decides on the device


def assign(owner: object, /, **fields: object) -> None:
    """Set the fields of a frozen dataclass that checks its arguments in an `__init__` of its own."""
    for name, field in fields.items():
        object.__setattr__(owner, name, field)


def check_range(image: Tensor, clip: tuple[float, float]) -> None:
    """An InputError unless clip is a range that holds the image."""
    low, high = (real(end, "clip") for end in ends(clip, "clip"))
    if not low < high:
        raise InputError(f"clip must be (low, high) with low < high, got {clip}")
    if bool((image < low).any() | (image > high).any()):
        raise InputError(
            f"the image has values outside clip {clip}: they run from {float(image.min()):g} to "
            f"{float(image.max()):g}; scale the image or give its range as clip"
        )


def leading(shape: int | Shape) -> Shape:
    return tuple(shape) if isinstance(shape, tuple | list) else (whole(shape, "the number of inputs"),)


def event_dims(x: Tensor, event_shape: Shape) -> tuple[int, ...]:
    """The dimensions of x that belong to one input, to reduce over."""
    return tuple(range(x.ndim - len(event_shape), x.ndim))


def inside(x: Tensor, low: Tensor, high: Tensor, event_shape: Shape) -> Tensor:
    """Whether (..., *event) lies in the box, (...)."""
    whole = fused.box_mask(x, low, high)
    if whole is not None and event_shape:
        return whole.flatten(x.ndim - len(event_shape)).amin(-1) > 0
    ok = (x >= low) & (x <= high)
    return ok.flatten(x.ndim - len(event_shape)).all(-1) if event_shape else ok


def log_kept(model: InputModel, z: Tensor) -> Tensor | None:
    """Log of the chance that normals z are kept; None where all are, as of most models."""
    chance = getattr(model, "log_kept", None)
    return None if chance is None else chance(z)


def kept_normals(model: InputModel, lead: Shape, rng: Rng, dtype: torch.dtype) -> Tensor:
    """Normals (*lead, normal_dim) that the model maps to independent inputs."""
    assert model.normal_dim is not None
    z = rng.normal((*lead, model.normal_dim), dtype)
    chance = log_kept(model, z)
    if chance is None:
        return z
    for _ in range(_DRAWS):
        again = torch.log(rng.uniform(lead, dtype)) >= chance
        most = int(again.sum(-1).max()) if again.numel() else 0
        if most == 0:
            return z
        fresh = rng.normal((*lead[:-1], most, model.normal_dim), dtype)
        new = log_kept(model, fresh)
        assert new is not None
        place = again.int().argsort(dim=-1, descending=True, stable=True)[..., :most]  # those to draw again come first
        replaced, wide = again.gather(-1, place), place.unsqueeze(-1).expand_as(fresh)
        z.scatter_(-2, wide, torch.where(replaced.unsqueeze(-1), fresh, z.gather(-2, wide)))
        kept = torch.full_like(chance, torch.inf)
        chance = kept.scatter_(-1, place, torch.where(replaced, new, torch.full_like(new, torch.inf)))
    raise InputError("the input model keeps too few of its normals to draw from")


@dataclasses.dataclass(frozen=True)
class Custom:
    """A user's distribution: any object with `sample` and `log_density` (or torch's `log_prob`)."""

    stackable: ClassVar[bool] = False
    model: Any
    event_shape: Shape
    normal_dim: int | None = None

    @property
    def words(self) -> str:
        return f"drawn from {type(self.model).__name__}"

    @property
    def smooth(self) -> bool:
        return bool(getattr(self.model, "smooth", True))

    @property
    def center(self) -> Tensor:
        for name in ("center", "mean", "loc"):
            value = getattr(self.model, name, None)
            if value is not None and not callable(value):
                found = torch.as_tensor(value)
                if found.shape == self.event_shape and bool(torch.isfinite(found).all()):
                    return found
        raise InputError(
            "a label was not given and the input model has no center (or mean) to predict it at; "
            "give the property a label, or the input model an attribute `center`"
        )

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        support = getattr(self.model, "support", None)
        return support if isinstance(support, tuple) else None

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        lead = leading(shape)
        count = int(np.prod(lead))
        size: Any = (count,) if isinstance(self.model, torch.distributions.Distribution) else count
        drawn = torch.as_tensor(rng.globally(lambda: self.model.sample(size)))
        if drawn.shape != (count, *self.event_shape):
            raise InputError(
                f"the input model's sample({count}) has shape {tuple(drawn.shape)}, "
                f"expected {(count, *self.event_shape)}"
            )
        return drawn.to(rng.device).reshape(*lead, *self.event_shape)

    @property
    def whole(self) -> bool:
        return bool(getattr(self.model, "whole", False))

    @property
    def parts(self) -> int | None:
        return int(self.model.parts) if callable(getattr(self.model, "redraw", None)) else None

    @property
    def log_parts(self) -> Callable[[Tensor], Tensor] | None:
        return getattr(self.model, "log_parts", None)

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        rows, own = x.reshape(-1, *self.event_shape), chosen.reshape(-1, chosen.shape[-1])
        drawn = torch.as_tensor(rng.globally(lambda: self.model.redraw(rows, own)))
        if drawn.shape != rows.shape:
            raise InputError(
                f"the input model's redraw of {tuple(rows.shape)} has shape {tuple(drawn.shape)}; it must stay the same"
            )
        return drawn.to(x).reshape(x.shape)

    def log_density(self, x: Tensor) -> Tensor:
        lead = x.shape[: x.ndim - len(self.event_shape)]
        rows = x.reshape(-1, *self.event_shape)
        density: Callable[[Tensor], Any]
        if isinstance(self.model, torch.distributions.Distribution):
            density = self._torch_log_prob
        else:
            density = getattr(self.model, "log_density", None) or self.model.log_prob
        value = torch.as_tensor(density(rows))
        if value.shape != (rows.shape[0],):
            raise InputError(
                f"the input model's log_density of {rows.shape[0]} inputs has shape {tuple(value.shape)}, "
                f"expected ({rows.shape[0]},): one number per input"
            )
        return value.to(x.device).reshape(lead)

    def _torch_log_prob(self, rows: Tensor) -> Tensor:
        distribution: torch.distributions.Distribution = self.model
        support: Any = distribution.support
        ok: Tensor = support.check(rows)
        ok = ok.flatten(1).all(1) if ok.ndim > 1 else ok
        if not bool(ok.any()):
            return torch.full(rows.shape[:1], -torch.inf, dtype=rows.dtype, device=rows.device)
        safe = torch.where(ok.reshape(-1, *([1] * len(self.event_shape))), rows, rows[ok][:1])
        log_prob: Tensor = distribution.log_prob(safe)
        log_prob = log_prob.flatten(1).sum(1) if log_prob.ndim > 1 else log_prob
        return torch.where(ok, log_prob, torch.full_like(log_prob, -torch.inf))

    def from_normal(self, z: Tensor) -> Tensor:
        mapped: Tensor = self.model.from_normal(z)
        return mapped

    def log_kept(self, z: Tensor) -> Tensor | None:
        return log_kept(self.model, z)

    @property
    def log_share(self) -> Tensor:
        return torch.as_tensor(getattr(self.model, "log_share", 0.0))


def adapt_inputs(model: Any) -> InputModel:
    """An InputModel from one of ours, a torch distribution, or any object with `sample` and `log_density`."""
    if isinstance(model, type):
        raise InputError(f"the input model is {kind(model)}; make an object of it: {model.__name__}(...)")
    if isinstance(model, Custom):  # to ask whether it has all of a model would ask for its center
        return model
    if isinstance(model, InputModel) and not isinstance(model, torch.distributions.Distribution):
        return model
    if isinstance(model, torch.distributions.Distribution):
        from rarely.core.distributions import from_torch  # which builds on this module

        return from_torch(model)
    missing = [name for name in ("sample",) if not callable(getattr(model, name, None))]
    if not callable(getattr(model, "log_density", None)) and not callable(getattr(model, "log_prob", None)):
        missing.append("log_density")
    has_map = callable(getattr(model, "from_normal", None)) and getattr(model, "normal_dim", None) is not None
    if missing == ["log_density"] and has_map:
        missing = []  # a generator: everything happens in the space of its latent
    if missing:
        if isinstance(model, Tensor | np.ndarray | list):
            raise InputError(
                "the input model is an array, and a distribution is needed: rarely.LpBall(array, 0.1) is uniform noise "
                "around it, rarely.Gaussian(array, 0.1) normal noise"
            )
        raise InputError(
            f"the input model {type(model).__name__} has no {' and no '.join(missing)}; it needs "
            "sample(n) -> (n, *event) and log_density(x) -> (n,), or be one of the models of rarely.inputs"
        )
    if hasattr(model, "log_kept") and not hasattr(model, "log_share"):
        raise InputError(f"the input model {type(model).__name__} has log_kept and no log_share: the log of its mean")
    shape = getattr(model, "event_shape", None)
    if shape is None:
        drawn = torch.as_tensor(Rng(0).globally(lambda: model.sample(2)))
        if drawn.ndim < 1 or drawn.shape[0] != 2:
            raise InputError(f"the input model's sample(2) must return 2 inputs, got shape {tuple(drawn.shape)}")
        shape = tuple(drawn.shape[1:])
    return Custom(model, tuple(shape), int(model.normal_dim) if has_map else None)
