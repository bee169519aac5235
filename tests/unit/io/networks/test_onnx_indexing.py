"""Operators that compute positions, against ONNX Runtime: OneHot, ScatterND, windows moved by the input, folding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_models import arr, check_against_onnxruntime, f32, graph, i64, node

from rarely.core.errors import FormatError, UnsupportedOperator
from rarely.io.onnx.importer import import_onnx
from rarely.io.onnx.runtime import open_session


@pytest.mark.parametrize("axis", [-1, 0, 1, 2, -2, -3])
@pytest.mark.parametrize("shape", [(1, 4), (3, 4)])
def test_one_hot_axes(axis: int, shape: tuple[int, ...]) -> None:
    """Indices from -4 to 4 at a depth of 3: negative ones wrap, those outside of [-3, 3) are nowhere hot."""
    nodes = [node("Cast", "x", "i", to=TensorProto.INT64), node("OneHot", "i depth values", "y", axis=axis)]
    check_against_onnxruntime(graph(nodes, shape, {"depth": i64(3), "values": f32(0.25, 2.0)}), -5, 5)


@pytest.mark.parametrize(
    ("index", "depth", "values"),
    [
        (TensorProto.INT64, np.int64, np.float32),
        (TensorProto.INT64, np.int64, np.int64),
        (TensorProto.INT64, np.float32, np.int32),
        (TensorProto.INT32, np.int32, np.float32),
        (TensorProto.FLOAT, np.float32, np.float32),
    ],
)
def test_one_hot_types(index: int, depth: Any, values: Any) -> None:
    """The combinations that onnxruntime has."""
    nodes = [
        node("Floor", "x", "f"),
        node("Cast", "f", "i", to=index),
        node("OneHot", "i depth values", "h"),
        node("Cast", "h", "y", to=TensorProto.FLOAT),
    ]
    stored = {"depth": np.array([5], depth), "values": np.array([1, 7], values)}
    check_against_onnxruntime(graph(nodes, (1, 4), stored), -6, 6)


def test_carvana_counts_the_pixels_that_agree() -> None:
    """ArgMax, OneHot, casts and a ReduceSum of whole numbers without an axis left."""
    nodes = [
        node("Slice", "x zero three one", "image"),
        node("Gather", "x last", "mask", axis=1),
        node("Conv", "image w", "logits"),
        node("Gather", "logits first", "one_image", axis=0),
        node("ArgMax", "one_image", "class", axis=0, keepdims=0),
        node("OneHot", "class two values", "hot", axis=-1),
        node("Transpose", "hot", "planes", perm=[2, 0, 1]),
        node("Gather", "planes second", "plane", axis=0),
        node("Cast", "plane", "p", to=TensorProto.INT32),
        node("Cast", "mask", "m", to=TensorProto.INT32),
        node("Equal", "p m", "same"),
        node("Cast", "same", "count", to=TensorProto.INT64),
        node("ReduceSum", "count", "y", keepdims=0),
    ]
    stored = {"w": arr(2, 3, 1, 1), "zero": i64(0), "three": i64(3), "one": i64(1), "two": i64(2), "values": i64(0, 1)}
    stored |= {"last": np.array(-1), "first": np.array(0), "second": np.array(1)}
    network = check_against_onnxruntime(graph(nodes, (1, 4, 5, 6), stored, opset=11, output_type=TensorProto.INT64))
    assert network.output_shape == (1,)


REDUCTIONS = [("none", 16), ("add", 16), ("mul", 16), ("max", 18), ("min", 18)]


def scatter(kind: str, shape: Any, stored: dict[str, np.ndarray], reduction: str, opset: int) -> bytes:
    """ScatterND whose `kind` of data, updates or both are computed."""
    data, updates = ("x" if "data" in kind else "d"), ("u" if "updates" in kind else "c")
    nodes = [
        node("Slice", "x zero many ends", "u0"),
        node("Reshape", "u0 shape", "u"),
        node("ScatterND", f"{data} indices {updates}", "y", **({} if opset < 16 else {"reduction": reduction})),
    ]
    nodes = nodes if "updates" in kind else nodes[-1:]
    return graph(nodes, shape, stored, opset=opset)


@pytest.mark.parametrize(("reduction", "opset"), [("none", 11), *REDUCTIONS])
@pytest.mark.parametrize("kind", ["data", "updates", "data updates"])
def test_scatter_of_entries(kind: str, reduction: str, opset: int) -> None:
    """Whole indices into (4, 5), negative ones among them; two alike where that is defined."""
    where = [[0, 1], [3, -1], [-4, 0]] + ([[0, 1]] if reduction != "none" else [])
    count = len(where)
    stored = {"indices": np.array(where), "c": arr(count), "d": arr(4, 5), "shape": i64(count)}
    stored |= {"zero": i64(0, 0), "many": i64(1, count), "ends": i64(0, 1)}
    check_against_onnxruntime(scatter(kind, (4, 5), stored, reduction, opset))


@pytest.mark.parametrize(("reduction", "opset"), REDUCTIONS)
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 4, 5)])
def test_scatter_of_slices(shape: tuple[int, ...], reduction: str, opset: int) -> None:
    """Indices of less depth than the data replace whole slices, the batch axis of ONNX included."""
    for where in (np.array([[0, 1], [0, -1]]), np.array([[[0, 3]], [[0, 2]]]), i64(0)[None]):
        updates = arr(*where.shape[:-1], *shape[where.shape[-1] :])
        check_against_onnxruntime(scatter("data", shape, {"indices": where, "c": updates}, reduction, opset))


def test_scatter_at_computed_places() -> None:
    nodes = [
        node("Cast", "x", "i", to=TensorProto.INT64),
        node("Reshape", "i shape", "indices"),
        node("ScatterND", "d indices c", "y"),
    ]
    stored = {"d": arr(6), "c": arr(2), "shape": i64(2, 1)}
    network = import_onnx(graph(nodes, (1, 2), stored), check=False)
    found = network(torch.tensor([[0.5, 5.0], [-1.0, 2.0]]))
    for row, (first, second) in zip(found, ((0, 5), (5, 2)), strict=True):
        wanted = stored["d"].copy()
        wanted[[first, second]] = stored["c"]
        assert torch.equal(row, torch.from_numpy(wanted))


def test_scatter_outside_is_the_files_fault() -> None:
    stored = {"indices": np.array([[4]]), "c": arr(1, 5), "d": arr(4, 5)}
    with pytest.raises(FormatError, match="indices outside a tensor"):
        import_onnx(scatter("data", (4, 5), stored, "none", 16))
    with pytest.raises(FormatError, match="do not fit indices"):
        import_onnx(scatter("data", (4, 5), {**stored, "c": arr(2, 5), "indices": np.array([[1]])}, "none", 16))


def window_model(axis: int, width: int, *, fixed: bool = True, after: str = "") -> bytes:
    """Zeros at [start, start + width) of an axis of (3, 4), where the last input says `start`; the others are added."""
    size = (3, 4)[axis]
    nodes = [
        node("Slice", "x none twelve none", "flat"),
        node("Reshape", "flat shape", "grid"),
        node("Gather", "x last", "at", axis=0),
        node("Cast", "at", "s", to=TensorProto.INT64),
        node("Add" if fixed else "Mul", "s width", "e"),
        node("Unsqueeze", "s", "start", axes=[0]),
        node("Unsqueeze", "e", "end", axes=[0]),
        node("Range", "zero size one", "all"),
        node("Slice", "all start end none", "picked"),
        node("Unsqueeze", "picked", "places", axes=[1]),
        node("Shape", "picked", "count"),
        node("Concat", "count tail", "many", axis=0),
        node("ConstantOfShape", "many", "zeros", value=numpy_helper.from_array(f32(0.0))),
        node("Transpose", "grid", "front", perm=[axis, 1 - axis]),
        node("ScatterND", "front places zeros", "y"),
    ]
    if after:
        nodes = [*nodes[:9], node(after, "picked", "y")]
    stored = {"none": i64(0), "twelve": i64(12), "last": np.array(12), "width": np.array(width), "shape": i64(3, 4)}
    stored |= {"zero": np.array(0), "size": np.array(size), "one": np.array(1), "tail": i64(12 // size)}
    return graph(nodes, (13,), stored, opset=11, output_type=TensorProto.INT64 if after else None)


@pytest.mark.parametrize(("axis", "width"), [(0, 1), (0, 2), (0, 3), (1, 1), (1, 3)])
def test_window_moved_by_the_input(axis: int, width: int) -> None:
    """Every start, those included for which ONNX's window is shorter or empty."""
    data = window_model(axis, width)
    network, session = import_onnx(data), open_session(data)
    size = (3, 4)[axis]
    starts = np.arange(-size - 4, size + 4)
    rows = np.random.default_rng(0).uniform(1, 2, (len(starts), 13)).astype(np.float32)
    rows[:, 12] = starts
    wanted = np.stack([session.run(None, {"x": row})[0] for row in rows])
    assert np.array_equal(network(torch.from_numpy(rows)).numpy(), wanted)
    zeros = (wanted[:, :, 0] == 0).sum(1)
    assert zeros.min() == 0
    assert zeros.max() == width


