"""A bound for a new layer takes one file, and nothing that exists has to know about it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from rarely.bounds import BoxRegion, Unprovable, build, decide_boxes, linear_bounds
from rarely.bounds import layers as package
from rarely.bounds.operators import Elementwise
from rarely.bounds.reader import READINGS, reads

HERE = Path(__file__).parent / "new_layer"


class Arched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.relu(torch.cosh(self.first(x)) - 1.25))


@pytest.fixture
def cosh(monkeypatch):
    """The file in `new_layer`, as if it lay among the layers of the package."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(HERE)])
    before = dict(READINGS)
    package.load()
    yield importlib.import_module("rarely.bounds.layers.cosh")
    READINGS.clear()
    READINGS.update(before)
    del sys.modules["rarely.bounds.layers.cosh"]


def _broken(module, boxes=64, points=256):
    """How many bounds on random boxes are above a value that the network takes there."""
    g = torch.Generator().manual_seed(0)
    graph = build(module, (3,))
    low = torch.randn(boxes, 3, generator=g, dtype=torch.float64)
    high = low + torch.rand(boxes, 3, generator=g, dtype=torch.float64)
    C = torch.randn(1, 4, graph.classes, generator=g, dtype=torch.float64)
    bound = linear_bounds(graph, BoxRegion(low, high), C, steps=2).lower
    u = torch.rand(boxes, points, 3, generator=g, dtype=torch.float64)
    x = torch.lerp(low.unsqueeze(1), high.unsqueeze(1), torch.cat([u, u.round()], 1))
    with torch.no_grad():
        least = (graph(x.flatten(0, 1)).reshape(boxes, 2 * points, -1) @ C.mT).amin(1)
    return int((bound > least + 1e-12 * (1 + least.abs())).sum())


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Arched().double().eval()


def test_without_its_file_the_layer_is_refused(network):
    with pytest.raises(Unprovable, match="cosh"):
        build(network, (3,))


def test_with_its_file_the_layer_is_bounded(cosh, network):
    assert _broken(network) == 0
    low, high = torch.zeros(1, 3), torch.full((1, 3), 0.3)
    with torch.no_grad():
        top = float(network(torch.rand(4096, 3).double() * 0.3).amax())
    unreachable = [(-torch.eye(2)[:1], torch.tensor([-top - 0.05])), (-torch.eye(2)[1:], torch.tensor([-top - 0.05]))]
    (verdict,) = decide_boxes(network, low, high, unreachable, 10.0)
    assert verdict.status == "proved"


def test_a_module_gives_its_attributes_as_arguments(cosh):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), cosh.CoshModule(0.25), nn.Linear(4, 2)).double().eval()
    graph = build(module, (3,))
    assert cosh.Cosh(0.25) in [node.op for node in graph.nodes]
    assert _broken(module) == 0


def test_a_layer_with_a_wrong_bound_is_caught(cosh, network, monkeypatch):
    right = cosh.Cosh.relax

    def raised(self, x):
        lines = right(self, x)
        return Elementwise(lines.lower_slope, lines.upper_slope, lines.mid_shift + 0.05, lines.half_shift, None, 0.0)

    monkeypatch.setattr(cosh.Cosh, "relax", raised)
    assert _broken(network) > 0


def test_two_layers_cannot_read_the_same_call():
    with pytest.raises(ValueError, match="relu"):
        reads("relu")(lambda r, input: input)
