"""ONNX Runtime: the referee of imports and counterexamples, and a black box for files the importer does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rarely.core.errors import FormatError, InputError, MissingExtra, NetworkError
from rarely.io.files import one_line
from rarely.io.onnx.model import Array, InputPort, OnnxFile, input_port, read_onnx

SCALES = (0.01, 1.0, 10.0)
_BLOCK = 1 << 20  # outputs that are compared at once, in a precision that takes sixteen bytes
TOLERANCE = {np.dtype(np.float16): 2e-2, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}
"""Allowed difference relative to the largest output: rounding in another order of summation, and no more."""


class OnnxRuntimeNetwork:
    """An ONNX model run by onnxruntime on the CPU: (n, *input_shape) to (n, *output_shape), no gradients.

    The batch dimension is made symbolic by editing the model. Where the result does not reproduce the
    untouched model row by row, because the batch size is wired into the graph, rows are run one at a time.
    """

    differentiable = False

    def __init__(self, source: str | Path | bytes) -> None:
        from rarely.io.onnx.trial import try_apart

        file = read_onnx(source)
        if onnxruntime_installed():
            try_apart(file, input_port(file))
        self._open(file)

    def _open(self, file: OnnxFile) -> None:
        self._file = file
        self._port = input_port(file)
        try:
            self._single = open_session(file.serialize())
            rows = random_rows(self._port)[:3]
            expected = run_rows(self._single, self._port, rows)
        except MissingExtra:
            raise
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise FormatError(file.source, f"onnxruntime cannot run it ({one_line(error, 500)})") from error
        if expected.dtype.kind not in "fiub":
            raise NetworkError(
                f"{file.source}: its output {file.output_name!r} holds no numbers, but {expected.dtype.name}; "
                "a property can only speak of numbers, so name another output or export one"
            )
        self.source = file.source
        self.input_shape = self._port.row_shape
        self.output_shape = tuple(expected.shape[1:])
        self._batched = batched_session(file, self._port, rows, expected) if self._port.has_batch else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Run a batch; the result has the type and device of `x`."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise InputError(f"{self.source} takes inputs of shape (n, *{self.input_shape}), not {tuple(x.shape)}")
        rows = x.detach().cpu().numpy().astype(self._port.dtype)
        if self._batched is not None and len(rows):
            outputs = self._batched.run(None, {self._port.name: rows})[0].reshape(len(rows), *self.output_shape)
        else:
            outputs = run_rows(self._single, self._port, rows).reshape(len(rows), *self.output_shape)
        return torch.from_numpy(np.ascontiguousarray(outputs)).to(device=x.device, dtype=x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        # Sessions hold native memory; a copy in another process opens its own.
        return {"model": self._file.serialize(), "source": self._file.source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(OnnxFile(read_onnx(state["model"]).model, state["source"]))

    def __repr__(self) -> str:
        return f"OnnxRuntimeNetwork({self.source!r}, {self.input_shape} -> {self.output_shape})"


def replay(path: str | Path, x: Array | torch.Tensor) -> Array:
    """The output of the untouched model for one input, in the model's own type, shape and precision.

    `x` may have any shape with the right number of entries; it is cast to the model's type first.
    """
    file = read_onnx(path)
    port = input_port(file)
    values = x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    if values.size != int(np.prod(port.shape)):
        raise InputError(f"{path} takes one input of shape {port.shape}, not {values.shape}")
    session = open_session(file.serialize())
    try:
        outputs = session.run(None, {port.name: values.reshape(port.shape).astype(port.dtype)})
    except Exception as error:  # onnxruntime's exceptions share no public base class
        raise NetworkError(f"{path}: onnxruntime failed ({error})") from error
    return np.asarray(outputs[0])


def open_session(model: bytes) -> Any:
    """A quiet CPU session."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("onnxruntime is needed here: pip install 'rarely[onnxruntime]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors arrive as exceptions; old files would print a page of warnings
    options.intra_op_num_threads = torch.get_num_threads()
    # Its fallback prints to stdout and tries the same provider again.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def run_rows(session: Any, port: InputPort, rows: Array) -> Array:
    """The untouched model on every row by itself: (n, *output without the batch dimension)."""
    outputs = [np.asarray(session.run(None, {port.name: row.reshape(port.shape)})[0]) for row in rows]
    if not outputs:
        return np.empty(0, port.dtype)
    stacked = np.stack(outputs)
    if stacked.ndim > 1 and stacked.shape[1] == 1:
        stacked = stacked[:, 0]
    return stacked if stacked.ndim > 1 else stacked[:, None]


def batched_session(file: OnnxFile, port: InputPort, rows: Array, expected: Array) -> Any | None:
    """A session for any batch size that reproduces the row-by-row results, or None."""
    for rewrite_reshapes in (False, True):
        try:
            session = open_session(with_symbolic_batch(file, port, rewrite_reshapes=rewrite_reshapes))
            actual = np.asarray(session.run(None, {port.name: rows.reshape(len(rows), *port.row_shape)})[0])
        except Exception:  # a batch size wired into the graph; the next attempt or rows one by one will do
            continue
        if actual.size == expected.size:
            flat = actual.reshape(len(rows), -1), expected.reshape(len(rows), -1)
            if (gaps(*flat) <= TOLERANCE[port.dtype]).all():
                return session
    return None


def with_symbolic_batch(file: OnnxFile, port: InputPort, *, rewrite_reshapes: bool) -> bytes:
    """The model with an open first dimension, if asked also in constant Reshape targets (1, ...)."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    graph = model.graph
    del graph.value_info[:]
    for value in graph.input:
        if value.name == port.name:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    if rewrite_reshapes:
        targets = {node.input[1] for node in graph.node if node.op_type == "Reshape" and len(node.input) > 1}
        constants = [tensor for tensor in graph.initializer if tensor.name in targets]
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] in targets:
                constants += [entry.t for entry in node.attribute if entry.name == "value"]
        for tensor in constants:
            sizes = onnx.numpy_helper.to_array(tensor).copy()
            if sizes.size and sizes[0] == 1:
                sizes[0] = 0 if -1 in sizes else -1  # 0 copies the first dimension of the input, the batch
                tensor.CopyFrom(onnx.numpy_helper.from_array(sizes, tensor.name))
    return bytes(model.SerializeToString())


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


def gaps(actual: Array, expected: Array) -> npt.NDArray[np.float64]:
    """The largest difference in each row over the scale of its outputs, (n, k) each; infinities and NaN must agree."""
    if actual.shape != expected.shape:
        return np.full(len(expected), np.inf)
    largest = np.zeros((2, len(expected)))  # gap and scale of each row
    step = max(1, _BLOCK // max(1, len(expected)))
    for start in range(0, expected.shape[1], step):
        part = _gaps(actual[:, start : start + step], expected[:, start : start + step])
        largest = np.maximum(largest, part)
    # A row at its own scale: an error on small inputs must not hide behind the outputs of large ones.
    found: npt.NDArray[np.float64] = largest[0] / (largest[1] + 1e-2)
    return found


def _gaps(actual: Array, expected: Array) -> npt.NDArray[np.float64]:
    """The largest difference and the largest output of each row of a block, in a precision above both."""
    wide: Any = np.longdouble
    a, b = actual.astype(wide), expected.astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.max(np.abs(b), axis=1, where=finite, initial=0.0)
    gap = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), np.where(same, 0.0, np.inf))
    return np.array([gap.max(axis=1, initial=0.0), scale], dtype=np.float64)
