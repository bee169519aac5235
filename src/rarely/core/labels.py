"""Labels of classes: numbers, or names that a network explains."""

from __future__ import annotations

import torch
from torch import Tensor

from rarely.core.arguments import whole
from rarely.core.errors import InputError


def known_label(label: Tensor | str | None) -> Tensor:
    if isinstance(label, Tensor):
        return label
    raise InputError("the label is not known yet; make a Problem, which takes it from the network, or give its number")


def as_class(value: int | str | Tensor, name: str) -> Tensor | str:
    return value if isinstance(value, str) else as_label(value, name)


def as_label(value: int | Tensor, name: str) -> Tensor:
    if isinstance(value, str):
        raise InputError(f"{name} is the number of a class, got {value!r}: its place in your list of names, from 0")
    label = whole(value, name)
    if label < 0:
        raise InputError(f"{name} must be a whole number of at least 0, got {label}")
    return torch.tensor(label)
