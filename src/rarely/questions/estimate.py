"""`estimate`: problems in, estimates out."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch

from rarely.core.arguments import kind, real, whole
from rarely.core.batch import Batch
from rarely.core.calls import Path, called, check_calls
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
from rarely.questions.estimates import Estimates
from rarely.questions.given import Told, as_estimator, as_problems, as_progress
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
        problem = problems[int(batch.rows[row])]
        learnt(batch, row, checked(batch, row, own, shortened=execution.shortens(problem, batch)))

    for batch in execution.place(problems, spend, at_once=at_once):
        with execution.running(), batch.network.evaluating():
            run, told = method(batch, rng.at(batch.device)), set[int]()
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
    execution: Execution,
    seed: int,
    known: Sequence[Evidence],
    progress: Told = None,
) -> list[list[Evidence]]:
    """What `auto` learns of each problem on its way to a goal, beside what is `known` already."""
    found: list[list[Evidence]] = [[] for _ in problems]

    def pursue(batch: Batch, rng: Rng) -> Run:
        return auto.pursue(batch, rng, goal, known)

    def keep(batch: Batch, row: int, evidence: list[Evidence]) -> None:
        found[int(batch.rows[row])] = evidence

    with as_progress(progress, "deciding", len(problems)) as tell:
        for event in learn(problems, pursue, spend, execution, seed, auto.at_once, keep):
            tell(event, sum(map(bool, found)))
    return found


class Running:
    """A run as an iterator over its progress. `results` is complete when the iterator is exhausted.

    Leave the loop at any time: what was finished is in `results`, None stands for the rest. Or `stop` it, and go on to
    iterate: then what is known of the rest is there, too. Arguments are those of `estimate`.
    """

    def __init__(
        self,
        problems: Problem | Iterable[Problem],
        estimator: Estimator | str | None = None,
        *,
        seed: int = 0,
        confidence: float = 0.95,
        device: str = "auto",
        dtype: torch.dtype | str | None = None,
        max_evaluations: int | None = None,
        timeout: float | None = None,
        p_min: float | None = None,
        execution: Execution | None = None,
        workers: int | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.problems = as_problems(problems)
        if not self.problems:
            raise InputError("there is no problem to estimate")
        self.estimator: Estimator = as_estimator(estimator, p_min)
        self.seed, self.confidence = whole(seed, "seed"), check_confidence(confidence)
        if execution is not None and not isinstance(execution, Execution):
            raise InputError(f"execution must be an object such as Execution(rows=1000), got {kind(execution)}")
        self.execution = execution or Execution(device=device, dtype=dtype)
        self.spend = Spend(len(self.problems), max_evaluations, timeout)
        self.workers, self.checkpoint = workers, checkpoint
        check_calls(self.problems, workers, checkpoint)
        self.results: list[Estimate | None] = [None] * len(self.problems)

    def stop(self) -> None:
        """End soon, as a time limit would: when the network calls under way have returned."""
        self.spend.stop()

    def __iter__(self) -> Iterator[Progress]:
        self.spend.restart()
        with called(self.problems, self.workers, self.checkpoint) as problems:
            yield from self._events(problems)

    def _events(self, problems: Sequence[Problem]) -> Iterator[Progress]:
        events = learn(
            problems, self.estimator.run, self.spend, self.execution, self.seed, self.estimator.at_once, self._conclude,
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
        problem = self.problems[number]
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
            method, tuple(evidence), witnesses_of(evidence, problem), notes, provenance, problem.name,
        )  # fmt: skip


def witnesses_of(evidence: Sequence[Evidence], problem: Problem | None = None) -> Witnesses:
    """What was found and replayed: the nearest, then what is a fair sample, then the rest.

    With the names that the problem's input model has for its numbers.
    """
    found = [e for e in evidence if isinstance(e, Found | Nearest)]
    found = [e for e in found if e.replayed] or [e for e in found if isinstance(e, Found)]
    witnesses = kinds_together([(NEAREST if isinstance(e, Nearest) else e.drawn, e.witnesses) for e in found])
    return replace(witnesses, reader=getattr(problem.inputs, "records", None)) if problem is not None else witnesses


class Options(TypedDict, total=False):
    """The keyword arguments of `estimate`."""

    seed: int
    confidence: float
    device: str
    dtype: torch.dtype | str | None
    max_evaluations: int | None
    timeout: float | None
    p_min: float | None
    execution: Execution | None
    workers: int | None
    checkpoint: Path | None
    progress: Told


@overload
def estimate(problems: Problem, estimator: Estimator | str | None = None, **options: Unpack[Options]) -> Estimate: ...
@overload
def estimate(
    problems: Iterable[Problem], estimator: Estimator | str | None = None, **options: Unpack[Options]
) -> Estimates: ...
def estimate(
    problems: Problem | Iterable[Problem],
    estimator: Estimator | str | None = None,
    *,
    progress: Told = None,
    **options: Any,
) -> Estimate | Estimates:
    """Estimate the violation probability of one problem, or of many that run as batches where they share a network.

    `max_evaluations` limits the network calls of each problem (a gradient counts as three), `timeout` the seconds of
    all together. `p_min` is the floor, a probability: where p is smaller, the answer is that it lies below, at less
    cost. It takes the place of the estimator's `log_p_min`. `workers` processes share the calls of a function that
    takes long, one input at a time; `checkpoint` is a file that keeps its answers: the same run, started again, goes on
    from them and ends in the same bits. `progress=True` shows how far the run is, on a terminal or in a notebook; a
    function is called after every level or chunk. Iterate over `Running` for more control.
    """
    single = isinstance(problems, Problem)
    run = Running(problems, estimator, **options)
    with as_progress(progress, "estimating", len(run.problems)) as tell:
        for event in run:
            tell(event, sum(result is not None for result in run.results))
    results = Estimates(result for result in run.results if result is not None)
    return results[0] if single else results


def finish(run: Generator[Any, None, Any]) -> Any:
    """Run to the end, for what it returns."""
    while True:
        try:
            next(run)
        except StopIteration as stop:
            return stop.value


def check_confidence(given: Any) -> float:
    confidence = real(given, "confidence")
    if not 0 < confidence < 1:
        hint = f"; {confidence:g} % are {confidence / 100:g}" * (1 < confidence < 100)
        raise InputError(f"confidence must lie strictly between 0 and 1, got {confidence:g}{hint}")
    return confidence


def describe(value: Any) -> Any:
    """Settings as plain data, for provenance."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, np.generic):
        return value.item()
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
