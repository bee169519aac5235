"""Inputs made of parts that can be drawn anew one by one: tokens, categories, switches."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard, runtime_checkable

from torch import Tensor

from rarely.core.rng import Rng


@runtime_checkable
class Redrawn(Protocol):
    """An input model that can draw parts of an input anew: what moves need where there is no map from normals."""

    @property
    def parts(self) -> int:
        """How many parts an input has, such as the tokens of a sequence."""
        ...

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        """x (..., *event) with the `chosen` parts (..., parts) drawn from their law given all others."""
        ...


@runtime_checkable
class Categorical(Redrawn, Protocol):
    """One whose parts are independent of each other, each a number that says which of some things it is."""

    def log_parts(self, x: Tensor) -> Tensor:
        """Log-probability of every part of x (..., parts)."""
        ...


@runtime_checkable
class Coded(Protocol):
    """One that may be all categories, whatever its inputs look like: they are written as codes, and read again."""

    @property
    def codes(self) -> Any:
        """The categorical law of the codes (parts,), one of each part; None where something is no category."""
        ...

    @property
    def coded_parts(self) -> int:
        """How many parts they have; known of stacked models, too."""
        ...

    def coded(self, codes: Tensor) -> Tensor:
        """Inputs (..., *event) of codes (..., parts)."""
        ...


def redrawn(model: object) -> TypeGuard[Redrawn]:
    """Whether a model can; one that is made of others can if all of them do, and has None parts otherwise."""
    return isinstance(model, Redrawn) and model.parts is not None


def categorical(model: object) -> TypeGuard[Categorical]:
    """Whether a model's parts are its numbers, with probabilities of their own."""
    own = redrawn(model) and tuple(getattr(model, "event_shape", ())) == (model.parts,)
    return own and callable(getattr(model, "log_parts", None))


def evened(model: object, share: float) -> Any:
    """A categorical model with evener probabilities; None if it cannot.

    What holds rare categories comes oftener there. Weighed back, its draws are worth a `share` of their number.
    """
    evener = getattr(model, "evened", None)
    return evener(share) if callable(evener) and categorical(model) else None
