"""A network behind its preprocessing, so that inputs and radii are in units of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rarely.core.errors import InputError


class Normalised(nn.Module):
    """(x - mean) / std, then the network."""

    def __init__(self, network: Any, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.network = network
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.input_shape = getattr(network, "input_shape", None)
        self.output_shape = getattr(network, "output_shape", None)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.network((x - self.mean) / self.std)
        return result


def normalised(network: Any, mean: Sequence[float] | None, std: Sequence[float] | None) -> Any:
    """The network with its normalisation inside, one number for all or one per channel; as it is when none is given."""
    if mean is None and std is None:
        return network
    shape = getattr(network, "input_shape", None)
    centre, scale = _per_channel(mean or (0.0,), shape, "mean"), _per_channel(std or (1.0,), shape, "std")
    if not bool((scale > 0).all()):
        raise InputError("std must be positive")
    return Normalised(network, centre, scale).eval()


def _per_channel(values: Sequence[float], shape: tuple[int, ...] | None, name: str) -> Tensor:
    if len(values) == 1:
        return torch.tensor(values[0])
    if shape is not None and (len(shape) != 3 or shape[0] != len(values)):
        raise InputError(f"{name} has {len(values)} values, but the network takes {shape}, not {len(values)} channels")
    return torch.tensor(values).reshape(-1, 1, 1)
