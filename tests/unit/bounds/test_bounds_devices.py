"""Proofs on another device than the CPU: on a GPU where there is one, and everywhere on a device that pretends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from proofs_there import CHECKS, above, dense, pays_at, top
from torch import nn

import rarely
from rarely.bounds import build, crown, decide_boxes, placing, problems
from rarely.bounds.convolve import _spread, _windows_times
from rarely.bounds.graphs import Graphs
from rarely.bounds.placing import CPU, boxes_at_once, worthwhile
from rarely.bounds.problems import prove_all

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pretended = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")


def _elsewhere(code: str) -> subprocess.CompletedProcess[str]:
    """Run in a process that has the device that pretends."""
    pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no devices written in Python")
    whole = f"import sys, torch; sys.path.insert(0, {str(Path(__file__).parent)!r}); import elsewhere; {code}"
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)


@pretended
@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_no_tensor_of_a_proof_is_left_on_the_cpu(check):
    done = _elsewhere(f"torch.set_num_threads(1); import proofs_there; proofs_there.{check}(elsewhere.DEVICE)")
    assert done.returncode == 0, done.stderr


@pretended
def test_a_tensor_that_is_left_there_is_seen():
    done = _elsewhere("torch.ones(3, device=elsewhere.DEVICE) * torch.ones(3)")
    assert "tensors on two devices" in done.stderr


@gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_proofs_on_a_gpu_are_those_of_the_cpu(check):
    check(torch.device("cuda"))


@gpu
@pytest.mark.parametrize("pays", [1, 2**60], ids=["on the GPU", "on the CPU"])
def test_the_questions_are_answered_the_same_wherever_proofs_run(pays):
    """And float32 products of the GPU may be set to whatever the user likes."""
    net, inputs = dense(5, 4, 24, 24, 1), rarely.Box([-1.0] * 4, [1.0] * 4)
    most = top(net, inputs)
    safe, rare, common = (rarely.Problem(net, above(b), inputs) for b in (most + 0.02, most - 0.02, 0.0))
    five_sigma, before = 1 - 5.7e-7, torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with pays_at(pays):
            assert rarely.verify(safe, 30.0, device="cuda").status == "unsat"
            assert rarely.verify(common, 30.0, device="cuda").status == "sat"
            assert rarely.certify(safe, 1e-6, device="cuda").ruling.value == "accepted"
            proved, sampled = rarely.estimate([safe, rare], device="cuda", confidence=five_sigma)
    finally:
        torch.set_float32_matmul_precision(before)
    assert proved.outcome is rarely.Outcome.PROVED_SAFE
    here = rarely.estimate(rare, device="cpu", confidence=five_sigma)
    assert sampled.interval.low < here.interval.high
    assert here.interval.low < sampled.interval.high
    assert next(net.parameters()).device.type == "cpu"


CONVOLUTIONS = [
    # spatial size, channels in and out, kernel, stride, padding, dilation, groups
    ((7,), 2, 3, (3,), (2,), (1,), (1,), 1),
    ((8, 9), 4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2),
    ((6, 6), 3, 3, (3, 3), (1, 1), (2, 2), (1, 1), 3),
    ((5, 4, 6), 2, 2, (2, 1, 3), (1, 2, 1), (0, 1, 1), (1, 1, 1), 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_a_convolution_is_a_product_of_windows(case):
    size, some, others, kernel, stride, padding, dilation, groups = case
    torch.manual_seed(0)
    x = torch.randn(2, some, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(others, some // groups, *kernel, dtype=torch.float64)
    place = (stride, padding, dilation)
    rest = (0,) * len(size)
    expected = torch.convolution(x, weight, None, *place, False, rest, groups)
    found = _windows_times(x, weight, *place, groups)
    assert torch.allclose(found, expected, atol=1e-12)
    assert _windows_times(x[:0], weight, *place, groups).shape == expected[:0].shape
    (one,), (two,) = (torch.autograd.grad(y.square().sum(), [x]) for y in (found, expected))
    assert torch.allclose(one, two, atol=1e-10)
    back = torch.randn_like(expected)
    for rest in ((0,) * len(size), tuple(min(1, s - 1) for s in stride)):
        expected = torch.convolution(back, weight, None, *place, True, rest, groups)
        wide, turned, margin = _spread(back, weight, *place, rest, groups)
        found = _windows_times(wide, turned, (1,) * len(size), margin, dilation, groups)
        assert torch.allclose(found, expected, atol=1e-12)


def test_a_gpu_pays_by_what_a_layer_takes():
    cuda, narrow, wide = torch.device("cuda"), build(nn.Linear(6, 40), (6,)), build(nn.Linear(784, 256), (784,))
    assert worthwhile(cuda, narrow, 1) == CPU
    assert worthwhile(cuda, narrow, 500) == CPU
    assert worthwhile(cuda, narrow, 2000) == cuda
    assert worthwhile(cuda, wide, 1) == cuda
    for other in ("cpu", "mps"):
        assert worthwhile(torch.device(other), wide, 500) == CPU
    assert boxes_at_once(narrow, torch.zeros(1)) == 2**20 // (2 * 40 * 40)


def test_a_gpu_that_is_full_leaves_the_proof_to_the_cpu(monkeypatch):
    tried = []

    def asked(questions, graph, here, *rest):
        tried.append(here)
        if here != CPU:
            raise torch.OutOfMemoryError
        return real(questions, graph, here, *rest)

    real = problems._asked
    monkeypatch.setattr(problems, "_asked", asked)
    monkeypatch.setattr(Graphs, "on", lambda self, device, graph: graph)
    problem = rarely.Problem(
        nn.Linear(2, 1).eval(), rarely.LinearConstraint([[-1.0]], [-9.0]), rarely.Box([0.0] * 2, [1.0] * 2)
    )
    with pays_at(1):
        (proof,) = prove_all([problem], 10.0, device=torch.device("cuda"))
    assert proof.status == "proved"
    assert [device.type for device in tried] == ["cuda", "cpu"]


def test_a_graph_is_moved_once_to_each_device():
    graphs, net = Graphs(), nn.Linear(2, 1).eval()
    graph = graphs.of(net, (2,))
    assert graphs.of(net, (2,)) is graph
    assert graphs.on(CPU, graph) is graph
    meta = torch.device("meta")
    assert graphs.on(meta, graph) is graphs.on(meta, graph)
    assert {p.device for p in net.parameters()} == {CPU}


def test_float32_is_float32_inside_a_proof_whatever_torch_is_set_to(monkeypatch):
    seen = []

    def noted(like):
        seen.append(torch.get_float32_matmul_precision())
        return placing.room(like)

    monkeypatch.setattr(crown, "room", noted)
    low, before = torch.zeros(1, 24), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        decide_boxes(dense(0, 24, 30, 30, 1), low, low + 1, [(-torch.ones(1, 1), torch.tensor([-50.0]))], 5.0)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}
