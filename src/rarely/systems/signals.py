"""Signals of a trajectory and what is computed from them, compared with numbers to make formulas."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rarely.core.errors import InputError

if TYPE_CHECKING:
    from rarely.systems.logic import Formula

Values = Mapping[str, Tensor]  # name of a signal -> its values (..., T)


@dataclass(frozen=True, eq=False)
class Signal:
    """A number at every moment of a trajectory. It adds, multiplies, and becomes a formula where it is compared."""

    text: str
    names: frozenset[str]  # signals of the system that it is made of
    read: Callable[[Values], Tensor]
    tight: bool = True  # whether the text needs no brackets as part of another
    inner: Signal | None = None  # of which this is the magnitude

    def __repr__(self) -> str:
        return self.text

    def __add__(self, other: Signal | float) -> Signal:
        return _combined(operator.add, "+", self, other)

    def __radd__(self, other: float) -> Signal:
        return _combined(operator.add, "+", other, self)

    def __sub__(self, other: Signal | float) -> Signal:
        return _combined(operator.sub, "-", self, other)

    def __rsub__(self, other: float) -> Signal:
        return _combined(operator.sub, "-", other, self)

    def __mul__(self, other: Signal | float) -> Signal:
        return _combined(operator.mul, "*", self, other)

    def __rmul__(self, other: float) -> Signal:
        return _combined(operator.mul, "*", other, self)

    def __truediv__(self, other: Signal | float) -> Signal:
        return _combined(operator.truediv, "/", self, other)

    def __neg__(self) -> Signal:
        return Signal(f"-{_part(self)}", self.names, lambda values: -self.read(values))

    def __abs__(self) -> Signal:
        return Signal(f"abs({self.text})", self.names, lambda values: self.read(values).abs(), inner=self)

    def __gt__(self, other: Signal | float) -> Formula:
        return _compared(self, ">", other)

    def __ge__(self, other: Signal | float) -> Formula:
        return _compared(self, ">=", other)

    def __lt__(self, other: Signal | float) -> Formula:
        return _compared(self, "<", other)

    def __le__(self, other: Signal | float) -> Formula:
        return _compared(self, "<=", other)

    def __bool__(self) -> bool:
        raise InputError(f"{self.text} is a signal, which has no truth of its own; compare it with a number")


def signal(name: str) -> Signal:
    """The signal of that name: an entry of the state, of the action, or of the disturbance."""
    return Signal(name, frozenset({name}), lambda values: values[name])


def derived(text: str, function: Callable[..., Tensor], *signals: Signal | str) -> Signal:
    """A function of signals: `derived("distance", torch.hypot, "x", "y")`. It is called with their values (..., T)."""
    made = [signal(one) if isinstance(one, str) else one for one in signals]
    if not made:
        raise InputError(f"name the signals that {text!r} is computed from")
    names = frozenset().union(*(one.names for one in made))
    return Signal(text, names, lambda values: function(*(one.read(values) for one in made)))


def _combined(function: Callable[[Any, Any], Tensor], sign: str, left: Signal | float, right: Signal | float) -> Signal:
    a, b = _read(left), _read(right)
    names = frozenset().union(*(side.names for side in (left, right) if isinstance(side, Signal)))
    text = f"{_part(left)} {sign} {_part(right)}"
    return Signal(text, names, lambda values: function(a(values), b(values)), tight=False)


def _compared(left: Signal, sign: str, right: Signal | float) -> Formula:
    from rarely.systems.logic import Predicate, Several  # which builds on this module

    if left.inner is not None and not isinstance(right, Signal):
        # The same robustness, as two formulas: a system may fail to either side, and methods look for both.
        bound, below = _number(right), sign.startswith("<")
        other = sign.replace("<", ">") if below else sign.replace(">", "<")
        sides = (_compared(left.inner, sign, bound), _compared(left.inner, other, -bound))
        return Several("&" if below else "|", sides, f"{left.text} {sign} {bound:g}")
    high, low = (left, right) if sign.startswith(">") else (right, left)
    a, b = _read(high), _read(low)
    names = left.names | (right.names if isinstance(right, Signal) else frozenset())
    text = f"{left.text} {sign} {right.text if isinstance(right, Signal) else f'{_number(right):g}'}"
    return Predicate(text, names, lambda values: a(values) - b(values))


def _read(value: Signal | float) -> Callable[[Values], Any]:
    if isinstance(value, Signal):
        return value.read
    number = _number(value)
    return lambda _: number


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError(f"a signal is compared or combined with a number or a signal, not {value!r}") from error


def _part(value: Signal | float) -> str:
    if not isinstance(value, Signal):
        return f"{_number(value):g}"
    return value.text if value.tight else f"({value.text})"
