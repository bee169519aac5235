"""The comparison of an import with onnxruntime: rounding is told from a wrong operator by float64."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx_models import arr, f32, graph, i64, mlp, node
from torch import nn

import rarely.io.onnx.importer as onnx_import
from rarely.core.errors import NetworkError
from rarely.io.onnx.compare import in_double, run_in_double
from rarely.io.onnx.importer import import_onnx
from rarely.io.onnx.model import input_port, read_onnx
from rarely.io.onnx.runtime import TOLERANCE, gaps, open_session, random_rows, run_rows


def leaky(builder: Any, op: Any, slope: float = 0.01) -> Any:
    """A Relu that is wrong."""
    return builder.module(nn.LeakyReLU(slope), op.activation())


def cancelling(dtype: Any = np.float32) -> bytes:
    """Two halves that differ in the order of 2000 terms near 1e3, so that the output is their rounding and x @ v."""
    rng = np.random.default_rng(3)
    w = rng.uniform(500, 1500, (40, 400)).astype(dtype)
    order = rng.permutation(400)
    nodes = [
        node("MatMul", "x w", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "b one", "c"),
        node("MatMul", "x z", "d"),
        node("Relu", "d", "e"),
        node("MatMul", "e one", "f"),
        node("Sub", "c f", "g"),
        node("MatMul", "x v", "h"),
        node("Add", "g h", "y"),
    ]
    stored = {"w": w, "z": w[:, order], "one": np.ones((400, 1), dtype), "v": rng.normal(size=(40, 1)).astype(dtype)}
    return graph(nodes, (1, 40), stored, dtype=dtype)


def test_rounding_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    data = cancelling()
    file = read_onnx(data)
    port = input_port(file)
    rows = random_rows(port)
    network = import_onnx(data, check=False)
    expected = run_rows(open_session(file.serialize()), port, rows)
    assert gaps(network(torch.from_numpy(rows)).numpy(), expected).max() > TOLERANCE[port.dtype]
    with caplog.at_level(logging.WARNING, logger="rarely"):
        import_onnx(data)
    assert "rounding in float32 alone" in caplog.text


@pytest.mark.parametrize("slope", [1e-2, 1e-4, 1e-6])
def test_wrong_operator_behind_rounding_is_refused(monkeypatch: pytest.MonkeyPatch, slope: float) -> None:
    """A relative error of 1e-6 is less than the rounding of the float32 outputs, and float64 sees it all the same."""
    count = iter(range(10))

    def wrong(builder: Any, op: Any) -> Any:
        return leaky(builder, op, slope if next(count) == 0 else 0.0)

    monkeypatch.setitem(onnx_import.HANDLERS, "Relu", wrong)
    with pytest.raises(NetworkError, match=r"in float64 still by .*: it is wrong; please report"):
        import_onnx(cancelling())


def test_wrong_operator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnx_import.HANDLERS, "Relu", leaky)
    data = mlp(np.random.default_rng(0))
    with pytest.raises(NetworkError, match=r"differs from onnxruntime by .* it is wrong"):
        import_onnx(data)
    import_onnx(data, check=False)


@pytest.mark.parametrize("wrong", [torch.reciprocal, torch.ones_like])
def test_infinite_differences_are_not_rounding(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """The input of Log is at times negative: NaN there, and numbers in what is wrong."""
    monkeypatch.setitem(onnx_import.HANDLERS, "Log", lambda builder, op: builder.call(wrong, op.activation()))
    with pytest.raises(NetworkError, match=r"by inf of its output scale, and in float64 still by inf"):
        import_onnx(graph([node("Log", "x", "y")], (1, 4)))


def test_other_shapes_are_not_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnx_import.HANDLERS, "Relu", lambda builder, op: builder.getitem(op.activation(), 1, slice(3)))
    with pytest.raises(NetworkError, match=r"outputs where onnxruntime has"):
        import_onnx(graph([node("Relu", "x", "y")], (1, 4)))


def test_float64_files_have_no_further_arbiter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnx_import.HANDLERS, "Relu", lambda builder, op: leaky(builder, op, 1e-7))
    data = graph([node("Relu", "x", "y")], (1, 4), dtype=np.float64)
    with pytest.raises(NetworkError, match="where 1e-09 is allowed in float64"):
        import_onnx(data)


def test_without_an_arbiter_the_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no kernel for float64")

    monkeypatch.setattr("rarely.io.onnx.compare.run_in_double", broken)
    with pytest.raises(NetworkError, match=r"float64 cannot tell whether that is rounding \(no kernel"):
        import_onnx(cancelling())


def test_model_in_float64_has_no_float32_left() -> None:
    """Constants of every kind and a cast; the scales of a Resize stay float32, and the convolution is done by onnx."""
    nodes = [
        node("Constant", "", "half", value_float=0.1),
        node("Constant", "", "three", value_floats=[0.1, 0.2, 0.3]),
        node("ConstantOfShape", "shape", "tenth", value=onnx.numpy_helper.from_array(f32(0.1))),
        node("Conv", "x w", "a"),
        node("Resize", "a  scales", "b", mode="nearest"),
        node("Cast", "b", "c", to=onnx.TensorProto.FLOAT),
        node("ReduceMean", "c", "d", axes=[2, 3], keepdims=0),
        node("Mul", "d half", "e"),
        node("Add", "e three", "f"),
        node("Add", "f tenth", "y"),
    ]
    nodes[4].input[:] = ["a", "", "scales"]
    stored = {"w": arr(3, 2, 3, 3), "scales": f32(1, 1, 2, 2), "shape": i64(3)}
    file = read_onnx(graph(nodes, (1, 2, 5, 5), stored, opset=13))
    kinds = {tensor.name: tensor.data_type for tensor in in_double(file).graph.initializer}
    assert kinds["w"] == onnx.TensorProto.DOUBLE
    assert kinds["scales"] == onnx.TensorProto.FLOAT
    port = input_port(file)
    rows = random_rows(port).astype(np.float64)
    found = run_in_double(file, port, rows)
    assert found.dtype == np.float64
    x = torch.from_numpy(rows)
    features = nn.functional.conv2d(x, torch.from_numpy(stored["w"]).double()).mean((2, 3))
    tenth = float(np.float32(0.1))
    wanted = features * tenth + torch.from_numpy(f32(0.1, 0.2, 0.3)).double() + tenth
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_outputs_of_another_shape_are_never_rounding() -> None:
    """onnxruntime and ONNX's own reference disagree about the size of this one."""
    w = np.ones((1, 1, 1, 1), np.float32)
    data = graph([node("ConvTranspose", "x w", "y", strides=[2, 2], auto_pad="SAME_UPPER")], (1, 1, 2, 4), {"w": w})
    with pytest.raises(NetworkError, match="outputs where onnxruntime has"):
        import_onnx(data)
