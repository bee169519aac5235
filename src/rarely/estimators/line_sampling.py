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
from rarely.estimators.tempering import Lines, Particles, temper
from rarely.intervals import replicate_interval
from rarely.normal import truncated_quantile
from rarely.problem import Batch
from rarely.result import Estimate, Outcome, Witnesses
from rarely.rng import Rng

_MAX_WAYS = 12  # ways to fail that get a direction search, those nearest to failing first
_SAME = 0.7  # cosine above which two directions are one
_PRUNE = 14.0  # nats that a direction's half-space probability may lie under the best one's
_NEGLIGIBLE = 0.02  # share of p under which a line is not refined
_STARTS, _ROUNDS = 2, 6


@dataclass(frozen=True)
class LineSampling:
    """P by lines: search directions for every way to fail, temper the complement of each, add the pieces up.

    `replicates` independent populations of `chains` x `length` states give the interval; more are run until the
    standard deviation of log p is `target_error`. Needs gradients and an input model that maps from normals.
    """

    target_error: float = 0.1
    chains: int = 16
    length: int = 5
    replicates: int = 8
    max_rounds: int = 6  # rounds of `replicates` at most

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
        """What the lines say for each problem; `starts` holds violating points (n, d) of a problem where there are any."""
        if batch.inputs.normal_dim is None:
            raise InputError("line sampling needs an input model that maps from normals; use Splitting")
        plan = find_lines(batch, starts, rng)
        answers = [Answer() for _ in range(len(batch))]
        for line in plan:
            answers[line.owner].lines.append(line)
        rounds = [1] * len(plan)  # replicates are run in rounds; the first tells how many more are needed
        done = 0
        while any(done < r for r in rounds) and not budget.late:
            chosen = [i for i, r in enumerate(rounds) if done < r]
            before = batch.counter.calls()
            self._round(batch, plan, chosen, rng)
            done += 1
            if done == 1:
                cost = batch.counter.calls() - before
                rounds = [self._rounds(batch, answers[line.owner], line, cost, budget) for line in plan]
            running = torch.tensor([answer.log_prob for answer in answers])
            calls = int(batch.counter.calls()[batch.rows].sum())
            active = len({plan[i].owner for i, r in enumerate(rounds) if done < r})
            yield Progress("line sampling", torch.zeros(len(batch)), running, active, calls)
        return answers

    def _rounds(self, batch: Batch, answer: Answer, line: Line, cost: Tensor, budget: Budget) -> int:
        """Rounds that bring the standard deviation to the target, fixed after the first so that stopping has no bias."""
        if line.log_mean < answer.log_prob + math.log(_NEGLIGIBLE):
            return 1
        problem = int(batch.rows[line.owner])
        affordable = 1 + budget.left(int(batch.counter.calls()[problem])) / max(1, int(cost[problem]))
        wanted = math.ceil((answer.std / (0.75 * self.target_error)) ** 2) if math.isfinite(answer.std) else 1
        return int(max(1, min(wanted, self.max_rounds, affordable)))

    def _round(self, batch: Batch, plan: Sequence[Line], chosen: Sequence[int], rng: Rng) -> None:
        """One round of replicates for the chosen lines, all in one batch."""
        picked = [plan[i] for i in chosen]
        stacked = stack_lines(batch, picked).take(torch.arange(len(picked)).repeat_interleave(self.replicates))
        result = temper(stacked, self.chains, self.length, rng)
        tested = _test_beyond(stacked, result.last, rng)
        for j, line in enumerate(picked):
            rows = slice(j * self.replicates, (j + 1) * self.replicates)
            line.log_probs.extend(result.log_prob[rows].tolist())
            line.temperatures.extend(result.temperatures[rows].tolist())
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
    log_probs: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    heights: list[Tensor] = field(default_factory=list)  # h of the particles at temperature 1
    hits: int = 0  # test points beyond an entry that violate
    tests: int = 0
    witnesses: list[Witnesses] = field(default_factory=list)

    @property
    def log_mean(self) -> float:
        if not self.log_probs:
            return -math.inf
        return float(torch.logsumexp(torch.tensor(self.log_probs, dtype=torch.float64), 0)) - math.log(
            len(self.log_probs)
        )

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

    def replicates(self) -> list[float]:
        """log p of each replicate, summed over lines. Lines that were refined less are reused in turn."""
        live = [line for line in self.lines if line.log_probs and line.hits]
        if not live:
            return []
        most = max(len(line.log_probs) for line in live)
        columns = [
            [line.log_probs[k % len(line.log_probs)] + math.log(line.beyond) for k in range(most)] for line in live
        ]
        table = torch.tensor(columns, dtype=torch.float64)
        total: list[float] = torch.logsumexp(table, 0).tolist()
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
        values = self.replicates()
        if not values or max(values) == -math.inf:
            return "no line reaches a violation"
        if any(line.beyond < 0.5 for line in self.lines if line.log_mean > self.log_prob - 2):
            return "lines cross the boundary many times"
        spread = float(torch.tensor(values).std())
        return "replicates scatter by more than a factor of four" if not spread < 1.4 else None

    def estimate(self, batch: Batch, row: int, confidence: float, budget: Budget) -> Estimate:
        weakness, values = self.weakness(), self.replicates()
        if not values or max(values) == -math.inf:
            return make_estimate(
                batch, row, budget, confidence, Outcome.STALLED, -math.inf, math.inf, -math.inf, 0.0, 0.0,
                notes=("no direction reaches a violation: nothing is known",),
            )  # fmt: skip
        log_prob, std, low, high = replicate_interval(values, confidence)
        upper = replicate_interval(values, 2 * confidence - 1)[3]
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


def find_lines(batch: Batch, starts: Sequence[Tensor | None], rng: Rng) -> list[Line]:
    """Directions for every way to fail worth one, from gradients near the origin and from given violating points."""
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
    found = search_directions(each, gradient_starts(each, _STARTS, rng), _ROUNDS)
    lines = [
        Line(row, way, found.alpha[k, s], float(found.distance[k, s]))
        for k, (row, way) in enumerate(pairs)
        for s in range(_STARTS)
    ]
    lines += _from_points(batch, starts)
    kept: list[Line] = []
    for row in range(len(batch)):
        kept += _prune([line for line in lines if line.owner == row and math.isfinite(line.distance)])
    return kept


def _from_points(batch: Batch, starts: Sequence[Tensor | None], most: int = 8) -> list[Line]:
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


def _prune(lines: list[Line], most: int = 4) -> list[Line]:
    """The distinct directions of one problem that may matter, nearest first, each told its rivals for the same way."""
    kept: list[Line] = []
    best = min((line.distance for line in lines), default=math.inf)
    for line in sorted(lines, key=lambda item: item.distance):
        near = _log_tail(line.distance) > _log_tail(best) - _PRUNE
        same = [k for k in kept if k.way == line.way]
        if near and len(same) < most and all(float(k.alpha @ line.alpha) < _SAME for k in same):
            kept.append(line)
    for line in kept:
        line.rivals = [k for k in kept if k.way == line.way and k is not line]
    return kept


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
