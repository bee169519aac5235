"""Reading an ONNX file: its bytes, external data, stored tensors, the order of nodes, the input."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rarely.core.errors import FormatError, NetworkError, RarelyError, UnsupportedOperator
from rarely.core.limits import ENTRIES, MEMORY, NODES
from rarely.io.files import exists, one_line, read_bytes, refuse, unpacked
from rarely.io.onnx.functions import refuse_growth

_WITH_OUTPUT = re.compile(r"(.+\.onnx(?:\.gz)?):(.+)", re.IGNORECASE | re.DOTALL)

BYTES = "<bytes>"
"""The source of a model that came from no file."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class InputPort:
    """The one input of a network.

    `shape` is the ONNX shape for one row: where `has_batch`, it starts with the batch dimension, set to 1.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has_batch: bool

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one input without the batch dimension."""
        return self.shape[1:] if self.has_batch else self.shape


@dataclass(frozen=True)
class OnnxFile:
    """A parsed model of one output (external data already inside it) and the name to use for it in messages."""

    model: Any
    source: str

    @property
    def opset(self) -> int:
        """Version of the standard operator set."""
        versions = [entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        if not versions:
            raise FormatError(self.source, "the model does not say which operator set it uses")
        return int(max(versions))

    @property
    def output_name(self) -> str:
        """Name of the only output: the others were left away by `read_onnx`."""
        return str(self.model.graph.output[0].name)

    def serialize(self) -> bytes:
        """The model as one byte string, for ONNX Runtime."""
        return bytes(self.model.SerializeToString())


def is_onnx(path: str | Path) -> bool:
    """Whether a path names an ONNX file, perhaps with one of its outputs."""
    return split_output(path)[0].lower().endswith((".onnx", ".onnx.gz"))


def split_output(path: str | Path) -> tuple[str, str | None]:
    """File and output of `net.onnx:output`; a file whose own name has a colon in it comes first."""
    named = _WITH_OUTPUT.fullmatch(str(path))
    return (str(path), None) if named is None or exists(path) else (named[1], named[2])


def read_onnx(source: str | Path | bytes, output: str | None = None) -> OnnxFile:
    """Parse a `.onnx` or `.onnx.gz` file, or the bytes of one; anything unreadable is a `FormatError`.

    Of several outputs one is chosen by its name, here or behind the path: `net.onnx:output`.
    """
    import onnx
    import onnx.inliner

    name = BYTES if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes):
        source, chosen = split_output(source)
        output = output or chosen
    data = unpacked(source, name) if isinstance(source, bytes) else read_bytes(source)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError is not exported under a stable name
        raise FormatError(name, f"not an ONNX file, or a truncated one ({error})") from error
    if not model.graph.node or not model.graph.output or not model.graph.output[0].name:
        raise FormatError(name, "not an ONNX file: it holds no graph with nodes and a named output")
    try:
        if not isinstance(source, bytes):
            folder = Path(source).resolve().parent
            _check_external_data(model, folder, name)
            onnx.external_data_helper.load_external_data_for_model(model, str(folder))
        if model.functions:
            refuse_growth(model, name)
            model = onnx.inliner.inline_local_functions(model)
    except RarelyError:
        raise
    except Exception as error:  # onnx raises its own unrelated types for missing, foreign or short data files
        raise FormatError(name, f"its external data or local functions cannot be read ({error})") from error
    _keep_output(model, name, output)
    file = OnnxFile(model, name)
    _drop_unused(file)
    return file


def _drop_unused(file: OnnxFile) -> None:
    """Leave away nodes that the output does not depend on: onnxruntime would run them, however much they take."""
    graph = file.model.graph
    stored = [*(tensor.name for tensor in graph.initializer), *(part.values.name for part in graph.sparse_initializer)]
    needed = needed_nodes(file, {*stored, *(value.name for value in graph.input)})
    refuse(file.source, NODES.excess(len(needed), "the graph"))
    nested = any(entry.HasField("g") or entry.graphs for node in graph.node for entry in node.attribute)
    if len(needed) < len(graph.node) and not nested:  # a graph inside of a node may read what no input names
        del graph.node[:]
        graph.node.extend(needed)


