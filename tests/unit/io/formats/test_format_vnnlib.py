from __future__ import annotations

import contextlib
import gzip
import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarely.core.errors import FormatError, RarelyError
from rarely.io.formats.specification import Polytope
from rarely.io.formats.vnnlib import parse_vnnlib, read_vnnlib

fuzz = settings(deadline=None, derandomize=True, max_examples=200)


def declare(n_inputs: int, n_outputs: int) -> str:
    names = [f"X_{i}" for i in range(n_inputs)] + [f"Y_{j}" for j in range(n_outputs)]
    return "\n".join(f"(declare-const {name} Real)" for name in names) + "\n"


def box(n_inputs: int, low: float, high: float) -> str:
    return "".join(f"(assert (>= X_{i} {low}))\n(assert (<= X_{i} {high}))\n" for i in range(n_inputs))


HEAD = declare(2, 2)
BOX = box(2, -1, 1)
OUT = "(assert (<= Y_0 Y_1))\n"


def test_box_and_disjunction_make_one_case() -> None:
    spec = parse_vnnlib(HEAD + BOX + "(assert (or (and (<= Y_0 Y_1)) (and (>= Y_0 1e-1) (< Y_1 -2.5E1))))")
    assert (spec.n_inputs, spec.n_outputs, spec.source) == (2, 2, "<text>")
    (case,) = spec.cases
    assert case.input_constraints is None
    np.testing.assert_array_equal(case.low, [-1, -1])
    np.testing.assert_array_equal(case.high, [1, 1])
    first, second = case.outputs
    np.testing.assert_array_equal(first.A, [[1, -1]])
    np.testing.assert_array_equal(first.b, [0])
    np.testing.assert_array_equal(second.A, [[-1, 0], [0, 1]])
    np.testing.assert_array_equal(second.b, [-0.1, -25])


def test_two_input_boxes_with_shared_outputs() -> None:
    """The form of ACAS Xu property 6."""
    one = "(and (<= X_0 1) (>= X_0 0) (<= X_1 1) (>= X_1 0))"
    two = "(and (<= X_0 3) (>= X_0 2) (<= X_1 3) (>= X_1 2))"
    spec = parse_vnnlib(HEAD + f"(assert (or {one} {two}))(assert (or (<= Y_0 0) (<= Y_1 0)))")
    assert [len(case.outputs) for case in spec.cases] == [2, 2]
    assert [case.low[0] for case in spec.cases] == [0, 2]


def test_boxes_and_outputs_in_each_clause() -> None:
    """Clauses that repeat a box in other words still share a case."""
    clauses = [
        "(and (<= X_0 1) (>= X_0 0) (<= X_1 1) (>= X_1 0) (<= Y_0 0))",
        "(and (>= 1 X_0) (>= (* 2 X_0) 0) (<= 0 X_1 1) (<= Y_1 0))",
        "(and (<= X_0 9) (>= X_0 0) (<= X_1 1) (>= X_1 0) (<= Y_0 0))",
    ]
    spec = parse_vnnlib(HEAD + f"(assert (or {' '.join(clauses)}))")
    assert [len(case.outputs) for case in spec.cases] == [2, 1]


def test_linear_expressions_and_equalities() -> None:
    text = """
    (assert (<= (+ X_0 (* 2 (- X_1 1)) (- X_0)) 4))  ; X_1 <= 3 in disguise: the terms of X_0 cancel
    (assert (= X_0 0.25))
    (assert (<= -7 X_1))
    (assert (<= (+ X_0 X_1) 2.5))
    (assert (>= 3 (- (* 2.0 Y_0) Y_1 1)))
    (assert (= Y_0 Y_1))
    """
    (case,) = parse_vnnlib(HEAD + text).cases
    np.testing.assert_array_equal(case.low, [0.25, -7])
    np.testing.assert_array_equal(case.high, [0.25, 3])
    assert case.input_constraints is not None
    np.testing.assert_array_equal(case.input_constraints.A, [[1, 1]])
    np.testing.assert_array_equal(case.input_constraints.b, [2.5])
    (outputs,) = case.outputs
    assert {tuple(row) for row in np.c_[outputs.A, outputs.b]} == {(2, -1, 4), (1, -1, 0), (-1, 1, 0)}


def test_tightest_bound_wins_and_equal_disjuncts_merge() -> None:
    more = "(assert (<= X_0 0.5))(assert (<= X_0 0.75))(assert (or (<= Y_0 0) (>= 0 Y_0)))"
    (case,) = parse_vnnlib(HEAD + BOX + more).cases
    assert case.high[0] == 0.5
    assert len(case.outputs) == 1


