"""`estimate`: problems in, estimates out."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.evidence import Evidence, Found, Nearest
from rarely.core.execution import Execution
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.core.witnesses import NEAREST, Witnesses, kinds_together
from rarely.methods.base import Estimator, Progress, Run, forecast
from rarely.questions.case import Goal
from rarely.questions.checks import checked
from rarely.questions.conclude import believe, cut_short
from rarely.questions.result import Estimate
from rarely.questions.strategy import Auto

_SUPPOSED = -20.0  # log p for which the cost of a run is told before anything is known: 2e-9
_INTERRUPTED = "the run was interrupted: this is what was known then"


def learn(
    problems: Sequence[Problem],
    method: Callable[[Batch, Rng], Run],
    spend: Spend,
    execution: Execution,
    seed: int,
    at_once: int,
    learnt: Callable[[Batch, int, list[Evidence]], None],
) -> Iterator[Progress]:
    """Run a method on all problems, batch by batch; `learnt` is told of each row what came of it, checked."""
    rng = Rng(seed, execution.resolve())

    def tell(batch: Batch, row: int, own: list[Evidence]) -> None:
        problem, part = problems[int(batch.rows[row])], batch.take(torch.tensor([row]))
        learnt(batch, row, checked(part, own, shortened=execution.shortens(problem, batch)))

    for batch in execution.place(problems, spend, at_once=at_once):
        with execution.running(), batch.network.evaluating():
            run, told = method(batch, rng), set[int]()
            while True:
                try:
                    event = next(run)
                except StopIteration as stop:
                    evidence: list[list[Evidence]] = stop.value
                    break
                for row, own in event.settled.items():
                    tell(batch, row, own)
                told |= set(event.settled)
                yield event
            for row, own in enumerate(evidence):
                if row not in told:
                    tell(batch, row, own)


def gathered(
    problems: Sequence[Problem],
    auto: Auto,
    goal: Goal,
    spend: Spend,
    device: str,
    seed: int,
    known: Sequence[Evidence],
) -> list[list[Evidence]]:
    """What `auto` learns of each problem on its way to a goal, beside what is `known` already."""
    found: list[list[Evidence]] = [[] for _ in problems]

    def pursue(batch: Batch, rng: Rng) -> Run:
        return auto.pursue(batch, rng, goal, known)

    def keep(batch: Batch, row: int, evidence: list[Evidence]) -> None:
        found[int(batch.rows[row])] = evidence

    for _ in learn(problems, pursue, spend, Execution(device=device), seed, auto.at_once, keep):
        pass
    return found


class Running:
    """A run as an iterator over its progress. `results` is complete when the iterator is exhausted.

    Leave the loop at any time: what was finished is in `results`, None stands for the rest. Or `stop` it, and go on to
    iterate: then what is known of the rest is there, too. Arguments are those of `estimate`.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        estimator: Estimator | None = None,
        *,
        seed: int = 0,
        confidence: float = 0.95,
        device: str = "auto",
        dtype: torch.dtype | None = None,
        max_evaluations: int | None = None,
        timeout: float | None = None,
        p_min: float | None = None,
        execution: Execution | None = None,
    ) -> None:
        if not problems:
            raise InputError("there is no problem to estimate")
        check_confidence(confidence)
        self.problems = list(problems)
        self.estimator = _floored(estimator if estimator is not None else Auto(), p_min)
        self.seed, self.confidence = seed, confidence
        self.execution = execution or Execution(device=device, dtype=dtype)
        self.spend = Spend(len(self.problems), max_evaluations, timeout)
        self.results: list[Estimate | None] = [None] * len(self.problems)

    def stop(self) -> None:
        """End soon, as a time limit would: when the network calls under way have returned."""
        self.spend.stop()

    def __iter__(self) -> Iterator[Progress]:
        self.spend.restart()
        events = learn(
            self.problems, self.estimator.run, self.spend, self.execution, self.seed, self.estimator.at_once,
            self._conclude,
        )  # fmt: skip
        told = False
        for event in events:
            if not told and self.spend.pace:
                calls = sum(self.estimator.forecast(_SUPPOSED) for _ in self.problems)
                said = forecast(calls, self.spend.pace, f"in all where every p is near {math.exp(_SUPPOSED):.0e}")
                event, told = replace(event, forecast=event.forecast or said), True
            yield event

    def _conclude(self, batch: Batch, row: int, evidence: list[Evidence]) -> None:
        number = int(batch.rows[row])
        interrupted = {"interrupted": True} if self.spend.stopped else {}
        provenance = {
            **interrupted,
            "seed": self.seed,
            "estimator": describe(self.estimator),
            "device": str(batch.device),
            "dtype": str(batch.dtype).removeprefix("torch."),
            **versions(),
        }
        spent = self.spend.late or self.spend.left(batch.rows[row : row + 1]) <= 0
        belief = believe(evidence, cut=spent or cut_short(evidence))
        interval, method = belief.interval(self.confidence), belief.number.method if belief.number is not None else ""
        log_prob, std = belief.guess(interval)
        notes = (*belief.notes, *([_INTERRUPTED] if interrupted else []))
        self.results[number] = Estimate(
            belief.outcome, log_prob, std, interval, belief.upper(self.confidence),
            int(self.spend.evaluations[number]), int(self.spend.gradients[number]), self.spend.seconds,
            method, tuple(evidence), witnesses_of(evidence), notes, provenance, self.problems[number].name,
        )  # fmt: skip


