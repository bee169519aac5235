"""Networks of several outputs, of which one is chosen by its name, everywhere that a network is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx_models import arr, graph, node

from rarely.campaign.benchmark import decide_files
from rarely.campaign.content import locate
from rarely.core.errors import FormatError, NetworkError
from rarely.io.networks import load_network
from rarely.io.onnx.importer import import_onnx
from rarely.io.onnx.model import is_onnx, split_output
from rarely.io.onnx.runtime import OnnxRuntimeNetwork, replay
from rarely.io.problems import load_problem

WEIGHT = arr(4, 3)


def classifier(kind: str = "Softmax") -> bytes:
    """What skl2onnx writes: the label first, then the probabilities."""
    nodes = [node("MatMul", "x w", "a"), node("ArgMax", "a", "label", axis=1), node(kind, "a", "probabilities", axis=1)]
    model = onnx.load_model_from_string(
        graph(nodes, (1, 4), {"w": WEIGHT}, output="label", output_type=TensorProto.INT64)
    )
    model.graph.output.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 3]))
    return model.SerializeToString()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(classifier())
    return path


def test_several_outputs_are_refused_with_their_names(file: Path) -> None:
    listed = r"2 outputs: 'label' \(int64\), 'probabilities' \(float \[1, 3\]\); say which .*net\.onnx:probabilities"
    for load in (load_network, import_onnx, OnnxRuntimeNetwork, lambda path: replay(path, np.zeros(4))):
        with pytest.raises(NetworkError, match=listed):
            load(file)
    with pytest.raises(NetworkError, match="say which one is meant, as in output='probabilities'"):
        import_onnx(file.read_bytes())


def test_unknown_output_is_refused_with_the_names(file: Path) -> None:
    with pytest.raises(NetworkError, match=r"has no output 'logits', but 'label' \(int64\), 'probabilities'"):
        load_network(f"{file}:logits")
    with pytest.raises(FormatError, match=r"nothing\.onnx: there is no such file"):
        load_network(f"{file.parent}/nothing.onnx:label")


def test_output_is_chosen_by_name(file: Path) -> None:
    x = torch.rand(6, 4)
    logits = x @ torch.from_numpy(WEIGHT)
    for network in (load_network(f"{file}:probabilities"), import_onnx(file.read_bytes(), output="probabilities")):
        torch.testing.assert_close(network(x), logits.softmax(1))
    torch.testing.assert_close(load_network(f"{file}:label")(x), logits.argmax(1, keepdim=True).float())
    torch.testing.assert_close(OnnxRuntimeNetwork(f"{file}:probabilities")(x), logits.softmax(1))
    np.testing.assert_allclose(replay(f"{file}:probabilities", x[0]), logits[:1].softmax(1), rtol=1e-5)


def test_black_box_gives_the_chosen_output(tmp_path: Path) -> None:
    """Hardmax is not imported; through onnxruntime the answer was the label, silently."""
    path = tmp_path / "net.onnx"
    path.write_bytes(classifier("Hardmax"))
    network = load_network(f"{path}:probabilities")
    assert isinstance(network, OnnxRuntimeNetwork)
    x = torch.rand(6, 4)
    best = (x @ torch.from_numpy(WEIGHT)).argmax(1)
    assert torch.equal(network(x), torch.nn.functional.one_hot(best, 3).float())


def test_output_of_text_is_refused(tmp_path: Path) -> None:
    """Labels of scikit-learn may be words."""
    path = tmp_path / "net.onnx"
    path.write_bytes(graph([node("Cast", "x", "y", to=TensorProto.STRING)], (1, 4), output_type=TensorProto.STRING))
    with pytest.raises(NetworkError, match="its output 'y' holds no numbers, but"):
        load_network(path)


def test_problems_verdicts_and_plans_take_the_name(file: Path) -> None:
    prop = file.parent / "p.vnnlib"
    lines = [f"(declare-const X_{i} Real)" for i in range(4)] + [f"(declare-const Y_{i} Real)" for i in range(3)]
    lines += [f"(assert (>= X_{i} 0)) (assert (<= X_{i} 1))" for i in range(4)]
    prop.write_text("\n".join([*lines, "(assert (>= Y_0 0.0))"]))
    problem = load_problem(f"{file}:probabilities", prop)
    assert load_problem(f"{file}:probabilities", prop).network is problem.network
    assert float(problem.score(torch.zeros(1, 4))) == pytest.approx(1 / 3, abs=1e-6)
    with pytest.raises(FormatError, match="speaks of 3 outputs, but the network has 1"):
        load_problem(f"{file}:label", prop)
    answer = decide_files(f"{file}:probabilities", prop, 10.0)
    assert answer.verdict == "sat"
    assert answer.counterexample is not None
    assert answer.counterexample.y.sum() == pytest.approx(1.0)
    located = locate("net.onnx:probabilities", file.parent).file
    assert located.path == f"{file}:probabilities"
    assert located.digest != locate("net.onnx:label", file.parent).file.digest


def test_names_with_colons(tmp_path: Path) -> None:
    assert split_output("a/net.onnx.gz:b:0") == ("a/net.onnx.gz", "b:0")
    assert split_output("pack.module:attribute") == ("pack.module:attribute", None)
    assert is_onnx("net.ONNX:y")
    assert not is_onnx("onnx:y")
    odd = tmp_path / "a.onnx:b.onnx"
    odd.write_bytes(classifier())
    assert split_output(odd) == (str(odd), None)
    assert load_network(f"{odd}:label").output_shape == (1,)
