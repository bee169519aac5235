"""A user's decoder as an input model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from rarely import Auto, Problem, Splitting, estimate
from rarely.core.each_inputs import EachInputs, stack_inputs
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.stacking import place
from rarely.inputs import Generator


class Decoder(nn.Module):
    """Latents (n, 2, 2) to inputs (n, 1, 4): what a convolutional generator takes and gives."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.dropout = nn.Dropout(0.5)

    def forward(self, z: Tensor) -> Tensor:
        assert z.shape[1:] == (2, 2)
        return self.dropout(self.scale * z.flatten(1)).unsqueeze(1)


def test_shapes_center_and_law() -> None:
    model = Generator(Decoder().eval(), (2, 2))
    assert model.normal_dim == 4
    assert model.event_shape == (1, 4)
    assert torch.equal(model.center, torch.zeros(1, 4))
    x = model.sample((20_000,), Rng(0))
    assert not x.requires_grad
    assert stats.kstest(x[:, 0, 3].numpy(), stats.norm(0, 2).cdf).pvalue > 5.7e-7


def test_training_mode_is_warned_of_not_used_and_left_alone() -> None:
    decoder = Decoder()
    with pytest.warns(UserWarning, match="training mode"):
        model = Generator(decoder, (2, 2))
    z = Rng(1).normal((5, 4))
    torch.testing.assert_close(model.from_normal(z), 2 * z.reshape(5, 1, 4))
    assert decoder.training
    assert decoder.dropout.training


def test_the_decoder_moves_with_the_batch_as_a_copy() -> None:
    decoder = Decoder().eval()
    model = Generator(decoder, (2, 2))
    moved = place(model, torch.device("cpu"), torch.float64)
    assert moved.from_normal(Rng(2).normal((3, 4), torch.float64)).dtype == torch.float64
    assert decoder.scale.dtype == torch.float32
    meta = place(model, torch.device("meta"), torch.float32)
    assert meta.decoder.module is not None
    assert next(meta.decoder.module.parameters()).device.type == "meta"
    assert decoder.scale.device.type == "cpu"


def test_problems_with_one_decoder_stack_and_others_run_side_by_side() -> None:
    one, other = Decoder().eval(), Decoder().eval()
    assert isinstance(stack_inputs([Generator(one, (2, 2)), Generator(one, (2, 2))]), Generator)
    assert isinstance(stack_inputs([Generator(one, (2, 2)), Generator(other, (2, 2))]), EachInputs)


def _tail(model: Generator, limit: float) -> Problem:
    return Problem(nn.Flatten().eval(), lambda x, y: y.sum(1) - limit, model)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_known_probability(dtype: torch.dtype | None) -> None:
    limits = (18.0, 24.0)  # four normals of variance 4
    model = Generator(Decoder().eval(), (2, 2))
    found = estimate([_tail(model, limit) for limit in limits], Auto(), seed=3, dtype=dtype)
    for limit, e in zip(limits, found, strict=True):
        assert e.outcome.trusted
        assert abs(e.log_prob - stats.norm.logsf(limit / 4)) < 5 * e.log_prob_std


def test_a_numpy_decoder_works_without_gradients() -> None:
    def simulator(z: np.ndarray) -> np.ndarray:
        return np.stack([z[:, 0] + z[:, 1], np.sqrt(np.maximum(0, z[:, 2]))], 1)

    model = Generator(simulator, 3)
    assert not model.decoder.differentiable
    network = nn.Linear(2, 1)  # its parameters want gradients, its input has none to give
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0]]))
        network.bias.fill_(-5.0)
    problem = Problem(network.eval(), lambda x, y: y[:, 0], model)
    exact = float(stats.norm.logsf(5 / math.sqrt(2)))
    found = estimate(problem, Auto(), seed=4)
    assert found.outcome.trusted
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std
    repeats = 16
    p = np.exp([e.log_prob - exact for e in estimate([problem] * repeats, Splitting(300, islands=1, steps=10), seed=5)])
    assert abs(p.mean() - 1) < 5 * p.std(ddof=1) / math.sqrt(repeats)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Generator(nn.Linear(3, 2).eval(), 4), "check that `latent`"),
        (lambda: Generator(nn.Linear(3, 2).eval(), 0), "number of normals"),
        (lambda: Generator(lambda z: z.sum(), 4), "first dimension must be the batch"),
        (lambda: Generator("decoder", 4), "must be a torch module or a function"),  # type: ignore[arg-type]
        (lambda: Generator(nn.Linear(3, 2).eval(), 3).log_density(torch.zeros(2)), "Generator has no density"),
    ],
)
def test_errors_say_what_to_do(build, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        build()
