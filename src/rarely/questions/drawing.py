"""Steps of `Auto` that draw independent inputs: they assume nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rarely.core.batch import Batch
from rarely.core.evidence import pooled
from rarely.core.rng import Rng
from rarely.core.thresholds import CHANCE, COMMON, COUNTED_SHARE, PILOT
from rarely.methods.monte_carlo import MonteCarlo
from rarely.questions.case import Case, Goal, Work, learn, mixture_of, note, part_of
from rarely.questions.climbing import Climbing
from rarely.questions.result import Outcome

_ENDLESS = 100_000_000  # inputs: what a count that is not rare may take


@dataclass(frozen=True)
class Drawing:
    target_error: float
    populations: Climbing  # what follows the first draws, and must be paid for, too

    def undrawn(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return pooled(case.evidence).n < PILOT

    def draw(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        left = batch.left()
        # What cannot pay for populations, too, is best spent on more draws.
        most = (
            PILOT
            if left >= PILOT + 2 * self.populations.size(batch) * self.populations.islands
            else max(1, min(left, CHANCE))
        )
        yield from learn(MonteCarlo(samples=int(most)), batch, cases, goal, rng)

    def common(self, batch: Batch, case: Case, goal: Goal) -> bool:
        draws = pooled(case.evidence)
        return draws.flat or draws.hits >= max(2.0, COMMON * draws.n)

    def count(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        for flat in (True, False):  # a score of two values says nothing on the way, and chance is all there is
            some = [case for case in cases if pooled(case.evidence).flat == flat]
            if some:
                yield from self._counted(part_of(batch, cases, some), some, goal, rng, CHANCE if flat else _ENDLESS)

    def undecided(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return pooled(case.evidence).n < goal.draws

    def draw_on(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """Twice as many draws at each look; the question must be one that may be looked at any time."""
        todo = cases
        while todo and not batch.spend.late:
            goals = [min(goal.draws, 2 * pooled(case.evidence).n) for case in todo]
            part, before = part_of(batch, cases, todo), sum(pooled(case.evidence).n for case in todo)
            learnt = yield from MonteCarlo(max(goals)).run(part, rng, [pooled(case.evidence) for case in todo])
            note(todo, learnt, goal)
            if sum(pooled(case.evidence).n for case in todo) == before:
                return
            todo = [case for case in todo if not goal.reached(case) and self.undecided(batch, case, goal)]

    def lost(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """No number, or a doubtful one that plain counting can still reach."""
        belief = case.belief
        if mixture_of(batch, case) is not None or belief.outcome is not Outcome.STALLED or belief.draws.n >= CHANCE:
            return False
        return belief.number is None or bool(belief.number.doubt) or belief.number.log_prob > math.log(20 / CHANCE)

    def draw_more(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from self._counted(batch, cases, goal, rng, CHANCE)

    def _counted(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng, most: int) -> Work:
        plain = MonteCarlo(most, target_error=COUNTED_SHARE * self.target_error, chunk=2_000)
        learnt = yield from plain.run(batch, rng, [pooled(case.evidence) for case in cases])
        note(cases, learnt, goal)
