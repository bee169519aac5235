"""Line sampling: one direction integrated exactly for each way to fail, the rest tempered."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.errors import InputError
from rarely.estimators.base import Budget, Progress, Run, gather_witnesses, make_estimate
from rarely.estimators.roots import gradient_starts, search_directions
from rarely.estimators.tempering import ROOT_CALLS, Lines, Particles, temper
from rarely.intervals import modelled_interval, replicate_interval
from rarely.normal import truncated_quantile
from rarely.problem import Batch
from rarely.result import Estimate, Outcome, Witnesses
from rarely.rng import Rng

_MAX_WAYS = 12  # ways to fail that get a direction search, those nearest to failing first
_SAME = 0.7  # cosine above which two directions are one
_PRUNE = 14.0  # nats that a direction's half-space probability may lie under the best one's
_NEGLIGIBLE = 0.02  # share of p under which a line is not refined
_STARTS, _ROUNDS = 2, 6  # gradient starts for a way to fail at least (16 when there is only one), and improvements
_ALIVE = 0.1  # share of lines that must reach the region for the others to be told from noise
_POINTS = 24  # violating points that start a search of their own
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
        first = max(16, _STARTS * _MAX_WAYS)
        count = [first + (0 if z is None else min(len(z), _POINTS)) for z in starts]
        each = (_ROUNDS + 1) * (ROOT_CALLS + 3)
        return torch.tensor(
            [r for r, n in enumerate(count) if budget.left(calls[r]) >= n * (each + 4)], dtype=torch.long
        )

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
            line.record(stacked.batch, j * self.replicates, *(value[rows] for value in tested))


@dataclass
class Line:
    """One direction for one way to fail of one problem, and what its populations said."""

    owner: int  # row of the batch
    way: int
    alpha: Tensor  # (d,)
    distance: float
    rivals: list[Line] = field(default_factory=list)
    rounds: list[tuple[int, Tensor]] = field(default_factory=list)  # chains, and log p of each replicate
    alive: list[float] = field(default_factory=list)  # share of lines that reach the region at all, per round
    heights: list[Tensor] = field(default_factory=list)  # h of the particles at temperature 1
    hits: int = 0  # test points beyond an entry that violate
    tests: int = 0
    witnesses: list[Witnesses] = field(default_factory=list)

    def replicates(self) -> Tensor:
        """log p of each replicate over all rounds, weighted by their sizes, corrected for lines that leave again."""
        sizes = torch.tensor([float(chains) for chains, _ in self.rounds], dtype=torch.float64)
        table = torch.stack([logs for _, logs in self.rounds]) + (sizes / sizes.sum()).log().unsqueeze(1)
        return torch.logsumexp(table, 0) + math.log(max(self.beyond, 1e-300))

    @property
    def log_mean(self) -> float:
        if not self.rounds:
            return -math.inf
        logs = self.replicates()
        return float(torch.logsumexp(logs, 0)) - math.log(len(logs))

    def record(self, batch: Batch, row: int, x: Tensor, scores: Tensor) -> None:
        self.tests, self.hits = self.tests + scores.numel(), self.hits + int((scores >= 0).sum())
        self.witnesses.append(gather_witnesses(batch, row, x.flatten(0, 1), scores.flatten()))

    @property
    def beyond(self) -> float:
        """Share of what lies beyond the entries that violates: 1 unless lines cross more than once."""
        return self.hits / max(1, self.tests)


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


def find_lines(batch: Batch, starts: Sequence[Tensor | None], rng: Rng) -> tuple[list[Line], list[bool]]:
    """Directions for every way to fail worth one, from gradients near the origin and from given violating points.

    Also says which problems are crowded: those with more distinct directions than lines.
    """
    pilot = rng.normal((len(batch), 16, batch.inputs.normal_dim or 0), batch.dtype)
    parts = batch.parts(batch.inputs.from_normal(pilot))
    reach = parts.amax(1)  # (B, K) how near each way to fail comes among a few inputs
    pairs = [
        (row, way)
        for row in range(len(batch))
        for way in reach[row].argsort(descending=True)[:_MAX_WAYS].tolist()
        if float(reach[row, way]) > -math.inf
    ]
    owners, ways = (torch.tensor([p[k] for p in pairs]) for k in (0, 1))
    each = batch.take(owners).ways(ways)
    count = max(_STARTS, 16 * len(batch) // len(pairs))
    found = search_directions(each, gradient_starts(each, count, rng), _ROUNDS)
    lines = [
        Line(row, way, found.alpha[k, s], float(found.distance[k, s]))
        for k, (row, way) in enumerate(pairs)
        for s in range(count)
    ]
    lines += _from_points(batch, starts)
    kept: list[Line] = []
    crowded = [False] * len(batch)
    for row in range(len(batch)):
        some, crowded[row] = _prune([line for line in lines if line.owner == row and math.isfinite(line.distance)])
        kept += some
    return kept, crowded


def _from_points(batch: Batch, starts: Sequence[Tensor | None], most: int = _POINTS) -> list[Line]:
    """Directions from violating points: they know modes that gradients near the origin do not point to."""
    given = [
        (row, z[torch.linspace(0, len(z) - 1, min(most, len(z))).long()])
        for row, z in enumerate(starts)
        if z is not None
    ]
    given = [(row, z) for row, z in given if len(z)]
    if not given:
        return []
    owners = torch.cat([torch.full((len(z),), row) for row, z in given])
    points = torch.cat([z for _, z in given]).unsqueeze(1)
    part = batch.take(owners)
    ways = part.parts(part.inputs.from_normal(points)).argmax(-1).squeeze(1)
    alpha = points / points.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    found = search_directions(part.ways(ways), alpha, _ROUNDS)
    return [
        Line(int(owners[k]), int(ways[k]), found.alpha[k, 0], float(found.distance[k, 0])) for k in range(len(owners))
    ]


def _prune(lines: list[Line], most: int = 4) -> tuple[list[Line], bool]:
    """The distinct directions of one problem that may matter, nearest first, each told its rivals for the same way."""
    kept: list[Line] = []
    crowded = False
    best = min((line.distance for line in lines), default=math.inf)
    for line in sorted(lines, key=lambda item: item.distance):
        near = _log_tail(line.distance) > _log_tail(best) - _PRUNE
        same = [k for k in kept if k.way == line.way]
        if near and all(float(k.alpha @ line.alpha) < _SAME for k in same):
            if len(same) < most:
                kept.append(line)
            else:
                crowded = True
    for line in kept:
        line.rivals = [k for k in kept if k.way == line.way and k is not line]
    return kept, crowded


def _log_tail(t: float) -> float:
    return float(log_ndtr(torch.tensor(-t, dtype=torch.float64)))


def stack_lines(batch: Batch, lines: Sequence[Line]) -> Lines:
    owners, ways = torch.tensor([line.owner for line in lines]), torch.tensor([line.way for line in lines])
    alpha = torch.stack([line.alpha for line in lines])
    distance = alpha.new_tensor([line.distance for line in lines])
    most = max(1, *(len(line.rivals) for line in lines))
    rivals = alpha.new_zeros(len(lines), most, alpha.shape[-1])
    offsets = alpha.new_full((len(lines), most), -torch.inf)
    for i, line in enumerate(lines):
        for j, rival in enumerate(line.rivals):
            rivals[i, j], offsets[i, j] = rival.alpha, line.distance - rival.distance
    return Lines(batch.take(owners).ways(ways), alpha, distance, rivals, offsets)


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
