"""Wrong pixels against a loop that counts them, and the same answers as Misclassification where both apply."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rarely
from rarely import Misclassification
from rarely.core.errors import InputError
from rarely.core.properties import Property, stack_properties
from rarely.vision import WrongPixels

C, H, W = 4, 5, 6
MASK = torch.zeros(H, W, dtype=torch.bool)
MASK[1:4, 2:5] = True  # nine pixels


def _outputs(seed: int, problems: int = 1, n: int = 300, classes: int = C) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(problems, n, classes, H, W, generator=generator, dtype=torch.float64)
    y[:, :, classes - 1] += 1.2
    return torch.zeros(problems, n, 1), y


@pytest.mark.parametrize("count", [1, 5, 9])
def test_violations_are_those_that_a_loop_finds(count: int) -> None:
    x, y = _outputs(0)
    prop = WrongPixels(3, MASK, count)
    wrong = [sum(int(one[:, r, c].argmax()) != 3 for r in range(1, 4) for c in range(2, 5)) for one in y[0]]
    hit = [n >= count for n in wrong]
    assert (prop.score(x, y)[0] >= 0).tolist() == hit
    torch.testing.assert_close(prop.parts(x, y).amax(-1), prop.score(x, y))
    assert len(set(hit)) == 2 or count == 9


def test_one_pixel_is_a_classifier() -> None:
    x, y = _outputs(1)
    there = y[..., 2, 4]
    single, same = WrongPixels(1, (2, 4)), Misclassification(1)
    torch.testing.assert_close(single.score(x, y), same.score(x, there))
    torch.testing.assert_close(single.parts(x, y), same.parts(x, there))  # a way to fail for each class


def test_one_channel_is_the_logit_of_class_1() -> None:
    x, y = _outputs(2, classes=1)
    torch.testing.assert_close(WrongPixels(1, (0, 0)).score(x, y), -y[..., 0, 0, 0])
    torch.testing.assert_close(WrongPixels(0, (0, 0)).score(x, y), y[..., 0, 0, 0])


def test_slopes_are_those_of_the_pixel_that_decides() -> None:
    x, y = _outputs(3, n=20)
    y.requires_grad_()
    (slope,) = torch.autograd.grad(WrongPixels(0, MASK, 5).score(x, y).sum(), y)
    assert torch.equal(slope.abs().sum((2, 3, 4)), torch.full((1, 20), 2.0, dtype=torch.float64))
    assert float(slope[..., ~MASK].abs().sum()) == 0


def test_single_and_stacked_agree() -> None:
    x, y = _outputs(4, problems=2)
    other = MASK.roll(1, 0)
    pairs: list[list[Property]] = [
        [WrongPixels(0, MASK, 4), WrongPixels(3, other, 4)],
        [WrongPixels(1, (0, 0)), WrongPixels(2, (4, 5))],
        [WrongPixels(0, MASK, 4), WrongPixels(3, MASK, 2)],  # different counts do not stack
    ]
    for pair in pairs:
        both = stack_properties(pair)
        for row, prop in enumerate(pair):
            torch.testing.assert_close(both.score(x, y)[row], prop.score(x[row, None], y[row, None])[0])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: WrongPixels(0, torch.zeros(H, W, dtype=torch.bool)), "at least one pixel"),
        (lambda: WrongPixels(0, torch.ones(H, W)), "True and False"),
        (lambda: WrongPixels(0, (1, 2, 3)), "one pixel"),
        (lambda: WrongPixels(0, (-1, 2)), "from 0"),
        (lambda: WrongPixels(0, MASK, 10), "from 1 to the 9 pixels"),
        (lambda: WrongPixels(0, MASK, 0.5), "whole number"),
    ],
)
def test_wrong_arguments_are_named(build: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("prop", "said"),
    [
        (WrongPixels(2, (0, 0)), "every pixel has 2 classes"),
        (WrongPixels(0, (3, 0)), "outside the segmentation of 3 x 3"),
        (WrongPixels(0, MASK), "outside the segmentation of 3 x 3"),
    ],
)
def test_what_does_not_fit_the_network_is_an_error_when_the_problem_is_posed(prop: WrongPixels, said: str) -> None:
    network = torch.nn.Conv2d(1, 2, 1).eval()
    with pytest.raises(InputError, match=said):
        rarely.Problem(network, prop, rarely.LpBall(torch.zeros(1, 3, 3), 0.1))


def test_flat_outputs_are_an_error() -> None:
    with pytest.raises(InputError, match=r"classes, height, width"):
        rarely.Problem(torch.nn.Linear(3, 2).eval(), WrongPixels(0, (0, 0)), rarely.LpBall(torch.zeros(3), 0.1))


def test_the_probability_is_exact_where_it_is_known() -> None:
    """Nine independent pixels, each wrong when a normal exceeds 3: at least two of them."""
    network = torch.nn.Conv2d(1, 2, 1).eval()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1))
        network.bias.copy_(torch.tensor([3.0, 0.0]))
    problem = rarely.Problem(
        network, WrongPixels(0, torch.ones(3, 3, dtype=torch.bool), 2), rarely.Gaussian(torch.zeros(1, 3, 3), 1.0)
    )
    q = torch.special.ndtr(torch.tensor(-3.0, dtype=torch.float64))
    exact = torch.log(1 - (1 - q) ** 9 - 9 * q * (1 - q) ** 8).item()
    assert exact in rarely.estimate(problem, confidence=0.9999).interval
