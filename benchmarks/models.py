"""Networks of the benchmarks: CIFAR-10 ResNet with option-A shortcuts, DenseNet-BC, and perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the published ResNet weights


class Normalised(nn.Module):
    """A network of raw pixels in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(MEAN).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).reshape(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.network((x - self.mean) / self.std)
        return y


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; where the width grows, the shortcut is every other pixel padded with empty channels."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.grown = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.grown:
            side = self.grown // 2
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, side, side))
        return functional.relu(y + x)


class ResNet(nn.Module):
    """ResNet for 32x32 images (He et al. 2015, section 4.2): depth 6 n + 2, names as in the published weights."""

    def __init__(self, depth: int = 20, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._layer(16, 16, blocks, 1)
        self.layer2 = self._layer(16, 32, blocks, 2)
        self.layer3 = self._layer(32, 64, blocks, 2)
        self.linear = nn.Linear(64, classes)

    @staticmethod
    def _layer(width_in: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(width_in, width, stride)
        return nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        y: Tensor = self.linear(x.mean((2, 3)))
        return y


class _Bottleneck(nn.Module):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.layers(x)), 1)


def dense_net(depth: int = 40, growth: int = 40, classes: int = 10, reduction: float = 0.5) -> nn.Sequential:
    """DenseNet-BC (Huang et al. 2017): three dense blocks of (depth - 4) / 6 bottlenecks, halved in between."""
    width = 2 * growth
    modules: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            modules.append(_Bottleneck(width, growth))
            width += growth
        if block < 2:
            narrow = int(width * reduction)
            modules += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, narrow, 1, bias=False), nn.AvgPool2d(2)]
            width = narrow
    modules += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*modules)


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load_resnet(folder: Path, depth: int = 20) -> nn.Module:
    """The published weights, for raw pixels; random ones where the file is not there."""
    network = ResNet(depth)
    files = sorted(folder.glob(f"resnet{depth}-*.th")) if folder.is_dir() else []
    if files:
        state = torch.load(files[0], map_location="cpu", weights_only=True)["state_dict"]
        network.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    return Normalised(network).eval().requires_grad_(False)
