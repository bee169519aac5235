"""Random small networks, and random regions for them, as fixtures."""

from __future__ import annotations

from collections.abc import Callable

import networks
import pytest
from torch import Tensor, nn


@pytest.fixture(scope="session")
def random_network() -> Callable[[int], tuple[nn.Module, tuple[int, ...]]]:
    return networks.network


@pytest.fixture(scope="session", params=networks.CURVED)
def curved_network(request: pytest.FixtureRequest) -> Callable[[int], tuple[nn.Module, tuple[int, ...]]]:
    """Of each kind in turn."""
    return lambda seed: networks.curved(request.param, seed)


@pytest.fixture(scope="session")
def random_boxes() -> Callable[[tuple[int, ...], int, int], tuple[Tensor, Tensor]]:
    return networks.boxes
