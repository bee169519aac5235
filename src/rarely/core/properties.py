"""Properties: a violation is score >= 0. Scores compose: `&` is the minimum, `|` the maximum.

A property is a union of ways to fail. `parts` gives the score of each, the property's own score is their maximum.
Estimators that need one direction per way to fail split the event into the disjoint pieces of `Way`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rarely.core.arguments import instance, kind
from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, tensor
from rarely.core.labels import as_class, known_label
from rarely.core.stacking import CannotStack, stack


@runtime_checkable
class Property(Protocol):
    """Scores inputs x (B, N, *event) and outputs y (B, N, *out): N of each of B problems, whose fields broadcast."""

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        """Score of each way to fail, (B, N, K); -inf for one that cannot happen."""
        ...

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        """The largest part, (B, N)."""
        ...


class Composable:
    """`&` and `|` for the final classes below."""

    def __and__(self, other: object) -> Both:
        return Both(_as_property(self), _as_property(other))

    def __or__(self, other: object) -> Either:
        return Either(_as_property(self), _as_property(other))


def _numbers(value: ArrayLike, name: str) -> Tensor:
    """Numbers that outputs are compared with, in float64: a threshold of 0.7 is that, and not the nearest float32."""
    result = tensor(value, name)
    return result.double() if hasattr(value, "dtype") else torch.as_tensor(value, dtype=torch.float64)


def _outputs(y: Tensor) -> Tensor:
    """Outputs (B, N, k) with one dimension of classes or coordinates, whatever shape the network gives them."""
    return y.reshape(*y.shape[:2], -1)


@dataclass(frozen=True, init=False)
class Misclassification(Composable):
    """Another class scores at least as high as the label: s = max_{i != label} y_i - y_label.

    Without a label, the network's own prediction at the input model's center is taken.
    """

    label: Tensor | str | None  # () or stacked (B, 1); the name of a class until a Problem knows its number

    def __init__(self, label: int | str | Tensor | None = None) -> None:
        object.__setattr__(self, "label", as_class(label, "label") if label is not None else None)

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        label = known_label(self.label)
        y = _outputs(y)
        index = label.expand(y.shape[:-1]).unsqueeze(-1)
        return (y - y.gather(-1, index)).scatter(-1, index, -torch.inf)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        label = known_label(self.label)
        y = _outputs(y)
        index = label.expand(y.shape[:-1]).unsqueeze(-1)
        return y.scatter(-1, index, -torch.inf).amax(-1) - y.gather(-1, index).squeeze(-1)


@dataclass(frozen=True, init=False)
class Targeted(Composable):
    """The target class scores at least as high as the label: s = y_target - y_label."""

    label: Tensor | str  # as of Misclassification
    target: Tensor | str

    def __init__(self, label: int | str | Tensor, target: int | str | Tensor) -> None:
        object.__setattr__(self, "label", as_class(label, "label"))
        object.__setattr__(self, "target", as_class(target, "target"))
        if str(self.label) == str(self.target):
            raise InputError(f"target and label are both {label}; they must differ")

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        y = _outputs(y)
        pick = torch.stack((known_label(self.target), known_label(self.label)), -1).expand(*y.shape[:-1], 2)
        chosen = y.gather(-1, pick)
        return chosen[..., 0] - chosen[..., 1]


@dataclass(frozen=True, init=False)
class LinearConstraint(Composable):
    """The violating outputs are those with A y <= b in every row: s = min_r (b - A y)_r.

    `any_of` takes several such sets and is violated in any of them.
    """

    A: Tensor  # (K, m, k): K alternatives of m rows
    b: Tensor  # (K, m); inf in rows that only pad
    limit: Tensor  # (K, m): what outputs are compared with; below b where a row is strict

    def __init__(self, A: ArrayLike, b: ArrayLike) -> None:
        matrix, bound = (_numbers(value, name) for value, name in ((A, "A"), (b, "b")))
        if matrix.ndim == 1 and bound.numel() == 1:
            matrix, bound = matrix[None], bound.reshape(1)
        if matrix.ndim != 2 or bound.shape != matrix.shape[:1]:
            raise InputError(
                f"A has shape {tuple(matrix.shape)} and b {tuple(bound.shape)}; expected (rows, outputs) and (rows,)"
            )
        object.__setattr__(self, "A", matrix[None])
        object.__setattr__(self, "b", bound[None])
        object.__setattr__(self, "limit", self.b)

    @classmethod
    def any_of(cls, alternatives: Sequence[tuple[ArrayLike, ArrayLike]]) -> LinearConstraint:
        """Violated when any of the sets (A, b) contains the outputs."""
        singles = [cls(A, b) for A, b in alternatives]
        if not singles:
            raise InputError("any_of needs at least one alternative")
        rows, outputs = max(s.A.shape[1] for s in singles), singles[0].A.shape[2]
        if any(s.A.shape[2] != outputs for s in singles):
            raise InputError("the alternatives have different numbers of outputs")
        result = object.__new__(cls)
        pads = [rows - s.A.shape[1] for s in singles]
        grown = [torch.nn.functional.pad(s.A, (0, 0, 0, p)) for s, p in zip(singles, pads, strict=True)]
        bounds = [torch.nn.functional.pad(s.b, (0, p), value=torch.inf) for s, p in zip(singles, pads, strict=True)]
        object.__setattr__(result, "A", torch.cat(grown))
        object.__setattr__(result, "b", torch.cat(bounds))
        object.__setattr__(result, "limit", result.b)
        return result

    def as_written(self, dtype: torch.dtype, strict: Sequence[Tensor] | None = None) -> LinearConstraint:
        """The same, outputs compared in `dtype`, which may not hold b, and with A y < b in the rows that are strict.

        The limit is the largest number of `dtype` that A y may be: a number is below b if it is no larger than the one
        before. Proofs go by b itself, which takes strict rows as closed and so says more.
        """
        rows, mask = self.b.shape[1], torch.zeros_like(self.b, dtype=torch.bool)
        if strict is not None:
            mask = torch.stack([torch.nn.functional.pad(s, (0, rows - len(s))) for s in strict]).to(self.b.device)
        limit = self.b.to(dtype)
        away = torch.where(mask, limit.to(self.b) >= self.b, limit.to(self.b) > self.b)
        result = object.__new__(type(self))
        object.__setattr__(result, "A", self.A)
        object.__setattr__(result, "b", self.b)
        lower = torch.nextafter(limit, torch.full_like(limit, -torch.inf))
        object.__setattr__(result, "limit", torch.where(away, lower, limit))
        return result

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        alternatives, rows, outputs = self.A.shape[-3:]
        y = _outputs(y)
        if y.shape[-1] != outputs:
            raise InputError(f"A has {outputs} columns but the network has {y.shape[-1]} outputs")
        matrix = self.A.reshape(-1, alternatives * rows, outputs).to(y.dtype)  # of B problems, or of one
        products = (y @ matrix.mT).reshape(*y.shape[:-1], alternatives, rows)
        return torch.sub(self.limit.to(y.dtype), products).amin(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return self.parts(x, y).amax(-1)


@dataclass(frozen=True)
class Within(Composable):
    """The input lies in a box: s is the smallest distance to its sides. For properties that depend on the region."""

    low: Tensor
    high: Tensor

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.minimum(x - self.low, self.high - x).flatten(2).amin(-1)


@dataclass(frozen=True)
class Both(Composable):
    """Violated when both are: s = min."""

    left: Property
    right: Property

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        pairs = torch.minimum(self.left.parts(x, y).unsqueeze(-1), self.right.parts(x, y).unsqueeze(-2))
        return pairs.flatten(-2)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.minimum(self.left.score(x, y), self.right.score(x, y))


@dataclass(frozen=True)
class Either(Composable):
    """Violated when either is: s = max."""

    left: Property
    right: Property

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([self.left.parts(x, y), self.right.parts(x, y)], -1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(self.left.score(x, y), self.right.score(x, y))


@dataclass(frozen=True)
class Scored(Composable):
    """A user's function (x (n, *event), y (n, *out)) -> scores (n,), row by row. True and False are 1 and -1."""

    function: Callable[[Tensor, Tensor], Any]

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        value = torch.as_tensor(self.function(x.flatten(0, 1), y.flatten(0, 1)))
        rows = x.shape[0] * x.shape[1]
        if value.shape != (rows,):
            raise InputError(f"the property's score of {rows} rows has shape {tuple(value.shape)}, expected ({rows},)")
        if value.dtype == torch.bool:
            value = 2.0 * value.to(y.dtype) - 1
        return value.to(x.device, value.dtype if value.is_floating_point() else y.dtype).reshape(x.shape[:2])


