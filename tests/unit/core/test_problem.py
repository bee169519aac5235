"""Problems, and everything wrong that can be known before long work starts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rarely
from rarely import Box, Gaussian, LpBall, Misclassification, Mixture, MonteCarlo, Problem, Splitting, Targeted, estimate
from rarely import TruncatedGaussian as Truncated
from rarely.core.errors import InputError, NetworkError, RarelyError
from rarely.core.execution import _runs
from rarely.kernels import HMC, PCN, HitAndRun, RandomWalk

NAN, INF = float("nan"), float("inf")
BOX = Box([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])


def identity(x: Tensor) -> Tensor:
    return x


class Uniform:
    """A user's distribution: numbers in [0, 1), with the faults that a test asks for."""

    def __init__(self, shift: float = 0.0, scale: float = 1.0, density_shape: tuple[int, ...] = ()) -> None:
        self.shift, self.scale, self.density_shape = shift, scale, density_shape

    def sample(self, n: int) -> Tensor:
        return torch.rand(n, 3) * self.scale + self.shift

    def log_density(self, x: Tensor) -> Tensor:
        ok = ((x >= 0) & (x <= 1)).all(1)
        return torch.where(ok, 0.0, -torch.inf).reshape(-1, *self.density_shape)


class Supported(Uniform):
    support = (torch.zeros(3), torch.full((3,), 0.5))


class OneShape(Uniform):
    def sample(self, n: int) -> Tensor:
        return torch.rand(3)


class NoSample:
    def log_density(self, x: Tensor) -> Tensor:
        return x.sum(1)


class NoDensity:
    def sample(self, n: int) -> Tensor:
        return torch.rand(n, 3)