def test_impossible_combinations_of_disjuncts_vanish() -> None:
    halves = "(assert (or (<= X_0 -0.5) (>= X_0 0.5)))"
    linked = "(assert (or (and (<= X_0 -0.5) (<= Y_0 0)) (and (>= X_0 0.5) (<= Y_1 0)) (< 2 1)))"
    spec = parse_vnnlib(HEAD + BOX + halves + linked)
    assert [(case.low[0], case.high[0]) for case in spec.cases] == [(-1, -0.5), (0.5, 1)]


def test_comments_functions_and_harmless_commands() -> None:
    text = (
        "; ( unbalanced in a comment\n(set-logic QF_LRA)\n(set-info :source |a ( quoted ; symbol|)\n"
        '(set-info :note (a (b) "c)"))\n(declare-fun X_0 () Real)(declare-const Y_0 Real)'
        "(assert(and(<= X_0 1)(>= X_0 +.5)(<= Y_0 1.)))(check-sat)"
    )
    assert parse_vnnlib(text).cases[0].low[0] == 0.5


def test_files_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "p.vnnlib").write_text(HEAD + BOX + OUT)
    (tmp_path / "p.vnnlib.gz").write_bytes(gzip.compress((HEAD + BOX + OUT).encode()))
    for name in ("p.vnnlib", "p.vnnlib.gz"):
        spec = read_vnnlib(tmp_path / name)
        assert spec.source == str(tmp_path / name)
        assert len(spec.cases) == 1


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"(assert\n\xff\xfe)")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"(assert (<= X_0 1))" * 99)[:-12])
    for name, line in (("absent", None), ("binary", 2), ("cut.gz", None), (".", None), ("a\0b", None)):
        with pytest.raises(FormatError) as caught:
            read_vnnlib(f"{tmp_path}/{name}")
        assert caught.value.line == line


MALFORMED = [
    ("(assert (<= Y_0 0)", 10, "never closed"),
    ("(assert (and (<= Y_0 0))\n(assert (<= Y_1 0))", 10, "unbalanced"),
    ("(assert (<= Y_0 0))\n)", 11, "closes nothing"),
    ("(assert (<= Y_0 Y_7))", 10, "undeclared variable 'Y_7'"),
    ("(assert (<= Y_0 Z))", 10, "undeclared variable 'Z'"),
    ("(declare-const Z_0 Real)", 10, "unknown variable 'Z_0'"),
    ("(declare-const X_01 Real)", 10, "unknown variable"),
    ("(declare-const X_0 Real)", 10, "twice"),
    ("(declare-const X_2 Int)", 10, "Int"),
    ("(declare-const X_9 Real)", 10, "X_9 is declared, but X_2 is not"),
    ("(declare-fun X_2 (Real) Real)", 10, "malformed declare-fun"),
    ("(declare-const)", 10, "malformed"),
    ("\n(assert (<= X_0 -2))", 11, "contradictory bounds"),
    ("(assert (or (<= X_0 -2) (>= X_1 2)))", 10, "contradictory bounds"),
    ("(assert (<= 1 0))", None, "contradict each other"),
    ("(assert (or (<= Y_0 0)\n(<= (+ X_0 Y_0) 0)))", 11, "mixes inputs"),
    ("(assert (or (<= Y_0 0) (<= X_0 0)))", None, "no output constraint"),
    ("(assert (<= Y_0 1e999))", 10, "not a finite"),
    ("(assert (<= Y_0 nan))", 10, "not a finite"),
    ("(assert (<= Y_0 -inf))", 10, "not a finite"),
    ("(assert (<= (* 1e300 1e300 Y_0) 1))", 10, "overflow"),
    ("(assert (<= (* 1e-300 X_0) 1e300))", 10, "not a finite"),
    ("(assert (<= (* Y_0 Y_1) 1))", 10, "not linear"),
    ("(assert (not (<= Y_0 1)))", 10, "unsupported operator 'not'"),
    ("(assert (<= Y_0))", 10, "too few"),
    ("(assert (and))", 10, "too few"),
    ("(assert)", 10, "one constraint"),
    ("(assert (<= Y_0 0) (<= Y_1 0))", 10, "one constraint"),
    ("(assert Y_0)", 10, "constraint is expected"),
    ("(assert (+ Y_0 1))", 10, "constraint is expected"),
    ("(assert (and (+ Y_0 1)))", 10, "constraint is expected"),
    ("(assert (<= (<= Y_0 1) 1))", 10, "in place of a constraint"),
    ("(assert ())", 10, "operator is missing"),
    ("(assert ((<= Y_0 1)))", 10, "operator is missing"),
    ("(push 1)", 10, "unknown command 'push'"),
    ("()", 10, "unknown command"),
    ("word", 10, "outside of any command"),
    ('"', 10, "outside of any command"),
]


