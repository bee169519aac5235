"""Is an import right? onnxruntime is asked first, and where it differs, both sides are asked again in float64."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from rarely.core.errors import FormatError, NetworkError
from rarely.io.files import one_line
from rarely.io.onnx.model import Array, InputPort, OnnxFile, fault_in_file
from rarely.io.onnx.runtime import TOLERANCE, gaps, onnxruntime_installed, open_session, random_rows, run_rows

READ_AS_FLOAT32 = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs that these operators take in float32 alone: numbers that say how, not values of the network."""


def compare_with_onnxruntime(network: nn.Module, file: OnnxFile, port: InputPort) -> None:
    """Raise a NetworkError unless the module agrees with onnxruntime, row by row, at batch sizes 1 and 8.

    A difference that is more than `TOLERANCE` may still be rounding, of outputs that are small differences of large
    numbers. From float32 to float64 rounding shrinks with the unit roundoff u, by 2^-29, and a wrong operator's error
    not at all. The file is therefore run in float64, too, and a difference counts as rounding if it shrinks there by
    more than sqrt(u64 / u32), half way between the two.
    """
    if not onnxruntime_installed():
        return
    rows = random_rows(port)
    try:
        expected = run_rows(open_session(file.serialize()), port, rows)
    except Exception as error:  # onnxruntime's exceptions share no public base class
        reason = one_line(error)
        fault = fault_in_file(file)
        if fault is not None:
            raise FormatError(file.source, f"{fault} (onnxruntime: {reason})") from error
        logging.getLogger("rarely").warning(
            "%s: imported, but not compared with onnxruntime, which cannot run it: %s", file.source, reason
        )
        return
    expected = expected.reshape(len(rows), -1)
    found = np.concatenate([gaps(_run(network, file, rows[:n], expected), expected[:n]) for n in (len(rows), 1)])
    wrong = ~(found <= TOLERANCE[port.dtype])
    if wrong.any():
        _arbitrate(network, file, port, np.concatenate([rows, rows[:1]])[wrong], found[wrong])


def _run(network: nn.Module, file: OnnxFile, rows: Array, like: Array) -> Array:
    """The module's outputs, as many numbers of each row as `like` (n, k) has."""
    try:
        with torch.no_grad():
            outputs: Array = network(torch.from_numpy(rows)).numpy()
    except (RuntimeError, IndexError) as error:
        raise NetworkError(
            f"{file.source}: the imported network fails at batch size {len(rows)} ({one_line(error)})"
        ) from error
    flat = outputs.reshape(len(rows), -1)
    if flat.shape[1] != like.shape[1]:
        raise NetworkError(
            f"{file.source}: the imported network has {flat.shape[1]} outputs where onnxruntime has {like.shape[1]}; "
            "please report it with the file"
        )
    return flat


def _arbitrate(network: nn.Module, file: OnnxFile, port: InputPort, rows: Array, found: Array) -> None:
    """Raise a NetworkError unless float64 explains the differences `found` (n,) at these rows as rounding."""
    told = f"{file.source}: the imported network differs from onnxruntime by {found.max():.2g} of its output scale"
    advice = "please report it with the file; load_network(..., check=False) takes the import as it is"
    if port.dtype == np.float64:
        raise NetworkError(f"{told}, where {TOLERANCE[port.dtype]:g} is allowed in float64; {advice}")
    wide = rows.astype(np.float64)
    try:
        expected = run_in_double(file, port, wide).reshape(len(rows), -1)
        actual = _run(copy.deepcopy(network).double(), file, wide, expected)
    except Exception as error:  # whatever a runtime or an operator has against float64
        reason = one_line(error)
        raise NetworkError(f"{told}, and float64 cannot tell whether that is rounding ({reason}); {advice}") from error
    left = gaps(actual, expected)
    # A difference beyond the outputs themselves, by overflow or a jump, says no more than one of their size.
    explained = left <= math.sqrt(np.finfo(np.float64).eps / np.finfo(port.dtype).eps) * np.minimum(found, 1.0)
    if not explained.all():
        raise NetworkError(f"{told}, and in float64 still by {left[~explained].max():.2g}: it is wrong; {advice}")
    logging.getLogger("rarely").warning(
        "%s: rounding in %s alone moves its outputs by %.2g of their scale, so that answers may depend on the runtime",
        file.source,
        port.dtype,
        found.max(),
    )


def run_in_double(file: OnnxFile, port: InputPort, rows: Array) -> Array:
    """The model in float64 at rows (n, *row_shape), by onnxruntime or, where it lacks an operator, by onnx itself."""
    from onnx.reference import ReferenceEvaluator

    model = in_double(file)
    try:
        return run_rows(open_session(bytes(model.SerializeToString())), port, rows)
    except Exception:  # few of onnxruntime's convolutions know float64
        return run_rows(ReferenceEvaluator(model), port, rows)


def in_double(file: OnnxFile) -> Any:
    """A copy of the model whose floating point numbers are all of float64."""
    import onnx

    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    graph = model.graph
    del graph.value_info[:]
    fixed = {
        name
        for node in graph.node
        for i in READ_AS_FLOAT32.get(node.op_type, ())
        for name in list(node.input)[i : i + 1]
    }

    def widen(tensor: Any) -> None:
        if tensor.data_type in floats:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

    for tensor in graph.initializer:
        if tensor.name not in fixed:
            widen(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in floats and value.name not in fixed:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in graph.node:
        if fixed.isdisjoint(node.output):
            for entry in node.attribute:
                _widen_attribute(node, entry, widen, floats)
    return model


def _widen_attribute(node: Any, entry: Any, widen: Any, floats: tuple[int, ...]) -> None:
    import onnx

    if entry.type == onnx.AttributeProto.TENSOR:
        widen(entry.t)
    elif entry.name in ("to", "dtype") and entry.i in floats:
        entry.i = onnx.TensorProto.DOUBLE
    elif node.op_type == "Constant" and entry.name in ("value_float", "value_floats"):
        values = np.array(entry.f if entry.name == "value_float" else list(entry.floats), dtype=np.float64)
        entry.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(values)))
