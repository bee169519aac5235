"""Tiny files and a way to run the command line as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment() -> dict[str, str]:
    # One thread: test processes share few cores, and threads that wait for each other would multiply the time.
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def rarely() -> Run:
    def run(*arguments: object, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rarely", *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stderr + done.stdout
        if code != 0:
            assert "Traceback" not in done.stderr
        return done

    return run


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


def declare(inputs: int, outputs: int, *assertions: str) -> str:
    lines = [f"(declare-const X_{i} Real)" for i in range(inputs)]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    return "\n".join([*lines, *(f"(assert {a})" for a in assertions)]) + "\n"


UNIT = [f"({op} X_{i} {bound})" for i in range(2) for op, bound in ((">=", 0), ("<=", 1))]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = (x0 + x1, x0 - x1) on the unit square; `corner` has probability 0.02, `never` cannot happen."""
    place = tmp_path_factory.mktemp("files")
    save_linear(place / "sum.onnx", [[1, 1], [1, -1]])
    (place / "corner.vnnlib").write_text(declare(2, 2, *UNIT, "(>= Y_0 1.8)"))
    (place / "never.vnnlib").write_text(declare(2, 2, *UNIT, "(>= Y_0 2.5)"))
    (place / "three.vnnlib").write_text(declare(3, 2, *UNIT, "(>= X_2 0)", "(<= X_2 1)", "(>= Y_0 2.5)"))
    nodes = "Input x0\nInput x1\nLinear y 0.0 1.0 x0 1.0 x1\n"
    square = "".join(f"Assert <= 0.0 1.0 x{i}\nAssert >= 1.0 1.0 x{i}\n" for i in range(2))
    (place / "rlv").mkdir()
    (place / "rlv" / "common.rlv").write_text(nodes + square + "Assert <= 1.5 1.0 y\n")
    (place / "rlv" / "corner.rlv").write_text(nodes + square + "Assert <= 1.8 1.0 y\n")
    return place
