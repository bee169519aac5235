"""ONNX to torch: a batch-agnostic, differentiable torch.fx.GraphModule out of an ONNX file."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from rarely.core.errors import FormatError, NetworkError, RarelyError, UnsupportedOperator
from rarely.io.onnx import ops, ops_index, ops_linear, ops_pool, ops_shape
from rarely.io.onnx.allowance import Allowance
from rarely.io.onnx.builder import (
    HANDLERS,
    PROBE_BATCH,
    Activation,
    Builder,
    Constant,
    IllFormed,
    OnnxNode,
    Value,
    as_tensor,
)
from rarely.io.onnx.compare import compare_with_onnxruntime
from rarely.io.onnx.folding import fold
from rarely.io.onnx.model import (
    InputPort,
    OnnxFile,
    blame,
    describe_node,
    initializers,
    input_port,
    needed_nodes,
    read_onnx,
)
from rarely.io.onnx.windows import Windows

OPERATOR_TABLES = (ops, ops_index, ops_linear, ops_pool, ops_shape)
"""Importing these modules fills the table of handlers."""

OLDEST_OPSET = 7
"""Before it, broadcasting and several attributes meant something else."""

NEVER_FOLDED = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", "If", "Loop", "Scan"})
SHAPED_BY_INPUT = frozenset({"Compress", "ConstantOfShape", "NonMaxSuppression", "NonZero", "Range", "Unique"})


class ImportedNetwork(fx.GraphModule):
    """A network from an ONNX file; forward maps (n, *input_shape) to (n, *output_shape).

    Row i of the result is the output of the ONNX model for row i at batch size 1.
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    source: str
    operators: dict[str, int]

    def __deepcopy__(self, memo: Any) -> ImportedNetwork:
        # fx copies only what the graph refers to.
        clone: Any = super().__deepcopy__(memo)
        for name in ("input_shape", "output_shape", "source", "operators"):
            setattr(clone, name, copy.copy(getattr(self, name)))
        return clone  # type: ignore[no-any-return]


def import_onnx(source: str | Path | bytes, *, check: bool = True, output: str | None = None) -> ImportedNetwork:
    """Turn an ONNX model (a path, gzipped or not, or its bytes) into a torch module.

    With `check`, the module is compared with onnxruntime on random inputs, where onnxruntime is installed, and a
    difference beyond rounding is a `NetworkError`. Of several outputs, `output` names the one that is meant; it may
    also stand behind the path, `net.onnx:output`. An operator that is not known is an `UnsupportedOperator`;
    `load_network` then falls back to onnxruntime.
    """
    file = read_onnx(source, output)
    try:
        network = build_network(file)
    except RarelyError:
        raise
    except Exception as error:  # a damaged file can break any assumption; its reader sees no traceback
        raise blame(file, "the graph", error) from error
    if check:
        compare_with_onnxruntime(network, file, input_port(file))
    return network


def build_network(file: OnnxFile) -> ImportedNetwork:
    """Translate a parsed model, node by node."""
    port = input_port(file)
    if file.opset < OLDEST_OPSET:
        raise UnsupportedOperator(f"{file.source}: operator set {file.opset} is older than {OLDEST_OPSET}")
    stored = initializers(file)
    dtype = as_tensor(np.empty(0, port.dtype)).dtype
    builder = Builder(port.row_shape, dtype, port.has_batch)
    values: dict[str, Value] = {name: Constant(array) for name, array in stored.items()}
    values[port.name] = builder.input
    nodes = needed_nodes(file, set(values))
    readers = Counter(name for node in nodes for name in node.input)
    readers[file.output_name] += 1
    windows = Windows()
    allowance = Allowance()
    with torch.no_grad(), allowance:
        for node in nodes:
            convert(file, builder, node, values, allowance)
            windows.follow(file, node, values)
            for name in node.input:
                # Probe tensors of a deep network would otherwise all stay in memory.
                readers[name] -= 1
                if readers[name] == 0:
                    values.pop(name, None)
        output = values.get(file.output_name)
        windows.check_output(file)
        if not isinstance(output, Activation):
            raise NetworkError(f"{file.source}: the output {file.output_name!r} does not depend on the input")
        if not output.tail:
            output = builder.call(torch.reshape, output, (-1, 1), carrying=True)
        if not output.probe.is_floating_point():
            output = builder.method("type_as", output, builder.input)  # a property is about real numbers
    builder.graph.output(output.node)
    return _finish(file, port, builder, output)


