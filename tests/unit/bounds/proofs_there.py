"""Proofs on a CPU and on another device: what they say must agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import networks
import torch
from torch import Tensor, nn

import rarely
from rarely.bounds import BoxRegion, build, decide_balls, decide_boxes, linear_bounds, placing, probability_bounds
from rarely.bounds.inputsplit import CROWDED
from rarely.bounds.measure import UniformMeasure
from rarely.bounds.probability import Search
from rarely.bounds.problems import prove_all
from rarely.bounds.single import lowered
from rarely.core.rng import Rng
from rarely.core.stacking import place


def dense(seed: int, *widths: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).eval()


class Residual(nn.Module):
    """Strides, groups, dilation, and a sum of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        y = torch.relu(y + self.two(torch.relu(self.one(y))))
        return self.last(y.flatten(1))


def pictures(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Residual().eval()


def above(bound: float, outputs: int = 1) -> rarely.LinearConstraint:
    """The first output is at least so large."""
    return rarely.LinearConstraint([[-1.0] + [0.0] * (outputs - 1)], [-bound])


def top(network: nn.Module, inputs: Any) -> float:
    with torch.no_grad():
        return float(network(inputs.sample(50_000, Rng(0)))[:, 0].max())


@contextmanager
def pays_at(products: int) -> Iterator[None]:
    """A GPU that pays from so many."""
    before, placing._PAYS = placing._PAYS, products
    try:
        yield
    finally:
        placing._PAYS = before


def near_top(network: nn.Module, inputs: Any, *margins: float, outputs: int = 1) -> list[rarely.Problem]:
    most = top(network, inputs)
    return [rarely.Problem(network, above(most + margin, outputs), inputs) for margin in margins]


def questions() -> dict[str, list[rarely.Problem]]:
    """By the way in which they are decided; of most some are true and some are false."""
    small, few = dense(5, 4, 24, 24, 1), rarely.Box([-1.0] * 4, [1.0] * 4)
    many, picture = dense(1, 30, 24, 16, 2), pictures(2)
    cube, tiles = rarely.LpBall(torch.full((30,), 0.5), 0.1), rarely.LpBall(torch.zeros(2, 8, 8), 0.1)
    ball, corner = rarely.LpBall(torch.full((30,), 0.5), 0.4, norm=2), rarely.Box([0.0] * 3, [0.1] * 3)
    norm = nn.LayerNorm(8, elementwise_affine=False)
    smooth = nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Linear(8, 1)).eval()
    rows = dense(7, 3, 12, 12, 3)
    return {
        "halving": near_top(small, few, 0.02, -0.1),
        "several rows": [rarely.Problem(rows, rarely.Misclassification(k), corner) for k in range(3)],
        "splitting": near_top(many, cube, 0.02, -0.1, outputs=2),
        "convolution": near_top(picture, tiles, 0.03, -0.05, outputs=3),
        "ball": near_top(many, ball, 1.0, -0.1, outputs=2),
        "both": near_top(dense(3, 3, 1100, 2), corner, 0.03, -0.01, outputs=2),
        "mixture": [rarely.Problem(small, above(9.0), rarely.Mixture([few, rarely.Box([0.0] * 4, [0.5] * 4)]))],
        "smooth": [rarely.Problem(smooth, above(30.0), corner)],
    }


def bounds_agree(device: torch.device) -> None:
    """Linear bounds of every layer are the same but for rounding, in float32 as well where that can be."""
    some = [networks.network(seed) for seed in range(8)] + [networks.curved(kind, 0) for kind in networks.CURVED]
    for network, shape in (*some, (dense(1, 30, 24, 16, 2), (30,)), (pictures(0), (2, 8, 8))):
        low, high = networks.boxes(shape, 2, 0)
        graph = build(network, shape)
        # Of two planes over a window that are as good, rounding chooses.
        tied = any(isinstance(part, nn.MaxPool1d | nn.MaxPool2d) for part in network.modules())
        for one, kind, size in ((graph, torch.float64, 1e-9), (lowered(graph), torch.float32, 1e-3)):
            if one is None:
                continue
            C, region = torch.eye(graph.classes, dtype=kind).unsqueeze(0), BoxRegion(low.to(kind), high.to(kind))
            here = linear_bounds(one, region, C).lower
            there = linear_bounds(place(one, device, kind), place(region, device, kind), C.to(device)).lower.cpu()
            assert torch.allclose(here, there, rtol=0.1 if tied else size, atol=0.1 if tied else size), (network, kind)


