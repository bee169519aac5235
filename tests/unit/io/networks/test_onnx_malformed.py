"""Damaged files end in an error that names the file and the reason, whatever the damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_models import graph, mlp, node, single_op

from rarely.core.errors import FormatError, RarelyError
from rarely.io.networks import load_network

GOOD = mlp(np.random.default_rng(0))


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    return path


def expect_format_error(tmp_path: Path, data: bytes, reason: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(FormatError, match=reason) as caught:
        load_network(path)
    assert caught.value.path == path


@pytest.mark.parametrize("data", [b"", b"not a network at all", GOOD[: len(GOOD) // 2], b"\x1f\x8bgarbage"])
def test_not_an_onnx_file(tmp_path: Path, data: bytes) -> None:
    expect_format_error(tmp_path, data, "ONNX|gzip")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        load_network(tmp_path / "absent.onnx")


def test_cycle(tmp_path: Path) -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]
    expect_format_error(tmp_path, graph(nodes, (1, 4)), "cycle through")


def test_cycle_beside_the_output(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "y"), node("Neg", "b", "a"), node("Abs", "a", "b")]
    expect_format_error(tmp_path, graph(nodes, (1, 4), output="y"), "cycle through")


def test_missing_initializer(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(GOOD)
    del model.graph.initializer[0]
    expect_format_error(tmp_path, model.SerializeToString(), "'w1', which nothing in the file defines")


def test_missing_output(tmp_path: Path) -> None:
    expect_format_error(tmp_path, graph([node("Relu", "x", "z")], (1, 4)), "graph output reads 'y'")


def test_wrong_shapes(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(GOOD)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((5, 6), np.float32), "w1"))
    expect_format_error(tmp_path, model.SerializeToString(), r"MatMul node 'MatMul_a': a product of shapes \(1, 4\)")


def test_impossible_reshape(tmp_path: Path) -> None:
    data = single_op("Reshape", (1, 4), np.array([1, 5], np.int64))
    expect_format_error(tmp_path, data, "cannot reshape")


def test_initializer_with_too_few_bytes(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(GOOD)
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    expect_format_error(tmp_path, model.SerializeToString(), "'w1' is damaged")


def test_no_operator_set(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(GOOD)
    del model.opset_import[:]
    expect_format_error(tmp_path, model.SerializeToString(), "operator set")


def test_huge_dimensions(tmp_path: Path) -> None:
    expect_format_error(tmp_path, single_op("Relu", (1, 2**40)), "is too large")
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), node("Add", "x c", "y")]
    huge = graph(nodes, (1, 4), {"s": np.array([2**20, 2**20], np.int64)})
    expect_format_error(tmp_path, huge, "is too large")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzz(tmp_path: Path, data: st.DataObject) -> None:
    """Cut and flip bytes: the file either still loads or raises one of our errors."""
    mutated = bytearray(GOOD)
    for _ in range(data.draw(st.integers(0, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(mutated)), st.integers(0, len(mutated))))
    path = write(tmp_path, bytes(mutated[:cut]))
    message = str(path)
    try:
        load_network(path)
    except RarelyError as error:
        message = str(error)
    assert str(path) in message
