"""Small ONNX models for the tests, and the comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from rarely.io.onnx.importer import import_onnx
from rarely.io.onnx.model import input_port, read_onnx
from rarely.io.onnx.runtime import open_session, run_rows

RNG = np.random.default_rng(1)


def arr(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def single_op(
    kind: str,
    shape: Sequence[int | str],
    *constants: np.ndarray | None,
    opset: int = 17,
    outputs: int = 1,
    dtype: Any = np.float32,
    input_at: int = 0,
    **attributes: Any,
) -> bytes:
    """A model of one operator; `constants` are its other inputs in order, None for an absent one."""
    names, stored = [], {}
    for position, array in enumerate(constants):
        names.append("" if array is None else f"c{position}")
        if array is not None:
            stored[f"c{position}"] = array
    names.insert(input_at, "x")
    node = helper.make_node(kind, names, [f"y{i}" for i in range(outputs)], name="tested", **attributes)
    return graph([node], shape, stored, opset=opset, dtype=dtype, output="y0")


def graph(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    stored: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    dtype: Any = np.float32,
    output: str = "y",
    output_type: int | None = None,
    extra_inputs: Sequence[onnx.ValueInfoProto] = (),
) -> bytes:
    """A model with one input `x` and one output of unstated shape."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = helper.make_model(
        helper.make_graph(
            list(nodes),
            "test",
            [helper.make_tensor_value_info("x", element, list(shape)), *extra_inputs],
            [helper.make_tensor_value_info(output, output_type or result_type(nodes, element), None)],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in (stored or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8 if opset < 21 else 10,
    )
    return model.SerializeToString()


def result_type(nodes: Sequence[onnx.NodeProto], element: int) -> int:
    """The output's element type, which ONNX Runtime insists on."""
    last = nodes[-1].op_type
    if last in ("ArgMax", "ArgMin"):
        return TensorProto.INT64
    if last in (
        "Greater",
        "Less",
        "Equal",
        "GreaterOrEqual",
        "LessOrEqual",
        "And",
        "Or",
        "Not",
        "Xor",
        "IsNaN",
    ):
        return TensorProto.BOOL
    return element


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """`node("Add", "a b", "y")`."""
    return helper.make_node(kind, inputs.split(), output.split(), name=f"{kind}_{output}", **attributes)


def mlp(rng: np.random.Generator, *, opset: int = 13, shape: Sequence[int | str] = (1, 4)) -> bytes:
    """Two dense layers with a ReLU between them."""
    nodes = [
        node("MatMul", "x w1", "a"),
        node("Add", "a b1", "b"),
        node("Relu", "b", "c"),
        node("Gemm", "c w2 b2", "y", transB=1),
    ]
    return graph(
        nodes,
        shape,
        {
            "w1": rng.normal(size=(4, 6)).astype(np.float32),
            "b1": rng.normal(size=6).astype(np.float32),
            "w2": rng.normal(size=(3, 6)).astype(np.float32),
            "b2": rng.normal(size=3).astype(np.float32),
        },
        opset=opset,
    )


def check_against_onnxruntime(model: bytes, low: float = -2.0, high: float = 2.0) -> Any:
    """Import without the built-in comparison, and compare here instead."""
    network = import_onnx(model, check=False)
    port = input_port(read_onnx(model))
    assert network.input_shape == port.row_shape
    rows = np.random.default_rng(0).uniform(low, high, (7, *port.row_shape)).astype(port.dtype)
    expected = run_rows(open_session(model), port, rows)
    for count in (7, 1):
        actual = network(torch.from_numpy(rows[:count]))
        assert tuple(actual.shape) == (count, *network.output_shape)
        tolerance = 1e-9 if port.dtype == np.float64 else 2e-5
        np.testing.assert_allclose(
            actual.numpy().reshape(count, -1),
            expected[:count].reshape(count, -1),
            rtol=tolerance,
            atol=tolerance,
        )
    return network
