"""Violating inputs for training: they violate, belong to their images, and spread as the violating law does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import rarely
from rarely.core.errors import InputError
from rarely.inputs import Corruptions, Normal


class Ramp(nn.Module):
    """Two classes: the second when the sum of the pixels exceeds 5. Dropout shows whether eval mode is used."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(5.0))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        total = self.dropout(x.flatten(1)).sum(1)
        return torch.stack([self.bias.expand(len(x)), total], 1)


IMAGES = torch.stack([torch.full((1, 2, 4), v) for v in (0.5, 0.55, 0.1, 0.9)])
LABELS = torch.tensor([0, 0, 0, 0])


def test_what_comes_back_violates_and_lies_around_its_image() -> None:
    network = Ramp()
    x, y = rarely.augment(network, IMAGES, LABELS, 0.2, per_image=3, seed=1)
    assert network.training
    assert network.dropout.training
    assert x.dtype == IMAGES.dtype
    assert y.tolist() == [0] * len(y)
    with torch.no_grad():
        assert (network.eval()(x).argmax(1) != y).all()
    near = (x.unsqueeze(1) - IMAGES).abs().flatten(2).amax(-1) <= 0.2 + 1e-6
    # The third image cannot fail (8 * 0.3 < 5), the fourth always does; images come in their order.
    assert near.int().argmax(1).tolist() == [0] * 3 + [1] * 3 + [3] * 3


def test_draws_of_an_image_are_spread_as_the_violating_law() -> None:
    """By the symmetry of the pixels each has the same mean given that their sum exceeds 5, which rejection tells."""
    image, draws = torch.full((1, 1, 2, 4), 0.5), 400
    x, _ = rarely.augment(Ramp().eval(), image, [0], 0.2, per_image=draws, particles=30, seed=2)
    assert draws / 2 < len(x) <= draws  # small populations die out now and then
    assert len(torch.unique(x.flatten(1), dim=0)) == len(x)
    noise = np.random.default_rng(0).uniform(0.3, 0.7, (2_000_000, 8))
    truth = noise[noise.sum(1) > 5]
    spread = truth.std(0).mean()
    # Independent populations, but small ones: a ratio of random numbers is off by about 1/particles of the spread.
    slack = 5 * spread / math.sqrt(len(x)) + spread / 30
    assert np.abs(x.flatten(1).numpy().mean(0) - truth.mean(0)).max() < slack


def test_a_model_of_ones_own_and_a_plain_function() -> None:
    def darker(image: Tensor) -> Corruptions:
        return Corruptions(image, brightness=Normal(0, 0.02))

    def network(x: Tensor) -> Tensor:
        return torch.stack([torch.full_like(x[:, 0, 0, 0], 0.45), x.flatten(1).mean(1)], 1)

    x, y = rarely.augment(network, IMAGES[:2], [1, 1], darker, per_image=5)
    assert len(x) > 0
    assert set(y.tolist()) == {1}
    assert bool((x.flatten(1).mean(1) <= 0.45).all())
    assert float(stats.norm.cdf(-0.05 / 0.02)) < 0.01  # what plain noise would have found


def test_the_same_seed_gives_the_same_inputs() -> None:
    network = Ramp().eval()
    first, again = (rarely.augment(network, IMAGES, LABELS, 0.2, seed=3)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, rarely.augment(network, IMAGES, LABELS, 0.2, seed=4)[0][: len(first)])


def test_nothing_to_find_is_an_empty_batch() -> None:
    x, y = rarely.augment(Ramp().eval(), IMAGES[2:3], [0], 0.1)
    assert x.shape == (0, 1, 2, 4)
    assert y.shape == (0,)


@pytest.mark.parametrize(
    ("images", "labels", "options", "says"),
    [
        (IMAGES, [0], {}, "labels"),
        (torch.zeros(3), [0, 0, 0], {}, "must be"),
        (IMAGES, LABELS, {"per_image": 0}, "at least 1"),
        (IMAGES, LABELS + 7, {}, "out of range"),
    ],
)
def test_errors_say_what_to_do(images: Tensor, labels: object, options: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        rarely.augment(Ramp().eval(), images, labels, 0.1, **options)  # type: ignore[arg-type]
