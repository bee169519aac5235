"""Random small networks with every operator that can be bounded, and random regions for them."""

from __future__ import annotations

from collections.abc import Callable

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


class Curved(nn.Module):
    """Functions and products of entries between two dense layers."""

    def __init__(self, width: int, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(width, 6), between, nn.LazyLinear(3)
        self(torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


class Attention(nn.Module):
    """Two heads over three tokens of four features, after a layer norm, with a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.norm = nn.Parameter(torch.randn(1, 1, 4)), nn.LayerNorm(4, eps=0.1)
        self.query, self.key, self.value, self.out = (nn.Linear(4, 4) for _ in range(4))
        self.register_buffer("mix", torch.randn(2, 2, 2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], 1, 4), x], 1)
        y = self.norm(tokens)
        q, k, v = (m(y).reshape(-1, 3, 2, 2).transpose(1, 2) for m in (self.query, self.key, self.value))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v @ self.mix
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(torch.relu(tokens)[:, 0])


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "sin and cos": lambda x: torch.sin(x) + torch.cos(2 * x),
    "powers": lambda x: x**2 + torch.pow(x[:, :1], 3),
    "roots": lambda x: torch.sqrt(torch.square(x) + 0.5) + torch.rsqrt(torch.relu(x) + 0.5),
    "exp and log": lambda x: torch.exp(x) + torch.log(torch.relu(x) + 0.5),
    "reciprocal": lambda x: 1 / (1 + x * x) + torch.reciprocal(torch.relu(x) + 1),
    "sign": lambda x: torch.sign(x) * 0.5,
    "product": lambda x: x * torch.relu(x.flip(1)) + x * x[:, :1],
    "quotient": lambda x: x / (2 + torch.tanh(x[:, 1:2])),
    "form": lambda x: torch.sum(x * (x @ torch.arange(36.0).reshape(6, 6).sin()), 1, keepdim=True),
    "softmax": lambda x: torch.softmax(2 * x, 1),
    "log softmax": lambda x: nn.functional.log_softmax(x, 1),
    "constants": lambda x: nn.functional.pad(x, (1, 2), value=0.75),
    "matrices": lambda x: (torch.ones(4, 3) @ x.reshape(-1, 3, 2) @ x.reshape(-1, 2, 3)).flatten(1),
}
PICTURES: dict[str, Callable[[], nn.Module]] = {
    "transposed convolution": lambda: nn.ConvTranspose2d(2, 4, 3, 2, 1, output_padding=1, groups=2),
    "transposed convolution, dilated": lambda: nn.ConvTranspose2d(2, 1, 2, stride=(1, 3), dilation=2),
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "bilinear": lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"),
    "bilinear, corners aligned": lambda: nn.Upsample(size=(7, 5), mode="bilinear", align_corners=True),
}
CURVED = ("attention", *BETWEEN, *PICTURES)


def curved(kind: str, seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A network with operators of one kind, and its event shape."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "attention":
            return Attention().eval(), (2, 4)
        if kind in BETWEEN:
            return Curved(2 + seed % 3, BETWEEN[kind]).eval(), (2 + seed % 3,)
        module = nn.Sequential(PICTURES[kind](), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
        module(torch.zeros(1, 2, 4, 4))
        return module.eval(), (2, 4, 4)


def _activation(kind: int) -> nn.Module:
    return [nn.ReLU(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.Tanh(), nn.ReLU6()][kind % 5]


def network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
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


def boxes(shape: tuple[int, ...], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Boxes of many sizes, some with fixed coordinates."""
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(count, *shape, generator=g, dtype=torch.float64)
    size = 10 ** (torch.rand(count, *(1,) * len(shape), generator=g, dtype=torch.float64) * 3 - 2.5)
    half = size * torch.rand(count, *shape, generator=g, dtype=torch.float64)
    half = half * (torch.rand(count, *shape, generator=g) > 0.1)
    return centre - half, centre + half
