"""Formulas of signal temporal logic: their values, their texts, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rarely.core.errors import InputError
from rarely.systems import Breaks, Formula, always, derived, eventually, signal, until

x, y = signal("x"), signal("y")
X = [1.0, 2.0, -3.0, 4.0, 5.0]
Y = [-1.0, -2.0, -1.0, 3.0, -5.0]
INF = math.inf


def robustness(formula: Formula, **options: float) -> list[float]:
    return formula.robustness({"x": X, "y": Y}, **options).tolist()


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (x > 0, X),
        (x >= 1, [0, 1, -4, 3, 4]),
        (x < 2, [1, 0, 5, -2, -3]),
        (x > y, [2, 4, -2, 1, 10]),
        (abs(x) < 2, [1, 0, -1, -2, -3]),
        (abs(x) > 2, [-1, 0, 1, 2, 3]),
        (abs(x) < y, [-2, -4, -4, -1, -10]),
        (2 * x - y / 2 + 1 > 0, [3.5, 6, -4.5, 7.5, 13.5]),
        (-x + 3 > 1 - y, [0, -2, 4, 1, -8]),
        ((x > 0) & (y > 0), [-1, -2, -3, 3, -5]),
        ((x > 0) | (y > 0), [1, 2, -1, 4, 5]),
        (~(x > 0), [-1, -2, 3, -4, -5]),
        ((x > 0).implies(y > 0), [-1, -2, 3, 3, -5]),
        (always(x > 0), [-3, -3, -3, 4, 5]),
        (always(x > 0, 0, 1), [1, -3, -3, 4, 5]),
        (always(x > 0, 3, 9), [4, 5, INF, INF, INF]),
        (always(x > 0, 7, 9), [INF] * 5),
        (eventually(y > 0), [3, 3, 3, 3, -5]),
        (eventually(y > 0, 1, 2), [-1, 3, 3, -5, -INF]),
        (until(x > 0, y > 0), [-1, -1, -1, 3, -5]),
        (until(x > 0, y > 0, 1, 3), [-1, -1, -3, -5, -INF]),
        (always(eventually(y > 0, 0, 2), 0, 1), [-1, 3, 3, -5, -5]),
        (derived("larger", torch.maximum, "x", y) > 0, [1, 2, -1, 4, 5]),
    ],
    ids=str,
)
def test_values_by_hand(formula: Formula, expected: list[float]) -> None:
    assert robustness(formula) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (always(x > 2, 0, 40) & eventually(x < 1), "always(x > 2, 0, 40) & eventually(x < 1)"),
        ((x > 0) & (y > 1) & (x < 5), "(x > 0) & (y > 1) & (x < 5)"),
        ((x > 0) & (y > 1) | (x < 5), "((x > 0) & (y > 1)) | (x < 5)"),
        (always(abs(x - 2 * y) <= 1.5), "always(abs(x - (2 * y)) <= 1.5)"),
        ((x + 1) * 2 > y, "(x + 1) * 2 > y"),
        (~until(x > 0, -y > 0, 1, 2), "~(until(x > 0, -y > 0, 1, 2))"),
        ((x > 0).implies(always(y > 0)), "~(x > 0) | always(y > 0)"),
        (always((abs(x) < 1) & (y > 0)), "always((abs(x) < 1) & (y > 0))"),
    ],
)
def test_texts_can_be_read(formula: Formula, text: str) -> None:
    assert repr(formula) == text


def test_times_are_counted_in_steps_of_the_trace() -> None:
    assert robustness(always(x > 0, 0, 0.25), step=0.25) == robustness(always(x > 0, 0, 1))
    assert robustness(eventually(y > 0, 0.1, 0.3), step=0.1) == robustness(eventually(y > 0, 1, 3))
    with pytest.raises(InputError, match=r"a time of 0\.3 is not a whole number of steps of 0\.25"):
        robustness(always(x > 0, 0, 0.3), step=0.25)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: bool(x > 0), "has no truth of its own"),
        (lambda: 0 < x < 1, "write 0 < x < 1 as"),
        (lambda: bool(x), "compare it with a number"),
        (lambda: always(x), "compare signals before combining"),
        (lambda: (x > 0) & 1, "expected a formula"),
        (lambda: x > "1,5", "compared or combined with a number or a signal"),
        (lambda: always(x > 0, 3, 2), "not from 3 to 2"),
        (lambda: always(x > 0, -1, 2), "at least 0"),
        (lambda: always(x > 0, INF, INF), "at least 0"),
        (lambda: derived("f", torch.abs), "name the signals"),
        (lambda: (signal("z") > 0).robustness({"x": X}), "speaks of 'z'; the signals are x"),
        (lambda: (x > y).robustness({"x": X, "y": [1.0]}), r"\[1, 5\] moments"),
        (lambda: (x > 0).robustness({"x": 1.0}), "at least one moment"),
        (lambda: (x > 0).robustness({"x": X}, temperature=-1.0), "temperature must be"),
        (lambda: Breaks(x > 0, ("y",)), "speaks of 'x'; the signals are y"),
        (lambda: Breaks(x > 0, ("x",), 0.0), "step must be"),
    ],
)
def test_what_is_wrong_is_said(wrong: object, sentence: str) -> None:
    assert callable(wrong)
    with pytest.raises(InputError, match=sentence):
        wrong()


SHORT = st.integers(0, 4)
FORMULAS = st.recursive(
    st.sampled_from([x > 0, y > 0, x - y > 0.5, abs(x) < 1, abs(y) > 0.5]),
    lambda inner: st.one_of(
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a, low, more: always(a, low, low + more), inner, SHORT, SHORT),
        st.builds(lambda a, low, more: eventually(a, low, low + more), inner, SHORT, SHORT),
        st.builds(lambda a, b, low, more: until(a, b, low, low + more), inner, inner, SHORT, SHORT),
        st.builds(always, inner),
        st.builds(eventually, inner),
    ),
    max_leaves=6,
)  # fmt: skip
SEEDS = st.integers(0, 2**31)


def _trace(seed: int, moments: int, *lead: int) -> dict[str, Tensor]:
    values = torch.randn(2, *lead, moments, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": values[0], "y": values[1]}


def gap(formula: Formula, moments: int, temperature: float) -> float:
    """By how much the smooth robustness may lie lower: t log n for every operator on the way, n at most the moments."""
    depth, left = 0, [(formula, 0)]
    while left:
        one, d = left.pop()
        depth = max(depth, d)
        parts = [getattr(one, name) for name in ("part", "left", "right") if hasattr(one, name)]
        left += [(part, d + 2) for part in (*parts, *getattr(one, "parts", ()))]  # until has two operators
    return depth * temperature * math.log(max(moments + 1, 2))


@settings(max_examples=150, deadline=None)
@given(FORMULAS, SEEDS, st.integers(1, 9), st.sampled_from([0.01, 0.1, 1.0]))
def test_the_smooth_robustness_is_below_and_near(formula: Formula, seed: int, moments: int, temperature: float) -> None:
    trace = _trace(seed, moments)
    sharp, smooth = formula.robustness(trace), formula.robustness(trace, temperature=temperature)
    finite = sharp.isfinite()
    assert (smooth[finite] <= sharp[finite] + 1e-9).all()
    assert (smooth[finite] >= sharp[finite] - gap(formula, moments, temperature) - 1e-9).all()
    assert (smooth[~finite].sign() == sharp[~finite].sign()).all()


@settings(max_examples=50, deadline=None)
@given(FORMULAS, SEEDS, st.sampled_from([0.0, 0.1]))
def test_batches_are_rows_and_gradients_are_finite(formula: Formula, seed: int, temperature: float) -> None:
    trace = {name: values.requires_grad_() for name, values in _trace(seed, 12, 2, 3).items()}
    together = formula.robustness(trace, temperature=temperature)
    alone = formula.robustness({name: values[1, 2] for name, values in trace.items()}, temperature=temperature)
    assert together.shape == (2, 3, 12)
    torch.testing.assert_close(together[1, 2], alone)
    gradients = torch.autograd.grad(
        together[..., 0].sum(), list(trace.values()), materialize_grads=True, allow_unused=True
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_wrong_side_of_the_smooth_maximum_is_seen() -> None:
    """Without taking off t log n, the smooth maximum would lie above, and `smooth_is_below` would catch it."""
    trace, t = _trace(0, 8), 0.5
    unsafe = t * torch.logsumexp(trace["x"] / t, -1)
    assert unsafe > eventually(x > 0).robustness(trace)[0] > eventually(x > 0).robustness(trace, temperature=t)[0]


class TestBreaks:
    def test_the_parts_are_ways_to_break_it(self) -> None:
        formula = always((abs(x) < 1) & (y > 0)) & eventually(x > y)
        breaks = Breaks(formula, ("x", "y"))
        assert [way.text for way in breaks.ways] == [
            "always(x < 1)", "always(x > -1)", "always(y > 0)", "eventually(x > y)",
        ]  # fmt: skip
        trajectories = torch.randn(2, 5, 2, 9, generator=torch.Generator().manual_seed(0))
        inputs = torch.zeros(2, 5, 1)
        torch.testing.assert_close(breaks.parts(inputs, trajectories).amax(-1), breaks.score(inputs, trajectories))

    def test_many_ways_stay_one(self) -> None:
        whole = always(x > 0)
        for k in range(9):
            whole = whole & always(x > -k - 1)
        assert Breaks(whole, ("x",)).ways == (whole,)

    def test_a_boundary_is_a_violation(self) -> None:
        score = Breaks(always(x > 0), ("x",)).score(torch.zeros(1, 1, 1), torch.tensor([[[[1.0, 0.0, 2.0]]]]))
        assert score.item() == 0.0

    def test_a_formula_that_looks_beyond_the_end_is_refused(self) -> None:
        breaks, rows = Breaks(always(x > 0, 0, 10), ("x",)), torch.zeros(1, 1, 1, 10)
        with pytest.raises(InputError, match=r"looks 10 ahead, and a trajectory of 10 moments lasts 9"):
            breaks.score(torch.zeros(1, 1, 1), rows)
        Breaks(always(x > 0, 0, 9), ("x",)).score(torch.zeros(1, 1, 1), rows)

    def test_other_outputs_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"the network gives \(3, 10\) for one input, expected \(1, moments\)"):
            Breaks(always(x > 0), ("x",)).score(torch.zeros(1, 1, 1), torch.zeros(1, 1, 3, 10))

    def test_a_temperature_changes_slopes_and_no_scores(self) -> None:
        rows = torch.tensor([[[[1.0, 1.1, 3.0]]]], requires_grad=True)
        sharp, smooth = Breaks(always(x > 0), ("x",)), Breaks(always(x > 0), ("x",), temperature=0.5)
        a, b = sharp.score(rows, rows), smooth.score(rows, rows)
        assert torch.equal(a, b)
        (worst,), (all_of_them,) = torch.autograd.grad(a.sum(), rows), torch.autograd.grad(b.sum(), rows)
        assert (worst != 0).sum() == 1
        assert (all_of_them != 0).all()
