"""Tiny files and a way to run the command line as a real process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import environment, save_linear

Run = Callable[..., subprocess.CompletedProcess[str]]


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
