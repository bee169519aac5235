"""A check of an installation: problems with exact answers, estimated for real on every device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rarely.core.execution import devices
from rarely.core.problem import Problem
from rarely.demo import assets
from rarely.inputs import Box, Gaussian
from rarely.io.problems import load_problem
from rarely.questions.estimate import estimate
from rarely.questions.result import Estimate

_CONFIDENCE = 0.9999  # a sound installation whose random numbers differ from ours fails a check as rarely as this
_DIMENSIONS, _THRESHOLD = 100, 6.0
_CORNER, _SIDE = 6, 0.05


@dataclass(frozen=True)
class Check:
    """A problem, its exact answer, and what was estimated."""

    name: str
    exact: float  # log p; -inf where no violation exists
    estimate: Estimate

    @property
    def passed(self) -> bool:
        return self.estimate.outcome.trusted and self.exact in self.estimate.interval


def checks(seed: int = 0) -> Iterator[Check]:
    """The checks one after the other, some seconds in all."""
    for device in devices():
        for problem, exact in (_half_space(), _corner()):
            found = estimate(problem, seed=seed, confidence=_CONFIDENCE, device=device)
            yield Check(f"{problem.name}, {device}", exact, found)
    safe = load_problem(assets() / "cruise.onnx", assets() / "brake-25m-fast.vnnlib")
    yield Check(
        "a proof about a shipped file", -math.inf, estimate(safe, seed=seed, confidence=_CONFIDENCE, device="cpu")
    )


def _half_space() -> tuple[Problem, float]:
    """A torch module with gradients: P(Z > 6)."""

    def beyond(x: Tensor, y: Tensor) -> Tensor:
        return y.sum(-1) / math.sqrt(_DIMENSIONS) - _THRESHOLD

    normal = Gaussian(torch.zeros(_DIMENSIONS), 1.0)
    exact = float(torch.special.log_ndtr(torch.tensor(-_THRESHOLD, dtype=torch.float64)))
    return Problem(torch.nn.Identity().eval(), beyond, normal, "a half-space in 100 dimensions"), exact


def _corner() -> tuple[Problem, float]:
    """A black box of numpy: all coordinates within 0.05 of the corner."""

    def nearest(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(x.min(1))

    box = Box(torch.zeros(_CORNER), torch.ones(_CORNER))
    problem = Problem(nearest, lambda x, y: y.flatten() - (1 - _SIDE), box, "a corner of a box, by a black box")
    return problem, _CORNER * math.log(_SIDE)
