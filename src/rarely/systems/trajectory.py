"""One rollout, signal by signal: what happened, and how near it came to breaking its formula."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from rarely.core.errors import InputError
from rarely.systems.logic import Formula, Several
from rarely.systems.windows import Window

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = np.ndarray[Any, Any]  # (height, width, 3)


@dataclass(frozen=True)
class Names:
    """What the signals are called, in the order of the rows of a rollout."""

    states: tuple[str, ...]
    actions: tuple[str, ...]
    disturbances: tuple[str, ...]

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.all if self.all.count(name) > 1})
        if twice:
            raise InputError(f"{', '.join(map(repr, twice))} names more than one signal; name each its own way")

    @property
    def all(self) -> tuple[str, ...]:
        return self.states + self.actions + self.disturbances


@dataclass(frozen=True)
class Trajectory:
    """What one input leads to. The last state is followed by no action, and no disturbance."""

    inputs: Tensor  # (d,)
    signals: Tensor  # (K, T), a row for each name; actions and disturbances hold at the last moment
    names: Names
    step: float
    formula: Formula | None = None
    pictures: tuple[Picture, ...] = ()  # of every moment until the end of the episode, if they were asked for

    @property
    def times(self) -> Tensor:
        """(T,)"""
        return self.step * self.signals.new_ones(self.signals.shape[1]).cumsum(0) - self.step

    @property
    def states(self) -> Tensor:
        """(T, S)"""
        return self.signals[: len(self.names.states)].T

    @property
    def actions(self) -> Tensor:
        """(T - 1, A)"""
        first = len(self.names.states)
        return self.signals[first : first + len(self.names.actions), :-1].T

    @property
    def disturbances(self) -> Tensor:
        """(T - 1, D)"""
        return self.signals[len(self.names.states) + len(self.names.actions) :, :-1].T

    def __getitem__(self, name: str) -> Tensor:
        """The values (T,) of a signal."""
        if name not in self.names.all:
            raise InputError(f"there is no signal {name!r}; the signals are {', '.join(self.names.all)}")
        return self.signals[self.names.all.index(name)]

    @property
    def robustness(self) -> float:
        """By how much the formula is kept; at most 0 when it is broken."""
        return float(self._of(self._asked())[0])

    @property
    def margins(self) -> dict[str, Tensor]:
        """How each part of the formula fares from each moment on, (T,), by its text.

        A part that must always or eventually hold is followed without that: where its margin is below 0 is when.
        """
        parts = self._asked()
        several = parts.parts if isinstance(parts, Several) else (parts,)
        bare = [part.part if isinstance(part, Window) else part for part in several]
        return {part.text: self._of(part) for part in bare}

    def plot(self, path: str | Path | None = None) -> Figure:
        """States, actions, disturbances and margins over time; written to `path` if that is given."""
        from rarely.systems.drawing import plot_trajectory  # which loads matplotlib

        return plot_trajectory(self, path)

    def film(self, path: str | Path | None = None, pictures: int = 6) -> Figure:
        """Some of the pictures, side by side with their times; written to `path` if that is given."""
        from rarely.systems.drawing import plot_film

        return plot_film(self, path, pictures)

    def _asked(self) -> Formula:
        if self.formula is None:
            raise InputError("this trajectory was replayed without a formula: system.replay(x, formula)")
        return self.formula

    def _of(self, formula: Formula) -> Tensor:
        rows = dict(zip(self.names.all, self.signals, strict=True))
        return formula.robustness(rows, self.step)
