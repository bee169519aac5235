"""`monitor`: how rarely a network fails while it is being trained."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from rarely.core.arguments import whole
from rarely.core.errors import InputError, MissingExtra
from rarely.core.problem import Problem
from rarely.core.thresholds import LOG_FLOOR
from rarely.methods import Estimator, Splitting
from rarely.questions.estimate import estimate
from rarely.questions.given import Told, as_estimator, as_problems
from rarely.questions.result import Estimate, Outcome

Logger = Callable[[int, Mapping[str, float]], None]  # step, values by name; see `to_tensorboard` below

# 6,000 calls for log p = -7 to 0.2, 14,000 for log p = -15 to 0.4 (half-spaces): enough to see training change it.
_CHEAP = Splitting(200, 0.1, 3, islands=4, keep="all", log_p_min=-30.0)


@dataclass(frozen=True)
class Reading:
    """What was seen at one step."""

    step: int
    estimates: tuple[Estimate, ...]

    def values(self) -> dict[str, float]:
        """What loggers get. Where no violation was found, log p counts with its upper bound; a proof as the floor.

        A checkpoint that follows a value must find a number at every step.
        """
        logs = [e.log_prob if math.isfinite(e.log_prob) else max(e.upper_bound, LOG_FLOOR) for e in self.estimates]
        return {
            "rarely/share_violated": sum(e.outcome is Outcome.VIOLATED for e in self.estimates) / len(logs),
            "rarely/log_p_median": median(logs),
            "rarely/log_p_max": max(logs),
        }


@dataclass(frozen=True)
class Monitor:
    """Call it with the number of every epoch: it estimates at the chosen ones and keeps the `readings`."""

    model: nn.Module
    problems: Sequence[Problem]
    every: int
    estimator: Estimator
    log: Sequence[Logger]
    seed: int
    progress: Told = None
    readings: list[Reading] = field(default_factory=list)

    def __call__(self, step: int) -> Reading | None:
        """A reading of the model as it is now, or None if `step` is not one of the chosen."""
        if step % self.every:
            return None
        problems = _posed(self.model, self.problems)
        # The same seed at every step: what changes between two readings is the model.
        reading = Reading(step, tuple(estimate(problems, self.estimator, seed=self.seed, progress=self.progress)))
        self.readings.append(reading)
        for log in self.log:
            log(step, reading.values())
        return reading


def _posed(model: nn.Module, problems: Sequence[Problem]) -> list[Problem]:
    """The problems of the model as it is now."""
    # A copy: training goes on with its own mode, device, gradients and hooks, whatever happens here.
    now = copy.deepcopy(model).cpu().eval()
    return [Problem(now, problem.property, problem.inputs, problem.name) for problem in problems]


def monitor(
    model: nn.Module,
    problems: Problem | Iterable[Problem],
    *,
    every: int = 1,
    estimator: Estimator | str | None = None,
    log: Logger | Sequence[Logger] = (),
    seed: int = 0,
    progress: Told = None,
) -> Monitor:
    """Watch the robustness of a model in training.

        watch = rarely.monitor(model, problems, every=5, log=to_tensorboard("runs"))
        for epoch in range(100):
            train(model)
            watch(epoch)

    `problems` give properties and inputs; they are posed to `model` with its weights of the moment, whatever network
    they were made with. The default estimator is a small splitting run that gives up below log p = -30.
    `progress` is that of `estimate`, for every reading.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"monitor watches a torch module, not {type(model).__name__}")
    watched = as_problems(problems)
    if not watched:
        raise InputError("there is no problem to watch")
    if (every := whole(every, "every")) < 1:
        raise InputError(f"every must be at least 1, got {every}")
    loggers = (log,) if callable(log) else tuple(log or ())
    if not all(callable(logger) for logger in loggers):
        raise InputError("log takes functions of a step and values, as rarely.questions.monitor.to_tensorboard(folder)")
    _posed(model, watched)  # shapes and labels that do not fit are met here, and not after an epoch
    chosen = _CHEAP if estimator is None else as_estimator(estimator)
    return Monitor(model, tuple(watched), every, chosen, loggers, whole(seed, "seed"), progress)


def made_by_monitor(watch: object) -> Monitor:
    """What a callback is given: `monitor` has made it, or the mistake is told before the training."""
    if not isinstance(watch, Monitor):
        raise InputError(
            f"MonitorCallback takes what rarely.monitor(model, problems) gives, not {type(watch).__name__}"
        )
    return watch


def to_tensorboard(where: str | Path | Any) -> Logger:
    """Scalars for TensorBoard: into a folder, or by a `SummaryWriter` that you have."""
    writer: Any = where
    if isinstance(where, str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("TensorBoard is not installed: pip install 'rarely[tracking]'") from error
        writer = SummaryWriter(str(where))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def to_mlflow() -> Logger:
    """Metrics of the active MLflow run; one is started if there is none."""
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtra("MLflow is not installed: pip install 'rarely[tracking]'") from error

    def log(step: int, values: Mapping[str, float]) -> None:
        mlflow.log_metrics(dict(values), step=step)

    return log
