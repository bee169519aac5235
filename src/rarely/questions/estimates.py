"""The answers of many problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rarely.questions import showing
from rarely.questions.result import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Estimates(list[Estimate]):
    """A list of estimates that prints one line each, and that a notebook shows as one table."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return showing.estimates_html(self)

    def plot(self) -> Figure:
        """A matplotlib figure: the probability of each problem with its interval."""
        from rarely.display.figures import plot_probabilities

        return plot_probabilities(self)

    def to_frame(self) -> Any:
        """A pandas frame with a row for each."""
        return showing.frame(self)
