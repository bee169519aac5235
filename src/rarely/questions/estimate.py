"""`estimate`: problems in, estimates out."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import torch

from rarely.core.errors import InputError
from rarely.core.execution import Execution
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.methods import Estimator
from rarely.methods.base import Budget, Progress
from rarely.questions.precision import compare_precision
from rarely.questions.result import Estimate, Interval, Outcome, Witnesses
from rarely.questions.strategy import Auto

if TYPE_CHECKING:
    from rarely.bounds import Verdict


_VAGUE = 3.0  # times the error aimed at, from which an answer is worth another method


class Running:
    """A run as an iterator over its progress. `results` is complete when the iterator is exhausted.

    Leave the loop at any time: what was finished is in `results`, None stands for the rest. Arguments are those of
    `estimate`.
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
        execution: Execution | None = None,
    ) -> None:
        if not problems:
            raise InputError("there is no problem to estimate")
        if not 0 < confidence < 1:
            raise InputError(f"confidence must lie strictly between 0 and 1, got {confidence}")
        self.problems = list(problems)
        self.estimator = estimator if estimator is not None else default_estimator()
        self.seed, self.confidence = seed, confidence
        self.execution = execution or Execution(device=device, dtype=dtype)
        self.max_evaluations, self.timeout = max_evaluations, timeout
        self.results: list[Estimate | None] = [None] * len(self.problems)

    def __iter__(self) -> Iterator[Progress]:
        if isinstance(self.estimator, Auto):
            self._prove(self.estimator)
        rng = Rng(self.seed, self.execution.resolve())
        open_rows = [row for row, result in enumerate(self.results) if result is None]
        batches = self.execution.place([self.problems[row] for row in open_rows])[0] if open_rows else []
        for batch in batches:
            budget = Budget(self.max_evaluations, self.timeout)
            with self.execution.running(), batch.network.evaluating():
                run = self.estimator.run(batch, rng, self.confidence, budget)
                while True:
                    try:
                        yield next(run)
                    except StopIteration as stop:
                        estimates: list[Estimate] = stop.value
                        break
                owners = [self.problems[open_rows[row]] for row in batch.rows.tolist()]
                if self.execution.shortens(owners[0], batch):
                    parts = (batch.take(torch.tensor([b])) for b in range(len(batch)))
                    estimates = [compare_precision(*three) for three in zip(owners, parts, estimates, strict=True)]
            for row, estimate in zip(batch.rows.tolist(), estimates, strict=True):
                problem = self.problems[open_rows[row]]
                if isinstance(self.estimator, Auto):
                    estimate = after_sampling(problem, estimate, self.estimator, budget, rng)
                self.results[open_rows[row]] = self._finish(problem, estimate, str(batch.device), batch.dtype)

    def _prove(self, auto: Auto) -> None:
        """Finish what a quick proof settles before anything is sampled."""
        from rarely.bounds.problems import prove_quickly

        seconds = _proof_seconds(auto)
        if not seconds:
            return
        started = time.monotonic()
        limit = min(seconds, self.timeout or seconds)
        for row, verdict in enumerate(prove_quickly(self.problems, limit, auto.proof_boxes)):
            if verdict is not None:
                safe = proved(verdict, self.confidence, time.monotonic() - started)
                problem = self.problems[row]
                self.results[row] = self._finish(problem, safe, "cpu", problem.adapted.dtype)

    def _finish(self, problem: Problem, estimate: Estimate, device: str, dtype: torch.dtype) -> Estimate:
        provenance = {
            "seed": self.seed,
            "estimator": describe(self.estimator),
            "device": device,
            "dtype": str(dtype).removeprefix("torch."),
            "rarely": _version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        checked = distrust_wide(replay(problem, estimate))
        return replace(checked, name=problem.name, provenance=provenance)


def proved(verdict: Verdict, confidence: float, seconds: float) -> Estimate:
    """The estimate that a proof makes: p is 0."""
    never = -math.inf
    return Estimate(
        Outcome.PROVED_SAFE, never, 0.0, Interval(confidence, never, never), never, 0, 0, seconds,
        notes=(f"proved: the score is at most {verdict.bound:.3g}, by bounds over {verdict.boxes:,} piece(s)",),
    )  # fmt: skip


def after_sampling(problem: Problem, estimate: Estimate, auto: Auto, budget: Budget, rng: Rng) -> Estimate:
    """What bounds can add: a proof where no violation was found, a number where sampling has none or none confirmed."""
    from rarely.methods.counting import sample_open

    boxes, started = auto.proof_boxes, time.monotonic()
    if boxes is None and auto.proof_seconds and len(estimate.witnesses) == 0:
        estimate = settle(problem, estimate, min(auto.proof_seconds, budget.left_seconds))
    estimate = distrust_wide(estimate)
    seconds = _proof_seconds(auto)
    if seconds and _open(estimate, auto.target_error):
        seconds, left = min(seconds, budget.left_seconds), budget.left(estimate.calls)
        estimate = sample_open(problem, estimate, seconds, boxes, auto.target_error, left, Rng(rng.seed()))
    return replace(estimate, seconds=estimate.seconds + time.monotonic() - started)


def _proof_seconds(auto: Auto) -> float:
    """Time for bounds; where boxes limit them no clock has a say."""
    if auto.proof_boxes is None:
        return auto.proof_seconds
    return math.inf if auto.proof_boxes else 0.0


def _open(estimate: Estimate, target_error: float) -> bool:
    """Whether an answer is none, vague, or splitting's alone: islands that all lose a part of the region agree, too."""
    if estimate.outcome is not Outcome.VIOLATED:
        return estimate.outcome in (Outcome.STALLED, Outcome.OUT_OF_BUDGET)
    said = {report.method for report in estimate.methods if report.log_prob == estimate.log_prob}
    return estimate.log_prob_std > _VAGUE * target_error or said <= {"splitting", "larger splitting"}


def settle(problem: Problem, estimate: Estimate, seconds: float) -> Estimate:
    """Try to prove that there is no violation where sampling found none; a violation found on the way is a witness."""
    from rarely.bounds.problems import prove

    verdict = prove(problem, seconds)
    if verdict.status == "proved":
        safe = proved(verdict, estimate.interval.confidence, estimate.seconds)
        return replace(safe, evaluations=estimate.evaluations, gradients=estimate.gradients, methods=estimate.methods)
    if verdict.witness is None or verdict.score is None:
        return estimate
    found = Witnesses(verdict.witness.unsqueeze(0), torch.tensor([verdict.score]))
    note = "an attack found a violation that sampling did not: it exists, its probability is at most the upper bound"
    return replace(estimate, outcome=Outcome.STALLED, witnesses=found, notes=(*estimate.notes, note))


def replay(problem: Problem, estimate: Estimate) -> Estimate:
    """Score the witnesses again in the network's own precision and keep those that still violate the property."""
    if len(estimate.witnesses) == 0:
        return estimate
    scores = problem.score(estimate.witnesses.inputs).cpu()
    good = scores >= 0
    witnesses = Witnesses(estimate.witnesses.inputs[good], scores[good])
    lost = len(scores) - len(witnesses)
    notes = estimate.notes
    if lost:
        notes = (
            *notes,
            f"{lost} of {len(scores)} witnesses do not violate the property when replayed alone: scores near 0",
        )
    outcome = estimate.outcome
    if len(witnesses) == 0 and outcome is Outcome.VIOLATED:
        outcome, notes = Outcome.STALLED, (*notes, "no witness survived its replay: the verdict hangs on rounding")
    return replace(estimate, witnesses=witnesses, outcome=outcome, notes=notes)


def distrust_wide(estimate: Estimate) -> Estimate:
    """A number that may be off by many powers of ten is none, though the violations are real."""
    if estimate.outcome is not Outcome.VIOLATED or estimate.log_prob_std <= max(3.0, abs(estimate.log_prob) / 4):
        return estimate
    note = "the standard error is too large for a number; allow more network calls"
    return replace(estimate, outcome=Outcome.STALLED, notes=(*estimate.notes, note))


class Options(TypedDict, total=False):
    """The keyword arguments of `estimate`."""

    seed: int
    confidence: float
    device: str
    dtype: torch.dtype | None
    max_evaluations: int | None
    timeout: float | None
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
    seed: int = 0,
    confidence: float = 0.95,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    max_evaluations: int | None = None,
    timeout: float | None = None,
    execution: Execution | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Estimate | list[Estimate]:
    """Estimate the violation probability of one problem, or of many that run as batches where they share a network.

    `max_evaluations` limits the network calls of each problem (a gradient counts as three), `timeout` the seconds of
    each batch. `progress` is called after every level or chunk; iterate over `Running` for more control.
    """
    single = isinstance(problems, Problem)
    run = Running(
        [problems] if isinstance(problems, Problem) else problems, estimator, seed=seed, confidence=confidence,
        device=device, dtype=dtype, max_evaluations=max_evaluations, timeout=timeout, execution=execution,
    )  # fmt: skip
    for event in run:
        if progress is not None:
            progress(event)
    results = [result for result in run.results if result is not None]
    return results[0] if single else results


def default_estimator() -> Estimator:
    return Auto()


def describe(value: Any) -> Any:
    """Settings as plain data, for provenance."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return repr(value)


def _version() -> str:
    from rarely import __version__

    return __version__