@pytest.mark.parametrize(("width", "fixed"), [(2, False), (0, True), (-1, True)])
def test_window_without_a_fixed_width_is_refused(width: int, fixed: bool) -> None:
    with pytest.raises(UnsupportedOperator, match="its shape would depend on the input"):
        import_onnx(window_model(0, width, fixed=fixed))


@pytest.mark.parametrize("after", ["ReduceSum", "Neg", "Identity"])
def test_window_is_used_for_nothing_but_places(after: str) -> None:
    """The sum of a shorter window, or its entries, would be another one than ONNX's."""
    with pytest.raises(UnsupportedOperator, match="would depend on the input"):
        import_onnx(window_model(0, 2, after=after))


def test_places_must_say_which_of_them_are_absent() -> None:
    """start + (0, 1, ...) up to the size of a window: ONNX would count fewer of them, which nothing here marks."""
    model = onnx.load_model_from_string(window_model(0, 2))
    places = next(i for i, entry in enumerate(model.graph.node) if entry.output[0] == "places")
    model.graph.node[places].CopyFrom(node("Unsqueeze", "counted", "places", axes=[1]))
    extra = [node("Squeeze", "count", "size0"), node("Range", "zero size0 one", "r"), node("Add", "start r", "counted")]
    model.graph.node.extend(extra)
    with pytest.raises(UnsupportedOperator, match=r"ScatterND.* reads 'places', whose shape would depend on the input"):
        import_onnx(model.SerializeToString())


