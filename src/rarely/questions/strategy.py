"""`Auto`: a list of steps, each taken where what is known so far does not answer the question yet."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch

from rarely.core.arguments import settle
from rarely.core.batch import Batch
from rarely.core.each_inputs import stack_inputs
from rarely.core.errors import InputError
from rarely.core.evidence import COUNTS, SPLITTING, Evidence, Found, Stratum
from rarely.core.rng import Rng
from rarely.core.stacking import place
from rarely.core.thresholds import COUNTED_SHARE, LOG_FLOOR, PILOT, VAGUE
from rarely.inputs.mixture import Mixture
from rarely.methods.base import Progress, Run, progress
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.proofs import Attempts
from rarely.methods.splitting import Splitting
from rarely.questions.bounding import Bounding
from rarely.questions.case import Case, Goal, Step, Work, mixture_of
from rarely.questions.climbing import Climbing
from rarely.questions.drawing import Drawing
from rarely.questions.faster import Faster
from rarely.questions.nearing import come_near, unnamed
from rarely.questions.result import Outcome

SEARCH = (
    "components", "short counting between bounds", "splitting", "draws from far out", "importance sampling",
    "line sampling", "count again", "tilting", "directed splitting", "counting between bounds", "larger splitting",
    "importance sampling again", "largest splitting",
)  # fmt: skip
STEPS = ("attack", "proof", "draws", "count", *SEARCH, "more draws", "longer proof")


@dataclass(frozen=True)
class Precision:
    """The goal of `estimate`: a number to this error that does not rest on splitting alone.

    Islands that all lose a region agree, too.
    """

    target_error: float
    order: tuple[str, ...] = STEPS
    last: tuple[str, ...] = ("nearest violation", "bracket beside the number")
    draws: int = 0
    patience: float = 0.4

    def hope(self, case: Case) -> float | None:
        return case.belief.number.log_prob if case.belief.number is not None else None

    def admitted(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        return list(evidence)

    def reached(self, case: Case) -> bool:
        belief = case.belief
        if belief.outcome is Outcome.PROVED_SAFE:
            return True
        if belief.outcome is not Outcome.VIOLATED or belief.number is None or belief.number.family == SPLITTING:
            return False
        # A count goes on at one call a draw; other methods have chosen their size, and come near enough.
        most = COUNTED_SHARE if belief.number.family == COUNTS else VAGUE
        return belief.number.std <= most * self.target_error


@dataclass(frozen=True)
class Auto:
    """The default: proofs where they are cheap, plain draws, splitting as referee, and faster methods that it checks.

    `steps` says what can be done, why and when; the question asked decides the order. A step is left out where the
    question is answered already, and the whole ends when calls or seconds do. Who is believed is decided in
    `questions/conclude.py` and nowhere else.
    """

    target_error: float = 0.1  # standard deviation of log p to aim for
    log_p_min: float = LOG_FLOOR
    islands: int = 8
    particles: int = 150  # per island of the referee
    proof_seconds: float = 10.0  # for proofs before sampling, and as long for each problem where no violation was found
    proof_boxes: int | None = None  # limits the first proof by work and leaves the second away: no clock has a say

    def __post_init__(self) -> None:
        settle(self)
        if not self.target_error > 0:
            raise InputError(f"target_error must be positive, got {self.target_error}")
        if not self.proof_seconds >= 0:
            raise InputError(f"proof_seconds must not be negative, got {self.proof_seconds}")
        if self.proof_boxes is not None and self.proof_boxes < 0:
            raise InputError(f"proof_boxes must not be negative, got {self.proof_boxes}")

    @property
    def at_once(self) -> int:
        return self.particles * self.islands

    def forecast(self, log_prob: float) -> float:
        referee = Splitting(self.particles, 0.1, 1, log_p_min=self.log_p_min, islands=self.islands, keep="all")
        return min(
            PILOT + 2 * referee.forecast(log_prob), MonteCarlo(target_error=self.target_error).forecast(log_prob)
        )

    def run(self, batch: Batch, rng: Rng) -> Run:
        return (yield from self.pursue(batch, rng, Precision(self.target_error)))

    def pursue(self, batch: Batch, rng: Rng, goal: Goal, known: Sequence[Evidence] = ()) -> Run:
        """Take steps until the goal is reached. What is `known` of every problem already is not learnt again."""
        attempts = Attempts()
        cases = [Case(row, goal.admitted(known), attempts=attempts) for row in range(len(batch))]
        waiting = cases
        for name in goal.order:
            waiting = yield from self._settle(batch, waiting, goal, rng)
            yield from self._take(name, batch, [case for case in waiting if not goal.reached(case)], goal, rng)
        for name in goal.last:
            yield from self._take(name, batch, waiting, goal, rng)
        return [case.evidence for case in cases]

    def _take(self, name: str, batch: Batch, cases: Sequence[Case], goal: Goal, rng: Rng) -> Work:
        step = self.steps[name]
        batch = batch.in_codes() if step.in_codes and cases else batch
        todo = [case for case in cases if step.wanted(batch, case, goal)]
        if todo and not batch.spend.late:
            yield from step.work(_rows(batch, todo), todo, goal, rng)

    def _settle(self, batch: Batch, waiting: list[Case], goal: Goal, rng: Rng) -> Generator[Progress, None, list[Case]]:
        """Finish the cases that are answered while others are not: nobody waits for what is rarer. Returns the rest."""
        done = [case for case in waiting if goal.reached(case)]
        if not done or len(done) == len(waiting):
            return waiting
        for name in goal.last:
            yield from self._take(name, batch, done, goal, rng)
        numbers = [case.belief.number.log_prob if case.belief.number is not None else -math.inf for case in done]
        told = progress("answered", _rows(batch, done), numbers, len(waiting) - len(done))
        yield replace(told, settled={case.row: case.evidence for case in done})
        return [case for case in waiting if all(case is not one for one in done)]

    @property
    def _bounds(self) -> Bounding:
        return Bounding(self.target_error, self.proof_seconds, self.proof_boxes)

    @property
    def steps(self) -> dict[str, Step]:
        bounds = self._bounds
        climb = Climbing(self.target_error, self.log_p_min, self.islands, self.particles)
        faster = Faster(self.target_error, self.log_p_min, self.islands)
        draws = Drawing(self.target_error, climb)
        return {
            "attack": Step("a violation saves the proof", bounds.provable, bounds.attack),
            "proof": Step("a proof ends everything", bounds.unsettled, bounds.prove),
            "bracket": Step("a proof that p lies on one side", bounds.bracketable, bounds.bracket),
            "bracket beside the number": Step("what no region missed can exceed", bounds.open, bounds.bracket_soon),
            "draws": Step("independent inputs bound p whatever follows", draws.undrawn, draws.draw),
            "draws until decided": Step("each look at the count is free", draws.undecided, draws.draw_on),
            "count": Step("a common event needs nothing else", draws.common, draws.count),
            "components": Step("a rare component hides among the others", self._mixed, self._stratify),
            "short counting between bounds": Step("exact where boxes close in", bounds.boxed, bounds.count_soon),
            "splitting": Step("the referee: it climbs from all of p(x)", climb.rare, climb.split, True),
            "draws from far out": Step("they meet what no climb leads to", climb.blind, climb.draw_far, True),
            "importance sampling": Step("cheap where a mixture fits", faster.few_inputs, faster.weigh, True),
            "line sampling": Step("cheap where gradients lead", faster.smooth, faster.draw_lines, True),
            "count again": Step("near p = 0.003 still cheaper than tilting", faster.countable, draws.count),
            "tilting": Step("cheap where scores rise in many directions", faster.curved, faster.tilt, True),
            "directed splitting": Step("cheap where scores rise one way", faster.steep, faster.split_beside, True),
            "larger splitting": Step("nothing faster was confirmed", climb.vague, climb.split_more, True),
            "importance sampling again": Step("a larger referee knows more", faster.learnt, faster.weigh, True),
            "largest splitting": Step("no proposal fits", climb.unfitted, climb.split_most, True),
            "more draws": Step("nothing else can tell", draws.lost, draws.draw_more),
            "climbs": Step("few violations escape many starts", bounds.unwitnessed, bounds.climb),
            "nearest violation": Step("the first that people look at", unnamed, come_near),
            "longer proof": Step("no violation was found", self._unproved, bounds.prove_longer),
            "counting between bounds": Step(
                "exact, and nothing faster was confirmed", bounds.boxed, bounds.count_between
            ),
        }

    def _unproved(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Not where a floor was asked for and reached: it is all that was asked."""
        asked = self.log_p_min > LOG_FLOOR and case.floored
        return not asked and self._bounds.never_violated(batch, case, goal)

    def _mixed(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return mixture_of(batch, case) is not None and not any(isinstance(e, Stratum) for e in case.evidence)

    def _stratify(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """Every component as a problem of its own: p is the sum of weight times p over them."""
        problems = [batch.problems[row] for row in batch.rows.tolist()]
        mixtures = [problem.inputs for problem in problems if isinstance(problem.inputs, Mixture)]
        most = max(len(mixture.components) for mixture in mixtures)
        for i in range(most):
            some = [k for k, m in enumerate(mixtures) if i < len(m.components) and float(m.log_weights[i]) > -math.inf]
            if not some:
                continue
            everyone = list(batch.problems)
            for k in some:
                everyone[int(batch.rows[k])] = problems[k].drawn_from(mixtures[k].components[i])
            inputs = stack_inputs([mixtures[k].components[i] for k in some])
            part = batch.take(torch.tensor(some))
            part = replace(part, problems=everyone, inputs=place(inputs, batch.device, batch.dtype))
            with batch.spend.allotted(part.rows, 1 / (most - i)):
                learnt = yield from _unsettled(self.pursue(part, rng, Precision(self.target_error, last=())))
            for k, evidence in zip(some, learnt, strict=True):
                weights = mixtures[k].log_weights
                count = int((weights > -math.inf).sum())
                stratum = Stratum(f"component {i + 1}", float(weights[i]), count, tuple(evidence))
                found = [replace(e, calls=0) for e in evidence if isinstance(e, Found)]  # violations of the whole, too
                cases[k].evidence += goal.admitted([*found, stratum])


def _rows(batch: Batch, cases: Sequence[Case]) -> Batch:
    return batch.take(torch.tensor([case.row for case in cases]))


def _unsettled(run: Run) -> Run:
    """The same, without saying of rows that they are finished: they are parts of others that are not."""
    while True:
        try:
            event = next(run)
        except StopIteration as stop:
            found: list[list[Evidence]] = stop.value
            return found
        yield replace(event, settled={})
