"""What a component's density lacks, so that mixtures of different kinds are weighed rightly."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from rarely.inputs import Box, Constrained, Mixture, TruncatedGaussian
from rarely.inputs.mixture import log_volume


def test_a_truncated_gaussian_is_known_to_its_tails_and_fixed_coordinates() -> None:
    model = TruncatedGaussian([0.0, 1.0, 0.0, 0.0], [1.0, 0.5, 2.0, 1.0], [-1.0, 1.2, 0.3, 6.0], [2.0, 9.0, 0.3, 8.0])
    x = torch.tensor([[0.5, 1.5, 0.3, 6.1]])
    laws = (stats.truncnorm(-1, 2), stats.truncnorm(0.4, 16, 1, 0.5), stats.truncnorm(6, 8))
    exact = sum(float(law.logpdf(v)) for law, v in zip(laws, (0.5, 1.5, 6.1), strict=True))
    assert float(model.log_density(x)) - log_volume(model) == pytest.approx(exact, abs=1e-5)


def test_constraints_leave_a_share_of_the_volume() -> None:
    half = Constrained.to(Box([0.0, 0.0], [2.0, 2.0]), [[1.0, -1.0]], [0.0])
    assert log_volume(half) == pytest.approx(math.log(4 * float(half.share)))
    mixture = Mixture([half, TruncatedGaussian([1.0, 1.0], 0.5, 0.0, 2.0)])
    assert bool(torch.isfinite(mixture.log_density(torch.tensor([[0.5, 1.0], [1.0, 0.5]]))).all())
