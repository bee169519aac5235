"""The default: a pilot, the cheapest suitable method, and a referee that must agree before a number is believed."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rarely.errors import InputError
from rarely.estimators.base import Budget, Progress, Run, make_estimate
from rarely.estimators.combine import Island, combine
from rarely.estimators.importance import ImportanceSampling
from rarely.estimators.line_sampling import Answer, LineSampling
from rarely.estimators.monte_carlo import MonteCarlo
from rarely.estimators.referee import unseen_share
from rarely.estimators.splitting import LOG_FLOOR, Splitting
from rarely.problem import Batch
from rarely.result import Estimate, MethodReport, Outcome
from rarely.rng import Rng

_PILOT = 1000  # independent inputs drawn first
_COMMON = 0.004  # probability from which plain Monte Carlo is cheaper than anything else
_LOW_DIMENSION = 12  # up to here a mixture fitted to the survivors of splitting makes a good proposal
_UNSEEN = 0.1  # share of violating particles that a method may not have seen
_SIGMAS = 3.0


@dataclass(frozen=True)
class Auto:
    """Monte Carlo pilot; splitting as referee; lines (gradients) or importance sampling (low dimension) on top.

    A common event is finished by Monte Carlo with an exact interval. Otherwise splitting runs first, on islands; its
    violating particles start the direction search, and what the fast method did not see of them counts against it.
    Agreement: the fast number is reported. Disagreement or no fast method: splitting at a larger size.
    """

    target_error: float = 0.1  # standard deviation of log p to aim for
    log_p_min: float = LOG_FLOOR
    islands: int = 8
    particles: int = 200  # per island of the referee

    def __post_init__(self) -> None:
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")

    def run(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        results: list[Estimate | None] = [None] * len(batch)
        rare = yield from self._common(batch, rng, confidence, budget, results)
        if len(rare):
            part = batch.take(rare)
            estimates = yield from self._rare(part, rng, confidence, budget)
            for row, found in zip(rare.tolist(), estimates, strict=True):
                results[row] = found
        return [result for result in results if result is not None]

    def _common(
        self, batch: Batch, rng: Rng, confidence: float, budget: Budget, results: list[Estimate | None]
    ) -> Generator[Progress, None, Tensor]:
        """Finish common events by Monte Carlo; return the rows of the others."""
        hits = (batch.score(batch.sample(self._pilot(budget), rng)) >= 0).sum(1)
        common = (hits.double() >= _COMMON * _PILOT).cpu()
        rows = common.nonzero().squeeze(1)
        if len(rows):
            samples = budget.max_evaluations or 100_000_000
            plain = MonteCarlo(samples=samples, target_error=0.75 * self.target_error, chunk=2_000)
            done = yield from plain.run(batch.take(rows), rng, confidence, budget)
            for row, estimate in zip(rows.tolist(), done, strict=True):
                results[row] = replace(estimate, methods=(_report("Monte Carlo", estimate, estimate.calls),))
        return (~common).nonzero().squeeze(1)

    def _pilot(self, budget: Budget) -> int:
        return int(max(1, min(_PILOT, budget.left(0) // 2)))

    def _rare(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        if batch.inputs.normal_dim is None:
            return (yield from self._without_map(batch, rng, confidence, budget))
        referee = Splitting(
            self.particles, 0.1, 1, log_p_min=self.log_p_min, islands=self.islands, keep="all",
        )  # fmt: skip
        before = batch.counter.calls()[batch.rows]
        islands = yield from referee.populations(batch, rng, budget)
        cases = [
            _Case(row, group, int(c)) for row, (group, c) in enumerate(zip(islands, _spent(batch, before), strict=True))
        ]
        for case in cases:
            case.split = combine(batch, case.row, case.islands, confidence, budget)
        if batch.network.differentiable:
            yield from self._by_lines(batch, cases, rng, budget)
        elif batch.inputs.normal_dim <= _LOW_DIMENSION:
            yield from self._by_importance(batch, cases, rng, confidence, budget)
        yield from self._by_more_splitting(batch, cases, rng, confidence, budget)
        return [case.estimate(batch, confidence, budget) for case in cases]

    def _without_map(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        """No z-space: the paper's random walk is all there is."""
        walk = Splitting(500, 0.1, "auto", log_p_min=self.log_p_min, islands=self.islands)
        before = batch.counter.calls()[batch.rows]
        found = yield from walk.run(batch, rng, confidence, budget)
        spent = _spent(batch, before)
        return [
            replace(e, methods=(_report("splitting by random walk", e, int(c)),))
            for e, c in zip(found, spent, strict=True)
        ]

    def _by_lines(self, batch: Batch, cases: list[_Case], rng: Rng, budget: Budget) -> Generator[Progress, None, None]:
        before = batch.counter.calls()[batch.rows]
        starts = [case.survivors() for case in cases]
        lines = LineSampling(target_error=self.target_error)
        answers = yield from lines.lines(batch, starts, rng, budget)
        unseen = unseen_share(batch, answers, starts)
        for case, answer, share, calls in zip(cases, answers, unseen, _spent(batch, before), strict=True):
            case.lines, case.unseen, case.fast_calls = answer, share, int(calls)
            case.judge()

    def _by_importance(
        self, batch: Batch, cases: list[_Case], rng: Rng, confidence: float, budget: Budget
    ) -> Generator[Progress, None, None]:
        before = batch.counter.calls()[batch.rows]
        sampler = ImportanceSampling(target_error=self.target_error)
        starts = [case.survivors() for case in cases]
        found = yield from sampler.weigh(batch, starts, rng, confidence, budget)
        for case, estimate, calls in zip(cases, found, _spent(batch, before), strict=True):
            case.weighted, case.fast_calls = estimate, int(calls)
            case.judge()

    def _by_more_splitting(
        self, batch: Batch, cases: list[_Case], rng: Rng, confidence: float, budget: Budget
    ) -> Generator[Progress, None, None]:
        """Where nothing faster was confirmed: splitting at the size that the target asks for."""
        todo = [case for case in cases if case.needs_more(self.target_error)]
        for factor in sorted({case.factor(self.target_error, budget) for case in todo}):
            group = [case for case in todo if case.factor(self.target_error, budget) == factor]
            if factor < 1:
                continue
            part = batch.take(torch.tensor([case.row for case in group]))
            larger = Splitting(
                self.particles * factor, 0.1, 1, log_p_min=self.log_p_min, islands=self.islands, keep="all",
            )  # fmt: skip
            before = part.counter.calls()[part.rows]
            islands = yield from larger.populations(part, rng, budget)
            for row, (case, more, calls) in enumerate(zip(group, islands, _spent(part, before), strict=True)):
                case.add(combine(part, row, more, confidence, budget), int(calls))


