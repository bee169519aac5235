"""Signal temporal logic: formulas over trajectories, and by how much a trajectory keeps them.

The robustness of a formula is positive where it holds, negative where it does not (Donzé and Maler 2010): the smallest
of what must all hold, the largest of what may. Windows end with the trajectory: what would lie beyond its last moment
is not looked at, `always` over nothing is +inf and `eventually` over nothing -inf, as in RTAMT's discrete time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, tensor
from rarely.systems.extremes import EXACT, Extremes
from rarely.systems.signals import Values

_WHOLE = 1e-6  # by how much of a step a time may miss one


@dataclass(frozen=True)
class Trace:
    """Values of signals at T moments, `step` apart."""

    values: Values
    length: int
    step: float

    def moments(self, low: float, high: float) -> tuple[int, int]:
        """An interval of time as numbers of steps, cut to the trace."""
        return self._steps(low), self.length - 1 if high == math.inf else min(self._steps(high), self.length - 1)

    def _steps(self, time: float) -> int:
        steps = round(time / self.step)
        if abs(time / self.step - steps) > _WHOLE * max(1, steps):
            raise InputError(f"a time of {time:g} is not a whole number of steps of {self.step:g}")
        return steps


class Formula:
    """What the final classes below have in common: `&`, `|`, `~`, and robustness."""

    tight: ClassVar[bool] = True  # whether the text needs no brackets as part of another

    if TYPE_CHECKING:  # a field of one class, computed by the others

        @property
        def text(self) -> str:
            raise NotImplementedError

        @property
        def names(self) -> frozenset[str]:
            """Signals that it needs."""
            raise NotImplementedError

        @property
        def horizon(self) -> float:
            """How far ahead it looks at least."""
            raise NotImplementedError

    def evaluate(self, trace: Trace, extremes: Extremes) -> Tensor:
        """Robustness (..., T) from each moment on."""
        raise NotImplementedError

    def robustness(self, signals: Mapping[str, ArrayLike], step: float = 1.0, temperature: float = 0.0) -> Tensor:
        """Robustness (..., T) from each moment on, of signals (..., T) whose values are `step` apart.

        With a temperature, minima and maxima are smooth ones, by log-sum-exp, and the result is never above the
        robustness itself. Each minimum or maximum over n values lowers it by at most temperature * log(n).
        """
        missing = self.names - signals.keys()
        if missing:
            raise InputError(f"{self.text} speaks of {min(missing)!r}; the signals are {', '.join(signals)}")
        values = {name: tensor_of(signals[name], name) for name in self.names}
        lengths = {value.shape[-1] for value in values.values()}
        if len(lengths) > 1:
            raise InputError(f"signals have {sorted(lengths)} moments; they must share one number")
        return self.evaluate(Trace(values, lengths.pop(), step), Extremes(temperature) if temperature else EXACT)

    def implies(self, other: Formula) -> Formula:
        """Where this holds, the other does."""
        return Not(self) | other

    def __repr__(self) -> str:
        return self.text

    def __and__(self, other: Formula) -> Formula:
        return several("&", self, other)

    def __or__(self, other: Formula) -> Formula:
        return several("|", self, other)

    def __invert__(self) -> Formula:
        return Not(self)

    def __bool__(self) -> bool:
        raise InputError(
            f"{self.text} is a formula and has no truth of its own; combine formulas with &, | and ~ in place of "
            "`and`, `or`, `not`, and write 0 < x < 1 as (x > 0) & (x < 1)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Predicate(Formula):
    """A signal compared with another: by how much the one is larger."""

    text: str
    names: frozenset[str]
    margin: Callable[[Values], Tensor]
    horizon = 0.0
    tight = False

    def evaluate(self, trace: Trace, extremes: Extremes) -> Tensor:
        return self.margin(trace.values)


@dataclass(frozen=True, eq=False, repr=False)
class Not(Formula):
    """The part does not hold."""

    part: Formula

    @property
    def text(self) -> str:
        return f"~({self.part.text})"

    @property
    def names(self) -> frozenset[str]:
        return self.part.names

    @property
    def horizon(self) -> float:
        return self.part.horizon

    def evaluate(self, trace: Trace, extremes: Extremes) -> Tensor:
        return -self.part.evaluate(trace, extremes.mirrored())


@dataclass(frozen=True, eq=False, repr=False)
class Several(Formula):
    """Every part holds, or at least one."""

    sign: Literal["&", "|"]
    parts: tuple[Formula, ...]
    said: str = ""  # what it is called instead of by its parts
    tight = False

    @property
    def text(self) -> str:
        return self.said or f" {self.sign} ".join(part.text if part.tight else f"({part.text})" for part in self.parts)

    @property
    def names(self) -> frozenset[str]:
        return joined_names(self.parts)

    @property
    def horizon(self) -> float:
        return max(part.horizon for part in self.parts)

    def evaluate(self, trace: Trace, extremes: Extremes) -> Tensor:
        values = [part.evaluate(trace, extremes) for part in self.parts]
        if self.sign == "&":
            return extremes.as_least(reduce(extremes.least, values), len(values))
        return extremes.as_most(reduce(extremes.most, values), len(values))


def several(sign: Literal["&", "|"], *formulas: Formula) -> Formula:
    """All of them, or any of them; what is joined by the same sign already becomes one."""
    parts: list[Formula] = []
    for one in map(as_formula, formulas):
        parts += one.parts if isinstance(one, Several) and one.sign == sign and not one.said else [one]
    return Several(sign, tuple(parts))


def tensor_of(values: ArrayLike, name: str) -> Tensor:
    """Values of a signal, where they are and with their gradients if they are a tensor."""
    found = values if isinstance(values, Tensor) and values.is_floating_point() else tensor(values, f"signal {name!r}")
    if found.ndim == 0 or found.shape[-1] == 0:
        raise InputError(f"signal {name!r} needs a value for at least one moment")
    return found


def as_formula(value: object) -> Formula:
    if not isinstance(value, Formula):
        raise InputError(
            f"expected a formula, such as signal('gap') > 2, and got {value!r}; compare signals before combining them"
        )
    return value


def joined_names(parts: tuple[Formula, ...]) -> frozenset[str]:
    return frozenset().union(*(part.names for part in parts))
