"""Steps of `Auto` that are faster than splitting, which checks them: weights, lines, tilted populations, directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.evidence import Levels, Number, Searched
from rarely.core.parts import categorical
from rarely.core.rng import Rng
from rarely.core.thresholds import REFEREE_ERROR
from rarely.methods.directed import DirectedSplitting
from rarely.methods.importance import ImportanceSampling
from rarely.methods.line_sampling import LineSampling
from rarely.methods.lined import LinedRegion
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.tilting import Tilting
from rarely.methods.unseen import compare, foreign, unmet
from rarely.questions.case import Case, Goal, Work, note, part_of
from rarely.questions.climbing import dear, few, mark_lost

_COARSE = 1.0  # error of log p that lines aim at below the floor
_NEAR = 1.5  # times the error aimed at, with which another method's number is good enough to be the answer


@dataclass(frozen=True)
class Faster:
    """What starts from where the referee has been, and is held against it."""

    target_error: float
    log_p_min: float
    islands: int  # of the referee

    def few_inputs(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return (few(batch) and (case.points is not None or case.far is not None)) or any(map(len, case.explored))

    def learnt(self, batch: Batch, case: Case, goal: Goal) -> bool:
        more = case.scale > 1 or len(case.explored) > self.islands
        return more and self.few_inputs(batch, case, goal)

    def weigh(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        sampler = ImportanceSampling(target_error=self.target_error)
        if categorical(batch.inputs):
            learnt = yield from sampler.weigh_neighbours(batch, [case.explored for case in cases], rng)
            return note(cases, learnt, goal)
        starts = [_joined(case.points, case.far) for case in cases]
        learnt = yield from sampler.weigh(batch, starts, rng, [case.held for case in cases])
        note(cases, learnt, goal)

    def smooth(self, batch: Batch, case: Case, goal: Goal) -> bool:
        # An input model may say that it is all steps: lines along no slope would spend calls and find nothing.
        smooth = batch.network.differentiable and getattr(batch.inputs, "smooth", True)
        # In few dimensions a proposal that does not fit is no place for lines either: a larger referee decides.
        return smooth and batch.inputs.normal_dim is not None and not few(batch) and case.split is not None

    def draw_lines(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        # Where populations reached the floor, lines need not say more than that they lie below it, too.
        for floored, error in ((False, self.target_error), (True, max(_COARSE, self.target_error))):
            some = [case for case in cases if case.floored == floored]
            if some:
                yield from self._draw_lines(part_of(batch, cases, some), some, error, goal, rng)

    def _draw_lines(self, batch: Batch, cases: list[Case], error: float, goal: Goal, rng: Rng) -> Work:
        before, starts = batch.calls(), [_joined(case.points, case.far) for case in cases]
        known = [case.split.log_prob if isinstance(case.split, Number) else -math.inf for case in cases]
        others = Tilting(target_error=error), _counting(error)
        rivals = [
            min(dear(case, self.target_error), *(other.forecast(hope) for other in others))
            for case, hope in zip(cases, known, strict=True)
        ]
        regions = yield from LineSampling(target_error=error).lines(batch, starts, rng, rivals, known)
        self._look("line sampling", batch, regions, cases, before, goal)
        for case, region in zip(cases, regions, strict=True):
            case.lined = region
            mark_lost(case)

    def curved(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Where splitting has a number, and lines that could be drawn have not answered.

        Not where these were too many to be drawn: nothing else looks for what no population climbs to, and small ones
        that agree are no evidence.
        """
        looked = case.lined is not None and not case.lined.crowded
        return looked and self.smooth(batch, case, goal) and isinstance(case.split, Number)

    def countable(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Where populations would come next, and independent inputs take fewer calls for the same error."""
        split, plain, tilting = case.split, _counting(self.target_error), Tilting(self.target_error)
        if not isinstance(split, Number) or not self.curved(batch, case, goal):
            return False
        return plain.forecast(split.log_prob) < tilting.forecast(split.log_prob)

    def tilt(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        # Another method's number that the referee does not contradict only has to be confirmed.
        coarse = max(REFEREE_ERROR, self.target_error)
        near = [any(rival.std <= _NEAR * self.target_error for rival in case.rivals) for case in cases]
        errors = [
            coarse if good and not case.contradicted else self.target_error
            for case, good in zip(cases, near, strict=True)
        ]
        for error in sorted(set(errors)):
            some = [case for case, own in zip(cases, errors, strict=True) if own == error]
            yield from self._tilt(part_of(batch, cases, some), some, error, goal, rng)

    def _tilt(self, batch: Batch, cases: list[Case], error: float, goal: Goal, rng: Rng) -> Work:
        before, tilting = batch.calls(), Tilting(target_error=error, log_p_min=self.log_p_min)
        regions = yield from tilting.regions(batch, rng, [dear(case, self.target_error) for case in cases])
        unseen = unmet(batch, [region.violating for region in regions], [case.held for case in cases])
        for row, (case, region) in enumerate(zip(cases, regions, strict=True)):
            if case.lined is not None and region.violating is not None and not unseen[row]:
                unseen[row] = foreign(case.lined, region.log_prob, region.violating)
        spent = (batch.calls() - before).tolist()
        for case, region, calls, told in zip(cases, regions, spent, unseen, strict=True):
            # Populations that met nothing where splitting did have failed: what they left bounds nothing.
            learnt = (
                Searched(e.method, e.sentence, e.calls) if isinstance(e, Levels) else e
                for e in region.evidence(calls, told)
            )
            case.evidence += goal.admitted(list(learnt))

    def steep(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """In many dimensions, where lines cannot be drawn or doubt what they found."""
        blind = case.compass is not None and not case.rivals and not case.floored
        return blind and getattr(batch.inputs, "smooth", True)

    def split_beside(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        before, starts = batch.calls(), [_joined(case.points, case.far) for case in cases]
        rivals, compasses = [dear(case, self.target_error) for case in cases], [case.compass for case in cases]
        method = DirectedSplitting(target_error=self.target_error)
        regions = yield from method.beside(batch, starts, compasses, rng, rivals)
        self._look("directed splitting", batch, regions, cases, before, goal)

    @staticmethod
    def _look(
        method: str, batch: Batch, regions: list[LinedRegion], cases: list[Case], before: Tensor, goal: Goal
    ) -> None:
        """Hold lines against violations that they did not start from, and note what they say."""
        looks = compare(batch, regions, [case.held for case in cases])
        spent = (batch.calls() - before).tolist()
        both = zip(regions, spent, looks, strict=True)
        note(cases, [region.evidence(method, calls, look.unseen, look.lines) for region, calls, look in both], goal)


def _counting(error: float) -> MonteCarlo:
    """As many independent inputs as an error of log p takes."""
    return MonteCarlo(10**15, target_error=error)


def _joined(*points: Tensor | None) -> Tensor | None:
    some = [p for p in points if p is not None]
    return torch.cat(some) if some else None