@pytest.mark.parametrize(("text", "line", "reason"), MALFORMED)
def test_malformed(text: str, line: int | None, reason: str) -> None:
    head = HEAD + BOX + ("; nothing\n" if "no output" in reason else OUT)
    assert head.count("\n") == 9
    with pytest.raises(FormatError) as caught:
        parse_vnnlib(head + text, "file.vnnlib")
    assert reason in caught.value.reason
    assert caught.value.line == line
    assert str(caught.value).startswith("file.vnnlib")


def test_missing_bounds_and_declarations() -> None:
    for text, line, reason in (
        (HEAD + OUT + box(1, 0, 1), 2, "X_1 has no lower bound"),
        (HEAD + OUT + box(1, 0, 1) + "(assert (>= X_1 0))", 2, "X_1 has no upper bound"),
        (HEAD + BOX, None, "no output constraint"),
        (declare(2, 0) + BOX, None, "no output variable"),
        (declare(0, 2) + OUT, None, "no input variable"),
        ("", None, "no input variable"),
    ):
        with pytest.raises(FormatError, match=reason) as caught:
            parse_vnnlib(text)
        assert caught.value.line == line


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000_000,
        "(assert " + "(and " * 2_000_000,
        HEAD + "(assert " + "(or " * 1_600_000 + "(<= Y_0 0)" + ")" * 1_600_000 + ")",
        HEAD + "(assert (<= 0 " + "(- " * 2_500_000 + "Y_0" + ")" * 2_500_000 + "))",
        ")" * 10_000_000,
    ],
    ids=["open", "and", "or", "minus", "close"],
)
def test_ten_megabytes_of_nesting(text: str) -> None:
    start = time.process_time()
    with pytest.raises(FormatError):
        parse_vnnlib(text)
    assert time.process_time() - start < 5


def test_a_hundred_thousand_clauses_written_out() -> None:
    """nn4sys: two clauses a region, more than a product of disjunctions may have."""
    regions = 50_500
    lines = [
        f"(and (>= X_0 {i}) (<= X_0 {i}.5) (<= Y_0 -{i}))\n(and (>= X_0 {i}) (<= X_0 {i}.5) (>= Y_0 {i}.25))"
        for i in range(regions)
    ]
    head = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n"
    found = parse_vnnlib(f"{head}(assert (or\n{chr(10).join(lines)}\n))")
    assert len(found.cases) == regions
    last = found.cases[-1]
    assert (last.low.item(), last.high.item()) == (regions - 1, regions - 0.5)
    assert [(p.A.item(), p.b.item()) for p in last.outputs] == [(1.0, 1.0 - regions), (-1.0, 0.75 - regions)]


def test_exponential_formulas_are_refused() -> None:
    with pytest.raises(FormatError, match="combinations of and/or multiplied out, is too large"):
        parse_vnnlib(HEAD + BOX + "(assert (or (<= Y_0 0) (<= Y_1 0)))\n" * 40)
    pair = "(or (<= Y_0 0) (<= Y_1 0))"
    with pytest.raises(FormatError, match="combinations of and/or multiplied out, is too large"):
        parse_vnnlib(HEAD + BOX + f"(assert (and {pair * 40}))")
    alternating = "(and (<= Y_0 1) (or (<= Y_1 1) " * 400 + pair + "))" * 400
    assert len(parse_vnnlib(HEAD + BOX + f"(assert {alternating})").cases) == 1


# Random formulas, in integers so that every comparison is exact. A formula is (operator, operands).


def expressions(letter: str) -> st.SearchStrategy:
    leaves = st.integers(-3, 3) | st.sampled_from([f"{letter}_0", f"{letter}_1"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from("+-"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("*"), st.tuples(st.integers(-2, 2), inner)),
        ),
        max_leaves=5,
    )


def atoms(letter: str) -> st.SearchStrategy:
    return st.tuples(st.sampled_from(["<=", ">=", "<", ">", "="]), st.tuples(expressions(letter), expressions(letter)))


