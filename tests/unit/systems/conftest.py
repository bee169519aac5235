"""A small system that every test of a room knows: a point that is pushed, with a controller that pushes back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rarely import Gaussian
from rarely.inputs import Normal
from rarely.systems import System, closed_loop


def drift(state: Tensor, action: Tensor, wind: Tensor) -> Tensor:
    place, speed = state[:, :1], state[:, 1:]
    return torch.cat((place + 0.5 * speed, speed + 0.5 * action + wind), 1)


def brake(state: Tensor) -> Tensor:
    return -0.4 * state[:, :1] - 0.8 * state[:, 1:]


@pytest.fixture
def pushed() -> System:
    return closed_loop(
        drift, brake, initial=Gaussian([0.0, 0.0], 0.1), disturbance={"wind": Normal(0, 0.1)}, steps=10, step=0.5,
        states=["place", "speed"], actions=["push"],
    )  # fmt: skip
