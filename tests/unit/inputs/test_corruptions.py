"""Corrupted pictures against what the corruption is by definition, and probabilities that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from rarely import Auto, LinearConstraint, LineSampling, Problem, Splitting, estimate
from rarely.bounds.problems import prove_all
from rarely.core.each_inputs import EachInputs, stack_inputs
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.stacking import place
from rarely.inputs import Corruptions, Fixed, Normal, OneHot, Uniform

GENERATOR = torch.Generator().manual_seed(0)
PICTURE = torch.rand(3, 9, 12, generator=GENERATOR)
SQUARE = torch.rand(1, 8, 8, generator=GENERATOR)


def once(model: Corruptions) -> torch.Tensor:
    return model.from_normal(torch.zeros(1, model.normal_dim))[0]


def test_no_corruption_leaves_the_picture_as_it_is() -> None:
    model = Corruptions(
        PICTURE, rotation=Fixed(0), shift_x=Fixed(0), shift_y=Fixed(0), scale=Fixed(1), blur=Fixed(0),
        contrast=Fixed(1), brightness=Fixed(0),
    )  # fmt: skip
    torch.testing.assert_close(once(model), PICTURE, rtol=0, atol=2e-5)
    assert model.normal_dim == 7
    assert torch.equal(model.center, PICTURE)


@pytest.mark.parametrize("turns", [1, 2, 3, -1])
def test_quarter_turns_are_counter_clockwise(turns: int) -> None:
    turned = once(Corruptions(SQUARE, rotation=Fixed(90 * turns)))
    torch.testing.assert_close(turned, torch.rot90(SQUARE, turns, (-2, -1)), rtol=0, atol=2e-5)


def test_shifts_by_whole_pixels_repeat_the_edge() -> None:
    moved = once(Corruptions(PICTURE, shift_x=Fixed(2), shift_y=Fixed(-1)))
    torch.testing.assert_close(moved[:, :-1, 2:], PICTURE[:, 1:, :-2], rtol=0, atol=2e-5)
    torch.testing.assert_close(moved[:, :-1, 0], PICTURE[:, 1:, 0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("scale", "angle", "x", "y"), [(2.0, 0.0, 0.0, 0.0), (1.5, 30.0, 0.7, -1.3)])
def test_a_slope_is_scaled_turned_and_shifted(scale: float, angle: float, x: float, y: float) -> None:
    """Of a linear picture bilinear interpolation is exact, so the answer is a formula."""
    down, right = torch.meshgrid(torch.arange(15.0) - 7, torch.arange(15.0) - 7, indexing="ij")
    picture = 0.5 + 0.02 * right + 0.01 * down
    model = Corruptions(picture, scale=Fixed(scale), rotation=Fixed(angle), shift_x=Fixed(x), shift_y=Fixed(y))
    theta = math.radians(angle)
    u, v = (right - x) / scale, (down - y) / scale
    expected = (
        0.5 + 0.02 * (math.cos(theta) * u - math.sin(theta) * v) + 0.01 * (math.sin(theta) * u + math.cos(theta) * v)
    )
    torch.testing.assert_close(once(model)[3:-3, 3:-3], expected[3:-3, 3:-3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 1.0, -2.0])
def test_blur_spreads_a_point_as_a_gaussian(sigma: float) -> None:
    point = torch.zeros(31, 31)
    point[15, 15] = 1.0
    line = stats.norm(0, abs(sigma)).pdf(np.arange(-15, 16))
    line = line / line.sum()
    torch.testing.assert_close(
        once(Corruptions(point, blur=Fixed(sigma))),
        torch.from_numpy(np.outer(line, line)).float(),
        rtol=1e-4,
        atol=1e-6,
    )


def test_blur_leaves_an_even_surface_even() -> None:
    even = torch.full((2, 6, 9), 0.3)
    torch.testing.assert_close(once(Corruptions(even, blur=Fixed(1.7))), even)


def test_contrast_turns_about_the_middle_and_brightness_is_added_before_the_clip() -> None:
    model = Corruptions(PICTURE, contrast=Fixed(1.4), brightness=Fixed(0.1))
    torch.testing.assert_close(once(model), (0.5 + 1.4 * (PICTURE - 0.5) + 0.1).clamp(0, 1))


def test_parameters_have_their_laws() -> None:
    model = Corruptions(SQUARE, rotation=Uniform(-15, 15), brightness=Normal(0, 0.1))
    values = model.parameters(Rng(1).normal((20_000, 2)))
    assert list(values) == ["rotation", "brightness"]
    assert stats.kstest(values["rotation"].numpy(), stats.uniform(-15, 30).cdf).pvalue > 5.7e-7
    assert stats.kstest(values["brightness"].numpy(), stats.norm(0, 0.1).cdf).pvalue > 5.7e-7


def test_flat_and_grey_pictures_are_the_same_pictures() -> None:
    z = Rng(2).normal((5, 2))
    wide = Corruptions(PICTURE, rotation=Normal(0, 10), blur=Normal(0, 1)).from_normal(z)
    flat = Corruptions(PICTURE.flatten(), rotation=Normal(0, 10), blur=Normal(0, 1), shape=(3, 9, 12)).from_normal(z)
    assert flat.shape == (5, 324)
    assert torch.equal(flat, wide.flatten(1))
    grey = Corruptions(SQUARE[0], rotation=Normal(0, 10), blur=Normal(0, 1)).from_normal(z)
    assert torch.equal(grey.unsqueeze(1), Corruptions(SQUARE, rotation=Normal(0, 10), blur=Normal(0, 1)).from_normal(z))


def test_gradients_are_those_of_finite_differences() -> None:
    smooth = torch.sin(torch.arange(96.0)).reshape(2, 6, 8).double() / 4 + 0.5
    model = Corruptions(
        smooth, rotation=Normal(3, 10), shift_x=Uniform(-1, 1), shift_y=Normal(0, 1), scale=Normal(1, 0.1),
        blur=Normal(1, 0.1), contrast=Normal(1, 0.1), brightness=Normal(0, 0.01), clip=(-9, 9),
    )  # fmt: skip
    model = place(model, torch.device("cpu"), torch.float64)
    z = Rng(3).normal((2, 7), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(model.from_normal, (z,), eps=1e-7, atol=1e-5)


def test_pictures_and_laws_with_different_numbers_stack() -> None:
    models = [
        Corruptions(PICTURE, rotation=Normal(0, 5), brightness=Uniform(0, 0.1)),
        Corruptions(1 - PICTURE, rotation=Normal(9, 2), brightness=Uniform(-0.2, 0.1), clip=(0, 2)),
    ]
    stacked = stack_inputs(models)
    assert isinstance(stacked, Corruptions)
    z = Rng(4).normal((2, 6, 2))
    x = stacked.from_normal(z)
    for row, model in enumerate(models):
        torch.testing.assert_close(x[row], model.from_normal(z[row]))
    assert stacked.support is not None
    assert stacked.support[1].shape == (2, 1, 3, 9, 12)
    assert stacked.support[1][:, 0, 0, 0, 0].tolist() == [1.0, 2.0]


def test_other_kinds_of_laws_run_side_by_side() -> None:
    models = [Corruptions(PICTURE, rotation=Normal(0, 5)), Corruptions(PICTURE, rotation=Uniform(0, 5))]
    assert isinstance(stack_inputs(models), EachInputs)


def _half_space() -> tuple[list[Problem], list[float]]:
    """With brightness and contrast alone a pixel is linear in the normals: p is a normal tail."""
    problems, logs = [], []
    for pixel in (0.9, 0.7):
        model = Corruptions([[pixel, 0.5]], contrast=Normal(1, 0.1), brightness=Normal(0, 0.08), clip=(-9, 9))
        problems.append(Problem(_picture, lambda x, y: y[..., 0] - 1.35, model))
        logs.append(float(stats.norm(pixel, math.hypot(0.1 * pixel, 0.08)).logsf(1.35)))
    return problems, logs


def _picture(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)


@pytest.mark.parametrize("method", [Auto(), LineSampling()], ids=["auto", "lines"])
def test_a_known_probability(method: Auto | LineSampling) -> None:
    problems, logs = _half_space()
    for found, exact in zip(estimate(problems, method, seed=5), logs, strict=True):
        assert abs(found.log_prob - exact) < 5 * found.log_prob_std + 1e-3
        assert found.log_prob_std < 0.2


def test_a_known_probability_by_splitting() -> None:
    problems, logs = _half_space()
    repeats = 24
    found = estimate([problems[0]] * repeats, Splitting(300, islands=1, steps=10), seed=6)
    p = np.exp([e.log_prob - logs[0] for e in found])
    assert abs(p.mean() - 1) < 5 * p.std(ddof=1) / math.sqrt(repeats)


def test_auto_agrees_with_quadrature_over_two_corruptions() -> None:
    """Rotation and blur of a random picture: the probability of a bright corner, summed over a fine grid of normals."""
    model = Corruptions(SQUARE, rotation=Normal(0, 12), blur=Uniform(0, 1))
    step = 0.02
    line = torch.arange(-5.5, 5.5, step) + step / 2
    z = torch.cartesian_prod(line, line)
    weight = torch.exp(-0.5 * z.double().square().sum(1)) / (2 * math.pi) * step**2
    value = torch.cat([_picture(model.from_normal(part))[:, :3].sum(1) for part in z.split(20_000)])
    order = value.argsort(descending=True)
    tail = weight[order].cumsum(0)
    limit = float(value[order][int((tail < 2e-4).sum())])
    exact = math.log(float(weight[value >= limit].sum()))
    found = estimate(Problem(_picture, lambda x, y: y[..., :3].sum(-1) - limit, model), seed=7)
    assert found.outcome.trusted
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Corruptions(PICTURE), "no corruption is given"),
        (lambda: Corruptions(torch.zeros(7), rotation=Normal(0, 1)), "for a flat one give shape"),
        (lambda: Corruptions(torch.zeros(7), rotation=Normal(0, 1), shape=(2, 3)), "does not hold"),
        (lambda: Corruptions(255 * PICTURE, rotation=Normal(0, 1)), "outside clip"),
        (lambda: Corruptions(PICTURE, rotation=15), "must be a law of one number"),  # type: ignore[arg-type]
        (lambda: Corruptions(PICTURE, rotation=OneHot([1, 1])), "must be a law of one number"),
        (lambda: Corruptions(PICTURE, rotation=Normal(0, 1), clip=(1, 0)), "low < high"),
        (lambda: Corruptions(PICTURE, rotation=Normal(0, -1)), "std must be at least 0"),
        (lambda: Corruptions(PICTURE, rotation=Uniform(1, -1)), "swap the bounds"),
        (lambda: Corruptions(PICTURE, rotation=Normal(0, 1)).log_density(PICTURE), "no density"),
    ],
)
def test_errors_say_what_to_do(build, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        build()


def test_pictures_that_are_never_violated_are_attacked_where_they_are_drawn() -> None:
    """The range of the pixels is a box, but the corruptions reach little of it: a white picture is not among them."""
    network = torch.nn.Flatten().eval()
    model = Corruptions(SQUARE, brightness=Uniform(-0.1, 0.1))
    limit = float(model.from_normal(torch.tensor([[9.0]])).sum()) + 0.5  # beyond the brightest
    found = estimate(Problem(network, lambda x, y: y.sum(1) - limit, model), Auto(proof_seconds=0.1), seed=9)
    assert not len(found.witnesses)
    assert found.log_prob == -math.inf


def test_a_picture_that_bounds_find_in_the_range_of_pixels_is_no_witness() -> None:
    """The network is one that can be bounded, and nobody can say whether the corruptions draw what violates there."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1))
    with torch.no_grad():
        network[1].weight.fill_(1.0)
        network[1].bias.zero_()
    white = LinearConstraint([[-1.0]], [-63.9])  # the sum of all pixels, at least 63.9 of 64
    problem = Problem(network.eval(), white, Corruptions(SQUARE, brightness=Uniform(-0.1, 0.1)))
    (proof,) = prove_all([problem], 2.0)
    assert proof.status == "unknown"
    assert not len(estimate(problem, Auto(proof_seconds=0.1), seed=9).witnesses)
