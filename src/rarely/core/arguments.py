"""Numbers, types and objects as callers give them: what is clear is taken, else a sentence names the fix."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from rarely.core.errors import InputError


def whole(value: Any, name: str) -> int:
    """A whole number, also one that numpy or torch holds, or a float such as 1e6."""
    number = _number(value, name, "a whole number")
    if not float(number).is_integer():
        raise InputError(f"{name} must be a whole number, got {value}")
    return int(number)


def real(value: Any, name: str) -> float:
    """A number, also one that numpy or torch holds."""
    return float(_number(value, name, "a number"))


def settle(owner: Any) -> None:
    """Numbers of a frozen dataclass of settings become what their annotations say; one that is none is named."""
    for spec in fields(owner):
        value, kinds = getattr(owner, spec.name), str(spec.type).split(" | ")
        if (value is None and "None" in kinds) or (isinstance(value, str) and repr(value) in str(spec.type)):
            continue
        if "int" in kinds and not isinstance(value, int):
            object.__setattr__(owner, spec.name, whole(value, spec.name))
        elif "float" in kinds and not isinstance(value, int | float):
            object.__setattr__(owner, spec.name, real(value, spec.name))


def ends(value: Any, name: str) -> tuple[Any, Any]:
    """The two ends of a range."""
    try:
        low, high = value
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be two ends (low, high), got {value!r}") from error
    return low, high


def _number(value: Any, name: str, kind: str) -> int | float:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        with suppress(ValueError, RuntimeError):  # of several numbers, none of which is meant
            value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        quoted = ", without the quotes" if isinstance(value, str) and _is_number(value) else ""
        raise InputError(f"{name} must be {kind}{quoted}, got {value!r}")
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def floating(value: Any) -> torch.dtype:
    """A precision, given as torch or numpy call it: torch.float64, "float64", "double", numpy.float64."""
    name = value if isinstance(value, str) else getattr(value, "__name__", None) or getattr(value, "name", None)
    found = value if isinstance(value, torch.dtype) else getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f'dtype must be a floating type such as torch.float64 or "float32", got {value!r}')
    return found


def kind(given: Any) -> str:
    """What somebody gave, in words."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return "None" if given is None else f"{given!r}" if isinstance(given, int | float) else type(given).__name__


def instance(given: Any, what: str) -> Any:
    """What was given, or, of a class that needs no arguments, one object of it."""
    if not isinstance(given, type):
        return given
    try:
        return given()
    except TypeError as error:
        name = given.__name__
        raise InputError(f"{what} is the class {name}; make an object of it: {name}(...)") from error


def unchanged(value: object, name: str, *others: str) -> bool:
    """Whether no class derived from the one that says `name` says any of the `others` anew: it knew nothing of them."""
    order = type(value).__mro__

    def place(name: str) -> int:
        return next((i for i, kind in enumerate(order) if name in vars(kind)), len(order))

    return all(place(other) >= place(name) for other in others)
