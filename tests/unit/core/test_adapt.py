from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rarely import Box, MonteCarlo, Problem, Splitting, Targeted, estimate
from rarely.core.errors import InputError, NetworkError
from rarely.kernels import Langevin

BOX = Box(torch.zeros(3), torch.ones(3))


class Dropping(nn.Module):
    """Wrong in training mode: dropout everywhere, and a batch norm that would learn."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.9), nn.Linear(8, 2))
        self.frozen = nn.Dropout(0.5)
        self.seen_training = False

    def forward(self, x: Tensor) -> Tensor:
        self.seen_training |= any(m.training for m in self.modules())
        return self.frozen(self.body(x))


def _modes(module: nn.Module) -> list[bool]:
    return [m.training for m in module.modules()]


def test_a_module_in_training_mode_warns_runs_in_eval_and_is_put_back() -> None:
    torch.manual_seed(0)
    network = Dropping()
    network.frozen.eval()
    before, state = _modes(network), {k: v.clone() for k, v in network.state_dict().items()}
    with pytest.warns(UserWarning, match="training mode") as caught:
        problem = Problem(network, Targeted(0, 1), BOX)
    assert caught[0].filename == __file__
    assert _modes(network) == before
    estimate(problem, Splitting(50, islands=2))
    problem.score(torch.rand(5, 3))
    assert _modes(network) == before
    assert not network.seen_training
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_modes_are_put_back_when_the_network_fails() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("boom")

    network = Failing()
    with pytest.warns(UserWarning, match="training"), pytest.raises(NetworkError, match="boom"):
        Problem(network, Targeted(0, 1), BOX)
    assert network.training


def test_an_eval_module_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Problem(Dropping().eval(), Targeted(0, 1), BOX)


def test_a_tensor_function_has_gradients() -> None:
    problem = Problem(lambda x: x @ torch.eye(3), lambda x, y: y[:, 0] - 0.9, BOX)
    assert problem.adapted.differentiable
    result = estimate(problem, Splitting(50, islands=2, kernel=Langevin()), device="cpu")
    assert result.gradients > 0


def _numpy_only(x: np.ndarray) -> np.ndarray:
    assert isinstance(x, np.ndarray)
    return np.stack([x.sum(1), np.prod(x, axis=1)], 1)


def test_a_numpy_function_is_a_black_box() -> None:
    problem = Problem(_numpy_only, lambda x, y: y[:, 0] - 2.5, BOX)
    assert not problem.adapted.differentiable
    result = estimate(problem, Splitting(100, islands=2))
    assert result.gradients == 0
    assert len(result.witnesses) > 0
    torch.testing.assert_close(problem.score(torch.ones(1, 3)), torch.tensor([0.5]))
    with pytest.raises(InputError, match="black box"):
        estimate(problem, Splitting(100, islands=2, kernel=Langevin()))


def test_a_function_of_either_that_returns_an_array_is_a_black_box() -> None:
    problem = Problem(lambda x: np.array(x.tolist()), lambda x, y: y[:, 0] - 2, BOX)
    assert not problem.adapted.differentiable


@pytest.mark.parametrize(
    ("network", "culprit"),
    [
        (lambda x: x.sum(), "first dimension"),
        (lambda x: x[:3], "first dimension"),
        (lambda x: x * float("nan"), "NaN"),
        (lambda x: x / 0, "inf"),
        (lambda x: x @ torch.zeros(4, 2), "batch of shape"),
        (nn.Linear(4, 2).eval(), r"shape \(4, 3\)"),
    ],
)
def test_a_network_with_unusable_outputs(network: object, culprit: str) -> None:
    with pytest.raises(NetworkError, match=culprit):
        Problem(network, lambda x, y: y.flatten(1)[:, 0], BOX)


def test_a_network_with_bad_weights_names_them() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        network[1].bias[0] = float("inf")
    with pytest.raises(NetworkError, match=r"1\.bias"):
        Problem(network, Targeted(0, 1), BOX)


def test_not_a_network() -> None:
    with pytest.raises(InputError, match=r"not str; load a file with rarely\.load_network\('network\.onnx'\)"):
        Problem("network.onnx", Targeted(0, 1), BOX)


def test_a_module_that_returns_a_tuple() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(NetworkError, match="tuple"):
        Problem(Two().eval(), Targeted(0, 1), BOX)


@pytest.mark.parametrize("network", [lambda x: x, nn.Identity().eval(), nn.Linear(3, 3).eval()], ids=["f", "bare", "m"])
def test_double_precision_reaches_the_network(network: object) -> None:
    seen: set[torch.dtype] = set()

    def score(x: Tensor, y: Tensor) -> Tensor:
        seen.add(y.dtype)
        return y[:, 0]

    problem = Problem(network, score, BOX)
    seen.clear()
    result = estimate(problem, MonteCarlo(100), dtype=torch.float64)
    assert result.provenance["dtype"] == "float64"
    assert torch.float64 in seen


class Seen(nn.Module):
    """Remembers how the inputs of its second convolution lay in memory."""

    def __init__(self, viewed: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.last = nn.Linear(64, 2)
        self.viewed = viewed

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x).relu())
        return self.last(y.view(len(y), -1) if self.viewed else y.flatten(1))


@pytest.mark.parametrize("viewed", [False, True])
def test_convolutions_of_a_cpu_have_channels_last_where_that_is_the_same(viewed: bool) -> None:
    torch.manual_seed(0)
    module = Seen(viewed).eval()
    box = Box(torch.zeros(3, 8, 8), torch.ones(3, 8, 8))
    problem = Problem(module, Targeted(0, 1), box)
    assert problem.adapted.laid is not viewed, "a view of the usual order fails on another one"
    weight = problem.adapted.laid_out().module.first.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is not viewed
    assert module.first.weight.is_contiguous(), "the user's own module stays as it is"
    x = torch.rand(5, 3, 8, 8)
    assert torch.allclose(problem.adapted.laid_out().call(x), module(x), atol=1e-5)
