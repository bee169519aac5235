"""Random small networks with every operator that can be bounded, and random regions for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), act, nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Twisted(nn.Module):
    """Slices, concatenation, transposition, constants and a pool over features, as importers emit them."""

    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(width, 8)
        self.act = act
        self.pool = nn.MaxPool1d(4, 2)
        self.register_buffer("scale", torch.randn(8))
        self.last = nn.Linear(3 + 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x)) * self.scale - 0.25
        pooled = self.pool(h.unsqueeze(1)).squeeze(1)
        turned = h.reshape(h.shape[0], 2, 4).transpose(1, 2).flatten(1)[:, ::2]
        return self.last(torch.cat([pooled, turned], dim=1))


class Convolutional(nn.Module):
    def __init__(self, act: nn.Module, average: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=1, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.act = act
        self.pool = nn.AvgPool2d(2) if average else nn.MaxPool2d(2, 1, padding=1)
        self.deep = nn.Conv2d(3, 2, 2, stride=2, groups=1)
        self.head = nn.LazyLinear(3)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)
        self.eval()
        self(torch.zeros(1, 2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(self.act(self.norm(self.conv(x))))
        return self.head(torch.tanh(self.deep(h)).flatten(1))


def _activation(kind: int) -> nn.Module:
    return [nn.ReLU(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.Tanh(), nn.ReLU6()][kind % 5]


def _network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A network and its event shape; the seed picks the architecture, the weights and their scale."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        act = _activation(seed // 4)
        width = 2 + seed % 3
        module: nn.Module
        if seed % 4 == 0:
            hidden = [nn.Linear(width, 10), act, nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3)]
            module = nn.Sequential(*hidden)
        elif seed % 4 == 1:
            module = nn.Sequential(nn.Linear(width, 6), Residual(6, act), act, Residual(6, nn.ReLU()), nn.Linear(6, 2))
        elif seed % 4 == 2:
            module = nn.Sequential(Twisted(width, act), nn.ReLU(), nn.Linear(5, 3))
        else:
            module, width = Convolutional(act, seed % 8 == 3), 0
        with torch.no_grad():
            for p in module.parameters():
                p.mul_(1.5)
    shape = (2, 4, 4) if width == 0 else (width,)
    return module.eval(), shape


def _boxes(shape: tuple[int, ...], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Boxes of many sizes, some with fixed coordinates."""
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(count, *shape, generator=g, dtype=torch.float64)
    size = 10 ** (torch.rand(count, *(1,) * len(shape), generator=g, dtype=torch.float64) * 3 - 2.5)
    half = size * torch.rand(count, *shape, generator=g, dtype=torch.float64)
    half = half * (torch.rand(count, *shape, generator=g) > 0.1)
    return centre - half, centre + half


@pytest.fixture(scope="session")
def random_network() -> Callable[[int], tuple[nn.Module, tuple[int, ...]]]:
    return _network


@pytest.fixture(scope="session")
def random_boxes() -> Callable[[tuple[int, ...], int, int], tuple[Tensor, Tensor]]:
    return _boxes