@dataclass(frozen=True)
class Way(Composable):
    """The part of a violation where way `index` scores highest: s = min(s_i, s_i - max_{j != i} s_j).

    These events are disjoint (but for ties) and their union is the violation. For Misclassification this is
    "class i wins".
    """

    whole: Property
    index: Tensor  # (B, 1)

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        parts = self.whole.parts(x, y)
        index = self.index.expand(parts.shape[:-1]).unsqueeze(-1)
        own = parts.gather(-1, index).squeeze(-1)
        others = parts.scatter(-1, index, -torch.inf).amax(-1)
        return torch.minimum(own, own - others)


@dataclass(frozen=True)
class EachProperty:
    """B properties that do not stack, each for its own row of the batch."""

    properties: tuple[Property, ...]

    def take(self, index: Tensor) -> EachProperty:
        return EachProperty(tuple(self.properties[i] for i in index.tolist()))

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        rows = [p.parts(u, v) for p, u, v in zip(self.properties, torch.split(x, 1), torch.split(y, 1), strict=True)]
        width = max(row.shape[-1] for row in rows)
        return torch.cat([torch.nn.functional.pad(r, (0, width - r.shape[-1]), value=-torch.inf) for r in rows])

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat(
            [p.score(u, v) for p, u, v in zip(self.properties, torch.split(x, 1), torch.split(y, 1), strict=True)]
        )