def _check_external_data(model: Any, folder: Path, source: str) -> None:
    """Before any of it is read: parts of a few real bytes may be named as often as a file likes."""
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    total = 0
    for tensor in _get_all_tensors(model):
        if not uses_external_data(tensor):
            continue
        info = ExternalDataInfo(tensor)
        if Path(info.location).is_absolute() or ".." in Path(info.location).parts:
            raise FormatError(source, f"its external data {info.location[:120]!r} lies outside of its folder")
        size = (folder / info.location).stat().st_size
        start, length = int(info.offset or 0), int(info.length or 0)
        if start < 0 or length < 0 or start + length > size:
            raise FormatError(source, f"its external data {info.location[:120]!r} has {size:,} bytes, fewer than named")
        total += length or size - start
        refuse(source, MEMORY.excess(total, "its external data"))


def _keep_output(model: Any, source: str, wanted: str | None) -> None:
    """Leave only the wanted output in the graph: a property speaks of one, and guessing which would be silent."""
    outputs = list(model.graph.output)
    kept = outputs if wanted is None else [value for value in outputs if value.name == wanted]
    if len(kept) != 1:
        path = split_output(source)[0]
        names = ", ".join(f"{value.name!r} ({_describe_type(value)})" for value in outputs)
        asked = f"has {len(outputs)} outputs:" if wanted is None else f"has no output {wanted!r}, but"
        how = f"output={outputs[-1].name!r}" if path == BYTES else f"{path}:{outputs[-1].name}"
        raise NetworkError(f"{path} {asked} {names}; say which one is meant, as in {how}")
    del model.graph.output[:]
    model.graph.output.extend(kept)


def _describe_type(value: Any) -> str:
    """The type and shape that the file states for a value, as far as it does."""
    import onnx

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind or "of no stated type").removesuffix("_type")
    tensor = value.type.tensor_type
    sizes = [str(d.dim_value) if d.WhichOneof("value") == "dim_value" else d.dim_param or "?" for d in tensor.shape.dim]
    names = {number: str(name).lower() for name, number in onnx.TensorProto.DataType.items()}
    return names.get(tensor.elem_type, "?") + (f" [{', '.join(sizes)}]" if sizes else "")


def fault_in_file(file: OnnxFile) -> str | None:
    """What the ONNX checker has against the file, or None: decides who is to blame for a failed import."""
    import onnx

    try:
        model = onnx.ModelProto()
        model.CopyFrom(file.model)
        for value in model.graph.output:
            # The checker wants a shape on every output, which onnxruntime and real files do without.
            value.type.tensor_type.shape.SetInParent()
        # Not with full_check: its shape inference aborts the whole process on some damaged files.
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError, or whatever native code raises
        return one_line(error, 500)
    return None


def input_port(file: OnnxFile) -> InputPort:
    """Find the network's input among the graph inputs, which in old files also list the initializers."""
    graph = file.model.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    if not inputs:
        raise NetworkError(f"{file.source}: a network must have an input; this one has none")
    if len(inputs) > 1:
        names = ", ".join(f"{value.name!r} ({_describe_type(value)})" for value in inputs)
        raise NetworkError(
            f"{file.source}: a network must have exactly one input; this one has {len(inputs)}: {names}. "
            "Export it again as a network of one input, which splits it"
        )
    tensor_type = inputs[0].type.tensor_type
    if not tensor_type.HasField("shape") or not tensor_type.shape.dim:
        raise NetworkError(f"{file.source}: input {inputs[0].name!r} has no shape, so its size is unknown")
    sizes = [dim.dim_value if dim.WhichOneof("value") == "dim_value" else 0 for dim in tensor_type.shape.dim]
    # A rank-1 input of fixed size is one unbatched vector; so is anything whose first size is fixed above 1.
    has_batch = sizes[0] <= 0 or (sizes[0] == 1 and len(sizes) > 1)
    shape = (1, *sizes[1:]) if has_batch else tuple(sizes)
    if min(shape) <= 0:
        raise NetworkError(
            f"{file.source}: input {inputs[0].name!r} leaves a dimension other than the batch open; "
            "export the network with fixed sizes"
        )
    refuse(file.source, ENTRIES.excess(math.prod(shape), f"an input of shape {shape}"))
    return InputPort(inputs[0].name, float_type(file, tensor_type.elem_type), shape, has_batch)


