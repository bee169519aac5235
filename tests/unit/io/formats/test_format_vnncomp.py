from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rarely.core.errors import FormatError, InputError, RarelyError
from rarely.io.formats.vnncomp import VERDICTS, Instance, read_instances, read_result, write_result

fuzz = settings(deadline=None, derandomize=True, max_examples=100)
finite = st.floats(allow_nan=False, allow_infinity=False)


def test_instances_in_every_layout(tmp_path: Path) -> None:
    for name in ("a.onnx", "onnx/b.onnx", "onnx/c.onnx.gz", "vnnlib/p.vnnlib", "q.vnnlib"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    table = tmp_path / "instances.csv"
    table.write_text("a.onnx,p.vnnlib,116\n\n./onnx/b.onnx, vnnlib/p.vnnlib ,1e2\nc.onnx,q.vnnlib.gz,0.5\n")
    assert read_instances(table) == [
        Instance(tmp_path / "a.onnx", tmp_path / "vnnlib/p.vnnlib", 116.0),
        Instance(tmp_path / "onnx/b.onnx", tmp_path / "vnnlib/p.vnnlib", 100.0),
        Instance(tmp_path / "onnx/c.onnx.gz", tmp_path / "q.vnnlib", 0.5),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,a", "3 columns"),
        ("a,a,1,2", "3 columns"),
        ("a,b,1", "no file 'b'"),
        ("a,,1", "no file ''"),
        ("a,x\0y,1", "no file"),
        ("a,a,soon", "'soon' is not a positive number"),
        ("a,a,-1", "not a positive"),
        ("a,a,nan", "not a positive"),
        ("a,a,inf", "not a positive"),
        ("a," + "b" * 200_000 + ",1", "field larger"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, reason: str) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "i.csv").write_text(f"a,a,1\n{row}\n")
    with pytest.raises(FormatError, match=reason) as caught:
        read_instances(tmp_path / "i.csv")
    assert caught.value.line == 2


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read_instances(tmp_path / "i.csv")


def test_result_has_the_form_that_vnncomp_asks_for(tmp_path: Path) -> None:
    write_result(tmp_path / "r", "sat", np.array([[0.5, -1e-9]]), torch.tensor([0.1]))
    assert (tmp_path / "r").read_text() == "sat\n((X_0 0.5)\n(X_1 -1e-09)\n(Y_0 0.10000000149011612))\n"
    for verdict in VERDICTS[1:]:
        write_result(tmp_path / "r", verdict)
        assert (tmp_path / "r").read_text() == f"{verdict}\n"
        assert read_result(tmp_path / "r").verdict == verdict
        assert read_result(tmp_path / "r").x is None


@fuzz
@given(st.lists(finite, min_size=1, max_size=9), st.lists(finite, min_size=1, max_size=9))
def test_counterexamples_come_back_bit_by_bit(tmp_path_factory, x, y) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip"
    write_result(path, "sat", x, y)
    result = read_result(path)
    assert result.verdict == "sat"
    assert result.x is not None
    assert result.y is not None
    assert result.x.tobytes() == np.array(x).tobytes()
    assert result.y.tobytes() == np.array(y).tobytes()


def test_results_of_other_tools(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("sat\n(\n  (X_0 1.5) (X_1 2)\n (Y_0 -3e-2)\n)\n\n")
    result = read_result(tmp_path / "r")
    np.testing.assert_array_equal(result.x, [1.5, 2])
    np.testing.assert_array_equal(result.y, [-0.03])
    (tmp_path / "r").write_text("sat")
    assert read_result(tmp_path / "r").x is None


@pytest.mark.parametrize(
    ("verdict", "x", "y"),
    [
        ("maybe", None, None),
        ("sat", None, None),
        ("sat", [1.0], None),
        ("unsat", [1.0], [1.0]),
        ("unknown", None, [1.0]),
        ("sat", [np.nan], [1.0]),
        ("sat", [1.0], []),
    ],
)
def test_inconsistent_results_are_not_written(tmp_path: Path, verdict, x, y) -> None:
    with pytest.raises(InputError):
        write_result(tmp_path / "r", verdict, x, y)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("maybe\n", 1),
        ("unsat\n((X_0 1)\n(Y_0 1))", 2),
        ("sat\n(X_0 1)\n(Y_0 1)", 2),
        ("sat\n((X_0 1)\n(X_2 1)\n(Y_0 1))", 3),
        ("sat\n((X_0 1)\n(Y_0 one))", 3),
        ("sat\n((X_0 1)\n(Y_0 1)\n", 4),
        ("sat\n((X_0 1)\n(Y_0 1))\n)", 4),
        ("sat\n((X_0 1))", 2),
    ],
)
def test_malformed_results(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(FormatError) as caught:
        read_result(tmp_path / "r")
    assert caught.value.line == line


PIECES = [
    "sat",
    "unsat",
    "\n",
    "(",
    ")",
    "((X_0 ",
    "X_1",
    "Y_0",
    "1.0",
    " ",
    "nan",
    ",",
    '"',
    "\0",
    "é",
    "\r",
]


@fuzz
@given(st.binary(max_size=40) | st.lists(st.sampled_from(PIECES)).map(lambda p: "".join(p).encode()))
def test_random_bytes_raise_only_our_errors(tmp_path_factory, content) -> None:
    path = tmp_path_factory.getbasetemp() / "random.txt"
    path.write_bytes(content)
    for read in (read_result, read_instances):
        with contextlib.suppress(RarelyError):
            read(path)