def verdicts_agree(device: torch.device) -> None:
    """With everything on the device, and with what the rule leaves there where it pays later."""
    for name, problems in questions().items():
        here = prove_all(problems, 60.0)
        assert {"proved", "violated"} & {proof.status for proof in here}, (name, here)
        for pays in (1, 2**12):
            with pays_at(pays):
                there = prove_all(problems, 60.0, device=device)
            told = [(one.status, two.status, two.reason) for one, two in zip(here, there, strict=True)]
            assert all(one == two for one, two, _ in told), (name, pays, told)
            for problem, proof in zip(problems, there, strict=True):
                assert proof.witness is None or float(problem.score(proof.witness[None])) >= 0
        with pays_at(1):
            quick = prove_all(problems, 60.0, quick=True, device=device)
        assert all(two.status == "proved" for one, two in zip(quick, here, strict=True) if one.status == "proved"), name


def halving_moves(device: torch.device) -> None:
    """What is crowded on the CPU goes on elsewhere, from the boxes that are left."""
    problem = questions()["halving"][0]
    (here,) = prove_all([problem], 60.0)
    with pays_at(2**14):
        (there,) = prove_all([problem], 60.0, device=device)
    assert here.status == there.status == "proved"
    assert here.boxes <= there.boxes < 4 * here.boxes


def regions_elsewhere(device: torch.device) -> None:
    """Called directly: bounds are computed where the region is, the network runs where it is."""
    network, low = dense(5, 4, 24, 24, 1), torch.full((2, 4), -1.0, device=device)
    row = -torch.ones(1, 1)
    for proof in decide_boxes(network, low, -low, [(row, torch.tensor([-0.1]))], 60.0):
        assert proof.status == "violated"
        assert proof.witness is not None
        assert proof.witness.device.type == "cpu"
    never = [(row.to(device), torch.tensor([-1e3], device=device))]
    assert decide_balls(network, low, torch.ones(2, device=device), never, 60.0)[0].status == "proved"
    close = [(row, torch.tensor([-top(network, rarely.Box([-1.0] * 4, [1.0] * 4)) - 0.02]))]
    (crowded,) = decide_boxes(network, low[:1], -low[:1], close, 60.0, open_boxes=2)
    assert crowded.reason == CROWDED
    assert crowded.rest is not None
    (proof,) = decide_boxes(network, low[:1].cpu(), -low[:1].cpu(), close, 60.0, earlier=[crowded])
    assert proof.status == "proved"


def probabilities_agree(device: torch.device) -> None:
    """By boxes and by half-spaces, of each kind of law."""
    small, many, middle = dense(5, 2, 12, 12, 1), dense(1, 30, 24, 16, 2), torch.full((30,), 0.5)
    square = rarely.Box([-1.0, -1.0], [1.0, 1.0])
    truncated = rarely.inputs.TruncatedGaussian([0.0, 0.0], 0.5, -1.0, 1.0)
    problems = [rarely.Problem(small, above(0.8 * top(small, law)), law) for law in (square, truncated)]
    for law in (rarely.LpBall(middle, 0.2), rarely.Gaussian(middle, 0.05), rarely.inputs.GaussianNoise(middle, 0.2)):
        problems += near_top(many, law, 0.03, outputs=2)
    for problem in problems:
        hope = None if problem.network is small else 9.0
        *_, here = probability_bounds(problem, math.inf, target=hope, boxes=15)
        with pays_at(1):
            *_, there = probability_bounds(problem, math.inf, target=hope, boxes=15, device=device)
        assert here.log_upper < 0
        for one, two in ((here.log_lower, there.log_lower), (here.log_upper, there.log_upper)):
            # More boxes are halved at a time, so that where boxes limit the work bounds differ a little.
            assert one == two or abs(one - two) < 0.5 + 0.1 * abs(one), (problem, here, there)
    low = torch.full((2,), -1.0, dtype=torch.float64)
    laws = [UniformMeasure(low, -low * size) for size in (1.0, 2.0)]  # which stay where they are
    rows = -torch.ones(2, 1, 1), torch.tensor([[-0.2], [-0.3]])
    graph = place(build(small, (2,)), device, torch.float64)
    search = Search(laws, [rows], graph, planes=True, device=device)
    assert search._size == placing.boxes_at_once(graph, torch.zeros((), device=device))
    *_, last = search.tighten(math.inf, 0.5, 100)
    assert len(last) == 2
    assert search.cuts()[1].low.device.type == device.type


CHECKS: list[Callable[[torch.device], None]] = [
    bounds_agree, verdicts_agree, halving_moves, regions_elsewhere, probabilities_agree,
]  # fmt: skip
