"""Reading torch modules into graphs: what is understood is reproduced, the rest is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rarely.bounds import Unprovable, build
from rarely.core.errors import RarelyError


class Module(nn.Module):
    """A module out of a function of its input and one linear layer."""

    def __init__(self, fn, width=6):
        super().__init__()
        self.fn, self.layer = fn, nn.Linear(width, 4)
        self.register_buffer("constant", torch.arange(1.0, 5.0))
        self.register_buffer("matrix", torch.randn(4, 3))

    def forward(self, x):
        return self.fn(self, x)


UNDERSTOOD = {
    "functions": lambda m, x: torch.tanh(F.leaky_relu(torch.relu(m.layer(x)), 0.2)),
    "arithmetic": lambda m, x: (2 - m.layer(x)) / m.constant + m.constant * 0.5,
    "negative": lambda m, x: -m.layer(x) - 1,
    "two values": lambda m, x: torch.sub(m.layer(x), torch.relu(m.layer(x)), alpha=2),
    "matmul": lambda m, x: m.layer(x) @ m.matrix,
    "linear": lambda m, x: F.linear(m.layer(x), m.matrix.mT),
    "views": lambda m, x: m.layer(x).view(x.size(0), 2, 2).permute(0, 2, 1).reshape(x.shape[0], -1),
    "slices": lambda m, x: torch.cat([m.layer(x)[:, 1:], m.layer(x)[:, :1]], 1),
    "stack": lambda m, x: torch.stack([m.layer(x), x[:, :4]], 1).flatten(1),
    "chunks": lambda m, x: torch.chunk(m.layer(x), 2, 1)[1],
    "padding": lambda m, x: F.pad(m.layer(x), (1, 2)),
    "broadcast": lambda m, x: m.layer(x).unsqueeze(1) + x[:, :3].unsqueeze(2),
    "expansion": lambda m, x: x[:, :1] * m.constant,
    "mean": lambda m, x: m.layer(x).reshape(-1, 2, 2).mean(2),
    "sum": lambda m, x: m.layer(x).reshape(-1, 2, 2).sum(1, keepdim=True),
    "amax": lambda m, x: m.layer(x).reshape(-1, 2, 2).amax(1),
    "maximum": lambda m, x: torch.maximum(m.layer(x), x[:, 2:]),
    "clamp": lambda m, x: m.layer(x).clamp(-0.5, 0.7),
    "clamp above": lambda m, x: torch.clamp(m.layer(x), max=0.1),
    "abs": lambda m, x: m.layer(x).abs(),
    "select": lambda m, x: m.layer(x).index_select(-1, torch.tensor([2, 0, 0])),
    "pool": lambda m, x: F.max_pool1d(m.layer(x).unsqueeze(1), 3, 1).squeeze(1),
    "dropout": lambda m, x: F.dropout(m.layer(x), training=False),
    "exp": lambda m, x: torch.exp(m.layer(x)),
    "product": lambda m, x: m.layer(x) * m.layer(x),
    "division": lambda m, x: 1 / (3 + torch.tanh(m.layer(x))),
    "power zero": lambda m, x: m.layer(x) ** 0 + m.layer(x) ** 1,
    "softmax": lambda m, x: F.softmax(m.layer(x), 1),
    "constants among values": lambda m, x: torch.cat([m.layer(x), m.layer.bias.expand(x.shape[0], -1)], 1),
    "constant matrix from the left": lambda m, x: torch.arange(9.0).double().reshape(3, 3) @ x.reshape(-1, 3, 2),
    "a form": lambda m, x: (x * (x @ torch.arange(36.0).double().reshape(6, 6))).sum(1, keepdim=True),
}

REFUSED = {
    "error function": lambda m, x: torch.erf(m.layer(x)),
    "power of values": lambda m, x: torch.pow(2.0, m.layer(x)),
    "batch softmax": lambda m, x: F.softmax(m.layer(x), 0),
    "batch matrices": lambda m, x: m.layer(x) @ m.layer(x).T,
    "root of negative numbers": lambda m, x: torch.sqrt(-1 - torch.relu(m.layer(x))),
    "total sum": lambda m, x: m.layer(x) - m.layer(x).sum(),
    "batch mean": lambda m, x: m.layer(x) - m.layer(x).mean(0),
    "batch transpose": lambda m, x: m.layer(x).T,
    "batch roll": lambda m, x: torch.roll(m.layer(x), 1, 0),
    "batch size": lambda m, x: m.layer(x) * x.shape[0],
    "branch": lambda m, x: m.layer(x) if x.sum() > 0 else x,
    "constant": lambda m, x: m.constant.expand(3, -1),
    "infinite": lambda m, x: m.layer(x) + float("inf"),
    "concave leak": lambda m, x: F.leaky_relu(m.layer(x), 1.5),
    "training dropout": lambda m, x: F.dropout(m.layer(x), training=True),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_an_understood_operator_is_reproduced(name):
    torch.manual_seed(1)
    module = Module(UNDERSTOOD[name]).double().eval()
    graph = build(module, (6,))
    x = torch.randn(7, 6, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(graph(x), module(x).flatten(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_cannot_be_bounded_is_refused(name):
    torch.manual_seed(1)
    with pytest.raises(Unprovable):
        build(Module(REFUSED[name]).eval(), (6,))
    assert issubclass(Unprovable, RarelyError)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, padding=1),
        nn.MaxPool2d(2, 1, dilation=2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(2, 3, 2, dilation=2, bias=False),
        nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 49)), nn.Conv1d(2, 3, 5, stride=3)),
        nn.Identity(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_spatial_operators_are_reproduced(pool):
    module = nn.Sequential(pool, nn.Flatten()).double().eval()
    graph = build(module, (2, 7, 7))
    x = torch.randn(3, 2, 7, 7, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(graph(x), module(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(2),
        nn.MaxPool2d(2, return_indices=True),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.BatchNorm2d(2).train(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_spatial_operators_out_of_scope_are_refused(pool):
    with pytest.raises(Unprovable):
        build(nn.Sequential(pool, nn.Flatten()), (2, 7, 7))