formulas = st.recursive(
    atoms("X") | atoms("Y"),
    lambda inner: st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=9,
)


def render(node: object) -> str:
    if isinstance(node, tuple):
        return f"({node[0]} {' '.join(map(render, node[1]))})"
    return str(node)


def evaluate(node: object, values: dict[str, int]) -> int:
    if isinstance(node, str):
        return values[node]
    if not isinstance(node, tuple):
        return int(node)  # type: ignore[call-overload]
    parts = [evaluate(child, values) for child in node[1]]
    match node[0]:
        case "and":
            return all(parts)
        case "or":
            return any(parts)
        case "+":
            return sum(parts)
        case "-":
            return -parts[0] if len(parts) == 1 else parts[0] - sum(parts[1:])
        case "*":
            return parts[0] * parts[1]
        case "=":
            return parts[0] == parts[1]
        case "<":
            return parts[0] < parts[1]
        case ">":
            return parts[0] > parts[1]
    return parts[0] <= parts[1] if node[0] == "<=" else parts[0] >= parts[1]


@fuzz
@given(formulas, st.lists(st.tuples(*[st.integers(-4, 4)] * 4), min_size=20, max_size=20))
def test_random_formulas_mean_what_they_say(violates, formula, points) -> None:
    text = HEAD + box(2, -3, 3) + "(assert (<= Y_0 3))" + f"(assert {render(formula)})"
    names = ["X_0", "X_1", "Y_0", "Y_1"]
    truths = [
        max(map(abs, point[:2])) <= 3
        and point[2] <= 3
        and bool(evaluate(formula, dict(zip(names, point, strict=True))))
        for point in points
    ]
    try:
        cases = (spec := parse_vnnlib(text)).cases
    except FormatError as error:
        reason, cases = error.reason, ()
    if cases:
        assert [violates(spec, point[:2], point[2:]) for point in points] == truths
        boxes = [b"".join(s.tobytes() for s in (c.low, c.high, c.open_low, c.open_high)) for c in cases]
        regions = [(own, repr(c.input_constraints)) for own, c in zip(boxes, cases, strict=True)]
        assert len(set(regions)) == len(regions)
    else:
        assert "contradict" in reason
        assert not any(truths)


VALID = HEAD + BOX + "(assert (or (and (<= X_0 0.5) (<= (+ Y_0 (* -2.0 Y_1)) 1e-3)) (= Y_1 .5))) ; the end\n"
PIECES = ["(", ")", ";", '"', "|", "and", "or", "<=", "=", "-", "*", "X_0", "Y_1", "X_", "1e400", "nan", "é"]
PIECES += ["\n", " ", "\0", "0", "assert", "declare-const", "())", "1_0", "٣", "(assert ", "(vnnlib-version "]
edits = st.lists(
    st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=3)),
    min_size=1,
    max_size=4,
)


@fuzz
@given(edits)
def test_mutated_files_raise_only_our_errors(changes) -> None:
    text = VALID
    for start, length, piece in changes:
        text = text[:start] + piece + text[start + length :]
    with contextlib.suppress(RarelyError):
        parse_vnnlib(text)


@fuzz
@given(st.binary(max_size=60) | st.lists(st.sampled_from(PIECES)).map(lambda p: "".join(p).encode()))
def test_random_bytes_raise_only_our_errors(tmp_path_factory, content) -> None:
    path = tmp_path_factory.getbasetemp() / "random.vnnlib"
    path.write_bytes(content)
    with pytest.raises(RarelyError):
        read_vnnlib(path)


def test_random_point_on_every_corner(violates) -> None:
    """Boxes are closed."""
    spec = parse_vnnlib(HEAD + BOX + OUT)
    assert all(violates(spec, corner, [0, 0]) for corner in itertools.product([-1, 1], repeat=2))
    assert not violates(spec, [1.0000001, 0], [0, 0])


def test_no_sum_that_rounds_decides_whether_a_point_meets_a_property() -> None:
    """1 + 1e-20 is 1 in float64, and more than that."""
    polytope = Polytope(np.array([[1.0, 1e-20]]), np.array([1.0]), np.array([False]))
    assert not polytope.holds(np.array([1.0, 1.5]))
    assert polytope.holds(np.array([1.0, 0.0]))
    assert not Polytope(polytope.A, polytope.b, np.array([True])).holds(np.array([1.0, 0.0]))
    assert not polytope.holds(np.array([np.nan, 0.0]))