@dataclass
class _Case:
    """One rare problem: what each method said."""

    row: int
    islands: list[Island]
    split_calls: int
    split: Estimate | None = None
    lines: Answer | None = None
    weighted: Estimate | None = None
    fast_calls: int = 0
    unseen: float = 0.0
    confirmed: bool = False
    notes: list[str] = field(default_factory=list)
    reports: list[MethodReport] = field(default_factory=list)

    def survivors(self) -> Tensor | None:
        found = [i.survivors[:50] for i in self.islands if i.survivors is not None and len(i.survivors)]
        return torch.cat(found) if found else None

    def fast(self) -> tuple[str, float, float, str | None] | None:
        """Name, log p, standard deviation and weakness of the fast method."""
        if self.lines is not None and self.lines.lines:
            return "line sampling", self.lines.log_prob, self.lines.std, self.lines.weakness()
        if self.weighted is not None:
            weakness = None if self.weighted.outcome.trusted else "its weights are unreliable"
            return "importance sampling", self.weighted.log_prob, self.weighted.log_prob_std, weakness
        return None

    def judge(self) -> None:
        """Does the referee confirm the fast method?"""
        fast, split = self.fast(), self.split
        assert split is not None
        self.reports.append(_report("splitting", split, self.split_calls))
        if fast is None:
            return
        name, log_prob, std, weakness = fast
        note = f"{self.unseen:.0%} of the referee's violations unseen" if self.unseen else ""
        self.reports.append(MethodReport(name, log_prob, std, self.fast_calls, note))
        if not math.isfinite(split.log_prob):
            reason: str | None = "splitting found no violation to confirm it"
        elif weakness is not None:
            reason = weakness
        elif self.unseen > _UNSEEN:
            reason = f"it did not see {self.unseen:.0%} of the violations that splitting found"
        elif abs(log_prob - split.log_prob) > _SIGMAS * math.hypot(std, split.log_prob_std) + 0.05:
            reason = f"splitting says log p = {split.log_prob:.2f} ± {split.log_prob_std:.2f}, it says {log_prob:.2f}"
        else:
            reason = None
        self.confirmed = reason is None
        if reason is not None:
            self.notes.append(f"{name} was not used: {reason}")

    def needs_more(self, target: float) -> bool:
        assert self.split is not None
        if not self.reports:
            self.reports.append(_report("splitting", self.split, self.split_calls))
        return not self.confirmed and math.isfinite(self.split.log_prob) and self.split.log_prob_std > 0.75 * target

    def factor(self, target: float, budget: Budget) -> int:
        """How many times the referee's size, from its own spread, rounded to a power of two so that problems batch."""
        assert self.split is not None
        wanted = min((self.split.log_prob_std / (0.75 * target)) ** 2, 512.0)
        spent = self.split.calls
        affordable = budget.left(spent) / max(1, self.split_calls)
        return 2 ** math.floor(math.log2(max(min(2 ** math.ceil(math.log2(max(wanted, 2))), affordable), 0.5)))

    def add(self, larger: Estimate, calls: int) -> None:
        self.reports.append(_report("larger splitting", larger, calls))
        if math.isfinite(larger.log_prob) or not larger.outcome.trusted:
            self.split = larger

    def estimate(self, batch: Batch, confidence: float, budget: Budget) -> Estimate:
        assert self.split is not None
        result = self.split
        if self.confirmed and self.lines is not None:
            result = self.lines.estimate(batch, self.row, confidence, budget)
            result = replace(result, levels=self.split.levels, acceptance=self.split.acceptance, notes=())
        elif self.confirmed and self.weighted is not None:
            result = replace(self.weighted, levels=self.split.levels, acceptance=self.split.acceptance)
        current = make_estimate(
            batch, self.row, budget, confidence, result.outcome, result.log_prob, result.log_prob_std,
            result.interval.low, result.interval.high, result.upper_bound, result.witnesses, result.levels,
            result.acceptance, (*result.notes, *self.notes),
        )  # fmt: skip
        return replace(current, methods=tuple(self.reports))


def _spent(batch: Batch, before: Tensor) -> list[int]:
    spent: list[int] = (batch.counter.calls()[batch.rows] - before).tolist()
    return spent


def _report(method: str, estimate: Estimate, calls: int) -> MethodReport:
    note = "" if estimate.outcome is Outcome.VIOLATED else estimate.outcome.value
    return MethodReport(method, estimate.log_prob, estimate.log_prob_std, calls, note)
