"""`test`: is the probability of a violation below a threshold? With a stated error and a known budget."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from rarely.core.errors import InputError
from rarely.core.execution import Execution
from rarely.core.problem import Batch, Problem
from rarely.core.rng import Rng
from rarely.methods.base import Budget
from rarely.methods.islands import Island
from rarely.methods.splitting import Splitting
from rarely.questions.result import Witnesses
from rarely.stats.intervals import incomplete_beta, normal_quantile

_COMMON = 1e-4  # thresholds from here up are tested by plain sampling
_STEPS = 20  # moves of a clone in the last-particle test
_POPULATION, _ISLANDS = 50, 20  # particles of each population in it, and populations
_TIES = 1.1  # calls that clones stuck at their parents may add


class Verdict(Enum):
    """What a test decides about p < p_max."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Decision:
    """The verdict on p < p_max, with what it rests on."""

    verdict: Verdict
    p_max: float
    confidence: float  # a wrong "accepted" or "rejected" has at most the rest of the probability
    sentence: str
    evaluations: int
    budget: int  # calls known beforehand that the test could take at most
    witnesses: Witnesses

    def __str__(self) -> str:
        cost = f" ({self.evaluations:,} of at most {self.budget:,} calls)" if self.budget else ""  # proofs make none
        return f"{self.verdict.value}: {self.sentence}{cost}"


def test(
    problem: Problem,
    p_max: float,
    confidence: float = 0.95,
    *,
    seed: int = 0,
    device: str = "auto",
    max_evaluations: int | None = None,
) -> Decision:
    """Decide whether the probability of a violation lies below `p_max`.

    Common thresholds: the exact sequential binomial test with `n = log(1 - c) / log(1 - p_max)` inputs and no violation
    accepts; violations in hand raise the number needed. Rare thresholds: the last-particle test. Under perfect sampling
    the number of levels that N particles pass before the violation is Poisson with mean -N log p (Guyader et al. 2011),
    so passing enough of them without a violation accepts; reaching it too early rejects.
    """
    if not 0 < p_max < 1:
        raise InputError(f"p_max must lie strictly between 0 and 1, got {p_max}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    (batch,), _ = Execution(device=device).place([problem])
    rng = Rng(seed, batch.device)
    with batch.network.evaluating():
        if p_max >= _COMMON or batch.inputs.normal_dim is None:
            return _binomial(batch, p_max, confidence, rng, max_evaluations)
        return _last_particle(batch, p_max, confidence, rng, max_evaluations)


def _binomial(batch: Batch, p_max: float, confidence: float, rng: Rng, limit: int | None) -> Decision:
    """Looks after n, 2n, 4n, ... inputs, each with its share of the allowed error, so that looking often is free."""
    first = math.ceil(math.log((1 - confidence) / 2) / math.log1p(-p_max))
    looks = 8
    budget = min(first * 2 ** (looks - 1), limit or first * 2 ** (looks - 1))
    hits = trials = 0
    found: list[torch.Tensor] = []
    scores: list[torch.Tensor] = []
    for look in range(looks):
        goal = min(first * 2**look, budget)
        while trials < goal:
            n = min(10_000, goal - trials)
            x = batch.sample(n, rng)
            s = batch.score(x)[0]
            hits, trials = hits + int((s >= 0).sum()), trials + n
            found.append(x[0, s >= 0][:100].cpu())
            scores.append(s[s >= 0][:100].cpu())
        error = (1 - confidence) * 0.5 ** (look + 1)
        # P(at most `hits` | p = p_max)
        below = 1 - incomplete_beta(hits + 1, trials - hits, p_max) if hits < trials else 1.0
        above = incomplete_beta(hits, trials - hits + 1, p_max) if hits else 1.0  # P(at least `hits` | p = p_max)
        told = f"{hits} violations in {trials:,} independent inputs"
        witnesses = Witnesses(torch.cat(found), torch.cat(scores))
        if below <= error:
            return Decision(Verdict.ACCEPTED, p_max, confidence, f"p < {p_max:g}; {told}", trials, budget, witnesses)
        if above <= error:
            return Decision(Verdict.REJECTED, p_max, confidence, f"p > {p_max:g}; {told}", trials, budget, witnesses)
        if trials >= budget:
            break
    return Decision(Verdict.UNDECIDED, p_max, confidence, told, trials, budget, witnesses)


def _last_particle(batch: Batch, p_max: float, confidence: float, rng: Rng, limit: int | None) -> Decision:
    """Islands of one last-particle algorithm pool into one of islands x population particles."""
    walk, budget = _plan(p_max)
    budget = min(budget, limit or budget)
    run = walk.populations(batch, rng, Budget(budget))
    while True:
        try:
            next(run)
        except StopIteration as stop:
            (groups,) = stop.value
            break
    return _count_levels(groups, p_max, confidence, int(batch.counter.evaluations.sum()), budget)


def _plan(p_max: float) -> tuple[Splitting, int]:
    """The run, and the calls that it takes at most.

    Each island ends four of its standard deviations past the levels expected at p_max: few do unless p is smaller.
    """
    each = -_POPULATION * math.log(p_max)
    most = each + 4 * math.sqrt(each)
    walk = Splitting(
        _POPULATION, 1 - 1 / _POPULATION + 1e-9, _STEPS, log_p_min=most * math.log1p(-1 / _POPULATION),
        islands=_ISLANDS, resample="killed",
    )  # fmt: skip
    return walk, _ISLANDS * (_POPULATION + math.ceil(_TIES * (most + 2)) * _STEPS)


def _count_levels(groups: Sequence[Island], p_max: float, confidence: float, spent: int, budget: int) -> Decision:
    """The verdict from the number of levels passed, a Poisson number with mean -N log p.

    An island that ended at its floor would have passed more: its count is a lower bound, enough to accept, not to
    reject. Moves that are not perfect make the counts of the islands differ by more than Poisson numbers do.
    """
    total = _ISLANDS * _POPULATION
    mean = -total * math.log(p_max)  # levels expected when p = p_max
    arrived = [island for island in groups if island.ended == "violated"]
    counts = [round(island.log_prob / math.log1p(-1 / _POPULATION)) for island in groups]
    levels = sum(counts)
    spread = statistics.variance(counts) / max(1.0, statistics.mean(counts))
    sd = math.sqrt(mean * max(1.0, spread))
    low, high = (round(mean + normal_quantile(c) * sd) for c in (1 - confidence, confidence))
    found = [island.witnesses for island in arrived if island.witnesses is not None and len(island.witnesses)]
    witnesses = Witnesses(
        torch.cat([w.inputs for w in found]) if found else torch.zeros(0),
        torch.cat([w.scores for w in found]) if found else torch.zeros(0),
    )
    told = f"{levels:,} levels passed by {total:,} particles, {mean:,.0f} expected at p = {p_max:g}"
    if any(island.ended in ("budget", "stalled") for island in groups):
        return Decision(
            Verdict.UNDECIDED, p_max, confidence, f"the run did not finish; {told}", spent, budget, witnesses
        )
    if levels > high:
        return Decision(Verdict.ACCEPTED, p_max, confidence, f"p < {p_max:g}; {told}", spent, budget, witnesses)
    if levels < low and len(arrived) == len(groups):
        return Decision(Verdict.REJECTED, p_max, confidence, f"p > {p_max:g}; {told}", spent, budget, witnesses)
    return Decision(Verdict.UNDECIDED, p_max, confidence, told, spent, budget, witnesses)