def float_type(file: OnnxFile, elem_type: int) -> np.dtype[Any]:
    """The numpy type of the input; samples are real numbers, so only float16/32/64 make sense."""
    import onnx

    known = {
        onnx.TensorProto.FLOAT: np.float32,
        onnx.TensorProto.DOUBLE: np.float64,
        onnx.TensorProto.FLOAT16: np.float16,
    }
    if elem_type not in known:
        try:
            name = onnx.TensorProto.DataType.Name(elem_type)
        except ValueError as error:
            raise FormatError(file.source, f"unknown element type {elem_type} of the input") from error
        raise UnsupportedOperator(f"{file.source}: inputs of type {name} are not supported, only float16/32/64")
    return np.dtype(known[elem_type])


def initializers(file: OnnxFile) -> dict[str, Array]:
    """All stored tensors by name."""
    import onnx

    if file.model.graph.sparse_initializer:
        raise UnsupportedOperator(f"{file.source}: sparse initializers are not supported")
    tensors: dict[str, Array] = {}
    for tensor in file.model.graph.initializer:
        try:
            tensors[tensor.name] = onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # wrong sizes, unknown types, missing external data: each its own type
            raise FormatError(file.source, f"initializer {tensor.name!r} is damaged ({error})") from error
    return tensors


def needed_nodes(file: OnnxFile, known: set[str]) -> list[Any]:
    """The nodes that the output depends on, each after the nodes it reads from.

    The file's own order is not trusted: real files are at times unsorted. Faults outside the needed part count, too.
    """
    nodes = list(file.model.graph.node)
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    read = {i: [name for name in node.input if name and name not in known] for i, node in enumerate(nodes)}
    asked = [(describe_node(nodes[i]), name) for i in read for name in read[i]]
    for reader, name in [("the graph output", file.output_name), *asked]:
        if name not in producer and name not in known:
            raise FormatError(file.source, f"{reader} reads {name!r}, which nothing in the file defines")
    try:
        TopologicalSorter({i: [producer[name] for name in names] for i, names in read.items()}).prepare()
    except CycleError as error:
        through = describe_node(nodes[error.args[1][0]])
        raise FormatError(file.source, f"the graph has a cycle through {through}") from None
    ordered: list[Any] = []
    entered: set[int] = set()
    stack = [(producer[name], False) for name in [file.output_name] if name in producer]
    while stack:
        i, complete = stack.pop()
        if complete:
            ordered.append(nodes[i])
        elif i not in entered:
            entered.add(i)
            stack += [(i, True), *((producer[name], False) for name in reversed(read[i]))]
    return ordered


def describe_node(node: Any) -> str:
    """A node as a person would look it up in a graph viewer."""
    return f"{node.op_type} node {node.name or (node.output[0] if node.output else '?')!r}"


def blame(file: OnnxFile, where: str, error: Exception) -> RarelyError:
    """The error to raise when a node cannot be converted: the file's fault if the ONNX checker agrees."""
    fault = fault_in_file(file)
    reason = one_line(error)
    if fault is not None:
        return FormatError(file.source, f"{where}: {reason} ({fault})")
    return UnsupportedOperator(f"{file.source}: {where} cannot be converted: {reason}")
