"""Files and an environment for tests that run the command line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def environment() -> dict[str, str]:
    # One thread: test processes share few cores, and threads that wait for each other would multiply the time.
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}


def save_linear(path: Path, weight: object, shape: tuple[int, ...] = (1, 2)) -> Path:
    """An ONNX file of y = flatten(x) @ weight."""
    matrix = np.asarray(weight, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"], axis=1),
            helper.make_node("MatMul", ["flat", "weight"], ["y"]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, matrix.shape[1]))],
        [numpy_helper.from_array(matrix, "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path
