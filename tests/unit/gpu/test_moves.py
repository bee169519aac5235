"""Steps of pCN by programs: the laws of their noise and of their maps, what they judge and what they keep."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rarely import Box, Gaussian, LinearConstraint, Misclassification, Problem, Splitting, estimate
from rarely.core.batch import Batch
from rarely.core.execution import Execution
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.gpu import moves
from rarely.gpu.moves import Moves, moves_of
from rarely.kernels import PCN


def batch_of(problem: Problem, device: str) -> Batch:
    (batch,) = Execution(device=device).place([problem], Spend(1))
    return batch


def of_normals(size: int) -> Problem:
    return Problem(torch.nn.Identity().eval(), lambda x, y: y.sum(1), Gaussian(torch.zeros(size), 1.0))


def made(batch: Batch, position: Tensor, scale: float, unit: Tensor | None = None, seed: int = 0) -> Moves:
    steps = moves_of(batch, position, position.new_full((len(batch), 1), scale), unit, Rng(seed, batch.device))
    assert steps is not None
    return steps


def noise(device: str, shape: tuple[int, int], seed: int = 0) -> Tensor:
    batch = batch_of(of_normals(shape[1]), device)
    return made(batch, torch.zeros(1, *shape, device=device), 1.0, seed=seed).inputs()[0]


@pytest.mark.parametrize("size", [1, 5, 8, 784])
def test_noise_is_independent_standard_normal(device: str, size: int) -> None:
    z = noise(device, (400_000 // size, size)).double().flatten()
    n = len(z)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(z.pow(power).mean()) - expected) < 5 * math.sqrt(variance / n), power
    for lag in (1, 2, 3, 4, size, 2 * size):
        for a, b in ((z[:-lag], z[lag:]), (z[:-lag].square() - 1, z[lag:].square() - 1)):
            assert abs(float((a * b).mean())) < 5 * (1 if a is z[:-lag] else 2) / math.sqrt(n)
    other = noise(device, (400_000 // size, size), seed=1).double().flatten()
    assert abs(float((z * other).mean())) < 5 / math.sqrt(n)


def test_tails_of_noise_have_their_probability(device: str) -> None:
    """On a GPU beyond 5.6 sigma, where normals end that are made of a float alone: 68 of 3.2e9 are expected there."""
    rounds, bounds = (192, (4.0, 5.0, 5.6, 5.9)) if device == "cuda" else (1, (3.0, 4.0, 4.5))
    counts, n = dict.fromkeys(bounds, 0), 0
    for seed in range(rounds):
        z = noise(device, (2**20 if device == "cuda" else 2**18, 16), seed)
        n += z.numel()
        for bound in bounds:
            counts[bound] += int((z.abs() > bound).sum())
    for bound, count in counts.items():
        expected = n * math.erfc(bound / math.sqrt(2))
        assert abs(count - expected) < 5 * math.sqrt(expected), (bound, count, expected)


@pytest.mark.parametrize("size", [3, 8, 130])
@pytest.mark.parametrize("uniform", [True, False])
def test_normals_are_mapped_as_the_input_model_maps_them(device: str, size: int, uniform: bool) -> None:
    low = torch.linspace(-2, 3, size)
    law = Box(low, low + 0.5) if uniform else Gaussian(low, 0.5)
    batch = batch_of(Problem(torch.nn.Identity().eval(), lambda x, y: y.sum(1), law), device)
    z = torch.linspace(-12, 12, 40 * size, device=device).reshape(1, 40, size)
    x = made(batch, z.clone(), 0.0).inputs()
    torch.testing.assert_close(x, batch.inputs.from_normal(z), rtol=3e-7, atol=3e-7)


def test_both_tails_keep_their_digits(device: str) -> None:
    """Where 0 is an end: down to probabilities of 1e-33, which log p below -70 asks for."""
    for low, high, sign in ((0.0, 1.0, -1), (-1.0, 0.0, 1)):
        law = Box(torch.full((4,), low), torch.full((4,), high))
        batch = batch_of(Problem(torch.nn.Identity().eval(), lambda x, y: y.sum(1), law), device)
        z = sign * torch.linspace(0.1, 12, 400, device=device).reshape(1, 100, 4)
        x = made(batch, z.clone(), 0.0).inputs().double().abs()
        exact = 0.5 * torch.erfc(z.double().abs() / math.sqrt(2))
        assert float(((x - exact) / exact).abs().max()) < 2e-5


def test_units_shorten_steps_and_kept_chains_are_those_that_were_proposed(device: str) -> None:
    batch = batch_of(of_normals(6), device)
    before = torch.randn(1, 1000, 6, generator=torch.Generator().manual_seed(0)).to(device)
    unit = torch.tensor([1.0, 0.5, 0.1, 0.0, 4.0, 1.0], device=device).reshape(1, 1, 6)
    position = before.clone()
    step = made(batch, position, 0.5, unit)
    proposals, ok = step.inputs(), torch.arange(1000, device=device).remainder(3).eq(0).unsqueeze(0)
    assert torch.equal(position, before)
    step.keep(ok.float())
    torch.testing.assert_close(position, torch.where(ok.unsqueeze(-1), proposals, before), rtol=0, atol=0)
    beta = (0.5 * unit).clamp_max(1.0)
    spread = (proposals - (1 - beta**2).sqrt() * before).std(1).flatten()
    torch.testing.assert_close(spread, beta.flatten(), rtol=5 / math.sqrt(2000), atol=1e-6)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", ["label", "rows", "any of", "function"])
def test_outputs_are_judged_as_the_property_scores_them(device: str, kind: str, strict: bool) -> None:
    A = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    prop = {
        "label": Misclassification(2), "rows": LinearConstraint(A, [0.3, 0.1, -0.2]),
        "any of": LinearConstraint.any_of([(A, [0.3, 0.1, -0.2]), (A[:1], [-2.0])]),
        "function": lambda x, y: y.square().sum(1) - 3,
    }[kind]  # fmt: skip
    network = torch.nn.Linear(4, 4).eval()
    batch = batch_of(Problem(network, prop, Gaussian(torch.zeros(4), 1.0)), device)
    step = made(batch, torch.randn(1, 5000, 4, generator=torch.Generator().manual_seed(1)).to(device), 0.5)
    x = step.inputs()
    expected = batch.score(x)
    level = expected[:, :1].clone()  # a tie
    before = torch.full_like(expected, 7.0)
    after, moved = step.judged(before, x, level, strict)
    ok = moved == 1
    sure = (expected - level).abs() > 1e-5
    assert torch.equal(ok[sure], (expected > level)[sure])
    torch.testing.assert_close(after, torch.where(ok, expected, before))


def test_a_tie_passes_unless_the_rule_is_strict_and_nan_always_passes(device: str) -> None:
    class Known(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([torch.zeros_like(x[:, 0]), torch.where(x[:, 0] > 0, x[:, 0] * torch.nan, 0.0)], 1)

    batch = batch_of(Problem(Known().eval(), Misclassification(0), Box([-2.0], [-1.0])), device)
    step = made(batch, torch.zeros(1, 2, 1, device=device), 0.5)
    x = torch.tensor([[[-1.0], [1.0]]], device=device)
    for strict, expected in ((True, [False, True]), (False, [True, True])):
        after, moved = step.judged(x.new_zeros(1, 2), x, x.new_zeros(1, 1), strict)
        assert moved.bool().tolist() == [expected]
        assert math.isnan(float(after[0, 1]))


@pytest.mark.parametrize("size", [2, 30])
def test_splitting_by_programs_is_exact(device: str, size: int) -> None:
    class Sum(torch.nn.Module):  # no chain of layers that a chip could hold
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1, keepdim=True).sin() * 0 + x.sum(1, keepdim=True) / size**0.5

    problem = Problem(Sum().eval(), LinearConstraint([[-1.0]], [-4.0]), Gaussian(torch.zeros(size), 1.0))
    found = estimate(problem, Splitting(500, 0.1, 10, PCN(), islands=32), device=device, seed=3)
    exact = float(torch.special.log_ndtr(torch.tensor(-4.0, dtype=torch.float64)))
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std
    assert found.log_prob_std < 0.15


def test_without_a_compiler_torch_does_all_of_it(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no NVRTC, or one that refuses."""

    def refuse(*_: object, **__: object) -> object:
        raise moves.CannotCompile("hidden")

    monkeypatch.setattr(moves, "compiled", refuse)
    problem = Problem(torch.nn.Linear(3, 1).eval(), LinearConstraint([[-1.0]], [-4.0]), Gaussian(torch.zeros(3), 1.0))
    batch = batch_of(problem, device)
    assert moves_of(batch, torch.zeros(1, 4, 3, device=device), torch.ones(1, 1), None, Rng(0, batch.device)) is None
    settings = Splitting(300, 0.1, 5, PCN(), islands=2)
    hidden = estimate(problem, settings, device=device, seed=0)
    monkeypatch.setattr(moves, "available", lambda device: False)
    assert estimate(problem, settings, device=device, seed=0).log_prob == hidden.log_prob
