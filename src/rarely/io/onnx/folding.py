"""Computing at import what does not depend on the input, such as the arithmetic behind a Reshape target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rarely.core.errors import FormatError, UnsupportedOperator
from rarely.io.onnx.allowance import Allowance
from rarely.io.onnx.builder import Constant, IllFormed, Value, check_size
from rarely.io.onnx.model import Array, OnnxFile, blame, describe_node

Sizes = Callable[[Any, list[Array]], float]


def fold(file: OnnxFile, node: Any, inputs: Sequence[Value | None], allowance: Allowance) -> list[Value]:
    """Evaluate a node whose inputs are all constants, once it is known that its result is not too large."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    if node.op_type in ("Dropout", "Identity") and isinstance(inputs[0], Constant):
        return [inputs[0]]
    feeds: dict[str, Array] = {}
    for name, value in zip(node.input, inputs, strict=True):
        if isinstance(value, Constant):
            feeds[name] = value.array
    arrays = [value.array if isinstance(value, Constant) else np.empty(0) for value in inputs]
    try:
        _check_size(file, node, arrays, allowance)
    except (IndexError, ValueError, OverflowError, ZeroDivisionError, TypeError) as error:
        raise blame(file, describe_node(node), error) from error
    try:
        # A model rather than the bare node: only with one does the evaluator respect the operator set.
        make, element = onnx.helper.make_tensor_value_info, onnx.helper.np_dtype_to_tensor_dtype
        graph = onnx.helper.make_graph(
            [node],
            "fold",
            [make(name, element(array.dtype), array.shape) for name, array in feeds.items()],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        opset = onnx.helper.make_opsetid("", file.opset)
        outputs = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[opset])).run(None, feeds)
    except Exception as error:  # the reference implementation raises whatever numpy does
        raise blame(file, describe_node(node), error) from error
    if not all(isinstance(array, np.ndarray | np.generic) for array in outputs):
        raise UnsupportedOperator(f"{file.source}: {describe_node(node)} does not give a tensor")
    try:
        allowance.keep(sum(array.nbytes for array in outputs))
    except IllFormed as error:
        raise FormatError(file.source, f"{describe_node(node)}: {error}") from error
    named = dict(zip((name for name in node.output if name), outputs, strict=True))
    return [Constant(np.asarray(named.get(name, np.empty(0)))) for name in node.output]


def _check_size(file: OnnxFile, node: Any, arrays: list[Array], allowance: Allowance) -> None:
    """The result must be known to be small, so that operators of which that is not known are not computed here."""
    if node.op_type not in SIZES or any(entry.name == "sparse_value" for entry in node.attribute):
        raise UnsupportedOperator(f"{file.source}: {describe_node(node)}: it is not computed at import")
    size = SIZES[node.op_type](node, arrays)
    try:
        if size > max((array.size for array in arrays), default=0):  # a weight may be as large as its file
            check_size(size, "the result")
        if SIZES[node.op_type] is _matrix_product:
            allowance.work(2.0 * size * arrays[0].shape[-1])
    except IllFormed as error:
        raise FormatError(file.source, f"{describe_node(node)}: {error}") from error


def _product(array: Array) -> float:
    return math.prod(float(n) for n in array.reshape(-1))


def _largest(_: Any, arrays: list[Array]) -> float:
    """Of operators that broadcast, or move entries about."""
    return max(_broadcast(*(array.shape for array in arrays)), sum(array.size for array in arrays))


def _broadcast(*shapes: Sequence[int]) -> float:
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return float(math.prod(map(max, zip(*padded, strict=True))))


def _matrix_product(node: Any, arrays: list[Array]) -> float:
    left, right = ([*array.shape] if array.ndim > 1 else [1, array.size] for array in arrays[:2])
    if node.op_type == "Gemm":  # either may be turned
        return max(left) * max(right)
    if arrays[1].ndim == 1:
        right.reverse()
    return _broadcast(left[:-2], right[:-2]) * left[-2] * right[-1]


def _padded(node: Any, arrays: list[Array]) -> float:
    stored = [entry.ints for entry in node.attribute if entry.name == "pads"]
    pads = np.array(stored[0] if stored else arrays[1], dtype=np.float64)
    return math.prod(float(size) + 2.0 * float(np.abs(pads).max(initial=0)) for size in arrays[0].shape)


def _resized(node: Any, arrays: list[Array]) -> float:
    stored = [entry.floats for entry in node.attribute if entry.name == "scales"]
    scales = [np.array(stored[0])] if stored else [array for array in arrays[1:3] if array.size]
    grown = max((arrays[0].size * _product(array) for array in scales), default=0.0)
    return max(grown, _product(arrays[3]) if len(arrays) > 3 else 0.0)


def _range(_: Any, arrays: list[Array]) -> float:
    start, limit, step = (float(array.item()) for array in arrays)
    return (limit - start) / step


def _gathered(_: Any, arrays: list[Array]) -> float:
    """Each index brings at most as many entries as all axes but the smallest hold."""
    data, indices = arrays[0], arrays[1]
    return data.size / max(min(data.shape, default=1), 1) * indices.size


_SAME = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitShift BitwiseAnd BitwiseNot
BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat Constant Cos Cosh CumSum DepthToSpace DequantizeLinear Div
Dropout Elu Equal Erf Exp EyeLike Flatten Floor GatherElements Gelu Greater GreaterOrEqual HardSigmoid HardSwish
Identity IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Max Mean Min Mish Mod Mul Neg Not
Or PRelu Pow QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements ScatterND Selu Shape Sigmoid Sign
Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu TopK
Transpose Trilu Unsqueeze Where Xor
"""

SIZES: dict[str, Sizes] = {
    **dict.fromkeys(_SAME.split(), _largest),
    "ConstantOfShape": lambda _, arrays: _product(arrays[0]),
    "Expand": lambda _, arrays: _broadcast(arrays[0].shape, [int(n) for n in arrays[1].reshape(-1)]),
    "Gather": _gathered,
    "GatherND": _gathered,
    "Gemm": _matrix_product,
    "MatMul": _matrix_product,
    "NonZero": lambda _, arrays: arrays[0].size * max(arrays[0].ndim, 1),
    "OneHot": lambda _, arrays: arrays[0].size * float(arrays[1].item()),
    "Pad": _padded,
    "Range": _range,
    "Resize": _resized,
    "Tile": lambda _, arrays: arrays[0].size * _product(arrays[1]),
    "Upsample": _resized,
}
"""At most how many entries the result of an operator has."""
