"""A formula of signal temporal logic as the property of a network whose outputs are trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.properties import Composable
from rarely.inputs.laws import with_slope
from rarely.systems.logic import Formula, Several
from rarely.systems.windows import Window

_MOST = 8  # ways to fail that methods look for one by one


@dataclass(frozen=True)
class Breaks(Composable):
    """The trajectory does not keep the formula: its robustness at the first moment is at most 0.

    The network gives signals (n, K, T): a row for each name of `signals`, a column for each moment, `step` apart. With
    a `temperature` gradients are those of the smooth robustness, which see more than the worst moment; scores, and so
    the event and its probability, are those of the formula itself.
    """

    formula: Formula
    signals: tuple[str, ...]
    step: float = 1.0
    temperature: float = 0.0
    ways: tuple[Formula, ...] = field(init=False, repr=False)  # broken formulas of which each breaks the whole

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise InputError(f"step must be a positive time, got {self.step}")
        unknown = sorted(self.formula.names - set(self.signals))
        if unknown:
            raise InputError(
                f"the formula speaks of {', '.join(map(repr, unknown))}; the signals are {', '.join(self.signals)}"
            )
        found = tuple(_conjuncts(self.formula))
        object.__setattr__(self, "ways", found if len(found) <= _MOST else (self.formula,))

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        rows = self._rows(y)
        return torch.stack([-self._robustness(way, rows) for way in self.ways], -1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._robustness(self.formula, self._rows(y))

    def _rows(self, y: Tensor) -> dict[str, Tensor]:
        if y.ndim != 4 or y.shape[2] != len(self.signals):
            raise InputError(
                f"the network gives {tuple(y.shape[2:])} for one input, expected ({len(self.signals)}, moments): "
                f"a row for each of {', '.join(self.signals)}"
            )
        if round(self.formula.horizon / self.step) >= y.shape[3]:
            raise InputError(
                f"{self.formula.text} looks {self.formula.horizon:g} ahead, and a trajectory of {y.shape[3]} moments "
                f"lasts {(y.shape[3] - 1) * self.step:g}; shorten its intervals or simulate longer"
            )
        return dict(zip(self.signals, y.unbind(2), strict=True))

    def _robustness(self, formula: Formula, rows: dict[str, Tensor]) -> Tensor:
        exact = formula.robustness(rows, self.step)[..., 0]
        if not self.temperature or not exact.requires_grad:
            return exact
        return with_slope(exact, formula.robustness(rows, self.step, self.temperature)[..., 0])


def _conjuncts(formula: Formula) -> list[Formula]:
    """Formulas that must all hold for this one to hold: what is always all of several is always each."""
    if isinstance(formula, Several) and formula.sign == "&":
        return [way for part in formula.parts for way in _conjuncts(part)]
    if isinstance(formula, Window) and formula.kind == "always":
        return [Window("always", way, formula.low, formula.high) for way in _conjuncts(formula.part)]
    return [formula]
