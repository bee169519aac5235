"""The default: a pilot, the cheapest suitable method, and a referee that must agree before a number is believed."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.problem import Batch
from rarely.core.rng import Rng
from rarely.methods.base import Budget, Progress, Run, make_estimate
from rarely.methods.importance import ImportanceSampling
from rarely.methods.islands import Island, combine
from rarely.methods.line_sampling import Answer, LineSampling
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.splitting import LOG_FLOOR, Splitting
from rarely.methods.unseen import unseen_share
from rarely.questions.result import Estimate, MethodReport, Outcome

_PILOT = 1000  # independent inputs drawn first
_COMMON = 0.004  # probability from which plain Monte Carlo is cheaper than anything else
_LOW_DIMENSION = 8  # up to here a mixture fitted to the survivors of splitting makes a good proposal
_UNSEEN = 0.1  # share of violating particles that a method may not have seen
_SIGMAS = 3.0
_APART = 4.0  # standard deviations, known from eight islands, between two splitting runs that are not believed
_CHANCE = 500_000  # inputs that plain Monte Carlo may draw where splitting has nothing to climb
_MAX_FACTOR = 128  # times the referee's size that a larger splitting run may take


@dataclass(frozen=True)
class Auto:
    """Monte Carlo pilot; splitting as referee; lines (gradients) or importance sampling (low dimension) on top.

    A common event is finished by Monte Carlo with an exact interval. Otherwise splitting runs first, on islands; its
    violating particles start the direction search, and what the fast method did not see of them counts against it.
    Agreement: the fast number is reported. Disagreement or no fast method: splitting at a larger size. `estimate` tries
    a quick proof that nothing violates before all this, and a longer one where sampling found no violation.
    """

    target_error: float = 0.1  # standard deviation of log p to aim for
    log_p_min: float = LOG_FLOOR
    islands: int = 8
    particles: int = 150  # per island of the referee
    proof_seconds: float = 10.0  # for a proof before sampling, and as long for one where no violation was found
    proof_boxes: int | None = None  # limits the first proof by work and leaves the second away: no clock has a say

    def __post_init__(self) -> None:
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if not self.proof_seconds >= 0:
            raise InputError(f"proof_seconds must not be negative, got {self.proof_seconds}")
        if self.proof_boxes is not None and self.proof_boxes < 0:
            raise InputError(f"proof_boxes must not be negative, got {self.proof_boxes}")

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
        drawn = self._pilot(budget)
        hits = (batch.score(batch.sample(drawn, rng)) >= 0).sum(1)
        common = (hits >= max(2.0, _COMMON * drawn)).cpu()
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
        referee = self._splitting(batch, 1)
        before = batch.counter.calls()[batch.rows]
        islands = yield from referee.populations(batch, rng, budget)
        cases = [
            _Case(row, group, int(c)) for row, (group, c) in enumerate(zip(islands, _spent(batch, before), strict=True))
        ]
        for case in cases:
            case.split = combine(batch, case.row, case.islands, confidence, budget)
            case.reports.append(_report("splitting", case.split, case.split_calls))
        if batch.inputs.normal_dim <= _LOW_DIMENSION:
            yield from self._by_importance(batch, cases, rng, confidence, budget)
        # An input model may say that it is all steps: lines along no slope would spend calls and find nothing.
        if batch.network.differentiable and getattr(batch.inputs, "smooth", True):
            yield from self._by_lines(batch, [case for case in cases if case.chosen is None], rng, budget)
        yield from self._by_more_splitting(batch, cases, rng, confidence, budget)
        yield from self._by_chance(batch, cases, rng, confidence, budget)
        return [case.estimate(batch, confidence, budget) for case in cases]

    def _splitting(self, batch: Batch, factor: int) -> Splitting:
        """The referee, or `factor` times it; four times as large in few dimensions, where lost modes are the danger."""
        low = (batch.inputs.normal_dim or 0) <= _LOW_DIMENSION
        particles = self.particles * factor * (4 if low else 1)
        return Splitting(particles, 0.1, 1, log_p_min=self.log_p_min, islands=self.islands, keep="all")

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
        if not cases:
            return
        part = batch.take(torch.tensor([case.row for case in cases]))
        before = part.counter.calls()[part.rows]
        starts = [case.survivors() for case in cases]
        lines = LineSampling(target_error=self.target_error)
        answers = yield from lines.lines(part, starts, rng, budget)
        unseen = unseen_share(part, answers, starts)
        for case, answer, share, calls in zip(cases, answers, unseen, _spent(part, before), strict=True):
            case.lines, case.unseen = answer, share
            case.judge(_Fast("line sampling", answer.log_prob, answer.std, answer.weakness(), int(calls)))

    def _by_importance(
        self, batch: Batch, cases: list[_Case], rng: Rng, confidence: float, budget: Budget
    ) -> Generator[Progress, None, None]:
        before = batch.counter.calls()[batch.rows]
        sampler = ImportanceSampling(target_error=self.target_error)
        starts = [case.survivors() for case in cases]
        found = yield from sampler.weigh(batch, starts, rng, confidence, budget)
        for case, estimate, calls in zip(cases, found, _spent(batch, before), strict=True):
            case.weighted = estimate
            weakness = None if estimate.outcome.trusted else "its weights are unreliable"
            fast = _Fast("importance sampling", estimate.log_prob, estimate.log_prob_std, weakness, int(calls))
            case.judge(fast)

    def _by_more_splitting(
        self, batch: Batch, cases: list[_Case], rng: Rng, confidence: float, budget: Budget
    ) -> Generator[Progress, None, None]:
        """Where nothing faster was confirmed: splitting at the size that the target asks for."""
        todo = [case for case in cases if case.needs_more(self.target_error)]
        spent = batch.counter.calls()[batch.rows].tolist()
        factors = [case.factor(self.target_error, budget.left(spent[case.row])) for case in todo]
        for factor in sorted(set(factors)):
            group = [case for case, own in zip(todo, factors, strict=True) if own == factor]
            if factor < 1:
                continue
            part = batch.take(torch.tensor([case.row for case in group]))
            larger = self._splitting(part, factor)
            before = part.counter.calls()[part.rows]
            islands = yield from larger.populations(part, rng, budget)
            for row, (case, more, calls) in enumerate(zip(group, islands, _spent(part, before), strict=True)):
                case.add(combine(part, row, more, confidence, budget), int(calls))

    def _by_chance(
        self, batch: Batch, cases: list[_Case], rng: Rng, confidence: float, budget: Budget
    ) -> Generator[Progress, None, None]:
        """Where scores say nothing (a plateau) before the event is rare, plain Monte Carlo is all that is left."""
        todo = [case for case in cases if case.lost()]
        if not todo:
            return
        part = batch.take(torch.tensor([case.row for case in todo]))
        before = part.counter.calls()[part.rows]
        plain = MonteCarlo(samples=_CHANCE, hits=math.ceil(1 / (0.75 * self.target_error) ** 2))
        found = yield from plain.run(part, rng, confidence, budget)
        for case, estimate, calls in zip(todo, found, _spent(part, before), strict=True):
            case.reports.append(_report("Monte Carlo", estimate, int(calls)))
            if int(calls):
                case.split = estimate


@dataclass(frozen=True)
class _Fast:
    """What a fast method says, before the referee has looked at it."""

    name: str
    log_prob: float
    std: float
    weakness: str | None
    calls: int


@dataclass
class _Case:
    """One rare problem: what each method said."""

    row: int
    islands: list[Island]
    split_calls: int
    split: Estimate | None = None
    lines: Answer | None = None
    weighted: Estimate | None = None
    unseen: float = 0.0
    chosen: str | None = None  # the fast method that the referee confirmed
    notes: list[str] = field(default_factory=list)
    reports: list[MethodReport] = field(default_factory=list)

    def survivors(self) -> Tensor | None:
        found = [i.survivors[:50] for i in self.islands if i.survivors is not None and len(i.survivors)]
        return torch.cat(found) if found else None

    def judge(self, fast: _Fast) -> None:
        """Does the referee confirm the fast method?"""
        split, log_prob, std = self.split, fast.log_prob, fast.std
        assert split is not None
        note = f"{self.unseen:.0%} of the referee's violations unseen" if self.unseen else ""
        self.reports.append(MethodReport(fast.name, log_prob, std, fast.calls, note))
        if not math.isfinite(split.log_prob):
            reason: str | None = "splitting found no violation to confirm it"
        elif fast.weakness is not None:
            reason = fast.weakness
        elif self.unseen > _UNSEEN:
            reason = f"it did not see {self.unseen:.0%} of the violations that splitting found"
        elif split.log_prob - log_prob > _SIGMAS * math.hypot(std, split.log_prob_std) + 0.05:
            # Only from below: each method's mean is at most p (lines miss regions, islands lose them), so by Markov's
            # inequality the larger of two consistent numbers is the one to believe.
            reason = f"splitting says log p = {split.log_prob:.2f} ± {split.log_prob_std:.2f}, it says {log_prob:.2f}"
        else:
            reason = None
        if reason is not None:
            self.notes.append(f"{fast.name} was not used: {reason}")
            return
        self.chosen = fast.name

    def needs_more(self, target: float) -> bool:
        assert self.split is not None
        return self.chosen is None and math.isfinite(self.split.log_prob) and self.split.log_prob_std > 0.75 * target

    def factor(self, target: float, left: float) -> int:
        """How many times the referee's size, from its own spread, rounded to a power of two so that problems batch."""
        assert self.split is not None
        wanted = min((self.split.log_prob_std / (0.75 * target)) ** 2, float(_MAX_FACTOR))
        affordable = left / max(1, self.split_calls)
        power = math.floor(math.log2(max(min(2.0 ** round(math.log2(max(wanted, 2.0))), affordable), 0.5)))
        return int(2.0**power)

    def lost(self) -> bool:
        """Splitting stopped where Monte Carlo can still go."""
        split = self.split
        assert split is not None
        stalled = self.chosen is None and split.outcome is Outcome.STALLED
        return stalled and (split.upper_bound > math.log(20 / _CHANCE) or split.log_prob > math.log(20 / _CHANCE))

    def add(self, larger: Estimate, calls: int) -> None:
        self.reports.append(_report("larger splitting", larger, calls))
        smaller = self.split
        assert smaller is not None
        if math.isfinite(larger.log_prob) and math.isfinite(smaller.log_prob):
            apart = abs(larger.log_prob - smaller.log_prob)
            if apart > _APART * math.hypot(larger.log_prob_std, smaller.log_prob_std) + 0.1:
                # Rare islands carry the mean, and no spread among the others says how many are still missing.
                note = f"two splitting runs disagree: log p = {smaller.log_prob:.2f} and {larger.log_prob:.2f}"
                larger = replace(larger, outcome=Outcome.STALLED, notes=(*larger.notes, note))
        if math.isfinite(larger.log_prob) or not larger.outcome.trusted:
            self.split = larger

    def estimate(self, batch: Batch, confidence: float, budget: Budget) -> Estimate:
        assert self.split is not None
        result = self.split
        if self.chosen == "line sampling" and self.lines is not None:
            result = self.lines.estimate(batch, self.row, confidence, budget)
            result = replace(result, levels=self.split.levels, acceptance=self.split.acceptance, notes=())
        elif self.chosen == "importance sampling" and self.weighted is not None:
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
