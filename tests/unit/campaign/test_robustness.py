"""Images at several radii: which problems they pose, and what they say together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import made_campaign as made
from rarely.campaign.robustness import ROW_COLUMNS, curve_of, plan_rows, summarise
from rarely.core.errors import InputError
from rarely.io.formats.images import Images
from rarely.questions.result import Outcome

RADII = (0.1, 0.2)


@pytest.fixture
def images() -> Images:
    pixels = np.array([[0.6, 0.4], [0.4, 0.6], [0.5, 0.3]], dtype=np.float32)
    return Images(pixels, ("a", "b", "c"), np.array([0, 1, 1]))


def test_a_problem_for_every_radius_of_what_is_classified_rightly(images: Images) -> None:
    rows = plan_rows(torch.nn.Identity().eval(), images, RADII, "2", (0.0, 1.0))
    assert [(row.image, row.eps, row.label, row.predicted) for row in rows[3:5]] == [("b", 0.2, 1, 1), ("c", 0.1, 1, 0)]
    assert [row.problem is None for row in rows] == [False] * 4 + [True] * 2
    assert rows[0].problem is not None
    assert rows[0].problem.name == "a eps 0.1"
    assert rows[0].problem.inputs.norm == 2.0
    answered = plan_rows(torch.nn.Identity().eval(), replace(images, labels=None), RADII, "inf", None)
    assert [row.label for row in answered[::2]] == [0, 1, 0]


def test_a_network_of_another_shape_is_named(images: Images) -> None:
    with pytest.raises(InputError, match=r"fails on images of shape \(2,\)"):
        plan_rows(torch.nn.Linear(3, 2).eval(), images, RADII, "inf", None)


def test_the_summary_keeps_what_is_not_known_apart(images: Images) -> None:
    rows = plan_rows(torch.nn.Identity().eval(), images, RADII, "inf", None)
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
