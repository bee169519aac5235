"""Steps of `Auto` that rest on bounds, and the attacks that spare them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rarely.core.batch import Batch
from rarely.core.evidence import Bracket, pooled
from rarely.core.rng import Rng
from rarely.core.thresholds import (
    BOXES,
    MORE_BOXES,
    QUICK_COUNT,
    QUICK_SECONDS,
    QUICK_SECONDS_EACH,
    SEARCHED,
)
from rarely.methods.attack import Attack
from rarely.methods.counting import Counting
from rarely.methods.proofs import Brackets, Proofs
from rarely.questions.case import Case, Goal, Work, dimension, learn
from rarely.questions.result import Outcome

_CLIMBS = (Attack(64, 16, 10), *(Attack(1000, 64, 40),) * 4, *(Attack(4000, 256, 60),) * 5)
_MOMENT = 0.5  # seconds
_OFTEN = 20  # violations among independent inputs from which a proved bound on p says little more
_CLIMBED = 0.1  # share of the seconds left that they may take


@dataclass(frozen=True)
class Bounding:
    """Proofs, brackets and counts between bounds; `proof_boxes` limits them by work, so that no clock has a say."""

    target_error: float
    proof_seconds: float
    proof_boxes: int | None

    @property
    def _proves(self) -> bool:
        return self.proof_seconds > 0 if self.proof_boxes is None else self.proof_boxes > 0

    def _bounded(self, batch: Batch) -> bool:
        """Whether there may be bounds: for a module, and not for inputs that it looks up by their numbers."""
        return self._proves and batch.network.module is not None and not batch.network.whole

    @property
    def _seconds(self) -> float:
        """For bounds; where boxes limit them no clock has a say."""
        return self.proof_seconds if self.proof_boxes is None else math.inf

    def unsettled(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._bounded(batch) and not case.witnessed

    def provable(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self.unsettled(batch, case, goal) and dimension(batch) <= SEARCHED

    def attack(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from learn(Attack(), batch, cases, goal, rng)

    def prove(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        share, attempts = min(goal.patience, 1 - goal.patience), cases[0].attempts
        first = Proofs(self.proof_seconds, self.proof_boxes, quick=True, share=share, attempts=attempts)
        yield from learn(first, batch, cases, goal, rng)

    def bracketable(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._bounded(batch)

    def bracket(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        def enough(row: int, bracket: Bracket) -> bool:
            return goal.reached(Case(row, [*cases[row].evidence, bracket]))

        hopes = [goal.hope(case) for case in cases]
        yield from learn(Brackets(self._seconds, self.proof_boxes, hopes, enough), batch, cases, goal, rng)

    def open(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Where there is a number, or none and no proof, in more dimensions than boxes are good for."""
        settled = case.belief.outcome is Outcome.PROVED_SAFE or pooled(case.evidence).hits > _OFTEN
        return self.bracketable(batch, case, goal) and dimension(batch) > SEARCHED and not settled

    def bracket_soon(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """For half as long as the answer took, shared by all problems, or a moment."""
        hopes = [goal.hope(case) for case in cases]
        share = len(cases) / len(batch.problems)
        seconds = min(self._seconds, max(_MOMENT, share * batch.spend.seconds / 2))
        method = Brackets(self._seconds if self.proof_boxes is not None else seconds, self.proof_boxes, hopes)
        yield from learn(method, batch, cases, goal, rng)

    def never_violated(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self.proof_boxes is None and self.unsettled(batch, case, goal)

    def unwitnessed(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return not case.witnessed

    def climb(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """Attacks, each larger than the one before, for some of the time."""
        with batch.spend.within(_CLIMBED * batch.spend.left_seconds):
            for attack in _CLIMBS:
                yield from learn(attack, batch, cases, goal, rng)
                if batch.spend.late or all(goal.reached(case) for case in cases):
                    return

    def prove_longer(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from learn(Attack(), batch, cases, goal, rng)
        seconds = self.proof_seconds * len(cases)  # so many for each of them
        longer = Proofs(seconds, share=goal.patience, attempts=cases[0].attempts)
        yield from learn(longer, batch, cases, goal, rng)

    def boxed(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._bounded(batch) and dimension(batch) <= SEARCHED

    def count_soon(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        most = MORE_BOXES if self.proof_boxes is None else min(BOXES, self.proof_boxes)
        quick = math.inf if self.proof_boxes is not None else QUICK_SECONDS + QUICK_SECONDS_EACH * len(cases)
        count = Counting(min(self._seconds, quick), most, self.target_error, QUICK_COUNT)
        yield from learn(count, batch, cases, goal, rng)

    def count_between(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        most = MORE_BOXES if self.proof_boxes is None else min(MORE_BOXES, self.proof_boxes)
        yield from learn(Counting(self._seconds, most, self.target_error), batch, cases, goal, rng)