def _problem(inputs: object = BOX, prop: object = None, network: object = identity) -> Problem:
    return Problem(network, prop or Targeted(0, 1), inputs)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "low above high": (lambda: Box([0.0, 2.0], [1.0, 1.0]), "low > high.*index 1"),
    "NaN in low": (lambda: Box([NAN], [1.0]), "low contains NaN"),
    "inf in high": (lambda: Box([0.0], [INF]), "high contains NaN or inf"),
    "shapes of bounds": (lambda: Box([0.0, 1.0], [1.0, 1.0, 1.0]), r"low has shape \(2,\) and high \(3,\)"),
    "strings as bounds": (lambda: Box("a", [1.0]), "low must be"),
    "complex bounds": (lambda: Box(torch.zeros(2, dtype=torch.complex64), [1.0, 1.0]), "low must be real"),
    "NaN in center": (lambda: LpBall([NAN], 0.1), "center contains NaN"),
    "negative radius": (lambda: LpBall([0.0], -0.1), "radius"),
    "NaN radius": (lambda: LpBall([0.0], NAN), "radius"),
    "norm 3": (lambda: LpBall([0.0], 0.1, 3), "norm must be 1, 2 or inf"),
    "center outside clip": (lambda: LpBall([2.0], 0.1, clip=(0.0, 1.0)), "center lies outside clip"),
    "NaN in clip": (lambda: LpBall([0.5], 0.1, clip=(0.0, NAN)), "clip contains NaN"),
    "shape of clip": (lambda: LpBall([0.5], 0.1, clip=([0.0, 0.0], 1.0)), "clip must have the shape"),
    "clip reversed": (lambda: LpBall([0.5], 0.1, clip=(1.0, 0.0)), "low > high"),
    "NaN in mean": (lambda: Gaussian([NAN], 1.0), "mean contains NaN"),
    "negative std": (lambda: Gaussian([0.0], -1.0), "std must not be negative"),
    "inf std": (lambda: Gaussian([0.0], INF), "std contains NaN or inf"),
    "shape of std": (lambda: Gaussian([0.0], [1.0, 1.0]), "std has shape"),
    "neither std nor covariance": (lambda: Gaussian([0.0]), "exactly one of std and covariance"),
    "shape of covariance": (lambda: Gaussian([0.0, 0.0], covariance=[[1.0]]), "covariance has shape"),
    "asymmetric covariance": (lambda: Gaussian([0.0, 0.0], covariance=[[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
    "indefinite covariance": (lambda: Gaussian([0.0, 0.0], covariance=[[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
    "NaN covariance": (lambda: Gaussian([0.0], covariance=[[NAN]]), "covariance contains NaN"),
    "truncated reversed": (lambda: Truncated([0.0], 1.0, 1.0, -1.0), "low > high"),
    "truncated NaN": (lambda: Truncated([0.0], 1.0, NAN, 1.0), "NaN"),
    "truncated shapes": (lambda: Truncated([0.0], 1.0, [0.0, 0.0], 1.0), "shape of the mean"),
    "truncated std 0": (lambda: Truncated([0.0], 0.0, -1.0, 1.0), "std must be positive"),
    "no components": (lambda: Mixture([]), "at least one component"),
    "component shapes": (lambda: Mixture([BOX, Box([0.0], [1.0])]), "share an input shape"),
    "NaN weights": (lambda: Mixture([BOX, BOX], [NAN, 1.0]), "weights contains NaN"),
    "negative weights": (lambda: Mixture([BOX, BOX], [-1.0, 2.0]), "weights must be"),
    "number of weights": (lambda: Mixture([BOX, BOX], [1.0]), "weights must be 2"),
    "zero weights": (lambda: Mixture([BOX, BOX], [0.0, 0.0]), "weights must be"),
    "label out of range": (lambda: _problem(prop=Misclassification(3)), "label 3 is out of range"),
    "target out of range": (lambda: _problem(prop=Targeted(0, 7)), "target 7 is out of range"),
    "label in a composition": (lambda: _problem(prop=Misclassification(9) | Targeted(0, 1)), "label 9 is out of range"),
    "columns of A": (lambda: _problem(prop=rarely.LinearConstraint([[1.0, 0.0]], [0.0])), "A has 2 columns"),
    "NaN scores": (lambda: _problem(prop=lambda x, y: y[:, 0] * NAN), "score is NaN"),
    "shape of scores": (lambda: _problem(prop=lambda x, y: y), "score of 4 rows has shape"),
    "not a property": (lambda: _problem(prop=3), "property must be"),
    "shape of the input": (lambda: _problem(network=nn.Linear(4, 2).eval()), "input model has the shape"),
    "outside its density": (lambda: _problem(Uniform(shift=5.0)), "samples fall outside its support"),
    "outside its support": (lambda: _problem(Supported()), "outside its own support"),
    "NaN samples": (lambda: _problem(Uniform(scale=NAN)), "draws NaN"),
    "shape of samples": (lambda: _problem(OneShape()), "sample"),
    "shape of the density": (lambda: _problem(Uniform(density_shape=(1,))), "log_density of 4 inputs has shape"),
    "no sample": (lambda: _problem(NoSample()), "no sample"),
    "no density": (lambda: _problem(NoDensity()), "no log_density"),
    "label without a center": (lambda: _problem(Uniform(), Misclassification()), "center"),
    "one particle": (lambda: Splitting(1), "particles must be at least 2"),
    "quantile 0": (lambda: Splitting(quantile=0.0), "quantile must lie"),
    "quantile 1": (lambda: Splitting(quantile=1.0), "quantile must lie"),
    "quantile NaN": (lambda: Splitting(quantile=NAN), "quantile must lie"),
    "nobody survives": (lambda: Splitting(5, quantile=0.1), "leaves nobody"),
    "no steps": (lambda: Splitting(steps=0), "steps must be"),
    "positive floor": (lambda: Splitting(log_p_min=1.0), "log_p_min"),
    "no islands": (lambda: Splitting(islands=0), "islands must be"),
    "unknown rule": (lambda: Splitting(rule="loose"), "rule must be one of"),  # type: ignore[arg-type]
    "unknown keep": (lambda: Splitting(keep="some"), "keep must be one of"),  # type: ignore[arg-type]
    "keep all, resample killed": (lambda: Splitting(keep="all", resample="killed"), "choose one"),
    "no samples": (lambda: MonteCarlo(0), "samples"),
    "no hits": (lambda: MonteCarlo(hits=0), "hits must be"),
    "target error": (lambda: MonteCarlo(target_error=0.0), "target_error"),
    "scale of PCN": (lambda: PCN(scale=0.0), "scale of PCN"),
    "target of PCN": (lambda: PCN(target=1.0), "target acceptance"),
    "radius of a walk": (lambda: RandomWalk(radius=0.0), "radius"),
    "proposal of a walk": (lambda: RandomWalk("cauchy"), "proposal"),  # type: ignore[arg-type]
    "leaps": (lambda: HMC(leaps=0), "leap"),
    "tries": (lambda: HitAndRun(tries=0), "try"),
    "no problem": (lambda: estimate([]), "no problem"),
    "confidence": (lambda: estimate(_problem(), confidence=1.0), "confidence"),
    "unknown device": (lambda: estimate(_problem(), device="abacus"), "device 'abacus'"),
    "budget": (lambda: estimate(_problem(), max_evaluations=0), "max_evaluations"),
    "timeout": (lambda: estimate(_problem(), timeout=0.0), "timeout"),
    "normals of a user's model": (lambda: estimate(_problem(Uniform()), Splitting(kernel=PCN())), "from_normal"),
    "scoring another shape": (lambda: _problem().score(torch.zeros(2, 5)), r"shape \(2, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "culprit"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(make: Callable[[], object], culprit: str) -> None:
    with pytest.raises(RarelyError, match=culprit):
        make()


@pytest.mark.parametrize(
    "estimator", [MonteCarlo(5000), Splitting(200, islands=2), Splitting(200, keep="all", islands=2)]
)
def test_nan_scores_in_a_rare_corner_are_reported(estimator: object) -> None:
    """Not drawn by the check of the problem, but met during the run: never counted as safe in silence."""

    def network(x: Tensor) -> Tensor:
        return torch.where(x > 0.99, NAN, x)

    problem = Problem(network, lambda x, y: y[:, 0] - 2.0, BOX)
    with pytest.raises(NetworkError, match="NaN during the run"):
        estimate(problem, estimator)  # type: ignore[arg-type]


def test_the_label_is_the_prediction_at_the_center() -> None:
    problem = Problem(identity, Misclassification(), LpBall([0.1, 0.9, 0.3], 0.2))
    assert int(problem.property.label) == 1  # type: ignore[attr-defined]


def test_score_takes_arrays_in_any_precision() -> None:
    problem = _problem()
    found = problem.score(np.array([[0.25, 0.75, 0.0]]))
    assert found.dtype == torch.float32
    assert found.tolist() == [0.5]


def test_degenerate_coordinates_stay_fixed() -> None:
    low, high = torch.tensor([0.0, 0.3, 0.0]), torch.tensor([1.0, 0.3, 1.0])
    problem = Problem(identity, lambda x, y: y[:, 0] - 0.999, Box(low, high))
    for kernel in (PCN(), RandomWalk(), RandomWalk("gaussian")):
        result = estimate(problem, Splitting(200, islands=2, kernel=kernel, steps=10))
        assert len(result.witnesses)
        assert result.witnesses.inputs[:, 1].eq(torch.tensor(0.3)).all()


@pytest.mark.parametrize("proposal", ["uniform", "gaussian"])
def test_a_random_walk_moves_beside_a_coordinate_without_spread(proposal: str) -> None:
    inputs = Gaussian(torch.zeros(2), torch.tensor([1.0, 0.0]))
    problem = Problem(identity, lambda x, y: y[:, 0] - 3.0, inputs)
    result = estimate(problem, Splitting(500, islands=4, kernel=RandomWalk(proposal), steps=20))  # type: ignore[arg-type]
    assert min(result.acceptance) > 0.1
    assert result.witnesses.inputs[:, 1].eq(0).all()


def test_scores_of_minus_infinity_give_no_wrong_number() -> None:
    """Where the score says nothing but "far" (-inf), P of the rest is a factor of p like any other."""
    truth = math.log(1e-4)
    problem = Problem(identity, lambda x, y: torch.where(y[:, 0] > 0.98, y[:, 0] - 0.9999, -INF), BOX)
    result = estimate(problem, Splitting(1000), confidence=0.999999)
    assert truth in result.interval
    nowhere = Problem(identity, lambda x, y: torch.full((len(x),), -INF), BOX)
    assert estimate(nowhere, Splitting(100)).outcome is rarely.Outcome.STALLED


def test_inputs_that_only_a_model_with_no_center_draws() -> None:
    network = nn.Linear(3, 2).eval()
    result = estimate(Problem(network, Targeted(0, 1), Uniform()), MonteCarlo(100))
    assert result.evaluations == 100 + len(result.witnesses)  # which are replayed


def test_input_error_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(InputError, RarelyError)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device", ["cpu", "cuda", "auto"])
def test_a_network_and_an_image_on_a_gpu_are_taken_as_they_are(device: str) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).cuda().eval()
    problem = Problem(network, Misclassification(), LpBall(torch.rand(4, device="cuda"), 0.5))
    found = estimate(problem, device=device)
    assert next(network.parameters()).is_cuda
    x, y = rarely.augment(network, torch.rand(5, 4, device="cuda"), torch.zeros(5, device="cuda").long(), 0.5)
    assert x.is_cuda
    assert y.is_cuda
    assert len(found.witnesses) == 0 or bool((problem.score(found.witnesses.inputs) >= 0).all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_that_cannot_run_on_the_gpu_runs_on_the_cpu_unless_a_gpu_was_asked_for() -> None:
    class Held(nn.Module):
        """Its shift is no parameter: `to` leaves it where it is."""

        def __init__(self) -> None:
            super().__init__()
            self.shift, self.scale = torch.tensor([0.5, 0.0]), nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale + self.shift

    problem = Problem(Held().eval(), Targeted(0, 1), Box([-2.0, -1.0], [-1.0, 0.0]))
    for settings in (Splitting(100, islands=2), rarely.Auto()):
        assert estimate(problem, settings, seed=0).provenance["device"] == "cpu"
    with pytest.raises(RuntimeError, match="device"):
        estimate(problem, Splitting(100, islands=2), device="cuda")


class Arrays(nn.Module):
    """Torch says TypeError to arrays of what is on a GPU; so does this to all that comes after a problem was posed."""

    def __init__(self) -> None:
        super().__init__()
        self.posed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.posed:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return x


@pytest.mark.parametrize("where", ["network", "property", "neither"])
def test_whatever_a_network_or_a_property_says_to_a_gpu_it_runs_on_the_cpu(where: str) -> None:
    network, score = Arrays().eval(), Arrays()
    problem = Problem(network, lambda x, y: score(y[:, 0]), Box([-2.0, -1.0], [-1.0, 0.0]))
    network.posed, score.posed = where == "network", where == "property"
    assert _runs(problem.adapted, problem, torch.device("cpu")) == (where == "neither")
