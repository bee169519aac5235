"""`rarely.monitor`, and the loggers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev

import pytest
import torch
from torch import nn

import rarely
from rarely.core.errors import InputError, NetworkError


class Shifted(nn.Module):
    """Two outputs whose difference is x_0 + shift: with normal x, class 0 loses with probability Phi(-shift)."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(1.0))
        self.dropout = nn.Dropout(0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.dropout(x[:, 0]) + self.shift, torch.zeros_like(x[:, 0])], 1)


def problem() -> rarely.Problem:
    model = rarely.Gaussian(torch.zeros(4), 1.0)
    return rarely.Problem(Shifted().eval(), rarely.Misclassification(0), model, "shifted")


def exact(shift: float) -> float:
    return math.log(NormalDist().cdf(-shift))


def test_it_follows_the_weights_at_the_chosen_steps() -> None:
    model = Shifted()
    logged: list[tuple[int, dict[str, float]]] = []
    watch = rarely.monitor(model, [problem()] * 16, every=2, log=lambda step, values: logged.append((step, {**values})))
    for step in range(5):
        with torch.no_grad():
            model.shift.fill_(1.0 + 0.5 * step)
        reading = watch(step)
        assert (reading is None) == bool(step % 2)
    assert [reading.step for reading in watch.readings] == [step for step, _ in logged] == [0, 2, 4]
    for reading, (_, values) in zip(watch.readings, logged, strict=True):
        found = [estimate.prob for estimate in reading.estimates]
        # Splitting is unbiased, so the mean of p over replicates is off by their standard error.
        error = stdev(found) / math.sqrt(len(found))
        assert abs(fmean(found) - math.exp(exact(1.0 + 0.5 * reading.step))) < 5 * error
        assert all(estimate.calls < 10_000 for estimate in reading.estimates)
        assert values["rarely/share_violated"] == 1.0
        assert values["rarely/log_p_median"] == median(estimate.log_prob for estimate in reading.estimates)


def test_it_leaves_the_training_run_alone() -> None:
    model = Shifted().train()
    model.dropout.eval()  # a part frozen on purpose
    model.shift.grad = torch.tensor(3.0)
    watch = rarely.monitor(model, [problem()])
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    watch(0)
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert not model.dropout.training
    assert model.shift.grad == 3.0
    assert model.shift.requires_grad
    first, second = (watch(0) for _ in range(2))
    assert first.estimates[0].log_prob == second.estimates[0].log_prob, "the same weights give the same reading"


def test_an_event_below_the_floor_counts_with_its_bound() -> None:
    model = Shifted()
    with torch.no_grad():
        model.shift.fill_(20.0)  # log p near -204
    reading = rarely.monitor(model, [problem()])(0)
    assert reading.estimates[0].outcome is rarely.Outcome.BELOW_FLOOR
    values = reading.values()
    assert values["rarely/share_violated"] == 0
    assert values["rarely/log_p_max"] == reading.estimates[0].upper_bound < -20


def test_a_proof_counts_as_the_floor() -> None:
    """Loggers and checkpoints want a number at every step, and there is none for log 0."""
    network = nn.Linear(4, 1).eval()
    never = rarely.Problem(network, rarely.LinearConstraint([[-1.0]], [-100.0]), rarely.Box([0.0] * 4, [1.0] * 4))
    reading = rarely.monitor(network, [never], estimator=rarely.Auto())(0)
    assert reading.estimates[0].outcome is rarely.Outcome.PROVED_SAFE
    assert reading.values()["rarely/log_p_max"] == pytest.approx(-100 * math.log(10))


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(InputError, match="watches a torch module, not function"):
        rarely.monitor(lambda x: x, [problem()])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no problem to watch"):
        rarely.monitor(Shifted(), [])
    with pytest.raises(InputError, match="every must be at least 1"):
        rarely.monitor(Shifted(), [problem()], every=0)
    with pytest.raises(InputError, match="log takes functions"):
        rarely.monitor(Shifted(), [problem()], log="runs")  # type: ignore[arg-type]


def test_a_problem_of_another_shape_is_told_before_the_first_epoch() -> None:
    with pytest.raises(NetworkError, match="inputs of shape"):
        rarely.monitor(nn.Linear(3, 2), [problem()])


@pytest.mark.filterwarnings("default")  # TensorBoard imports what its own dependencies call deprecated
def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from rarely.questions.monitor import to_tensorboard

    watch = rarely.monitor(Shifted(), [problem()], log=to_tensorboard(tmp_path))
    watch(3)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    (scalar,) = events.Scalars("rarely/log_p_median")
    assert scalar.step == 3
    assert scalar.value == pytest.approx(watch.readings[0].estimates[0].log_prob)


@pytest.fixture
def mlflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no server and no database in a test
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        yield run


@pytest.mark.filterwarnings("default")
def test_mlflow(mlflow_run: object) -> None:
    import mlflow

    from rarely.questions.monitor import to_mlflow

    rarely.monitor(Shifted(), [problem()], log=[to_mlflow()])(3)
    history = mlflow.MlflowClient().get_metric_history(mlflow_run.info.run_id, "rarely/log_p_median")  # type: ignore[attr-defined]
    assert [metric.step for metric in history] == [3]
