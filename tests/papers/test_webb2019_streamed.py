"""The counting of plain Monte Carlo: the Triton program, run by a stand-in for Triton, against the network itself."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import rarely
from papers.webb2019.streamed import kernel_source, violations


class Pointer:
    """An address in a tensor, as a kernel sees it."""

    def __init__(self, values: Tensor, at: int = 0) -> None:
        self.values, self.at = values, at

    def __add__(self, more: int) -> Pointer:
        return Pointer(self.values, self.at + more)


def run_kernel(source: str, rows: int, parts: int, arguments: list[Tensor], loops: int, block: int) -> None:
    """Every program of a launch, one after the other, with torch's numbers in place of Philox's."""
    here = [0, 0]
    generator = torch.Generator().manual_seed(5)

    def add(target: Pointer, value: Tensor) -> None:
        target.values[target.at] += value

    language: Any = SimpleNamespace(
        program_id=lambda axis: here[axis], num_programs=lambda axis: (rows, parts)[axis],
        load=lambda pointer: pointer.values.flatten()[pointer.at], atomic_add=add,
        arange=torch.arange, zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype), int32=torch.int32,
        int64=torch.int64, sum=lambda value, axis: value.sum(axis), constexpr=int,
        maximum=lambda a, b: torch.maximum(a, torch.as_tensor(b)),
        rand4x=lambda key, at: tuple(torch.rand(at.shape, generator=generator) for _ in range(4)),
    )  # fmt: skip
    body = source.replace("import triton.language as tl", "").replace("import triton", "")
    names: dict[str, Any] = {"tl": language, "triton": SimpleNamespace(jit=lambda **_: lambda function: function)}
    exec(body, names)
    for here[0] in range(rows):
        for here[1] in range(parts):
            names["count"](*(Pointer(value) for value in arguments), 0, loops, BLOCK=block)


def problems() -> tuple[nn.Sequential, list[rarely.Problem]]:
    generator = torch.Generator().manual_seed(3)
    network = nn.Sequential(
        nn.Linear(6, 10), nn.ReLU(), nn.MaxPool1d(4, 2), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    network.eval().requires_grad_(False)
    boxes = [rarely.Box(torch.full((6,), c - 0.5), torch.full((6,), c + 0.5)) for c in (0.0, 1.0, -0.7)]
    rules = [rarely.LinearConstraint([[a, -a]], [b]) for a, b in ((1.0, -8.0), (-1.0, 35.0), (1.0, -4.0))]
    pairs = zip(rules, boxes, strict=True)
    return network, [rarely.Problem(network, rule, box) for rule, box in pairs]


def counts(network: nn.Sequential, chosen: list[rarely.Problem], samples: int) -> list[int]:
    boxes: list[Any] = [problem.inputs for problem in chosen]
    rules: list[Any] = [problem.property for problem in chosen]
    arguments = [
        torch.stack([box.low for box in boxes]), torch.stack([box.high - box.low for box in boxes]),
        torch.stack([rule.A.reshape(-1) for rule in rules]), torch.stack([rule.b.reshape(()) for rule in rules]),
        torch.zeros(len(chosen), dtype=torch.long),
    ]  # fmt: skip
    run_kernel(kernel_source(network), len(chosen), 2, arguments, loops=samples // 2000, block=1000)
    return [int(count) for count in arguments[-1]]


def far_apart(one: int, other: int, samples: int) -> bool:
    """Whether two counts differ by more than five standard deviations."""
    p = (one + other) / (2 * samples)
    return abs(one - other) > 5 * math.sqrt(2 * samples * p * (1 - p))


def test_the_fused_kernel_counts_as_the_network_does() -> None:
    network, chosen = problems()
    samples = 40_000
    ours = counts(network, chosen, samples)
    theirs = violations(chosen, samples, 0, torch.device("cpu"))
    assert all(0 < count < samples for count in theirs), "a property that is always or never violated shows nothing"
    assert not any(far_apart(a, b, samples) for a, b in zip(ours, theirs, strict=True))
    shifted = [rarely.Problem(network, p.property, rarely.Box(p.inputs.low + 0.1, p.inputs.high + 0.1)) for p in chosen]  # type: ignore[attr-defined]
    others = counts(network, shifted, samples)
    assert any(far_apart(a, b, samples) for a, b in zip(others, theirs, strict=True)), (
        "the comparison must be able to fail"
    )


def test_counts_depend_on_the_seed_alone() -> None:
    _, chosen = problems()
    device = torch.device("cpu")
    assert violations(chosen, 5_000, 1, device) == violations(chosen, 5_000, 1, device)
    assert violations(chosen, 5_000, 1, device) != violations(chosen, 5_000, 2, device)
