"""What callers give: what is clear is taken, and the rest is a sentence that names the fix."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rarely
from rarely import Auto, Gaussian, LpBall, Misclassification, MonteCarlo, Problem, Running, Splitting, TruncatedGaussian
from rarely.core.errors import InputError
from rarely.core.execution import Execution
from rarely.core.rng import TORCHS
from rarely.inputs import GaussianNoise
from rarely.kernels import PCN

NET = nn.Identity().eval()
BALL = LpBall(torch.tensor([0.6, 0.4]), 0.3)  # class 1 wins in an eighth of it and more


def problem() -> Problem:
    return Problem(NET, Misclassification(0), BALL, "two numbers")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, Auto),
        (Auto, Auto),
        ("auto", Auto),
        ("Monte_Carlo", MonteCarlo),
        ("splitting", Splitting),
        (MonteCarlo(7), MonteCarlo),
    ],
)
def test_estimators_by_object_class_and_name(given: Any, kind: type) -> None:
    assert type(Running(problem(), given).estimator) is kind


def test_a_floor_goes_to_an_estimator_that_was_named() -> None:
    run = Running(problem(), "splitting", p_min=np.float32(1e-3))
    assert run.estimator.log_p_min == pytest.approx(math.log(1e-3), rel=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("many", [lambda p: [p], lambda p: (p,), lambda p: iter([p]), lambda p: np.array([p], object)])
def test_problems_one_or_many(many: Callable[[Problem], Any]) -> None:
    assert Running(problem()).problems[0].name == "two numbers"
    (found,) = rarely.estimate(many(problem()), MonteCarlo(1000))
    assert found.name == "two numbers"
    assert rarely.estimate(problem(), MonteCarlo(1000)).log_prob == found.log_prob


@pytest.mark.parametrize("seed", [3, np.int64(3), torch.tensor(3), np.array([3]), 3.0])
def test_whole_numbers_of_every_kind(seed: Any) -> None:
    same = rarely.estimate(problem(), MonteCarlo(500), seed=3, max_evaluations=1000)
    found = rarely.estimate(problem(), MonteCarlo(500), seed=seed, max_evaluations=1e3)  # type: ignore[arg-type]
    assert found.log_prob == same.log_prob
    assert json.loads(found.to_json())["provenance"]["seed"] == 3


@pytest.mark.parametrize(
    "dtype", ["float64", "torch.float64", "double", np.float64, np.dtype("float64"), torch.float64]
)
def test_precisions_of_every_kind(dtype: Any) -> None:
    assert Execution(dtype=dtype).dtype is torch.float64
    found = rarely.estimate(problem(), MonteCarlo(500), dtype=dtype, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert found.provenance["dtype"] == "float64"


@pytest.mark.parametrize("label", [0, np.int64(0), torch.tensor(0), torch.tensor([0]), 0.0])
def test_labels_of_every_kind(label: Any) -> None:
    prop = Misclassification(label)
    assert prop.label is not None
    assert prop.label.dtype is torch.long
    assert prop.label.shape == ()


def test_classes_that_need_no_arguments_are_objects() -> None:
    assert int(Problem(NET, Misclassification, BALL).property.label) == 0  # type: ignore[attr-defined]


def test_frames_are_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    mean = pandas.Series([0.6, 0.4], index=["a", "b"])
    assert Gaussian(mean, std=pandas.Series([1, 2])).std.tolist() == [1.0, 2.0]
    row = pandas.DataFrame({"a": [0.6, 0.0], "b": [0.4, 0.0]}).iloc[[0]]
    assert tuple(LpBall(row, 0.1).middle.shape) == (2,)
    bounded = TruncatedGaussian(mean, 1.0, pandas.Series([0.0, -math.inf]), pandas.Series([1, 1]))
    assert bounded.low.tolist() == [0.0, -math.inf]
    assert rarely.Box(row - 1, row + 1).center.tolist() == pytest.approx([0.6, 0.4])
    covariance = pandas.DataFrame([[1.0, 0.5], [0.5, 1.0]])
    assert Gaussian(mean, covariance=covariance).factor.shape == (2, 2)
    optional = pandas.Series([1, 2], dtype="Int64")
    assert Gaussian(optional, 1.0).mean.tolist() == [1.0, 2.0]
    for wrong in (pandas.Series(["a", "b"]), pandas.Series([1, None], dtype="Int64")):
        with pytest.raises(InputError, match="mean"):
            Gaussian(wrong, 1.0)


def test_settings_are_numbers_of_every_kind() -> None:
    assert MonteCarlo(1e4).samples == 10_000  # type: ignore[arg-type]
    splitting = Splitting(np.int64(200), islands=torch.tensor(4), kernel="pcn")  # type: ignore[arg-type]
    assert (splitting.particles, splitting.islands, splitting.steps) == (200, 4, "auto")
    for kernel in ("pcn", PCN):
        run = Running(problem(), replace(splitting, kernel=kernel))  # type: ignore[arg-type]
        assert run.estimator.kernel == PCN()  # type: ignore[attr-defined]
    assert Auto(proof_boxes=np.int64(7)).proof_boxes == 7


def test_norms_by_name() -> None:
    assert [LpBall([0.0], 1.0, norm).norm for norm in ("l2", "Linf", "inf", 1)] == [2.0, math.inf, math.inf, 1.0]


def test_draws_without_a_generator_follow_torchs_seed() -> None:
    """Also a distribution of torch's, which forks torch's generator, and draws so large that they would take lanes."""
    normal = Problem(NET, Misclassification(0), torch.distributions.Dirichlet(torch.ones(2))).inputs
    for model, n in ((BALL, 5), (normal, np.int64(5)), (Gaussian(torch.zeros(2), 1.0), 2**20)):
        torch.manual_seed(5)
        first, second = model.sample(n), model.sample(n)
        torch.manual_seed(5)
        again = model.sample(n)
        assert torch.equal(first, again)
        assert not torch.equal(first, second)
    assert TORCHS.generator is torch.default_generator


def _estimate(**options: Any) -> Callable[[], object]:
    return lambda: rarely.estimate(problem(), **options)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (_estimate(estimator="splatting"), "there is no estimator 'splatting'; the names are auto, splitting"),
        (_estimate(estimator=3), "3 is no estimator: it has no run and no at_once and no forecast; give one such as"),
        (_estimate(estimator=nn.Linear), "the estimator is the class Linear; make an object of it"),
        (_estimate(seed="3"), "seed must be a whole number, without the quotes, got '3'"),
        (_estimate(seed=1.5), "seed must be a whole number, got 1.5"),
        (_estimate(seed=None), "seed must be a whole number, got None"),
        (_estimate(seed=True), "seed must be a whole number, got True"),
        (_estimate(p_min="1e-12"), "p_min must be a number, without the quotes, got '1e-12'"),
        (_estimate(confidence=95), "confidence must lie strictly between 0 and 1, got 95; 95 % are 0.95"),
        (_estimate(timeout="fast"), "timeout must be a number, got 'fast'"),
        (_estimate(max_evaluations="many"), "max_evaluations must be a whole number, got 'many'"),
        (_estimate(dtype="int8"), "dtype must be a floating type such as torch.float64"),
        (_estimate(dtype=3), "dtype must be a floating type"),
        (_estimate(device="gpu"), "use auto, cpu or cuda"),
        (_estimate(progress="yes"), "progress must be True, or a function"),
        (
            lambda: rarely.estimate(NET),
            "expected a Problem or a list of them, got Identity; make one: rarely.P",
        ),
        (lambda: rarely.estimate({"a": problem()}), "got dict; give its values"),
        (lambda: rarely.estimate([problem(), NET]), r"problems\[1\] is Identity and no Problem; make one"),
        (lambda: rarely.estimate("net.onnx"), "rarely.load_problem of files"),
        (lambda: rarely.estimate([]), "there is no problem to estimate"),
        (lambda: rarely.test([problem(), problem()], 0.1), "takes one Problem, got 2 of them; ask for each in turn"),
        (lambda: rarely.certify(NET, 0.1), "takes a Problem, got Identity"),
        (lambda: rarely.test(problem(), "0.1"), "p_max must be a number, without the quotes"),
        (lambda: rarely.certify(problem(), 0.1, timeout=None), "timeout must be a number, got None"),
        (lambda: rarely.verify(NET), "expected a Problem or a list of them"),
        (lambda: rarely.monitor(NET, [NET]), r"problems\[0\] is Identity"),
        (lambda: rarely.monitor(NET, [problem()], every="5"), "every must be a whole number, without the quotes"),
        (
            lambda: Problem(NET, Misclassification("cat"), Gaussian(torch.zeros(2), 1.0)),
            "the label 'cat' is text, and the network does not name its classes; give its number",
        ),
        (lambda: Misclassification(1.5), "label must be a whole number"),
        (lambda: Misclassification(-1), "label must be a whole number of at least 0"),
        (lambda: Misclassification(torch.tensor([0, 1])), "label must be a whole number"),
        (lambda: Problem(NET, rarely.Targeted, BALL), "the property is the class Targeted; make an object of it"),
        (lambda: Problem(NET, 3, BALL), r"not 3; for a label write Misclassification\(3\)"),
        (lambda: Problem(NET, None, BALL), "not None"),
        (lambda: Problem(NET, BALL, Misclassification(0)), r"swapped: it is Problem\(network, property, inputs\)"),
        (lambda: Problem("net.onnx", Misclassification(0), BALL), r"rarely\.load_network\('net\.onnx'\)"),
        (lambda: Problem(nn.Linear, Misclassification(0), BALL), "the network is the class Linear; make an object"),
        (lambda: Problem(NET, Misclassification(0), LpBall), "the input model is the class LpBall; make an object"),
        (lambda: Problem(NET, Misclassification(0), torch.zeros(2)), r"rarely\.LpBall\(array, 0\.1\) is uniform noise"),
        (lambda: LpBall([0.0], "0.1"), "radius must be a number, without the quotes"),
        (lambda: LpBall([0.0], 0.1, "max"), "norm must be 1, 2 or inf, got 'max'"),
        (lambda: LpBall([0.0], 0.1, clip=1), r"clip must be two ends \(low, high\), got 1"),
        (lambda: GaussianNoise([0.0], 0.1, clip=(0, 1, 2)), "clip must be two ends"),
        (lambda: rarely.Mixture(BALL), "a mixture takes a list of input models, got LpBall"),
        (lambda: BALL.sample("5"), "the number of inputs must be a whole number, without the quotes"),
        (lambda: MonteCarlo("100"), "samples must be a whole number, without the quotes"),
        (lambda: Splitting(100.5), "particles must be a whole number, got 100.5"),
        (lambda: Splitting(steps="many"), "steps must be a whole number, got 'many'"),
        (lambda: Splitting(quantile="a tenth"), "quantile must be a number, got 'a tenth'"),
        (lambda: Auto(target_error=None), "target_error must be a number, got None"),
        (_estimate(estimator=Splitting(kernel="walk")), "there is no kernel 'walk'; the names are pcn"),
        (_estimate(seed=2**70), "seed must fit into 64 bits"),
        (_estimate(execution={"device": "cpu"}), r"such as Execution\(rows=1000\), got dict"),
        (lambda: rarely.test(problem(), 0.1, known="before"), "known must be an earlier answer about this problem"),
        (lambda: rarely.augment(NET, torch.rand(2, 2), ["a", "b"], 0.1), "labels must be an array of numbers"),
        (lambda: TruncatedGaussian([0.0], 1.0, ["a"], [1.0]), "low must be an array of numbers"),
    ],
)
def test_what_cannot_be_meant(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        wrong()