def test_patch_at_a_place_that_the_input_says() -> None:
    """cctsdb_yolo: a mask of ones with zeros scattered into the window that the last two inputs choose."""
    nodes = [node("Slice", "x zero pixels zero", "flat"), node("Reshape", "flat shape", "image")]
    for axis, name in ((1, "row"), (2, "column")):
        nodes += [
            node("Gather", f"x at_{name}", f"f{axis}", axis=0),
            node("Cast", f"f{axis}", f"s{axis}", to=TensorProto.INT64),
            node("Add", f"s{axis} two", f"e{axis}"),
            node("Unsqueeze", f"s{axis}", f"start{axis}", axes=[0]),
            node("Unsqueeze", f"e{axis}", f"end{axis}", axes=[0]),
            node("Range", "none side step", f"range{axis}"),
            node("Slice", f"range{axis} start{axis} end{axis} zero", f"picked{axis}"),
        ]
    nodes += [
        node("Shape", "image", "size"),
        node("ConstantOfShape", "size", "ones", value=numpy_helper.from_array(f32(1.0))),
        node("Reshape", "picked1 column", "rows"),
        node("Add", "rows picked2", "sum"),
        node("Shape", "sum", "grid"),
        node("Expand", "rows grid", "r"),
        node("Expand", "picked2 grid", "c"),
        node("Unsqueeze", "r", "r1", axes=[-1]),
        node("Unsqueeze", "c", "c1", axes=[-1]),
        node("Concat", "r1 c1", "indices", axis=-1),
        node("ConstantOfShape", "grid", "zeros"),
        node("ScatterND", "ones indices zeros", "mask"),
        node("Mul", "image mask", "y"),
    ]
    stored = {"zero": i64(0), "pixels": i64(64 * 64), "shape": i64(64, 64), "column": i64(-1, 1)}
    stored |= {"at_row": np.array(4096), "at_column": np.array(4097), "two": np.array(2)}
    stored |= {"none": np.array(0), "side": np.array(64), "step": np.array(1)}
    data = graph(nodes, (4098,), stored, opset=11)
    network, session = import_onnx(data), open_session(data)
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.1, 1, (5, 4098)).astype(np.float32)
    rows[:, 4096:] = [[0, 62], [17.9, 3.2], [63, 0], [70, 5], [-1, 3]]
    found = network(torch.from_numpy(rows)).numpy()
    assert np.array_equal(found, np.stack([session.run(None, {"x": row})[0] for row in rows]))
    assert (found == 0).reshape(5, -1).sum(1).tolist() == [4, 4, 2, 0, 0]
    x = torch.from_numpy(rows).requires_grad_()
    network(x).sum().backward()
    assert x.grad is not None
    assert x.grad.sum(1).tolist() == [4092.0, 4092.0, 4094.0, 4096.0, 4096.0]


