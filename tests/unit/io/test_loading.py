"""Problems from files: regions, weights, properties and input models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import rarely
from rarely.core.errors import FormatError, InputError
from rarely.core.properties import LinearConstraint
from rarely.core.rng import Rng
from rarely.inputs import Box, Mixture, TruncatedGaussian
from rarely.io.formats.vnnlib import parse_vnnlib
from rarely.io.problems import Constrained, load_problem, problem_from


def total(x: torch.Tensor) -> torch.Tensor:
    """The network of these tests: y = (sum of x, first x)."""
    flat = x.flatten(1)
    return torch.stack([flat.sum(1), flat[:, 0]], 1)


def specification(*assertions: str, inputs: int = 2):
    lines = [f"(declare-const X_{i} Real)" for i in range(inputs)]
    lines += [f"(declare-const Y_{i} Real)" for i in range(2)]
    return parse_vnnlib("\n".join([*lines, *(f"(assert {a})" for a in assertions)]), "test.vnnlib")


def box(low: tuple[float, ...], high: tuple[float, ...]) -> str:
    bounds = [f"(>= X_{i} {a}) (<= X_{i} {b})" for i, (a, b) in enumerate(zip(low, high, strict=True))]
    return f"(and {' '.join(bounds)})"


def test_one_region_is_a_box_with_a_linear_property() -> None:
    problem = problem_from(total, specification(box((0, 0), (1, 2)), "(>= Y_0 2.5)"), name="p")
    assert isinstance(problem.inputs, Box)
    assert isinstance(problem.property, LinearConstraint)
    assert problem.name == "p"
    assert problem.score(torch.tensor([[1.0, 2.0], [0.0, 0.0]])).tolist() == [0.5, -2.5]


def test_the_box_takes_the_shape_of_the_network() -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (1, 2, 2)
        return total(x)

    square.input_shape = (1, 2, 2)  # type: ignore[attr-defined]
    problem = problem_from(square, specification(box((0,) * 4, (1,) * 4), "(>= Y_0 3.5)", inputs=4))
    assert problem.inputs.event_shape == (1, 2, 2)


def test_regions_are_weighted_by_volume() -> None:
    spec = specification(f"(or {box((0, 0), (1, 1))} {box((2, 0), (5, 1))})", "(>= Y_0 2.5)")
    problem = problem_from(total, spec)
    assert isinstance(problem.inputs, Mixture)
    assert problem.inputs.log_weights.exp().tolist() == pytest.approx([0.25, 0.75])
    assert isinstance(problem.property, LinearConstraint)  # the same outputs violate in both
    x = problem.inputs.sample(4000, Rng(0))
    assert float((x[:, 0] >= 2).double().mean()) == pytest.approx(0.75, abs=0.05)
    # Uniform over the union: the density is the same in both regions.
    first, second = problem.inputs.log_density(torch.tensor([[0.5, 0.5], [3.0, 0.5]])).tolist()
    assert first == pytest.approx(second)


def test_a_flat_region_keeps_its_share() -> None:
    spec = specification(f"(or {box((0, 0), (1, 1))} {box((2, 0), (2, 1))})", "(>= Y_0 2.5)")
    assert problem_from(total, spec).inputs.log_weights.exp().tolist() == pytest.approx([0.5, 0.5])
    fixed = specification(f"(or {box((0, 7), (1, 7))} {box((2, 7), (5, 7))})", "(>= Y_0 2.5)")
    assert problem_from(total, fixed).inputs.log_weights.exp().tolist() == pytest.approx([0.25, 0.75])


def test_outputs_that_differ_hold_in_their_own_region() -> None:
    left, right = box((0, 0), (1, 1)), box((2, 0), (3, 1))
    spec = specification(f"(or (and {left} (>= Y_0 1.5)) (and {right} (<= Y_0 2.5)))")
    problem = problem_from(total, spec)
    points = torch.tensor([[0.9, 0.9], [0.1, 0.1], [2.1, 0.1], [2.9, 0.9]])
    assert (problem.score(points) >= 0).tolist() == [True, False, True, False]
    estimate = rarely.estimate(problem, rarely.MonteCarlo(samples=40_000))
    assert estimate.prob == pytest.approx(0.125, abs=0.01)


def test_linear_constraints_across_inputs_are_met() -> None:
    spec = specification(box((0, 0), (1, 1)), "(<= (+ X_0 X_1) 0.5)", "(>= Y_0 0.4)")
    problem = problem_from(total, spec)
    model = problem.inputs
    assert isinstance(model, Constrained)
    assert float(model.share) == pytest.approx(0.125, abs=0.01)
    assert model.normal_dim is None
    x = model.sample((3, 500), Rng(1))
    assert x.shape == (3, 500, 2)
    assert float(x.sum(-1).max()) <= 0.5
    assert model.log_density(torch.tensor([[0.1, 0.1], [0.4, 0.4], [-0.1, 0.1]])).isneginf().tolist() == [
        False,
        True,
        True,
    ]
    exact = 1 - (0.4 / 0.5) ** 2
    assert rarely.estimate(problem, rarely.MonteCarlo(samples=20_000)).prob == pytest.approx(exact, abs=0.02)
    walked = rarely.estimate(problem, rarely.Splitting(particles=300, islands=4))
    assert walked.log_prob == pytest.approx(math.log(exact), abs=0.2)


def test_constrained_problems_batch() -> None:
    problems = [
        problem_from(total, specification(box((0, 0), (1, 1)), f"(<= (+ X_0 X_1) {limit})", "(>= Y_0 0.4)"))
        for limit in (0.5, 0.8)
    ]
    found = rarely.estimate(problems, rarely.MonteCarlo(samples=20_000))
    assert [e.prob for e in found] == pytest.approx([1 - (0.4 / 0.5) ** 2, 1 - (0.4 / 0.8) ** 2], abs=0.02)


def test_constraints_that_leave_too_little() -> None:
    spec = specification(box((0, 0), (1, 1)), "(<= (+ X_0 X_1) 0.001)", "(>= Y_0 0.4)")
    with pytest.raises(InputError, match=r"leave . of 1,000,000 points of the box"):
        problem_from(total, spec)
    with pytest.raises(InputError, match="leave 0 of"):
        Constrained.to(Box([0.0, 0.0], [1.0, 1.0]), torch.ones(1, 2), [-1.0], "here")


def test_gaussian_inputs_are_truncated_to_the_box() -> None:
    spec = specification(f"(or {box((0, 7), (1, 7))} {box((2, 7), (5, 7))})", "(>= Y_0 9)")
    model = problem_from(total, spec, input_model="gaussian:0.1").inputs
    assert isinstance(model, Mixture)
    assert all(isinstance(part, TruncatedGaussian) for part in model.components)
    x = model.sample(2000, Rng(0))
    assert bool((x[:, 1] == 7).all())
    near = torch.minimum((x[:, 0] - 0.5).abs(), (x[:, 0] - 3.5).abs())
    assert float(near.square().mean().sqrt()) == pytest.approx(0.1, rel=0.1)
    # Densities integrate to one along the free coordinate.
    grid = torch.linspace(0, 5, 5001)
    values = model.log_density(torch.stack([grid, torch.full_like(grid, 7.0)], 1)).exp()
    assert float(values.sum() / 1000) == pytest.approx(1.0, abs=0.02)


def test_an_input_model_that_leaves_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only violations inside the property's box count."""
    (tmp_path / "wide_model.py").write_text("import rarely\n\nwide = rarely.Box([0.0, 0.0], [2.0, 2.0])\nword = 'no'\n")
    monkeypatch.chdir(tmp_path)
    spec = specification(box((0, 0), (1, 1)), "(>= Y_0 1)")
    problem = problem_from(total, spec, input_model="wide_model:wide")
    assert rarely.estimate(problem, rarely.MonteCarlo(samples=40_000)).prob == pytest.approx(0.125, abs=0.01)
    with pytest.raises(InputError, match="not an input model"):
        problem_from(total, spec, input_model="wide_model:word")
    with pytest.raises(InputError, match="the network takes"):
        problem_from(
            total, specification(box((0,) * 3, (1,) * 3), "(>= Y_0 1)", inputs=3), input_model="wide_model:wide"
        )


