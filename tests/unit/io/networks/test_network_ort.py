"""The black-box network and the replay of single inputs."""

from __future__ import annotations

import builtins
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_models import arr, graph, i64, mlp, node, single_op

from rarely.core.errors import FormatError, InputError, MissingExtra, UnsupportedOperator
from rarely.io.networks import load_network
from rarely.io.onnx.importer import import_onnx
from rarely.io.onnx.runtime import OnnxRuntimeNetwork, replay

UNKNOWN = single_op("Hardmax", (1, 5))


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if onnxruntime were not installed."""
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "onnxruntime":
            raise ImportError("no onnxruntime")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)


def test_batches_equal_the_imported_network() -> None:
    data = mlp(np.random.default_rng(0))
    black_box, imported = OnnxRuntimeNetwork(data), import_onnx(data)
    x = torch.rand(9, 4)
    y = black_box(x)
    assert black_box.input_shape == (4,)
    assert black_box.output_shape == (3,)
    assert black_box.differentiable is False
    assert black_box._batched is not None
    torch.testing.assert_close(y, imported(x))
    assert black_box(x.double()).dtype == torch.float64
    assert black_box(x[:0]).shape == (0, 3)
    with pytest.raises(InputError, match="takes inputs of shape"):
        black_box(torch.rand(2, 5))


@pytest.mark.parametrize("target", [(1, 2, 3), (1, -1, 3)])
def test_hard_coded_reshape_is_opened(target: tuple[int, ...]) -> None:
    data = graph(
        [node("Reshape", "x t", "a"), node("ReduceSum", "a", "y", axes=[1])],
        (1, 6),
        {"t": i64(*target)},
        opset=11,
    )
    network = OnnxRuntimeNetwork(data)
    assert network._batched is not None
    x = torch.rand(5, 6)
    torch.testing.assert_close(network(x), x.reshape(5, 2, 3).sum(1, keepdim=True))


def test_rows_one_by_one_where_the_batch_is_wired_in() -> None:
    """ReduceSum over axis 0 is per row at batch size 1, and would mix rows at any other."""
    data = graph([node("ReduceSum", "x", "a", axes=[0]), node("Mul", "a w", "y")], (1, 6), {"w": arr(1, 6)}, opset=11)
    network = OnnxRuntimeNetwork(data)
    assert network._batched is None
    x = torch.rand(5, 6)
    torch.testing.assert_close(network(x), import_onnx(data)(x))
    assert network(x[:0]).shape == (0, 6)


def test_unbatched_model() -> None:
    network = OnnxRuntimeNetwork(single_op("MatMul", (5,), arr(5, 3)))
    assert network.input_shape == (5,)
    assert network(torch.rand(4, 5)).shape == (4, 3)


def test_pickle() -> None:
    network = OnnxRuntimeNetwork(UNKNOWN)
    clone = pickle.loads(pickle.dumps(network))
    x = torch.rand(4, 5)
    assert torch.equal(clone(x), network(x))
    assert repr(clone) == "OnnxRuntimeNetwork('<bytes>', (5,) -> (5,))"


def test_replay_in_the_models_own_type(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(mlp(np.random.default_rng(0)))
    x = np.linspace(0, 1, 4)
    y = replay(path, x)
    assert y.dtype == np.float32
    assert y.shape == (1, 3)
    np.testing.assert_array_equal(replay(path, torch.from_numpy(x)), y)
    np.testing.assert_allclose(y[0], import_onnx(path)(torch.tensor(x[None], dtype=torch.float32))[0], rtol=1e-5)
    with pytest.raises(InputError, match="takes one input"):
        replay(path, np.zeros(5))


def test_unknown_operator_falls_back_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(UNKNOWN)
    with caplog.at_level(logging.WARNING, logger="rarely"):
        network = load_network(path)
    assert isinstance(network, OnnxRuntimeNetwork)
    assert len(caplog.records) == 1
    assert "Hardmax" in caplog.text
    assert "black box" in caplog.text


@pytest.mark.usefixtures("without_onnxruntime")
def test_without_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(UNKNOWN)
    with pytest.raises(UnsupportedOperator, match=r"Hardmax.*pip install 'rarely\[onnxruntime\]'"):
        load_network(path)
    with pytest.raises(MissingExtra, match=r"rarely\[onnxruntime\]"):
        OnnxRuntimeNetwork(path)
    path.write_bytes(mlp(np.random.default_rng(0)))
    assert load_network(path)(torch.rand(2, 4)).shape == (2, 3)
    with pytest.raises(MissingExtra):
        replay(path, np.zeros(4))


def test_broken_model() -> None:
    with pytest.raises(FormatError, match="onnxruntime cannot run it"):
        OnnxRuntimeNetwork(graph([node("NoSuchThing", "x", "y")], (1, 4)))
