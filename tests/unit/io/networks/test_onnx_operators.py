"""Every operator of the importer against ONNX Runtime, at batch size 1 and row by row at 7."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx_models import arr, check_against_onnxruntime, f32, graph, i64, node, single_op

from rarely.core.errors import UnsupportedOperator
from rarely.io.onnx.importer import import_onnx

IMAGE = (1, 3, 6, 7)
CASES: list[Any] = []


def case(label: str, kind: str, shape: Any, *constants: Any, **options: Any) -> None:
    options.setdefault("low", -2.0)
    options.setdefault("high", 2.0)
    limits = options.pop("low"), options.pop("high")
    CASES.append(pytest.param(kind, shape, constants, options, limits, id=f"{kind}-{label}"))


# Elementwise
for kind in (
    "Abs",
    "Ceil",
    "Cos",
    "Erf",
    "Exp",
    "Floor",
    "Neg",
    "Round",
    "Sign",
    "Sin",
    "Tan",
    "Atan",
    "Sinh",
    "Cosh",
):
    case("plain", kind, (1, 5))
for kind in ("Log", "Sqrt", "Reciprocal"):
    case("positive", kind, (1, 5), low=0.1)
for kind in ("Acos", "Asin"):
    case("unit", kind, (1, 5), low=-0.9, high=0.9)
for kind in (
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Sigmoid",
    "Tanh",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
):
    case("image", kind, IMAGE)
case("opset9", "Relu", (1, 5), opset=9)
case("alpha", "LeakyRelu", (1, 5), alpha=0.3)
case("alpha", "Elu", (1, 5), alpha=0.7)
case("alpha", "Celu", (1, 5), alpha=0.7)
case("params", "Selu", (1, 5), alpha=1.2, gamma=0.8)
case("params", "HardSigmoid", (1, 5), alpha=0.4, beta=0.3)
case("plain", "Mish", (1, 5), opset=18)
case("alpha", "ThresholdedRelu", (1, 5), alpha=0.4)
case("exact", "Gelu", (1, 5), opset=20)
case("tanh", "Gelu", (1, 5), opset=20, approximate="tanh")
case("scalar", "PRelu", (1, 5), f32(0.2))
case("channel", "PRelu", IMAGE, arr(3, 1, 1))
case("everywhere", "PRelu", (1, 5), arr(5))
for opset in (7, 10):
    case(f"opset{opset}", "Clip", (1, 5), min=-0.5, max=0.7, opset=opset)
    case(f"relu-opset{opset}", "Clip", (1, 5), min=0.0, opset=opset)
case("both", "Clip", (1, 5), np.float32(-0.5), np.float32(0.7), opset=13)
case("low", "Clip", (1, 5), np.float32(-0.5), opset=13)
case("high", "Clip", (1, 5), None, np.float32(0.5), opset=11)
case("none", "Clip", (1, 5), opset=13)
for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
    for label, other in (("row", arr(5, low=0.5)), ("same", arr(1, 5, low=0.5)), ("scalar", np.float32(0.5))):
        case(label, kind, (1, 5), other, opset=13)
        case(f"{label}-reversed", kind, (1, 5), other, opset=8, input_at=1, low=0.5)
    case("grows-rank", kind, (1, 5), arr(2, 1, 5, low=0.5), opset=13)
    case("grows-batch", kind, (1, 5), arr(4, 5, low=0.5), opset=13)
    case("unbatched", kind, (5,), arr(4, 5, low=0.5), opset=13)
case("zero", "Add", (1, 5), np.zeros(5, np.float32))
case("zero-grows", "Add", (1, 5), np.zeros((4, 5), np.float32))
case("zero", "Max", (1, 5), np.zeros((), np.float32))
case("three", "Max", (1, 5), arr(5), arr(1, 5))
case("three", "Sum", (1, 5), arr(5), arr(1, 5))
case("three", "Mean", (1, 5), arr(5), arr(1, 5))
case("square", "Pow", (1, 5), np.float32(2.0))
case("one", "Pow", (1, 5), np.float32(1.0))
case("root", "Pow", (1, 5), np.float32(0.5), low=0.1)
case("vector", "Pow", (1, 5), arr(5), low=0.1)
case("base", "Pow", (1, 5), arr(5, low=0.5, high=2.0), input_at=1)
for kind in ("Greater", "Less"):
    case("opset9", kind, (1, 5), arr(5), opset=9)
for kind in ("GreaterOrEqual", "LessOrEqual"):
    case("plain", kind, (1, 5), arr(5))
case("plain", "Equal", (1, 5), arr(5))
case("plain", "IsNaN", (1, 5))

# Linear layers
case("transB", "Gemm", (1, 5), arr(4, 5), arr(4), transB=1)
case("plain", "Gemm", (1, 5), arr(5, 4), arr(1, 4), opset=9)
case("no-bias", "Gemm", (1, 5), arr(5, 4), opset=11)
case("scaled", "Gemm", (1, 5), arr(5, 4), arr(4), alpha=0.5, beta=2.0)
case("scalar-bias", "Gemm", (1, 5), arr(5, 4), f32(0.5))
case("no-beta", "Gemm", (1, 5), arr(5, 4), arr(4), beta=0.0)
case("transA-unbatched", "Gemm", (5, 1), arr(5, 4), arr(4), transA=1)
case("matrix-bias", "Gemm", (3, 5), arr(5, 4), arr(3, 4), beta=0.5)
case("column-bias", "Gemm", (3, 5), arr(5, 4), arr(3, 1))
case("left-weight", "Gemm", (5, 3), arr(4, 5), arr(4, 1), input_at=1, alpha=2.0)
case("row", "MatMul", (1, 5), arr(5, 4))
case("deep", "MatMul", (1, 2, 3, 5), arr(5, 4))
case("vector", "MatMul", (5,), arr(5, 4))
case("left-vector", "MatMul", (5,), arr(4, 5), input_at=1)
case("left-column", "MatMul", (5, 1), arr(4, 5), input_at=1)
case("left-batched", "MatMul", (1, 5, 3), arr(4, 5), input_at=1)
case("left-outer", "MatMul", (1, 5), arr(4, 1), input_at=1)
case("stack", "MatMul", (1, 2, 5), arr(3, 5, 4))
case("stack-row", "MatMul", (1, 5), arr(3, 5, 4))
case("by-vector", "MatMul", (1, 2, 5), arr(5))
case("by-vector-deep", "MatMul", (1, 2, 3, 5), arr(5))
case("by-vector-rows", "MatMul", (3, 2, 5), arr(5))
case("by-vector-row", "MatMul", (1, 5), arr(5))
case("inner", "MatMul", (5,), arr(5))
case("vector-by-stack", "MatMul", (5,), arr(3, 5, 4))
case("vector-by-stack-of-one", "MatMul", (5,), arr(1, 5, 4))
case("stack-by-vector", "MatMul", (5,), arr(3, 4, 5), input_at=1)
case("constant-vector", "MatMul", (1, 5, 4), arr(5), input_at=1)
case("constant-vector-matrix", "MatMul", (5, 4), arr(5), input_at=1)
case("1d", "Conv", (1, 3, 9), arr(4, 3, 3), arr(4))
case("2d", "Conv", IMAGE, arr(4, 3, 3, 3), arr(4), pads=[1, 1, 1, 1], strides=[2, 2])
case("2d-no-bias-opset7", "Conv", IMAGE, arr(4, 3, 3, 3), kernel_shape=[3, 3], opset=7)
case("3d", "Conv", (1, 2, 4, 5, 6), arr(3, 2, 2, 2, 2), arr(3))
case("groups", "Conv", (1, 4, 6, 6), arr(6, 2, 3, 3), group=2)
case("depthwise", "Conv", (1, 4, 6, 6), arr(4, 1, 3, 3), group=4, pads=[1, 1, 1, 1])
case("dilated", "Conv", IMAGE, arr(4, 3, 2, 2), dilations=[2, 3])
case("asymmetric", "Conv", IMAGE, arr(4, 3, 3, 3), arr(4), pads=[0, 1, 2, 0])
for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    case(mode, "Conv", IMAGE, arr(4, 3, 2, 3), auto_pad=mode, strides=[2, 2])
    case(mode, "MaxPool", IMAGE, auto_pad=mode, kernel_shape=[2, 3], strides=[2, 2])
    case(mode, "AveragePool", IMAGE, auto_pad=mode, kernel_shape=[2, 3], strides=[2, 2])
case("many", "Conv", (2, 3, 6, 6), arr(4, 3, 3, 3), arr(4))
case("1d", "ConvTranspose", (1, 3, 5), arr(3, 4, 3), arr(4), strides=[2])
case(
    "2d",
    "ConvTranspose",
    IMAGE,
    arr(3, 4, 3, 3),
    arr(4),
    strides=[2, 2],
    pads=[1, 1, 1, 1],
    output_padding=[1, 1],
)
case("groups", "ConvTranspose", (1, 4, 5, 5), arr(4, 2, 3, 3), group=2)
case("dilated", "ConvTranspose", IMAGE, arr(3, 4, 2, 2), dilations=[2, 2])
case("asymmetric", "ConvTranspose", IMAGE, arr(3, 4, 3, 3), arr(4), pads=[0, 1, 1, 0])
case("shape", "ConvTranspose", IMAGE, arr(3, 4, 3, 3), strides=[2, 2], output_shape=[12, 14])
case("same", "ConvTranspose", IMAGE, arr(3, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER")
case("same-lower", "ConvTranspose", IMAGE, arr(3, 4, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER")
STATISTICS = (arr(3), arr(3), arr(3), arr(3, low=0.5, high=2.0))
for label, shape in (
    ("2", (1, 3)),
    ("3", (1, 3, 4)),
    ("4", IMAGE),
    ("5", (1, 3, 2, 2, 2)),
    ("many", (2, 3, 4, 4)),
):
    case(f"rank-{label}", "BatchNormalization", shape, *STATISTICS, epsilon=1e-3)
case("opset8", "BatchNormalization", IMAGE, *STATISTICS, opset=8)
case("opset14", "BatchNormalization", IMAGE, *STATISTICS, opset=14)
case("1d", "InstanceNormalization", (1, 3, 6), arr(3), arr(3))
case("2d", "InstanceNormalization", IMAGE, arr(3), arr(3), opset=9)
case("last", "LayerNormalization", (1, 4, 6), arr(6), arr(6))
case("two-axes", "LayerNormalization", (1, 4, 6), arr(4, 6), arr(4, 6), axis=1)
case("no-bias", "LayerNormalization", (1, 4, 6), arr(6))
case("from-batch", "LayerNormalization", (1, 4, 6), arr(1, 4, 6), arr(1, 4, 6), axis=0)

# Pooling and resizing
case("1d", "MaxPool", (1, 3, 9), kernel_shape=[3], strides=[2])
case("2d", "MaxPool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], opset=8)
case("3d", "MaxPool", (1, 2, 4, 4, 4), kernel_shape=[2, 2, 2])
case("ceil", "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
case("ceil-pad", "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
case("dilated", "MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2])
case("asymmetric", "MaxPool", IMAGE, kernel_shape=[3, 3], pads=[0, 0, 1, 2])
case("asymmetric-ceil", "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1)
case("many", "MaxPool", (2, 3, 6, 6), kernel_shape=[2, 2])
case("1d", "AveragePool", (1, 3, 9), kernel_shape=[3], strides=[2])
case("3d", "AveragePool", (1, 2, 4, 4, 4), kernel_shape=[2, 2, 2])
for include in (0, 1):
    options = {"kernel_shape": [3, 3], "count_include_pad": include}
    case(f"pads-{include}", "AveragePool", IMAGE, pads=[1, 1, 1, 1], **options)
    case(f"asymmetric-{include}", "AveragePool", IMAGE, pads=[0, 0, 1, 2], **options)
    case(f"ceil-{include}", "AveragePool", IMAGE, strides=[2, 2], ceil_mode=1, opset=19, **options)
    case(f"wide-{include}", "AveragePool", IMAGE, pads=[2, 2, 2, 2], **options)
for kind in ("GlobalAveragePool", "GlobalMaxPool"):
    case("2d", kind, IMAGE)
    case("1d", kind, (1, 3, 6))
case("nearest", "Upsample", IMAGE, f32(1, 1, 2, 3), opset=9, mode="nearest")
case("linear", "Upsample", IMAGE, f32(1, 1, 2, 2), opset=9, mode="linear")
case("attribute", "Upsample", IMAGE, opset=7, mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
case("opset10", "Resize", IMAGE, f32(1, 1, 2, 2), opset=10, mode="nearest")
for mode in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        case(
            f"nearest-{mode}-{rounding}",
            "Resize",
            IMAGE,
            None,
            f32(1, 1, 2, 1.5),
            opset=13,
            mode="nearest",
            coordinate_transformation_mode=mode,
            nearest_mode=rounding,
        )
    case(
        f"linear-{mode}",
        "Resize",
        IMAGE,
        None,
        f32(1, 1, 2, 0.6),
        opset=13,
        mode="linear",
        coordinate_transformation_mode=mode,
    )
case("sizes", "Resize", IMAGE, None, None, i64(1, 3, 9, 9), opset=13, mode="linear")
case("axes", "Resize", IMAGE, None, None, i64(12, 14), opset=18, mode="nearest", axes=[2, 3])
case(
    "symmetric",
    "Resize",
    IMAGE,
    None,
    f32(1, 1, 1.5, 1.5),
    opset=19,
    mode="linear",
    coordinate_transformation_mode="half_pixel_symmetric",
)

# Shapes
for axis in (0, 1, 2, -1):
    case(f"axis{axis}", "Flatten", IMAGE, axis=axis, opset=13)
case("unbatched", "Flatten", (4,), axis=0)
for label, target in (
    ("flat", (1, 126)),
    ("infer", (1, -1)),
    ("rows", (-1, 7)),
    ("zero", (0, 3, -1)),
    ("no-batch", (126,)),
):
    case(label, "Reshape", IMAGE, i64(*target), opset=13)
case("same", "Reshape", (1, 5), i64(1, 5))
case("unbatched", "Reshape", (6,), i64(1, 2, 3))
for perm in ((0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0), (0, 1, 2, 3)):
    case(str(perm), "Transpose", IMAGE, perm=list(perm))
case("default", "Transpose", (1, 4, 5))
case("unbatched", "Transpose", (4, 5))
case("opset11", "Squeeze", (1, 4, 1), opset=11, axes=[2])
case("opset13", "Squeeze", (1, 4, 1), i64(-1), opset=13)
case("batch", "Squeeze", (1, 4, 1), i64(0), opset=13)
case("all", "Squeeze", (1, 4, 1), opset=13)
case("opset11", "Unsqueeze", (1, 4), opset=11, axes=[1, 3])
case("opset13", "Unsqueeze", (1, 4), i64(0, -1), opset=13)
case("unbatched", "Unsqueeze", (4,), i64(0), opset=13)
case("constant", "Concat", (1, 4), arr(1, 3), axis=1)
case("constant-first", "Concat", (1, 4), arr(1, 3), axis=-1, input_at=1)
case("batch-axis", "Concat", (1, 4), arr(2, 4), axis=0)
case("unbatched", "Concat", (4,), arr(2), axis=0)
case("opset11", "Split", (1, 6), opset=11, axis=1, split=[2, 4], outputs=2)
case("opset13", "Split", (1, 6), i64(2, 4), opset=13, axis=1, outputs=2)
case("equal", "Split", (1, 6), opset=13, axis=1, outputs=3)
case("uneven", "Split", (1, 7), opset=18, axis=1, outputs=3, num_outputs=3)
case("opset9", "Slice", IMAGE, opset=9, starts=[1, 0], ends=[1000, -2], axes=[2, 3])
case("opset11", "Slice", IMAGE, i64(1, 0), i64(2**62, -2), i64(2, 3), opset=11)
case("steps", "Slice", IMAGE, i64(0, 5), i64(7, -100), i64(3, 2), i64(2, -2))
case("no-axes", "Slice", (1, 6), i64(0, 2), i64(1, 5), opset=13)
case("scalar", "Gather", (1, 5), np.int64(2), axis=1)
case("negative", "Gather", (1, 5), i64(-1, 0), axis=1)
case("matrix", "Gather", (1, 5, 2), i64(0, 1, 4, 2).reshape(2, 2), axis=1)
case("batch-axis", "Gather", (1, 5), np.int64(0), axis=0)
case("unbatched", "Gather", (5,), i64(3, 1), axis=0)
case("opset10", "Pad", IMAGE, opset=10, pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5)
case("opset13", "Pad", IMAGE, i64(0, 0, 1, 2, 0, 0, 0, 1), np.float32(0.5), opset=13)
case("channels", "Pad", IMAGE, i64(0, 1, 0, 0, 0, 1, 0, 0), opset=13)
case("batch", "Pad", (1, 4), i64(1, 0, 0, 2), opset=13)
case("negative", "Pad", IMAGE, i64(0, 0, -1, 0, 0, 0, -2, 1), opset=13)
case("reflect", "Pad", IMAGE, i64(0, 0, 1, 2, 0, 0, 2, 1), opset=13, mode="reflect")
case("edge", "Pad", IMAGE, i64(0, 0, 1, 2, 0, 0, 2, 1), opset=13, mode="edge")
case("wrap", "Pad", IMAGE, i64(0, 0, 1, 2, 0, 0, 2, 1), opset=19, mode="wrap")
case("axes", "Pad", IMAGE, i64(1, 2), None, i64(-1), opset=18)
case("grow", "Expand", (1, 1, 5), i64(1, 4, 5))
case("rank", "Expand", (1, 5), i64(3, 1, 5))
case("batch", "Expand", (1, 5), i64(3, 5))
case("same", "Expand", (1, 5), i64(1, 5))
case("plain", "Tile", (1, 5), i64(1, 3))
case("batch", "Tile", (1, 5), i64(2, 1))
case("plain", "Identity", (1, 5))
case("opset11", "Dropout", (1, 5), opset=11)
case("opset13", "Dropout", (1, 5), np.float32(0.5), opset=13)
case("same", "Cast", (1, 5), to=onnx.TensorProto.FLOAT)
case("dcr", "DepthToSpace", (1, 8, 2, 3), blocksize=2)
case("crd", "DepthToSpace", (1, 8, 2, 3), blocksize=2, mode="CRD")
case("plain", "SpaceToDepth", (1, 2, 4, 6), blocksize=2)

# Reductions
for kind in (
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
):
    case("opset11", kind, IMAGE, opset=11, axes=[2, 3])
    case("opset18", kind, IMAGE, i64(1, -1), opset=18, keepdims=0)
    case("batch-axis", kind, (1, 5), opset=11, axes=[0])
    case("all", kind, (1, 5), opset=13)
    case("unbatched", kind, (5,), opset=11, axes=[0], keepdims=0)
case("opset13", "ReduceSum", IMAGE, i64(2), opset=13)
case("noop", "ReduceSum", IMAGE, opset=13, noop_with_empty_axes=1)
for kind in ("ArgMax", "ArgMin"):
    case("last", kind, (1, 5), axis=-1)
    case("no-dims", kind, (1, 3, 5), axis=1, keepdims=0)
    case("batch-axis", kind, (1, 5), axis=0)
for kind in ("Softmax", "LogSoftmax"):
    case("opset11", kind, (1, 3, 4), opset=11)
    case("opset13", kind, (1, 3, 4), opset=13)
    case("axis1", kind, (1, 3, 4), opset=13, axis=1)
    case("batch-axis", kind, (1, 3), opset=13, axis=0)
    case("unbatched", kind, (4,), opset=13, axis=0)


@pytest.mark.parametrize(("kind", "shape", "constants", "options", "limits"), CASES)
def test_operator(kind: str, shape: Any, constants: Any, options: Any, limits: Any) -> None:
    model = single_op(kind, shape, *constants, **options)
    network = check_against_onnxruntime(model, *limits)
    wide = network.to(torch.float64)
    x = torch.empty(2, *network.input_shape, dtype=torch.float64).uniform_(*limits).requires_grad_()
    y = wide(x)
    assert y.dtype == torch.float64
    if y.requires_grad:  # not behind comparisons and positions
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("batch", [1, "N"])
@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_logic(kind: str, batch: int | str) -> None:
    nodes = [
        node("Greater", "x t", "a"),
        node("Less", "x u", "b"),
        node("Not", "b", "nb"),
        node(kind, "a nb", "c"),
        node("Where", "c x z", "d"),
        node("Cast", "c", "e", to=onnx.TensorProto.FLOAT),
        node("Add", "d e", "y"),
    ]
    stored = {"t": f32(0.2), "u": arr(5), "z": arr(1, 5)}
    network = check_against_onnxruntime(graph(nodes, (batch, 5), stored))
    assert network.to(torch.float64)(torch.rand(3, 5, dtype=torch.float64)).dtype == torch.float64


def test_casts_to_integers_and_back() -> None:
    nodes = [
        node("Cast", "x", "a", to=onnx.TensorProto.INT64),
        node("Mul", "a two", "b"),
        node("Div", "b three", "c"),
        node("Cast", "c", "d", to=onnx.TensorProto.DOUBLE),
        node("Cast", "d", "y", to=onnx.TensorProto.FLOAT),
    ]
    check_against_onnxruntime(graph(nodes, (1, 5), {"two": i64(2), "three": i64(3)}), -9, 9)


def test_split_uses_every_output() -> None:
    nodes = [node("Split", "x", "a b c", axis=1), node("Mul", "c a", "d"), node("Sub", "d b", "y")]
    check_against_onnxruntime(graph(nodes, (1, 6), opset=11))


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_float_types(dtype: Any) -> None:
    model = single_op("Gemm", (1, 5), arr(5, 4).astype(dtype), arr(4).astype(dtype), dtype=dtype)
    network = import_onnx(model)
    assert network(torch.rand(3, 5, dtype=network.linear_1.weight.dtype)).dtype == network.linear_1.weight.dtype
    if dtype == np.float64:
        check_against_onnxruntime(model)


@pytest.mark.parametrize(
    ("kind", "shape", "constants", "options"),
    [
        ("Resize", IMAGE, (None, f32(1, 1, 2, 2)), {"mode": "cubic"}),
        (
            "Resize",
            IMAGE,
            (f32(0, 0, 0, 0, 1, 1, 1, 1), f32(1, 1, 2, 2)),
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
        ),
        ("ArgMax", (1, 5), (), {"select_last_index": 1}),
        ("AveragePool", IMAGE, (), {"kernel_shape": [2, 2], "dilations": [2, 2], "opset": 19}),
        ("Hardmax", (1, 5), (), {}),
        ("Relu", (1, 5), (), {"opset": 6}),
    ],
)
def test_unsupported_variants_say_so(kind: str, shape: Any, constants: Any, options: Any) -> None:
    with pytest.raises(UnsupportedOperator, match=f"{kind}|operator set"):
        import_onnx(single_op(kind, shape, *constants, **options))
