from __future__ import annotations

import contextlib
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarely.core.errors import FormatError, MissingExtra, RarelyError
from rarely.io.formats.vnnlib import parse_vnnlib

HEAD = """; a comment
(vnnlib-version <2.0>)
(declare-network f
  (declare-input X float32 [1,2])
  (declare-output Y float32 [2]))
"""
BOX = "".join(f"(assert (<= X[0,{i}] 1.0))\n(assert (>= X[0,{i}] -1.0))\n" for i in range(2))
OUT = "(assert (<= Y[0] Y[1]))\n"
needs_package = pytest.mark.skipif(find_spec("vnnlib") is None, reason="the extra vnnlib2 is not installed")
LINE = 10  # where text after HEAD and BOX begins


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vnnlib", None)
    with pytest.raises(MissingExtra, match=r"rarely\[vnnlib2\]"):
        parse_vnnlib(HEAD + BOX + OUT)


@needs_package
def test_input_or_and_output_or(violates) -> None:
    """The combination that the package's own transformation gets wrong."""
    inputs = "(assert (or (<= X[0,0] -0.5) (>= X[0,0] 0.5)))\n"
    outputs = "(assert (or (<= (+ Y[0] (* -2.0 Y[1])) 0.0) (and (> Y[0] 3.0) (== Y[1] 1.0))))\n"
    spec = parse_vnnlib(HEAD + BOX + inputs + outputs)
    assert (spec.n_inputs, spec.n_outputs) == (2, 2)
    assert [len(case.outputs) for case in spec.cases] == [2, 2]
    np.testing.assert_array_equal(spec.cases[1].low, [0.5, -1])
    rng = np.random.default_rng(0)
    for x, y in zip(rng.uniform(-1.2, 1.2, (300, 2)), rng.normal(0, 3, (300, 2)), strict=True):
        y = y if rng.random() < 0.7 else np.array([y[0], 1.0])
        truth = abs(x).max() <= 1 and abs(x[0]) >= 0.5
        truth = truth and (y[0] - 2 * y[1] <= 0 or (y[0] > 3 and y[1] == 1))
        assert violates(spec, x, y) == truth


@needs_package
def test_arithmetic_and_row_major_indices() -> None:
    text = """(vnnlib-version <2.0>)
    (declare-network f (declare-input X real [2,2]) (declare-output Y real []))
    (assert (and (<= X[0,0] 1.0) (<= X[0,1] 2.0) (<= X[1,0] 3.0) (<= (- X[1,1] 1.0) 3.0)))
    (assert (and (>= X[0,0] 0.0) (>= X[0,1] 0.0) (>= X[1,0] 0.0) (<= (- X[1,1]) 0.0)))
    (assert (<= (+ X[0,1] X[1,0]) 4.0))
    (assert (>= Y 0.5))"""
    (case,) = parse_vnnlib(text).cases
    np.testing.assert_array_equal(case.high, [1, 2, 3, 4])
    np.testing.assert_array_equal(case.low, [0, 0, 0, 0])
    assert case.input_constraints is not None
    np.testing.assert_array_equal(case.input_constraints.A, [[0, 1, 1, 0]])
    np.testing.assert_array_equal(case.outputs[0].A, [[-1]])


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("(assert (!= Y[0] 1.0))", LINE, "NotEqual is not supported"),
        ("(assert (== (* Y[0] Y[1]) 1.0))", LINE, "not linear"),
        ("(assert (<= Y[0] X[0,0]))", LINE, "mixes inputs"),
        ("(assert (<= X[0,0]\n -3.0))", LINE, "contradictory bounds"),
        ("(assert (<= Y[7] 1.0))", LINE, "out of bounds"),
        ("(assert (<= Z[0] 1.0))", LINE, "Undeclared variable"),
        ("(assert (<= Y[0] 1.0)", LINE, "syntax error"),
        ("(assert (<= Y[99999999999999999999] 1.0))", None, "number"),
        ("\0", LINE, "outside of a comment"),
        ("é", LINE, "outside of a comment"),
        ("(" * 2_000_000, LINE, "nested more than"),
    ],
)
@needs_package
def test_refused(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_vnnlib(HEAD + BOX + text, "file.vnnlib")
    assert reason in caught.value.reason
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float32 [2]", "int8 [2]", "only real and floating"),
        ("(declare-output", "(declare-input Z float32 [1]) (declare-output", "2 input tensors"),
        ("(declare-output", '(declare-hidden H float32 [1] "h") (declare-output', "hidden"),
        ("(assert (<= X[0,1] 1.0))", "", r"X\[0, 1\] has no upper bound"),
        (OUT, "", "no output constraint"),
        ("<2.0>", "<2.0", "syntax error"),
    ],
)
@needs_package
def test_unsupported_declarations(old: str, new: str, reason: str) -> None:
    text = HEAD + BOX + OUT
    assert old in text
    with pytest.raises(FormatError, match=reason):
        parse_vnnlib(text.replace(old, new))


@needs_package
def test_draft_spelling_of_real() -> None:
    text = (HEAD + BOX + OUT).replace("float32", "Real")
    assert len(parse_vnnlib(text).cases) == 1


@settings(deadline=None, derandomize=True, max_examples=100)
@given(data=st.data())
@needs_package
def test_mutated_files_raise_only_our_errors(data) -> None:
    text = HEAD + BOX + "(assert (or (<= Y[0] 1.5) (and (>= (- Y[0] Y[1]) 0.0) (== X[0,0] 0.5))))"
    pieces = st.sampled_from(["(", ")", "[", "]", "<", ";", "\n", "0", "-", "X", "Y[0]", "and", "1e9", "é"])
    for _ in range(data.draw(st.integers(1, 3))):
        start, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 9))
        text = text[:start] + data.draw(pieces) + text[start + length :]
    with contextlib.suppress(RarelyError):
        parse_vnnlib(text)
