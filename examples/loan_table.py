"""For data scientists: how often does a scoring rule lend to the poorest? A table of numbers, integers and categories.

Run it with `python examples/loan_table.py`. The model is a black box, in the manner of a fitted scikit-learn pipeline;
the distribution of the applicants is fitted to a table of past ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import rarely
from rarely.inputs import Tabular

NAMES = ("income", "age", "children", "city")


def past_applicants(n: int = 4_000) -> NDArray[np.float64]:
    """Stands for your data: income in thousands, age, number of children, city 0 to 2."""
    rng = np.random.default_rng(0)
    age = 20 + rng.gamma(4.0, 6.0, n)
    income = np.exp(3.2 + 0.012 * age + 0.35 * rng.normal(size=n))
    return np.stack([income, age, rng.poisson(0.03 * age), rng.choice(3, n, p=[0.5, 0.3, 0.2])], 1)


class Scorer:
    """Stands for any fitted model with `decision_function` for arrays: logistic regression by Newton's method."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        rng = np.random.default_rng(1)
        wanted = 0.08 * rows[:, 0] - 0.4 * rows[:, 2] + 0.5 * (rows[:, 3] == 2) - 1.5 + rng.logistic(size=len(rows)) > 0
        x = self._features(rows[:, 0], rows[:, 1], rows[:, 2], np.eye(3)[rows[:, 3].astype(int)])
        self.weights = np.zeros(x.shape[1])
        for _ in range(25):
            p = 1 / (1 + np.exp(-x @ self.weights))
            hessian = x.T @ (x * (p * (1 - p))[:, None]) + 1e-3 * np.eye(x.shape[1])
            self.weights += np.linalg.solve(hessian, x.T @ (wanted - p) - 1e-3 * self.weights)

    def _features(
        self, income: NDArray[Any], age: NDArray[Any], children: NDArray[Any], city: NDArray[Any]
    ) -> NDArray[np.float64]:
        return np.column_stack([income / 30, (age - 45) / 20, children, city, np.ones(len(income))])

    def decision_function(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Columns as the table gives them: income, age, children, and one for each city."""
        return self._features(x[:, 0], x[:, 1], x[:, 2], x[:, 3:]) @ self.weights


def main() -> None:
    rows = past_applicants()
    table = Tabular.fit(rows, integer=[2], categorical=[3])
    model = Scorer(rows)

    def lent_to_the_poorest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A score of at least 0: an income below 14 and an answer of yes."""
        return torch.minimum((14 - x[:, 0]) / 30, y)

    problem = rarely.Problem(model.decision_function, lent_to_the_poorest, table)
    found = rarely.estimate(problem)
    print("a yes with an income below 14:", found)
    for record in table.records(found.witnesses.inputs[:3]):
        values = (value if isinstance(value, str) else f"{value:.3g}" for value in record.values())
        print("  for example", ", ".join(f"{name} {value}" for name, value in zip(NAMES, values, strict=True)))


if __name__ == "__main__":
    main()