def convert(file: OnnxFile, builder: Builder, node: Any, values: dict[str, Value], allowance: Allowance) -> None:
    """Append one ONNX node to the graph, or fold it, and record its outputs in `values`."""
    import onnx

    inputs = [values.get(name) if name else None for name in node.input]
    for name, value in zip(node.input, inputs, strict=True):
        if name and value is None:
            raise UnsupportedOperator(f"{file.source}: {describe_node(node)} reads the optional output {name!r}")
    known = node.domain in ("", "ai.onnx")
    if known and node.op_type not in NEVER_FOLDED and not any(isinstance(v, Activation) for v in inputs):
        results: Sequence[Value] = fold(file, node, inputs, allowance)
    elif known and node.op_type in HANDLERS:
        attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        operation = OnnxNode(node.op_type, inputs, attributes, file.opset, len(node.output))
        try:
            returned = HANDLERS[node.op_type](builder, operation)
        except UnsupportedOperator as error:
            raise UnsupportedOperator(f"{file.source}: {describe_node(node)}: {error}") from error
        except RarelyError:
            raise
        except IllFormed as error:
            raise FormatError(file.source, f"{describe_node(node)}: {error}") from error
        except Exception as error:  # torch, numpy and wrong attributes raise types of every kind
            raise blame(file, describe_node(node), error) from error
        results = returned if isinstance(returned, list) else [returned]
    elif known and node.op_type in SHAPED_BY_INPUT:
        raise UnsupportedOperator(f"{file.source}: {describe_node(node)}: its shape would depend on the input")
    else:
        kind = node.op_type if known else f"{node.domain}.{node.op_type}"
        raise UnsupportedOperator(f"{file.source}: operator {kind} ({describe_node(node)}) is not supported")
    for name, result in zip(node.output, results, strict=False):
        if isinstance(result, Activation) and result.probe.numel() == 0:
            raise FormatError(file.source, f"{describe_node(node)} gives an empty tensor")
        if isinstance(result, Activation) and result.probe.shape[:1] != (PROBE_BATCH,):
            raise UnsupportedOperator(f"{file.source}: {describe_node(node)} mixes the rows of a batch")
        values[name] = result


def _finish(file: OnnxFile, port: InputPort, builder: Builder, output: Activation) -> ImportedNetwork:
    fuse_biases(builder)
    builder.graph.lint()
    # Dead code can only be told inside a module, and a new module keeps only the buffers still in use.
    draft = fx.GraphModule(builder.root, builder.graph)
    draft.graph.eliminate_dead_code()
    network = ImportedNetwork(builder.root, draft.graph)
    network.input_shape = port.row_shape
    network.output_shape = output.tail
    network.source = file.source
    network.operators = dict(Counter(node.op_type for node in file.model.graph.node))
    return network.eval()


def fuse_biases(builder: Builder) -> None:
    """Make a Linear or Conv without bias and the constant added to it one layer."""
    for node in list(builder.graph.nodes):
        if node.op != "call_function" or node.target not in (torch.add, torch.sub):
            continue
        left, right = node.args
        if node.target is torch.add and isinstance(left, fx.Node) and left.op == "get_attr":
            left, right = right, left
        if not (isinstance(left, fx.Node) and left.op == "call_module" and len(left.users) == 1):
            continue
        if not (isinstance(right, fx.Node) and right.op == "get_attr"):
            continue
        layer = builder.root.get_submodule(str(left.target))
        constant = operator.attrgetter(str(right.target))(builder.root)
        bias = _as_bias(layer, constant if node.target is torch.add else -constant)
        if bias is not None:
            layer.bias = nn.Parameter(bias, requires_grad=False)
            node.replace_all_uses_with(left)
            builder.graph.erase_node(node)


def _as_bias(layer: nn.Module, constant: torch.Tensor) -> torch.Tensor | None:
    """The constant as the layer's bias, or None if it varies over more than the output channels."""
    if isinstance(layer, nn.Linear):
        channels, trailing = layer.out_features, 0
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        channels, trailing = layer.out_channels, len(layer.kernel_size)
    else:
        return None
    if layer.bias is not None or constant.dtype != layer.weight.dtype:
        return None
    if constant.numel() == 1 and constant.dim() <= trailing + 1:
        return constant.reshape(1).expand(channels).clone()
    wanted = (channels, *(1,) * trailing)
    return constant.reshape(-1).clone() if tuple(constant.shape) in (wanted, (1, *wanted)) else None
