"""Steps of `Auto` that climb: splitting, which is the referee, and what draws from far out add to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.evidence import Levels, Number, Searched, pooled
from rarely.core.parts import categorical, redrawn
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import (
    COUNTED_SHARE,
    FEW_DIMENSIONS,
    FITTED,
    LARGER,
    LARGEST,
    LOST,
    REFEREE_ERROR,
    REFEREE_SHARE,
    STAGE,
)
from rarely.methods.base import forecast, progress
from rarely.methods.directed import compass
from rarely.methods.islands import evidence_of, survivors_of
from rarely.methods.modes import FarDraws, lost_share
from rarely.methods.splitting import Splitting
from rarely.methods.unseen import foreign
from rarely.questions.case import Case, Goal, Work, mixture_of, part_of
from rarely.questions.result import Outcome

FAR = "draws from far out"
_WALKERS = 500  # particles of an island where there is no z-space: moves mix less
_REDRAWN = 4  # moves between the states that are kept, where parts are drawn anew and most draws are refused
_CLIMB = 9  # levels, of a tenth each
_CONFIRMS = 3  # times the error that tells methods apart, with which one is confirmed: what is asked for allows 4
_STUCK = 4  # times the size of populations that all got stuck


@dataclass(frozen=True)
class Climbing:
    """The referee."""

    target_error: float
    log_p_min: float
    islands: int
    particles: int

    def size(self, batch: Batch) -> int:
        """Particles of an island of the referee."""
        if batch.inputs.normal_dim is None:
            return max(self.particles, _WALKERS if _walks(batch) else min(_WALKERS, self._affordable(batch)))
        return self.particles * (FEW_DIMENSIONS if few(batch) else 1)

    def _affordable(self, batch: Batch) -> int:
        """Particles of an island with which a budget pays for `_CLIMB` levels."""
        most = batch.spend.max_calls
        return _WALKERS if most is None else int(most / (self.islands * (1 + 0.9 * _CLIMB * _REDRAWN)))

    def rare(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return not pooled(case.evidence).flat and case.split is None and mixture_of(batch, case) is None

    def split(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from self._populations(batch, cases, goal, rng, 1, "splitting")

    def vague(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Splitting has a number, and it is not good enough or contradicted."""
        split = case.split
        if _walks(batch):
            return False
        if isinstance(split, Levels) and split.ended == "stalled":  # a large population may pass where this stuck
            return categorical(batch.inputs)
        if not isinstance(split, Number):
            return False
        return case.belief.outcome is Outcome.STALLED or split.std > COUNTED_SHARE * self.target_error

    def split_more(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        fitting = _fitting(batch)
        most = LARGER if fitting else LARGEST
        stuck = [case for case in cases if isinstance(case.split, Levels)]
        if stuck:
            part = part_of(batch, cases, stuck)
            factor = max(1, min(_STUCK, int(part.left() / max(case.cost for case in stuck))))
            yield from self._populations(part, stuck, goal, rng, factor, "larger splitting")
        known = [case for case in cases if isinstance(case.split, Number)]
        if known:
            errors, part = [self._error(case, fitting) for case in known], part_of(batch, cases, known)
            yield from self._enlarged(part, known, goal, rng, errors, most, "larger splitting")

    def _error(self, case: Case, fitting: bool) -> float:
        """Of a larger referee: to decide between methods it need not be as exact as to answer on its own."""
        assert isinstance(case.split, Number)
        if not case.rivals and not fitting:
            return COUNTED_SHARE * self.target_error
        times = 1 if fitting or case.contradicted else _CONFIRMS
        return times * max(REFEREE_ERROR, REFEREE_SHARE * abs(case.split.log_prob))

    def unfitted(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return _fitting(batch) and isinstance(case.split, Number) and self.vague(batch, case, goal)

    def split_most(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        errors = [COUNTED_SHARE * self.target_error] * len(cases)
        yield from self._enlarged(batch, cases, goal, rng, errors, LARGEST, "largest splitting")

    def _enlarged(
        self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng, errors: Sequence[float], most: int, method: str
    ) -> Work:
        """Splitting at the size that an error asks for, problems of one size together.

        In stages: the spread of few islands may be many times that of most, and a large population that meets the error
        makes a larger one superfluous.
        """
        todo = list(zip(cases, errors, strict=True))
        while todo:
            sized = [(case, error, self._factor(batch, cases, case, error, most)) for case, error in todo]
            for factor in sorted({own for _, _, own in sized} - {0}):
                some = [case for case, _, own in sized if own == factor]
                part, told = part_of(batch, cases, some), sum(factor * case.cost for case in some)
                if said := forecast(told, batch.spend.pace):
                    numbers = [case.split.log_prob for case in some if isinstance(case.split, Number)]
                    yield replace(progress(method, part, numbers, len(some)), forecast=said)
                yield from self._populations(part, some, goal, rng, factor, method)
            todo = [(case, error) for case, error, own in sized if own and self._lacks(case, error, goal, own, most)]

    @staticmethod
    def _lacks(case: Case, error: float, goal: Goal, factor: int, most: int) -> bool:
        """Whether a population of so many times the referee's size was not large enough, and a larger one may be.

        Sizes are chosen to aim below what is asked for; what is asked for is enough.
        """
        lacking = isinstance(case.split, Number) and case.split.std > error / COUNTED_SHARE
        return lacking and case.scale == factor < most and not goal.reached(case)

    @staticmethod
    def _factor(batch: Batch, cases: list[Case], case: Case, error: float, most: int) -> int:
        """How many times the referee's size, from its own spread, rounded to a power of two so that problems batch."""
        split, left = case.split, part_of(batch, cases, [case]).left()
        assert isinstance(split, Number)
        wanted = min(max(case.scale * (split.std / error) ** 2, 2.0 * case.scale), STAGE * case.scale, float(most))
        affordable = left / max(1, case.cost)
        return int(2.0 ** math.floor(math.log2(max(min(2.0 ** round(math.log2(wanted)), affordable), 0.5))))

    def _populations(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng, factor: int, method: str) -> Work:
        mapped, size = batch.inputs.normal_dim is not None, self.size(batch) * factor
        splitting = Splitting(size, 0.1, 1, log_p_min=self.log_p_min, islands=self.islands, keep="all")
        if _walks(batch):
            splitting = replace(splitting, steps="auto", keep="last")
        elif not mapped:
            splitting = replace(splitting, steps=_REDRAWN)
        before = batch.calls()
        many = mapped and not few(batch)
        islands = yield from splitting.populations(batch, rng, sloped=many)
        for case, group, calls in zip(cases, islands, (batch.calls() - before).tolist(), strict=True):
            # Populations of one size are one sample, and where categories end many of them a large one is wanted.
            together = case.islands if categorical(batch.inputs) and factor == case.scale else []
            case.evidence += goal.admitted(evidence_of(group, method, calls, together))
            case.islands = [*together, *group]
            found = [i.survivors[:100] for i in group if i.survivors is not None and len(i.survivors)]
            case.scale, case.cost = factor, case.cost or calls
            if categorical(batch.inputs):
                case.explored += survivors_of(group)
            if found and mapped:
                rest = [f for k, f in enumerate(found) if k % 4]
                case.points, case.held = torch.cat(rest or found), torch.cat(found[::4])
            if many:
                case.compass = compass([island for k, island in enumerate(group) if k % 4])
            mark_lost(case)

    def blind(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Where gradients do not tell, or dimensions are few; with a map from normals."""
        mapped = batch.inputs.normal_dim is not None
        return mapped and (few(batch) or not batch.network.differentiable) and case.far is None

    def draw_far(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        before, method = batch.calls(), FarDraws()
        found: list[Tensor | None] = [None] * len(cases)
        with suppress(Exhausted):
            found = method.points(batch, rng)
        yield progress(FAR, batch, [0.0] * len(batch), 0)
        for row, (case, points) in enumerate(zip(cases, found, strict=True)):
            calls = int((batch.calls() - before)[row])
            told = f"no violation among {method.draws:,} inputs from a law {method.sigma:g} times as wide"
            if points is not None:
                case.far, told = points, f"{len(points)} violations met far out and brought back"
                mark_lost(case)
            case.evidence.append(Searched(FAR, told, calls))


def dear(case: Case, error: float) -> float:
    """Calls that splitting would need for an error of log p, by its own spread.

    Islands that all miss most of p agree, too: with independent moves it would need 9 for each pair of levels.
    """
    if not isinstance(case.split, Number):
        return math.inf
    ideal = 9 * (case.split.log_prob / math.log(10)) ** 2
    return max(case.cost * case.split.std**2, ideal) / (COUNTED_SHARE * error) ** 2


def few(batch: Batch) -> bool:
    """So few dimensions of z-space that a proposal can be fitted; not where there is no such space."""
    return (batch.inputs.normal_dim or math.inf) <= FITTED


def _walks(batch: Batch) -> bool:
    """Whether the paper's random walk is all that there is."""
    return batch.inputs.normal_dim is None and not redrawn(batch.inputs)


def _fitting(batch: Batch) -> bool:
    """Whether a proposal may be fitted: in few dimensions of z-space, or around violations made of categories."""
    return few(batch) or categorical(batch.inputs)


def mark_lost(case: Case) -> None:
    """Say of the referee's last word where it has not been: where draws from far out have led, or lines hold p."""
    split, told = case.split, ""
    if not isinstance(split, Number) or case.held is None or case.points is None:
        return
    known = torch.cat([case.points, case.held])
    if case.far is not None and (share := lost_share(case.far, known)) > LOST:
        told = f"{share:.0%} of the violations that {FAR} led to lie where it has none"
    elif case.lined is not None:
        told = foreign(case.lined, split.log_prob, known)
    if told:
        case.evidence[case.evidence.index(split)] = replace(split, lost=told)
