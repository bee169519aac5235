"""A process is left as it was found: its generators, streams and settings, whatever a network does inside."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rarely import Auto, Box, Execution, LinearConstraint, LineSampling, MonteCarlo, Problem, Splitting, estimate
from rarely.kernels import HMC
from rarely.methods import Estimator

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_a_gpu)]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(30, 1)
        with torch.no_grad():
            self.layer.weight.fill_(30**-0.5)
            self.layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Waits(Plain):
    """Asks for a number on the host, so that no step can be recorded."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (1.0 if float(y.detach().abs().max()) >= 0 else 0.0)


class Draws(Plain):
    """Draws from torch's own generator, as dropout does that somebody has written by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.0 * torch.rand(len(x), 1, device=x.device)


class Breaks(Plain):
    """Fails after a while, perhaps in the middle of a recording."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 40:
            raise RuntimeError("broken on purpose")
        return super().forward(x)


def settings(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002 - what a user may have seeded
        "torch": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "benchmark": torch.backends.cudnn.benchmark,
        "convolutions": torch.backends.cudnn.allow_tf32,
    }
    if device == "cuda":
        found["stream"] = torch.cuda.current_stream().cuda_stream
        found["device"] = torch.cuda.current_device()
        found["capturing"] = torch.cuda.is_current_stream_capturing()
        found["cuda"] = torch.cuda.get_rng_state().tolist()
    return found


def users_own(device: str) -> list[float]:
    """What a user goes on with: random numbers, dropout, a step of training."""
    torch.manual_seed(7)
    numbers = torch.rand(4, device=device)
    dropped = nn.functional.dropout(torch.ones(64, device=device), 0.5)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)).to(device)
    optimiser = torch.optim.SGD(network.parameters(), 0.1)
    loss = network(torch.randn(16, 5, device=device)).square().mean()
    loss.backward()
    optimiser.step()
    return [*numbers.tolist(), float(dropped.sum()), loss.item(), next(network.parameters()).sum().item()]


def problem(network: nn.Module) -> Problem:
    return Problem(network.eval(), LinearConstraint([[-1.0]], [-1.6]), Box(torch.full((30,), -1.0), torch.ones(30)))


METHODS: list[Estimator] = [
    Splitting(200, 0.1, 20, islands=2),
    Splitting(200, 0.1, 5, HMC(), islands=2),
    LineSampling(),
    MonteCarlo(20_000),
    Auto(proof_seconds=0.1),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("make", [Plain, Waits, Breaks])
def test_nothing_of_a_process_changes(make: Callable[[], nn.Module], method: Estimator, device: str) -> None:
    expected, asked = users_own(device), problem(make())
    torch.manual_seed(11)
    before = settings(device)
    try:
        estimate(asked, method, seed=1, device=device, max_evaluations=60_000)
    except RuntimeError:
        assert make is Breaks
    assert settings(device) == before
    assert users_own(device) == expected


@pytest.mark.parametrize(("asked", "precision"), [(False, "ieee"), (True, "tf32")])
def test_convolutions_run_in_single_precision_unless_asked(asked: bool, precision: str) -> None:
    """Whatever torch is set to; its own default is TensorFloat-32."""
    cudnn: Any = torch.backends.cudnn
    before = settings("cpu")
    with Execution(tf32=asked).running():
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == (precision, precision)
        assert torch.get_float32_matmul_precision() == ("high" if asked else "highest")
    assert settings("cpu") == before


@needs_a_gpu
def test_a_network_that_draws_leaves_a_usable_generator() -> None:
    estimate(problem(Draws()), Splitting(200, 0.1, 20, islands=2), seed=1, device="cuda")
    assert users_own("cuda") == users_own("cuda")


@needs_a_gpu
def test_another_stream_is_returned_to() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        problems = [problem(Plain()), problem(Waits())]
        before = settings("cuda")
        for one in problems:
            estimate(one, METHODS[0], seed=1, device="cuda")
        assert settings("cuda") == before
    torch.cuda.synchronize()


def test_the_gpu_that_was_asked_for_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two: what is recorded or launched goes to the current one, wherever its tensors are."""
    current = [0]

    @contextmanager
    def made_current(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", made_current)
    with Execution("cuda:1").running():
        assert current == [0, 1]
    for other in ("cpu", "auto", "cuda"):  # asking for the current GPU would set CUDA up, which a fork cannot
        with Execution(other).running():
            assert current == [0]
