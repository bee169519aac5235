"""Line sampling: one direction integrated exactly for each way to fail, the rest tempered."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.problem import Batch
from rarely.core.rng import Rng
from rarely.methods.base import Budget, Progress, Run, make_estimate
from rarely.methods.lines import Line, find_lines, search_calls, stack_lines
from rarely.methods.tempering import ROOT_CALLS, Lines, Particles, temper
from rarely.questions.result import Estimate, Outcome, Witnesses
from rarely.stats.intervals import modelled_interval, replicate_interval
from rarely.stats.normal import truncated_quantile

_NEGLIGIBLE = 0.02  # share of p under which a line is not refined
_ALIVE = 0.1  # share of lines that must reach the region for the others to be told from noise
_SCATTER = 0.45  # standard deviation of log p between replicates above which their mean is not believed


@dataclass(frozen=True)
class LineSampling:
    """P by lines: search directions for every way to fail, temper the complement of each, add the pieces up.

    `replicates` independent populations of `chains` x `length` states give the interval; a second round is sized so
    that the standard deviation of log p reaches `target_error`. Needs gradients and an input model that maps from
    normals.
    """

    target_error: float = 0.1
    chains: int = 16
    length: int = 5
    replicates: int = 8
    growth: int = 6  # the second round is at most this many times the first

    def __post_init__(self) -> None:
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if self.chains < 2 or self.length < 2 or self.replicates < 2:
            raise InputError("LineSampling needs at least 2 chains of length 2 and 2 replicates")

    def run(self, batch: Batch, rng: Rng, confidence: float, budget: Budget) -> Run:
        answers = yield from self.lines(batch, [None] * len(batch), rng, budget)
        return [answer.estimate(batch, row, confidence, budget) for row, answer in enumerate(answers)]

    def lines(
        self, batch: Batch, starts: Sequence[Tensor | None], rng: Rng, budget: Budget
    ) -> Generator[Progress, None, list[Answer]]:
        """What the lines say for each problem; `starts` may hold violating points (n, d) of a problem."""
        if batch.inputs.normal_dim is None:
            raise InputError("line sampling needs an input model that maps from normals; use Splitting")
        rows = self._affordable(batch, starts, budget)
        answers = [Answer() for _ in range(len(batch))]
        if len(rows) == 0:
            return answers
        plan, crowded = find_lines(batch.take(rows), [starts[row] for row in rows.tolist()], rng)
        for row, many in zip(rows.tolist(), crowded, strict=True):
            answers[row].crowded = many
        for line in plan:
            line.owner = int(rows[line.owner])
        plan = self._payable(batch, plan, answers, budget)
        for line in plan:
            answers[line.owner].lines.append(line)
        sizes = [self.chains] * len(plan)  # a first round of small populations tells how large the second must be
        cost = torch.zeros_like(batch.counter.evaluations)
        for second in (False, True):
            if second:
                sizes = [self._second_size(batch, answers[line.owner], line, cost, budget) for line in plan]
            before = batch.counter.calls()
            limit = None if second else budget  # the second round is sized to what is left
            for chains in sorted(set(sizes) - {0}):
                if not budget.late:
                    group = [line for line, c in zip(plan, sizes, strict=True) if c == chains]
                    self._round(batch, group, chains, rng, limit)
            cost = batch.counter.calls() - before
            running = torch.tensor([answer.log_prob for answer in answers])
            calls = int(batch.counter.calls()[batch.rows].sum())
            yield Progress("line sampling", torch.zeros(len(batch)), running, 0 if second else len(batch), calls)
        return answers

    def _affordable(self, batch: Batch, starts: Sequence[Tensor | None], budget: Budget) -> Tensor:
        """Rows that can pay for the direction search."""
        calls = batch.counter.calls()[batch.rows].tolist()
        paid = [r for r, z in enumerate(starts) if budget.left(calls[r]) >= search_calls(z)]
        return torch.tensor(paid, dtype=torch.long)

    def _payable(self, batch: Batch, plan: list[Line], answers: list[Answer], budget: Budget) -> list[Line]:
        """Lines worth a first round: not those of crowded problems, nor of problems that cannot pay for it."""
        calls = batch.counter.calls()[batch.rows].tolist()
        each = self.replicates * self.chains * self.length * ROOT_CALLS
        for row, answer in enumerate(answers):
            count = sum(line.owner == row for line in plan)
            answer.poor = budget.left(calls[row]) < count * each
        return [line for line in plan if not answers[line.owner].crowded and not answers[line.owner].poor]

    def _second_size(self, batch: Batch, answer: Answer, line: Line, cost: Tensor, budget: Budget) -> int:
        """Chains that bring the standard deviation to the target, a multiple of the first round's; 0 when none.

        Fixed after the first round, so that stopping depends on nothing that is averaged later but that round.
        """
        if not math.isfinite(answer.std) or line.log_mean < answer.log_prob + math.log(_NEGLIGIBLE):
            return 0
        problem = int(batch.rows[line.owner])
        affordable = 0.7 * budget.left(int(batch.counter.calls()[problem])) / max(1, int(cost[problem]))
        wanted = math.ceil((answer.std / (0.7 * self.target_error)) ** 2 - 1)
        return self.chains * int(max(0, min(wanted, self.growth, affordable)))

    def _round(self, batch: Batch, lines: Sequence[Line], chains: int, rng: Rng, budget: Budget | None) -> None:
        """One population of `chains` chains per replicate of every line, all in one batch."""
        stacked = stack_lines(batch, lines).take(torch.arange(len(lines)).repeat_interleave(self.replicates))
        result = temper(stacked, chains, self.length, rng, budget)
        tested = _test_beyond(stacked, result.last, rng)
        for j, line in enumerate(lines):
            rows = slice(j * self.replicates, (j + 1) * self.replicates)
            line.rounds.append((chains, result.log_prob[rows]))
            line.alive.append(float(result.alive[rows].mean()))
            line.heights.append(result.last.h[rows].flatten().cpu())
            line.record(*(value[rows] for value in tested))


@dataclass
class Answer:
    """The lines of one problem."""

    lines: list[Line] = field(default_factory=list)
    crowded: bool = False  # more directions than lines: no line was tried
    poor: bool = False  # the budget did not reach for the lines

    def replicates(self) -> list[float]:
        """log p of each replicate, summed over lines."""
        live = [line.replicates() for line in self.lines if line.rounds]
        total: list[float] = torch.logsumexp(torch.stack(live), 0).tolist() if live else []
        return total

    @property
    def log_prob(self) -> float:
        values = self.replicates()
        return replicate_interval(values, 0.95)[0] if values else -math.inf

    @property
    def std(self) -> float:
        values = self.replicates()
        return replicate_interval(values, 0.95)[1] if values else math.inf

    def weakness(self) -> str | None:
        """Why the number should not be believed, if there is a reason."""
        if self.crowded:
            return "the violating region has more directions than lines can follow"
        if self.poor:
            return "the budget does not reach for lines"
        values = self.replicates()
        if not values or max(values) == -math.inf:
            return "no line reaches a violation"
        if any(line.beyond < 0.5 for line in self.lines if line.log_mean > self.log_prob - 2):
            return "lines cross the boundary many times"
        if any(min(line.alive) < _ALIVE for line in self.lines if line.log_mean > self.log_prob - 2):
            return "few lines reach the violating region"
        spread = float(torch.tensor(values).std())
        return f"replicates scatter by {spread:.1f} in log p" if not spread < _SCATTER else None

    def estimate(self, batch: Batch, row: int, confidence: float, budget: Budget) -> Estimate:
        weakness, values = self.weakness(), self.replicates()
        if not values or max(values) == -math.inf:
            return make_estimate(
                batch, row, budget, confidence, Outcome.STALLED, -math.inf, math.inf, -math.inf, 0.0, 0.0,
                notes=(weakness or "nothing is known",),
            )  # fmt: skip
        log_prob, std, low, high, upper = modelled_interval(values, confidence)
        notes = [f"{len(self.lines)} line(s); not confirmed by an independent method, which Auto does"]
        if weakness:
            notes.append(weakness)
        return make_estimate(
            batch, row, budget, confidence, Outcome.STALLED if weakness else Outcome.VIOLATED,
            log_prob, std, low, high, upper, self.witnesses(), notes=tuple(notes),
        )  # fmt: skip

    def witnesses(self) -> Witnesses:
        found = [w for line in self.lines for w in line.witnesses if len(w)]
        if not found:
            return Witnesses(torch.zeros(0), torch.zeros(0))
        return Witnesses(torch.cat([w.inputs for w in found])[:1000], torch.cat([w.scores for w in found])[:1000])


def _test_beyond(lines: Lines, last: Particles, rng: Rng) -> tuple[Tensor, Tensor]:
    """Inputs at a random place of each line beyond its entry, drawn by the normal law, with their scores.

    They are draws from the violating law (the witnesses), and the share that violates corrects for lines that leave the
    region again: the mean of P(Z > t) times that share is unbiased for what lies beyond the entries.
    """
    t = last.t.clamp_max(30.0)
    tau = truncated_quantile(rng.normal(t.shape, t.dtype), t, torch.full_like(t, torch.inf)).to(t.dtype)
    z = last.z + tau.unsqueeze(-1) * lines.alpha.unsqueeze(1)
    with torch.no_grad():
        x = lines.batch.inputs.from_normal(z)
    return x, lines.batch.score(x)
