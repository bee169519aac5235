"""What a law offers whose coordinates are independent and all of one kind: programs that work on each alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from rarely.core.arguments import unchanged

_LAW = ("sample", "from_normal", "log_density", "log_kept", "support")  # what coordinates stand for


class Coordinates(NamedTuple):
    """Uniform between `first` and `second`, or normal with mean `first` and standard deviation `second`; (*event)."""

    uniform: bool
    first: Tensor
    second: Tensor


def coordinates_of(inputs: Any) -> Coordinates | None:
    """Those of an input model, for one problem or stacked; None where it is something else."""
    if not unchanged(inputs, "coordinates", *_LAW):
        return None
    found: Coordinates | None = getattr(inputs, "coordinates", None)
    return found
