"""Problems in words: laws and properties as a person would say them, and never an error."""

from __future__ import annotations

import pytest
import torch

import rarely
from rarely.campaign.words import in_words, inputs_in_words, property_in_words
from rarely.core.properties import Composable
from rarely.inputs import Constrained, Corruptions, GaussianNoise, Normal, PoissonNoise, Uniform

IMAGE = torch.full((1, 4, 4), 0.5)
SQUARE = rarely.Box([0.0, -1.0], [1.0, -1.0])


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (SQUARE, "uniform: x0 in [0, 1], x1 = -1"),
        (rarely.LpBall(IMAGE, 0.1, clip=(0, 1)), "uniform in the ball of radius 0.1 in the ∞-norm around one input; "
         "values between 0.4 and 0.6"),
        (rarely.Gaussian([0.0, 1.0], 0.5), "normal around one input, with standard deviation 0.5"),
        (rarely.Gaussian([0.0, 1.0], covariance=[[1.0, 0.5], [0.5, 1.0]]), "standard deviation 1 and correlations"),
        (rarely.TruncatedGaussian([0.5], 0.1, [0.0], [1.0]), "deviation 0.1, conditioned on x0 in [0, 1]"),
        (GaussianNoise(IMAGE, 0.2), "normal noise of standard deviation 0.2 on every value, cut to 0 to 1"),
        (Corruptions(IMAGE, rotation=Uniform(-5, 5), blur=Normal(0, 1)), "picture with rotation uniform in [-5, 5], "
         "blur normal, independent of each other"),
        (rarely.Mixture([SQUARE, SQUARE], [0.9, 0.1]), "with probability 0.9 uniform: x0 in [0, 1], x1 = -1; with"),
        (Constrained.to(rarely.Box([0.0], [1.0]), [[1.0]], [0.5]), "x0 in [0, 1]; only where linear constraints"),
        (PoissonNoise(IMAGE, 100), "drawn from the input model PoissonNoise"),
        (rarely.Box(torch.zeros(20), torch.ones(20)), "in a box of 20 inputs, 20 of them free, between 0 and 1"),
    ],
)  # fmt: skip
def test_inputs(model: object, told: str) -> None:
    assert told in inputs_in_words(model)


class Odd(Composable):
    pass


@pytest.mark.parametrize(
    ("prop", "told"),
    [
        (rarely.Misclassification(2), "another output is at least as high as output 2"),
        (rarely.Targeted(0, 1), "output 1 is at least as high as output 0"),
        (rarely.LinearConstraint([[-2.0]], [-3.0]), "output 0 >= 1.5"),
        (rarely.LinearConstraint([[1.0, -1.0], [0.0, 1.0]], [0.0, 4.0]), "+1 y0 -1 y1 <= 0 and output 1 <= 4"),
        (rarely.LinearConstraint.any_of([([[1.0]], [0.0]), ([[-1.0], [1.0]], [-2.0, 3.0])]),
         "output 0 <= 0 or output 0 >= 2 and output 0 <= 3"),
        (rarely.LinearConstraint(torch.eye(20), torch.zeros(20)), "the outputs y meet linear constraints A y <= b"),
        (rarely.Targeted(0, 1) | rarely.Targeted(0, 2), "output 1 is at least as high as output 0; or output 2"),
        (Odd(), "the score of Odd is at least 0"),
    ],
)  # fmt: skip
def test_properties(prop: object, told: str) -> None:
    assert told in property_in_words(prop)


def test_a_problem() -> None:
    problem = rarely.Problem(torch.nn.Linear(2, 1).eval(), lambda x, y: y[:, 0], SQUARE)
    told = in_words(problem)
    assert told["network"] == "inputs 2, 1 output, stored in float32"
    assert told.keys() == {"network", "property", "inputs"}
