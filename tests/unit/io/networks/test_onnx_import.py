"""Whole graphs: batch dimensions, folding, fusing, the shape of the resulting torch.fx graph."""

from __future__ import annotations

import copy
import gzip
import operator
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_models import arr, check_against_onnxruntime, f32, graph, i64, mlp, node, single_op
from torch import fx, nn

from rarely.core.errors import FormatError, NetworkError, UnsupportedOperator
from rarely.io.onnx.importer import import_onnx


def layers(network: fx.GraphModule) -> list[object]:
    """The graph as module types and functions."""
    found: list[object] = []
    for step in network.graph.nodes:
        if step.op == "call_module":
            found.append(type(network.get_submodule(step.target)))
        elif step.op in ("call_function", "call_method"):
            found.append(step.target)
    return found


def test_acas_xu_layout_becomes_linear_and_relu() -> None:
    nodes = [
        node("Sub", "x mean", "a"),
        node("Flatten", "a", "b", axis=1),
        node("MatMul", "b w1", "c"),
        node("Add", "c b1", "d"),
        node("Relu", "d", "e"),
        node("MatMul", "e w2", "f"),
        node("Add", "b2 f", "y"),
    ]
    stored = {
        "mean": np.zeros((1, 1, 1, 5), np.float32),
        "w1": arr(5, 8),
        "b1": arr(8),
        "w2": arr(8, 5),
        "b2": arr(1, 5),
    }
    listed = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in stored.items()]
    network = check_against_onnxruntime(graph(nodes, (1, 1, 1, 5), stored, opset=8, extra_inputs=listed))
    assert layers(network) == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert network.input_shape == (1, 1, 5)
    assert network.output_shape == (5,)
    assert network.operators == {"Sub": 1, "Flatten": 1, "MatMul": 2, "Add": 2, "Relu": 1}
    assert not list(network.buffers())


def test_shared_product_is_not_fused_with_its_bias() -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Identity", "a", "b"),
        node("Add", "b bias", "c"),
        node("Mul", "a c", "y"),
    ]
    network = check_against_onnxruntime(graph(nodes, (1, 5), {"w": arr(5, 4), "bias": arr(4)}))
    assert layers(network) == [nn.Linear, torch.add, torch.mul]


def test_subtracted_and_channel_biases_are_fused() -> None:
    nodes = [node("Conv", "x w", "a"), node("Sub", "a bias", "b"), node("Add", "b everywhere", "y")]
    stored = {"w": arr(4, 3, 3, 3), "bias": arr(4, 1, 1), "everywhere": arr(1, 4, 4, 4)}
    network = check_against_onnxruntime(graph(nodes, (1, 3, 6, 6), stored))
    assert layers(network) == [nn.Conv2d, torch.add]


@pytest.mark.parametrize("batch", [1, "batch"])
def test_reshape_target_computed_from_the_shape(batch: int | str) -> None:
    """What torch exports for x.view(x.size(0), -1)."""
    nodes = [
        node("Relu", "x", "r"),
        node("Shape", "r", "s"),
        node("Constant", "", "zero", value=numpy_helper.from_array(np.int64(0))),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n", "n1", axes=[0]),
        node("Constant", "", "rest", value=numpy_helper.from_array(i64(-1))),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "r target", "flat"),
        node("ConstantOfShape", "target2", "offset", value=numpy_helper.from_array(f32(0.25))),
        node("Add", "flat offset", "y"),
    ]
    network = check_against_onnxruntime(graph(nodes, (batch, 3, 2, 2), {"target2": i64(1, 12)}, opset=11))
    assert layers(network) == [nn.ReLU, nn.Flatten, torch.add]


@pytest.mark.parametrize("shape", [(1, 6), ("n", 6), (6,)])
def test_hard_coded_batch_and_moved_batch(shape: tuple[int | str, ...]) -> None:
    nodes = [
        node("Reshape", "x image", "a"),
        node("Conv", "a k", "b", pads=[0, 1, 0, 1]),
        node("Transpose", "b", "c", perm=[2, 0, 3, 1]),  # the batch in the middle
        node("Softmax", "c", "d", axis=-1),
        node("Transpose", "d", "e", perm=[1, 3, 0, 2]),
        node("Reshape", "e flat", "f"),
        node("MatMul", "f w", "g"),
        node("Squeeze", "g axis", "y"),
    ]
    stored = {
        "image": i64(1, 1, 2, 3),
        "k": arr(2, 1, 1, 3),
        "flat": i64(1, 12),
        "w": arr(12, 4),
        "axis": i64(0),
    }
    network = check_against_onnxruntime(graph(nodes, shape, stored, opset=13))
    assert network.input_shape == (6,)
    assert network.output_shape == (4,)


def test_attention_with_a_class_token() -> None:
    width = 6
    nodes = [
        node("Concat", "token x", "t", axis=1),
        node("MatMul", "t wq", "q"),
        node("MatMul", "t wk", "k"),
        node("MatMul", "t wv", "v"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "s"),
        node("Div", "s root", "s1"),
        node("Softmax", "s1", "p", axis=-1),
        node("MatMul", "p v", "o"),
        node("Add", "o t", "r"),
        node("LayerNormalization", "r g b", "l", axis=-1),
        node("Gather", "l first", "y", axis=1),
    ]
    stored = {name: arr(width, width) for name in ("wq", "wk", "wv")}
    stored |= {
        "token": arr(1, 1, width),
        "root": f32(2.4),
        "g": arr(width),
        "b": arr(width),
        "first": np.int64(0),
    }
    network = check_against_onnxruntime(graph(nodes, ("n", 4, width), stored, opset=17))
    assert operator.getitem in layers(network)


