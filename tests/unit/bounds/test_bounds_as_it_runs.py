"""What was once proved of the network in real arithmetic and is false of the network as it runs; and the like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from nasty import Layer, Nasty
from torch import nn

from rarely import estimate, load_problem
from rarely.bounds import BoxRegion, build, decide_boxes, linear_bounds
from rarely.campaign.benchmark import decide_files


def dense(*layers: tuple[list, list]) -> Nasty:
    """A ReLU network of one input from weights and biases."""
    arrays = [(np.array(W, dtype=np.float32), np.array(b, dtype=np.float32)) for W, b in layers]
    last = len(arrays) - 1
    return Nasty(tuple(Layer(W, b, None if i == last else 0.0) for i, (W, b) in enumerate(arrays)), 1)


def verdict(network: Nasty, tmp_path: Path, low: str, high: str, output: str):
    (tmp_path / "network.onnx").write_bytes(network.onnx())
    text = f"(declare-const X_0 Real) (declare-const Y_0 Real) (assert (>= X_0 {low})) (assert (<= X_0 {high}))"
    (tmp_path / "property.vnnlib").write_text(f"{text} (assert {output})")
    return decide_files(tmp_path / "network.onnx", tmp_path / "property.vnnlib", 3.0)


def test_values_that_overflow_are_never_proved_safe():
    """3e38 times 3e38 is infinite, which was taken for off: "unsat, at most -0.5"."""
    network = dense(([[3e38], [3e38]], [0.0, 0.0]), ([[3e38, 1.0]], [-0.5]))
    assert network.run(np.ones((1, 1)), lambda terms: terms.sum(-1))[0, 0] == np.inf
    low = torch.full((1, 1), -1.0)
    for top in (-low, 0 * low):  # up to where it overflows, and short of it
        (proof,) = decide_boxes(network.module(), low, top, [(-torch.ones(1, 1), torch.zeros(1))], 1.0, boxes=50)
        assert proof.status != "proved"


def test_values_that_underflow_are_charged(tmp_path):
    """Y = 1e-40 >= 1e-41 was proved impossible."""
    network = dense(([[1e-20]], [0.0]), ([[1e-20]], [0.0]))
    assert verdict(network, tmp_path, "1.0", "1.0", "(>= Y_0 1e-41)").verdict == "sat"
    above = verdict(network, tmp_path, "1.0", "1.0", "(>= Y_0 1.1e-40)")  # less than what flushing to zero may do
    assert above.word == "unsat in real arithmetic"
    assert "proved in real arithmetic: no input" in above.comment
    assert verdict(network, tmp_path, "1.0", "1.0", "(>= Y_0 1e-35)").word == "unsat"


def test_a_bias_that_absorbs_its_input_is_charged(tmp_path):
    """x + 2^23 rounds 0.50000006 to 1, and 12 (y - 2^23) - 11.5 to 0.5: "unsat, at most -11.5"."""
    network = dense(([[1.0]], [2.0**23]), ([[12.0]], [-12 * 2.0**23 - 6.1]))
    x = np.array([[0.50000006]], dtype=np.float32)
    assert network.run(x, lambda terms: terms.sum(-1))[0, 0] > 5
    found = verdict(network, tmp_path, "0.5", "0.50000012", "(>= Y_0 5.0)")
    assert found.verdict == "sat"
    assert verdict(network, tmp_path, "0.5", "0.50000012", "(>= Y_0 40.0)").word == "unsat in real arithmetic"
    assert verdict(network, tmp_path, "0.5", "0.50000012", "(>= Y_0 4000.0)").word == "unsat"


@pytest.mark.parametrize(("output", "wanted"), [("(> Y_0 0.0)", {"unknown", "timeout"}), ("(>= Y_0 0.0)", {"sat"})])
def test_a_strict_inequality_needs_more_than_equality(tmp_path, output, wanted):
    """-max(x, 0) is 0.0 exactly for half of the inputs, which is not above 0."""
    network = dense(([[1.0]], [0.0]), ([[-1.0]], [0.0]))
    assert verdict(network, tmp_path, "-1.0", "1.0", output).verdict in wanted


def test_a_strict_input_bound_is_left_out(tmp_path):
    network = dense(
        ([[1.0]], [0.0]),
    )
    (tmp_path / "network.onnx").write_bytes(network.onnx())
    text = (
        "(declare-const X_0 Real) (declare-const Y_0 Real) (assert (>= X_0 0)) (assert (< X_0 1)) (assert (>= Y_0 {}))"
    )
    (tmp_path / "all.vnnlib").write_text(text.format("1"))
    assert decide_files(tmp_path / "network.onnx", tmp_path / "all.vnnlib", 1.0).verdict in ("unknown", "timeout")
    (tmp_path / "most.vnnlib").write_text(text.format("0.9999999"))
    found = decide_files(tmp_path / "network.onnx", tmp_path / "most.vnnlib", 5.0)
    assert found.verdict == "sat"
    assert 0.9999999 <= found.counterexample.x[0] < 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_is_charged_its_own_rounding(dtype):
    """The outputs of the network as it runs lie above the bound, by no more than its precision explains."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype).eval()
    graph = build(module, (4,))
    assert graph.arithmetic.name == str(dtype).removeprefix("torch.")
    x = torch.rand(500, 4, dtype=torch.float64)
    found = linear_bounds(graph, BoxRegion(x, x), torch.eye(3)[None])
    with torch.no_grad():
        y = module(x.to(dtype)).double()
    assert (found.lower <= y).all()
    gap = (found.real - found.lower).max()
    eps = torch.finfo(dtype).eps
    assert eps < gap < 100 * eps + 200 * torch.finfo(dtype).tiny


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_prove_nothing(number):
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    with torch.no_grad():
        module[0].weight[0, 0] = number
    low, high = torch.zeros(1, 2), torch.ones(1, 2)
    (proof,) = decide_boxes(module, low, high, [(torch.ones(1, 1), torch.tensor([-1e6]))], 1.0)
    assert proof.status == "unknown"
    assert "not finite" in proof.reason


def test_too_many_terms_for_a_precision_prove_nothing_about_it():
    """A sum of 1200 terms in float16 may lose all of its digits."""
    module = nn.Linear(1200, 1).half().eval()
    low = torch.zeros(1, 1200)
    (proof,) = decide_boxes(module, low, low, [(torch.ones(1, 1), torch.tensor([-100.0]))], 1.0, boxes=10)
    assert (proof.status, proof.arithmetic) == ("proved", "real")


def test_an_estimate_says_where_its_proof_is_about_real_arithmetic(tmp_path):
    network = dense(([[1.0]], [2.0**23]), ([[12.0]], [-12 * 2.0**23 - 6.1]))
    for least, word in (("40.0", "proved safe in real arithmetic"), ("4000.0", "proved safe")):
        verdict(network, tmp_path, "0.5", "0.50000012", f"(>= Y_0 {least})")
        found = estimate(load_problem(tmp_path / "network.onnx", tmp_path / "property.vnnlib"))
        assert found.word == word
        assert str(found).startswith(f"{word} (")
        assert ("outcome", word) in list(found.rows())
        assert ("real arithmetic" in found.sentence) == ("real" in word)
