"""The referee: an imported network against onnxruntime on random inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rarely.core.errors import FormatError, NetworkError
from rarely.io.onnx.model import Array, InputPort, OnnxFile, fault_in_file

SCALES = (0.01, 1.0, 10.0)
TOLERANCE = {np.dtype(np.float16): 2e-2, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}
"""Allowed difference relative to the largest output: rounding in another order of summation, and no more."""


def onnxruntime_installed() -> bool:
    """Whether the optional onnxruntime can be imported."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


def random_rows(port: InputPort) -> Array:
    """Inputs at several scales, signed and in [0, 1]: (8, *row_shape)."""
    rng = np.random.default_rng(0)
    rows = [rng.uniform(-scale, scale, (2, *port.row_shape)) for scale in SCALES]
    rows.append(rng.uniform(0.0, 1.0, (2, *port.row_shape)))
    return np.concatenate(rows).astype(port.dtype)


def compare_with_onnxruntime(network: Callable[[torch.Tensor], torch.Tensor], file: OnnxFile, port: InputPort) -> None:
    """Raise a NetworkError unless the module agrees with onnxruntime, row by row, at batch sizes 1 and 8."""
    if not onnxruntime_installed():
        return
    from rarely.io.onnx.runtime import open_session, run_rows

    try:
        session = open_session(file.serialize())
        rows = random_rows(port)
        expected = run_rows(session, port, rows)
    except Exception as error:  # onnxruntime's exceptions share no public base class
        reason = " ".join(str(error).split())[:300]
        fault = fault_in_file(file)
        if fault is not None:
            raise FormatError(file.source, f"{fault} (onnxruntime: {reason})") from error
        logging.getLogger("rarely").warning(
            "%s: imported, but not compared with onnxruntime, which cannot run it: %s", file.source, reason
        )
        return
    try:
        with torch.no_grad():
            batch = network(torch.from_numpy(rows)).numpy()
            single = network(torch.from_numpy(rows[:1])).numpy()
    except (RuntimeError, IndexError) as error:
        raise NetworkError(f"{file.source}: the imported network fails at another batch size ({error})") from error
    expected = expected.reshape(len(rows), -1)
    for name, actual, wanted in (("8", batch, expected), ("1", single, expected[:1])):
        difference = largest_difference(actual.reshape(len(wanted), -1), wanted)
        if not difference <= TOLERANCE[port.dtype]:
            raise NetworkError(
                f"{file.source}: the imported network differs from onnxruntime by {difference:.2g} of its "
                f"output scale at batch size {name} (allowed: {TOLERANCE[port.dtype]:g})"
            )


def largest_difference(actual: Array, expected: Array) -> float:
    """The largest difference over the scale of the outputs, (n, k) each; infinities and NaN must agree."""
    if actual.shape != expected.shape:
        return float("inf")
    wide: Any = np.longdouble
    a, b = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.all(finite | same):
        return float("inf")
    if not finite.any():
        return 0.0
    # A row at its own scale: an error on small inputs must not hide behind the outputs of large ones.
    scale = np.max(np.abs(b), axis=1, where=finite, initial=0.0) + 1e-2
    gap = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), 0.0)
    return float(np.max(gap.max(axis=1, initial=0.0) / scale))