@pytest.mark.parametrize(
    "folded",
    [
        [node("Range", "a b s", "c0"), node("Cast", "c0", "c", to=TensorProto.FLOAT)],
        [node("Range", "b a back", "c0"), node("Cast", "c0", "c", to=TensorProto.FLOAT)],
        [node("Range", "fa fb fs", "c")],
        [node("ConstantOfShape", "eight", "c")],
        [node("ConstantOfShape", "eight", "c", value=numpy_helper.from_array(f32(2.5)))],
        [node("Slice", "long one nine zero", "c")],
        [node("Shape", "x", "s0"), node("Slice", "s0 one end", "s1"), node("ConstantOfShape", "s1", "c")],
        [
            node("Range", "a many s", "big"),
            node("Expand", "big grown", "e"),
            node("Slice", "e one nine second", "c1"),
            node("Cast", "c1", "c", to=TensorProto.FLOAT),
        ],
        [node("OneHot", "hot eight_ off_on", "c")],
        [node("ScatterND", "long places long8", "c1"), node("Slice", "c1 one nine zero", "c")],
    ],
    ids=lambda nodes: "-".join(entry.op_type for entry in nodes),
)
def test_constants_are_folded(folded: list[onnx.NodeProto]) -> None:
    stored = {"a": np.array(2), "b": np.array(26), "s": np.array(3), "back": np.array(-3), "many": np.array(194)}
    stored |= {"fa": np.float32(0.5), "fb": np.float32(4.5), "fs": np.float32(0.5), "eight": i64(8), "zero": i64(0)}
    stored |= {"one": i64(1), "nine": i64(9), "end": i64(2**62), "long": arr(12), "grown": i64(2, 64), "second": i64(1)}
    stored |= {"hot": i64(3), "eight_": np.array(8), "off_on": f32(0.5, 3), "long8": arr(8)}
    stored |= {"places": np.arange(8).reshape(8, 1)}
    network = check_against_onnxruntime(graph([*folded, node("Add", "x c", "y")], (1, 8), stored, opset=13))
    called = {step.target for step in network.graph.nodes if step.op in ("call_function", "call_module", "call_method")}
    assert called <= {torch.add, torch.reshape}


@pytest.mark.parametrize(
    "huge",
    [
        [node("Range", "a b s", "c")],
        [node("ConstantOfShape", "shape", "c")],
        [node("Expand", "a shape", "c")],
        [node("Tile", "row shape", "c")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_constants_too_large_to_fold_are_refused(huge: list[onnx.NodeProto]) -> None:
    stored = {
        "a": np.array(0),
        "b": np.array(2**40),
        "s": np.array(1),
        "shape": i64(2**20, 2**20),
        "row": i64(1, 2)[None],
    }
    nodes = [*huge, helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT), node("Add", "x f", "y")]
    with pytest.raises(FormatError, match="the result is too large"):
        import_onnx(graph(nodes, (1, 8), stored, opset=13))


def test_shapes_that_depend_on_the_input_are_refused() -> None:
    nodes = [
        node("Gather", "x at", "number", axis=0),
        node("Cast", "number", "n", to=TensorProto.INT64),
        node("Range", "zero n one", "r"),
        node("Cast", "r", "y", to=TensorProto.FLOAT),
    ]
    with pytest.raises(UnsupportedOperator, match=r"Range node 'Range_r': its shape would depend on the input"):
        import_onnx(graph(nodes, (3,), {"at": np.array(0), "zero": np.array(0), "one": np.array(1)}))
