"""Images at several radii: which problems they pose, and what they say together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import made_campaign as made
import rarely
from rarely.campaign.noise import Noise
from rarely.campaign.robustness import ROW_COLUMNS, curve_of, plan_rows, summarise
from rarely.core.errors import InputError
from rarely.io.formats.images import Images
from rarely.io.networks import normalised
from rarely.questions.result import Outcome

RADII = (0.1, 0.2)


@pytest.fixture
def images() -> Images:
    pixels = np.array([[0.6, 0.4], [0.4, 0.6], [0.5, 0.3]], dtype=np.float32)
    return Images(pixels, ("a", "b", "c"), np.array([0, 1, 1]))


def test_a_problem_for_every_radius_of_what_is_classified_rightly(images: Images) -> None:
    rows = plan_rows(torch.nn.Identity().eval(), images, RADII, Noise("2", (0.0, 1.0)))
    assert [(row.image, row.eps, row.label, row.predicted) for row in rows[3:5]] == [("b", 0.2, 1, 1), ("c", 0.1, 1, 0)]
    assert [row.problem is None for row in rows] == [False] * 4 + [True] * 2
    assert rows[0].problem is not None
    assert rows[0].problem.name == "a eps 0.1"
    assert rows[0].problem.inputs.norm == 2.0
    answered = plan_rows(torch.nn.Identity().eval(), replace(images, labels=None), RADII, Noise("inf"))
    assert [row.label for row in answered[::2]] == [0, 1, 0]


def test_a_network_of_another_shape_is_named(images: Images) -> None:
    with pytest.raises(InputError, match=r"fails on images of shape \(2,\)"):
        plan_rows(torch.nn.Linear(3, 2).eval(), images, RADII, Noise("inf"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 7, 1], r"the label 7 of image b is out of range: the network has 2 outputs, so that labels are 0 to 1$"),
        ([2, 1, 1], r"image a is out of range.* counted from 1: subtract 1"),
    ],
)
def test_labels_that_the_network_does_not_know_are_no_misclassification(
    images: Images, labels: list[int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_rows(torch.nn.Identity().eval(), replace(images, labels=np.array(labels)), RADII, Noise("inf"))


def _of_arrays(x: np.ndarray) -> np.ndarray:
    assert isinstance(x, np.ndarray)
    return x[:, ::-1] @ np.eye(2)


def _lists(x: object) -> list[list[float]]:
    return np.asarray(x).tolist()  # of a tensor with gradients it fails


def _numpy_in_a_module() -> torch.nn.Module:
    class Inside(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.detach().numpy() * 2)

    return Inside().eval()


@pytest.mark.parametrize(("network", "answers"), [(_of_arrays, [1, 0, 1]), (_lists, [0, 1, 0])])
@pytest.mark.parametrize("normalise", [False, True])
def test_functions_of_arrays_are_networks(images: Images, network: object, answers: list[int], normalise: bool) -> None:
    made = normalised(network, (0.1,), (0.5,)) if normalise else network
    rows = plan_rows(made, replace(images, labels=None), (0.2,), Noise("inf"))
    assert [row.predicted for row in rows] == answers
    assert rows[0].problem is not None
    (p,) = rarely.estimate([rows[0].problem], rarely.MonteCarlo(5000))
    assert p.prob == pytest.approx(0.125, abs=0.03)


def test_a_module_that_leaves_torch_is_a_network(images: Images) -> None:
    assert [row.predicted for row in plan_rows(_numpy_in_a_module(), images, (0.2,), Noise("inf"))] == [0, 1, 0]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda x: [float(x[0]), float(x[1])], "fails on images of shape"),
        (lambda x: x[:, :1], "a classifier gives a score for each class"),
        (lambda x: {"scores": x}, "fails on images of shape"),
    ],
)
@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_what_is_no_classifier_is_said(images: Images, network: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_rows(network, replace(images, labels=None), RADII, Noise("inf"))


def test_the_summary_keeps_what_is_not_known_apart(images: Images) -> None:
    rows = plan_rows(torch.nn.Identity().eval(), images, RADII, Noise("inf"))
    rows[0].estimate = made.violated(-4.0)
    rows[2].estimate = replace(made.violated(-4.0), outcome=Outcome.BELOW_FLOOR, log_prob=-math.inf)
    near, far = summarise(rows, RADII)
    assert (near.images, near.misclassified, near.share_below_floor) == (2, 1, 0.5)
    assert near.log_prob_quartiles == (-math.inf, -math.inf, -4.0)  # nothing lies between a number and none
    assert (far.images, far.share_below_floor) == (0, None)
    assert curve_of(rows, RADII).log_probs == [[-4.0, -math.inf], []]
    outcomes = [row.flat()["outcome"] for row in rows]
    assert outcomes == ["violated", "not finished", "below the floor", "not finished", "misclassified", "misclassified"]
    assert all(tuple(row.flat()) == ROW_COLUMNS for row in rows)
