"""What a law offers whose coordinates are independent and all of one kind: programs that work on each alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Coordinates(NamedTuple):
    """Uniform between `first` and `second`, or normal with mean `first` and standard deviation `second`; (*event)."""

    uniform: bool
    first: Tensor
    second: Tensor


def coordinates_of(inputs: Any) -> Coordinates | None:
    """Those of an input model, for one problem or stacked; None where it is something else."""
    found: Coordinates | None = getattr(inputs, "coordinates", None)
    return found