@pytest.mark.parametrize("text", ["gaussian:0", "gaussian:", "gaussian:inf", "normal"])
def test_unusable_input_models(text: str) -> None:
    with pytest.raises(InputError, match="input model"):
        problem_from(total, specification(box((0, 0), (1, 1)), "(>= Y_0 1)"), input_model=text)


def test_files_share_their_network(tmp_path: Path) -> None:
    network = tmp_path / "net.py"
    network.write_text("import torch\nnetwork = torch.nn.Linear(2, 2).eval()\n")
    text = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
    for name, bound in (("a", 1), ("b", 2)):
        lines = f"{text}(assert {box((0, 0), (1, 1))})(assert (>= Y_0 {bound}))"
        (tmp_path / f"{name}.vnnlib").write_text(lines)
    where = f"{network}:network"
    first, second = (load_problem(where, tmp_path / f"{name}.vnnlib") for name in ("a", "b"))
    assert first.network is second.network


def test_rlv_holds_both(tmp_path: Path) -> None:
    file = tmp_path / "p.rlv"
    file.write_text("Input x\nLinear y 0.0 2.0 x\nAssert <= 0.0 1.0 x\nAssert >= 1.0 1.0 x\nAssert <= 1.5 1.0 y\n")
    problem = load_problem(file)
    assert problem.score(torch.tensor([[1.0]])).item() == pytest.approx(0.5)
    assert load_problem(file).network is problem.network
    with pytest.raises(InputError, match="holds its own property"):
        load_problem(file, "q.vnnlib")


def test_a_property_of_another_network() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        return x

    narrow.input_shape, narrow.output_shape = (3,), (2,)  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match=r"test.vnnlib: it speaks of 2 inputs, but the network has 3"):
        problem_from(narrow, specification(box((0, 0), (1, 1)), "(>= Y_0 1)"))
    narrow.input_shape, narrow.output_shape = (2,), (5,)  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match="2 outputs, but the network has 5"):
        problem_from(narrow, specification(box((0, 0), (1, 1)), "(>= Y_0 1)"))


def test_thousands_of_regions_do_not_nest() -> None:
    """One region after the other, joined by `or`, was deeper than Python's stack."""
    clauses = [f"(and {box((i, 0), (i + 0.5, 1))} (>= Y_0 {i + 1.25}))" for i in range(1500)]
    problem = problem_from(total, specification(f"(or {' '.join(clauses)})"))
    x = torch.tensor([[7.5, 0.8], [7.5, 0.5], [1499.25, 1.0], [7.75, 1.0]])
    assert (problem.score(x) >= 0).tolist() == [True, False, True, False]


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    with pytest.raises(FormatError, match=r"net\.onnx: a pointer of Git LFS.*git lfs pull"):
        rarely.load_network(file)