def test_products_of_two_activations() -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0]),
        node("MatMul", "t x", "outer"),
        node("MatMul", "x outer", "row"),
        node("MatMul", "x t", "norm"),
        node("Mul", "row norm", "y"),
    ]
    check_against_onnxruntime(graph(nodes, (1, 4)))


def test_residual_convolutional_network() -> None:
    nodes = [
        node("Conv", "x k1", "a", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a s b m v", "n"),
        node("Relu", "n", "r"),
        node("Conv", "r k2", "c", pads=[1, 1, 1, 1]),
        node("Add", "c r", "d"),
        node("GlobalAveragePool", "d", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w bias", "y", transB=1),
    ]
    stored = {"k1": arr(4, 3, 3, 3), "k2": arr(4, 4, 3, 3), "s": arr(4), "b": arr(4), "m": arr(4)}
    stored |= {"v": arr(4, low=0.5), "w": arr(5, 4), "bias": arr(5)}
    network = check_against_onnxruntime(graph(nodes, (1, 3, 6, 6), stored))
    assert layers(network)[:4] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Conv2d]
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_nodes_in_any_order() -> None:
    model = onnx.load_model_from_string(mlp(np.random.default_rng(0)))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert import_onnx(model.SerializeToString(), check=False).output_shape == (3,)


def test_local_functions_are_inlined() -> None:
    body = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    model = onnx.load_model_from_string(graph([helper.make_node("Twice", ["x"], ["y"], domain="own")], (1, 3)))
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert torch.equal(import_onnx(model.SerializeToString())(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_scalar_output_keeps_an_axis() -> None:
    network = check_against_onnxruntime(graph([node("ReduceSum", "x", "y", keepdims=0)], (1, 5), opset=11))
    assert network.output_shape == (1,)


def test_vector_of_one_entry_keeps_an_axis() -> None:
    """VNN-COMP's test_small has no batch; bounds need an axis beside ours."""
    nodes = [node("MatMul", "w x", "a"), node("Add", "a b", "c"), node("Relu", "c", "d"), node("MatMul", "v d", "y")]
    network = check_against_onnxruntime(graph(nodes, (1,), {"w": arr(1, 1), "b": arr(1), "v": arr(1, 1)}))
    assert network.input_shape == network.output_shape == (1,)
    assert layers(network) == [nn.Linear, nn.ReLU, nn.Linear]


def test_whole_numbers_leave_as_floats() -> None:
    network = check_against_onnxruntime(single_op("ArgMax", (1, 5), axis=1, keepdims=0))
    assert network(torch.rand(3, 5)).dtype == torch.float32
    assert network.double()(torch.rand(3, 5).double()).dtype == torch.float64


def test_gzip_external_data_and_source(tmp_path: Path) -> None:
    data = mlp(np.random.default_rng(0))
    packed = tmp_path / "net.onnx.gz"
    packed.write_bytes(gzip.compress(data))
    outside = tmp_path / "outside.onnx"
    onnx.save(
        onnx.load_model_from_string(data),
        outside,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    x = torch.rand(5, 4)
    expected = import_onnx(data)(x)
    for path in (packed, outside):
        network = import_onnx(path)
        assert network.source == str(path)
        assert torch.equal(network(x), expected)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FormatError, match="external data"):
        import_onnx(outside)


def test_copies_and_pickles_keep_their_attributes() -> None:
    network = import_onnx(mlp(np.random.default_rng(0)))
    x = torch.rand(5, 4)
    for clone in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert clone.input_shape == (4,)
        assert clone.output_shape == (3,)
        assert clone.operators == network.operators
        assert torch.equal(clone(x), network(x))


def test_empty_batch() -> None:
    assert import_onnx(mlp(np.random.default_rng(0)))(torch.empty(0, 4)).shape == (0, 3)


def test_two_inputs_are_refused() -> None:
    other = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 5])
    with pytest.raises(NetworkError, match=r"exactly one input; this one has 2: 'x' \(float \[1, 5\]\), 'z'.*Export"):
        import_onnx(graph([node("Add", "x z", "y")], (1, 5), extra_inputs=[other]))


def test_open_sizes_and_integer_inputs_are_refused() -> None:
    with pytest.raises(NetworkError, match="other than the batch"):
        import_onnx(single_op("Relu", ("n", 3, "h")))
    with pytest.raises(UnsupportedOperator, match="INT64"):
        import_onnx(single_op("Abs", (1, 3), dtype=np.int64))


def test_output_without_input_is_refused() -> None:
    nodes = [node("Relu", "x", "z"), node("Neg", "c", "y")]
    with pytest.raises(NetworkError, match="does not depend"):
        import_onnx(graph(nodes, (1, 5), {"c": arr(1, 5)}))