def witnesses_of(evidence: Sequence[Evidence]) -> Witnesses:
    """What was found and replayed: the nearest, then what is a fair sample, then the rest."""
    found = [e for e in evidence if isinstance(e, Found | Nearest)]
    found = [e for e in found if e.replayed] or [e for e in found if isinstance(e, Found)]
    return kinds_together([(NEAREST if isinstance(e, Nearest) else e.drawn, e.witnesses) for e in found])


class Options(TypedDict, total=False):
    """The keyword arguments of `estimate`."""

    seed: int
    confidence: float
    device: str
    dtype: torch.dtype | None
    max_evaluations: int | None
    timeout: float | None
    p_min: float | None
    execution: Execution | None
    progress: Callable[[Progress], None] | None


@overload
def estimate(problems: Problem, estimator: Estimator | None = None, **options: Unpack[Options]) -> Estimate: ...
@overload
def estimate(
    problems: Sequence[Problem], estimator: Estimator | None = None, **options: Unpack[Options]
) -> list[Estimate]: ...
def estimate(
    problems: Problem | Sequence[Problem],
    estimator: Estimator | None = None,
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Estimate | list[Estimate]:
    """Estimate the violation probability of one problem, or of many that run as batches where they share a network.

    `max_evaluations` limits the network calls of each problem (a gradient counts as three), `timeout` the seconds of
    all together. `p_min` is the floor, a probability: where p is smaller, the answer is that it lies below, at less
    cost. It takes the place of the estimator's `log_p_min`. `progress` is called after every level or chunk;
    iterate over `Running` for more control.
    """
    single = isinstance(problems, Problem)
    run = Running([problems] if isinstance(problems, Problem) else problems, estimator, **options)
    for event in run:
        if progress is not None:
            progress(event)
    results = [result for result in run.results if result is not None]
    return results[0] if single else results


def _floored(estimator: Any, p_min: float | None) -> Any:
    """The estimator with its floor at a probability."""
    if p_min is None:
        return estimator
    if not 0 < p_min < 1:
        hint = "; a natural log is the log_p_min of an estimator" * (p_min < 0)
        raise InputError(f"p_min is a probability strictly between 0 and 1, as in 1e-12, got {p_min:g}{hint}")
    if not hasattr(estimator, "log_p_min"):
        raise InputError(f"{type(estimator).__name__} has no floor: p_min belongs to Auto and to splitting")
    return replace(estimator, log_p_min=math.log(p_min))


def finish(run: Generator[Any, None, Any]) -> Any:
    """Run to the end, for what it returns."""
    while True:
        try:
            next(run)
        except StopIteration as stop:
            return stop.value


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie strictly between 0 and 1, got {confidence}")


def describe(value: Any) -> Any:
    """Settings as plain data, for provenance."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return repr(value)


def versions() -> dict[str, str]:
    from rarely import __version__

    return {
        "rarely": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
