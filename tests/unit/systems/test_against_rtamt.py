"""Robustness as the reference implementation computes it, over discrete time and whole traces."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch

from rarely.systems import Formula, always, eventually, signal, until

with warnings.catch_warnings():  # its parser speaks to an older Python
    warnings.simplefilter("ignore")
    rtamt = pytest.importorskip("rtamt", exc_type=ImportError)

SIGNALS = ("x", "y", "z")
Pair = tuple[Formula, str]  # ours, and the text of the same formula


def _formula(rng: random.Random, depth: int) -> Pair:
    if depth == 0 or rng.random() < 0.15:
        name, other, bound = rng.choice(SIGNALS), rng.choice(SIGNALS), round(rng.uniform(-2, 2), 2)
        s = signal(name)
        return rng.choice(
            [
                (s > bound, f"{name} > {bound}"), (s <= bound, f"{name} <= {bound}"),
                (s - signal(other) >= bound, f"{name} - {other} >= {bound}"),
                (abs(s) < abs(bound), f"abs({name}) < {abs(bound)}"),
                (abs(s) > abs(bound), f"abs({name}) > {abs(bound)}"),
            ]
        )  # fmt: skip
    (a, one), (b, two) = _formula(rng, depth - 1), _formula(rng, depth - 1)
    low = rng.randint(0, 5)
    high = low + rng.randint(0, 6)
    return rng.choice(
        [
            (~a, f"not({one})"), (a & b, f"({one}) and ({two})"), (a | b, f"({one}) or ({two})"),
            (a.implies(b), f"({one}) implies ({two})"),
            (always(a), f"always({one})"), (eventually(a), f"eventually({one})"),
            (until(a, b), f"({one}) until ({two})"),
            (always(a, low, high), f"always[{low},{high}]({one})"),
            (eventually(a, low, high), f"eventually[{low},{high}]({one})"),
            (until(a, b, low, high), f"({one}) until[{low},{high}] ({two})"),
        ]
    )  # fmt: skip


def _reference(text: str, trace: dict[str, list[float]]) -> list[float]:
    specification: Any = rtamt.StlDiscreteTimeSpecification()
    for name in SIGNALS:
        specification.declare_var(name, "float")
    specification.spec = text
    specification.parse()
    moments = len(trace["x"])
    return [value for _, value in specification.evaluate({"time": list(range(moments)), **trace})]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_hundreds_of_formulas_and_traces(depth: int) -> None:
    rng = random.Random(depth)
    for _ in range(200):
        formula, text = _formula(rng, depth)
        moments = rng.randint(2, 16)  # the reference needs two
        trace = {name: [rng.gauss(0, 1.5) for _ in range(moments)] for name in SIGNALS}
        ours = formula.robustness({name: torch.tensor(row, dtype=torch.float64) for name, row in trace.items()})
        assert ours.tolist() == pytest.approx(_reference(text, trace), abs=1e-12), text


def test_another_formula_differs() -> None:
    trace = {name: [1.0, -2.0, 3.0] for name in SIGNALS}
    ours = always(signal("x") > 0, 1, 2).robustness(trace).tolist()
    assert ours != pytest.approx(_reference("always[0,2](x > 0)", trace))
