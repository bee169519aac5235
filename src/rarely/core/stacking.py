"""Stacking values that describe one problem into one value that describes B problems.

Input models and properties are frozen dataclasses. A tensor field of one problem has the shape the user gave it;
stacked, it is (B, 1, *shape), so that the same broadcasting code serves (N, ...) rows of one problem and
(B, N, ...) rows of a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

T = TypeVar("T")


class CannotStack(Exception):
    """The values differ in kind or shape; the caller loops over them instead."""


@runtime_checkable
class PerRow(Protocol):
    """A value that holds one object per row instead of stacked tensors."""

    def take(self, index: Tensor) -> PerRow: ...


@runtime_checkable
class Movable(Protocol):
    """A value that knows how to move to a device, such as a network."""

    def placed(self, device: torch.device, dtype: torch.dtype | None) -> Movable: ...


def stack(items: Sequence[T]) -> T:
    """One value for all items, or CannotStack."""
    first: Any = items[0]
    if isinstance(first, Tensor):
        tensors: list[Tensor] = [item for item in items if isinstance(item, Tensor)]
        if len(tensors) != len(items) or any(t.shape != first.shape or t.dtype != first.dtype for t in tensors):
            raise CannotStack
        return torch.stack(tensors).unsqueeze(1)  # type: ignore[return-value]
    if isinstance(first, tuple):
        if any(not isinstance(item, tuple) or len(item) != len(first) for item in items):
            raise CannotStack
        return tuple(stack(parts) for parts in zip(*items, strict=True))  # type: ignore[return-value]
    if dataclasses.is_dataclass(first) and getattr(first, "stackable", True):
        if any(type(item) is not type(first) for item in items):
            raise CannotStack
        return _rebuild(items[0], lambda name: stack([getattr(item, name) for item in items]))
    if all(item is first for item in items):
        return items[0]
    if isinstance(first, int | float | str | bool | torch.Size | torch.dtype) and all(item == first for item in items):
        return items[0]
    raise CannotStack


def take(value: T, index: Tensor) -> T:
    """The stacked value for the problems at `index`."""

    def whole(part: Any) -> Any:
        return part.take(index) if isinstance(part, PerRow) else None

    return _map(value, lambda tensor: tensor[index.to(tensor.device)], whole)


def place(value: T, device: torch.device, dtype: torch.dtype) -> T:
    """The value on a device, floating fields in `dtype`."""

    def whole(part: Any) -> Any:
        return part.placed(device, dtype) if isinstance(part, Movable) else None

    return _map(value, lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype), whole)


def _map(value: T, function: Callable[[Tensor], Tensor], whole: Callable[[Any], Any]) -> T:
    """Every tensor through `function`; what `whole` has an answer for is not looked into."""
    if isinstance(value, Tensor):
        return function(value)  # type: ignore[return-value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(_map(part, function, whole) for part in value)  # type: ignore[return-value]
    if (answer := whole(value)) is not None:
        return answer  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and getattr(value, "stackable", True):
        return _rebuild(value, lambda name: _map(getattr(value, name), function, whole))
    return value


def _rebuild(template: T, field: Callable[[str], Any]) -> T:
    # Not dataclasses.replace: __post_init__ checks a user's arguments, and these are not a user's.
    clone = object.__new__(type(template))
    for spec in dataclasses.fields(template):  # type: ignore[arg-type]
        object.__setattr__(clone, spec.name, field(spec.name))
    return clone
