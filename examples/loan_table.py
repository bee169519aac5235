"""For data scientists: how often does a fitted pipeline lend to the poorest? A table of numbers and categories.

Run it with `python examples/loan_table.py`; it needs scikit-learn and pandas. The network is a fitted pipeline as it
is, of scaled numbers, encoded categories and boosted trees. The applicants are drawn from a law fitted to the table of
past ones, and the answer is compared with as many of them as one has patience for.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import rarely
from rarely.core.rng import Rng
from rarely.inputs import Tabular

POOR = 14.0  # thousand a year
NUMBERS, TEXTS = ["income", "age", "children"], ["city"]


def past_applicants(n: int = 4_000) -> tuple[pd.DataFrame, np.ndarray]:
    """Stands for your data: applicants, and what they were told."""
    rng = np.random.default_rng(0)
    age = 20 + rng.gamma(4.0, 6.0, n)
    income = np.exp(3.2 + 0.012 * age + 0.35 * rng.normal(size=n))
    city = rng.choice(["Bonn", "Essen", "Ulm"], n, p=[0.5, 0.3, 0.2])
    table = pd.DataFrame({"income": income, "age": age, "children": rng.poisson(0.03 * age), "city": city})
    worth = 0.1 * table["income"] - 0.4 * table["children"] + 0.5 * (city == "Ulm") - 2.5
    return table, np.where(worth + rng.logistic(size=n) > 0, "lend", "refuse")


def fitted(table: pd.DataFrame, answers: np.ndarray) -> Pipeline:
    """Put your own model here."""
    columns = ColumnTransformer([("numbers", StandardScaler(), NUMBERS), ("texts", OneHotEncoder(), TEXTS)])
    return make_pipeline(columns, HistGradientBoostingClassifier(random_state=0)).fit(table, answers)


def lent_to_the_poor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A score of at least 0: an income of at most POOR, and `lend`, the first of the two classes, wins."""
    return torch.minimum((POOR - x[:, 0]) / 10, y[:, 0] - y[:, 1])


def main() -> None:
    table, answers = past_applicants()
    applicants = Tabular.fit(table, integer=["children"])
    problem = rarely.Problem(fitted(table, answers), lent_to_the_poor, applicants)
    found = rarely.estimate(problem)
    print(f"lent to somebody with less than {POOR:g} thousand a year:", found)
    print("for example")
    print(pd.DataFrame(applicants.records(found.witnesses.inputs[:3])).round(1).to_string(index=False))

    draws = 200_000
    seen = int((problem.score(applicants.sample(draws, Rng(1))) >= 0).sum())
    print(f"of {draws:,} applicants drawn as they come: {seen}")


if __name__ == "__main__":
    main()
