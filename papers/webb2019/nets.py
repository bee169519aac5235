"""The paper's image networks, their weights as files, and how they are called on a device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import rarely

WEIGHTS = Path(__file__).parent / "weights"


def perceptron(inputs: int, classes: int = 10, hidden: tuple[int, ...] = (256, 256)) -> nn.Sequential:
    """Dense ReLU layers on raw pixels (section 6.3)."""
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise((inputs, *hidden)):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes))


def wong_kolter() -> nn.Sequential:
    """Two strided convolutions and two dense layers (Wong and Kolter 2018, MNIST)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


class _Bottleneck(nn.Module):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.layers(x)), 1)


class Normalise(nn.Module):
    """Pixels in [0, 1] to mean 0 and spread 1, as a part of the network: input models speak of pixels."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4914, 0.4822, 0.4465]).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.247, 0.2435, 0.2616]).reshape(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def dense_net(depth: int = 40, growth: int = 40, classes: int = 10) -> nn.Sequential:
    """DenseNet-BC (Huang et al. 2017): three blocks of (depth - 4) / 6 bottlenecks, halved in between."""
    width = 2 * growth
    modules: list[nn.Module] = [Normalise(), nn.Conv2d(3, width, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            modules.append(_Bottleneck(width, growth))
            width += growth
        if block < 2:
            modules += [nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width // 2, 1, bias=False)]
            modules.append(nn.AvgPool2d(2))
            width //= 2
    modules += [nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*modules, nn.Linear(width, classes))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def save_weights(module: nn.Module, path: Path) -> None:
    """In half precision: the network of an experiment is the one that `load_weights` gives back."""
    from safetensors.torch import save_file

    state = {k: v.half() if v.is_floating_point() else v for k, v in module.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({k: v.cpu().contiguous() for k, v in state.items()}, partial)
    partial.replace(path)


def load_weights(path: Path, architecture: Callable[[], nn.Module]) -> nn.Module:
    network = rarely.load_network(path, architecture=architecture)
    assert isinstance(network, nn.Module)
    return network


def on_device(module: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The network as a function of inputs that may lie anywhere, computed on `device`.

    `rarely` replays the witnesses of a module on the CPU; those of a function where they were found.
    """
    placed = copy.deepcopy(module).eval().requires_grad_(False).to(device)
    return lambda x: placed(x.to(device)).to(x.device)


def dense_net_on_device(
    network: nn.Module, device: torch.device, convolutions: torch.dtype, compile: bool = False
) -> Callable[[Tensor], Tensor]:
    """A trained `dense_net` as a function, its convolutions computed in that dtype.

    Batch norm keeps its numbers, and pooling and the last layer their precision: outputs of eight bits would tie.
    """
    placed = copy.deepcopy(network).eval().requires_grad_(False).to(device)
    assert isinstance(placed, nn.Sequential)
    for part in placed.modules():
        if isinstance(part, nn.Conv2d):
            part.to(convolutions)
    entry, body, head = placed[0], placed[1:-3].to(memory_format=torch.channels_last), placed[-3:]  # type: ignore[call-overload]
    features = torch.compile(body, dynamic=True) if compile else body

    def call(x: Tensor) -> Tensor:
        inside = entry(x.to(device)).to(convolutions).contiguous(memory_format=torch.channels_last)
        result: Tensor = head(features(inside).float())
        return result.to(x.device)

    return call