def is_function(prop: Property) -> bool:
    """Whether a user's function has a say in the score."""
    parts = [getattr(prop, name) for name in ("left", "right", "whole") if hasattr(prop, name)]
    return isinstance(prop, Scored) or any(map(is_function, [*parts, *getattr(prop, "properties", ())]))


def stack_properties(properties: Sequence[Property]) -> Property:
    try:
        return stack(properties)
    except CannotStack:
        return EachProperty(tuple(properties))


def adapt_property(given: Any, dtype: torch.dtype) -> Property:
    """A Property from one of ours or from a function of (x, y), for outputs of `dtype`."""
    prop = instance(given, "the property")
    if isinstance(prop, LinearConstraint) and prop.limit is prop.b:
        return prop.as_written(dtype)
    if isinstance(prop, (Both, Either)):
        return type(prop)(adapt_property(prop.left, dtype), adapt_property(prop.right, dtype))
    if isinstance(prop, Property):
        return prop
    if callable(prop):
        return Scored(prop)
    label = f"; for a label write Misclassification({prop})" * isinstance(prop, int)
    raise InputError(
        f"a property must be Misclassification, Targeted, LinearConstraint or a function of (x, y), "
        f"not {kind(prop)}{label}"
    )


def _as_property(prop: object) -> Property:
    if not isinstance(prop, Property):
        raise InputError(
            f"cannot combine a property with {type(prop).__name__}; wrap functions of (x, y) in Scored first"
        )
    return prop
