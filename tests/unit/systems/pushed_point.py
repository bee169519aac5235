"""A small system that the tests of this room know: a point that is pushed, with a controller that pushes back."""

from __future__ import annotations

import torch
from torch import Tensor


def drift(state: Tensor, action: Tensor, wind: Tensor) -> Tensor:
    place, speed = state[:, :1], state[:, 1:]
    return torch.cat((place + 0.5 * speed, speed + 0.5 * action + wind), 1)


def brake(state: Tensor) -> Tensor:
    return -0.4 * state[:, :1] - 0.8 * state[:, 1:]
