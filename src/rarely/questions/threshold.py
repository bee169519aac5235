"""`test` and `certify`: is the probability of a violation below a threshold?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from rarely.core import evidence as records
from rarely.core.arguments import real
from rarely.core.errors import FormatError, InputError
from rarely.core.evidence import COUNTS, SPLITTING, Evidence, Witnesses
from rarely.core.execution import Execution
from rarely.core.problem import Problem
from rarely.core.spend import Spend
from rarely.core.thresholds import CHANCE, DRAWN
from rarely.questions.case import Case
from rarely.questions.conclude import Belief, believe
from rarely.questions.estimate import check_confidence, describe, gathered, versions, witnesses_of
from rarely.questions.given import Told, as_problem, evidence_of
from rarely.questions.result import CONCLUDED_SCHEMA, Concluded, Estimate, Outcome
from rarely.questions.strategy import SEARCH, Auto
from rarely.stats.sequential import draws_needed, log_evidence_above, log_evidence_below

PROVED = "proof"
_BOUNDED = 1.0  # seconds that `test` gives to bounds, between which it counts in few dimensions
_CLEARLY = 0.7  # nats below the threshold that a proof aims at
_DOUBLINGS = 7  # times that the draws which would accept without a violation may be doubled


class Ruling(Enum):
    """What is decided about p < p_max."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Decision(Concluded):
    """The ruling on p < p_max, with what it rests on."""

    ruling: Ruling
    p_max: float
    confidence: float  # a wrong "accepted" or "rejected" has at most the rest of the probability; 1 for proofs
    sentence: str
    evaluations: int
    gradients: int
    seconds: float
    evidence: tuple[Evidence, ...] = field(repr=False)
    witnesses: Witnesses = field(repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)  # seed, settings, device, versions
    name: str = ""

    @property
    def word(self) -> str:
        """The ruling."""
        return self.ruling.value

    def __str__(self) -> str:
        return self._line(f"{self.name}: {self.word}" if self.name else self.word)

    @classmethod
    def from_data(cls, data: Any, source: str = "<json>") -> Decision:
        """What `to_json` wrote, read as JSON. Of the witnesses only their number is known."""
        try:
            if data["schema"] != CONCLUDED_SCHEMA:
                raise FormatError(source, f"schema {data['schema']} is not the schema {CONCLUDED_SCHEMA} of decisions")
            evidence = tuple(records.from_data(record) for record in data["evidence"])
            found = cls(
                Ruling(data["ruling"]), float(data["p_max"]), float(data["confidence"]), str(data["sentence"]),
                int(data["evaluations"]), int(data["gradients"]), float(data["seconds"]), evidence,
                witnesses_of(evidence), dict(data["provenance"]), str(data["name"]),
            )  # fmt: skip
            _ = [record.sentence for record in evidence]  # fields of another type are met here
            return found
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, RuntimeError) as error:
            raise FormatError(source, f"not a decision written by rarely: {error!r}") from error


@dataclass(frozen=True)
class Below:
    """The goal: p < p_max, decided with an error of at most 1 - confidence in either direction.

    Independent inputs and the number that is believed have half of it each. That no violation was found, however far
    populations climbed, decides nothing.
    """

    p_max: float
    confidence: float
    rigorous: bool  # whether proofs are tried
    last: tuple[str, ...] = ()
    patience: float = 0.4

    @property
    def order(self) -> tuple[str, ...]:
        """Draws before populations where the threshold is not rare, and after everything else where it is."""
        proofs = ("attack", "proof", "bracket") if self.rigorous else ()
        if self.p_max >= DRAWN:
            return (*proofs, "draws", "draws until decided", *SEARCH)
        return (*proofs, "draws", *SEARCH, "draws until decided")

    @property
    def draws(self) -> int:
        needed = draws_needed(self.p_max, self._side)
        return needed * 2**_DOUBLINGS if self.p_max >= DRAWN else min(needed, CHANCE)

    @property
    def _side(self) -> float:
        return 0.5 + 0.5 * self.confidence

    def hope(self, case: Case) -> float | None:
        return math.log(self.p_max) - _CLEARLY

    def admitted(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        return list(evidence)

    def reached(self, case: Case) -> bool:
        ruling, _, by = self.rule(case.belief)
        return ruling is not Ruling.UNDECIDED and by != SPLITTING  # what splitting says alone can still be contradicted

    def rule(self, belief: Belief) -> tuple[Ruling, str, str]:
        """The ruling, why, and by what: PROVED or the family of a number."""
        log_max, proved = math.log(self.p_max), belief.bracket
        if proved.log_upper < log_max:
            return Ruling.ACCEPTED, f"p < {self.p_max:g} by proof: {proved.sentence}", PROVED
        if proved.log_lower > log_max:
            return Ruling.REJECTED, f"p > {self.p_max:g} by proof: {proved.sentence}", PROVED
        draws, enough = belief.draws, -math.log(1 - self._side)
        if log_evidence_below(draws.hits, draws.n, self.p_max) >= enough:
            return self._by_statistics(Ruling.ACCEPTED, draws.sentence, COUNTS)
        if log_evidence_above(draws.hits, draws.n, self.p_max) >= enough:
            return self._by_statistics(Ruling.REJECTED, draws.sentence, COUNTS)
        number = belief.number
        if belief.outcome is not Outcome.VIOLATED or number is None:
            needed = f"{draws_needed(self.p_max, self._side):,} without one would accept"
            return Ruling.UNDECIDED, "; ".join((f"{draws.sentence}, {needed}", *belief.notes)), ""
        told = f"{number.method} says {number.sentence}"
        told += f", assuming that {number.assumes}" if number.assumes else ""
        if number.statistic != draws.statistic:  # the draws have spoken, with an error of their own
            if number.statistic.upper(self._side) < log_max:
                return self._by_statistics(Ruling.ACCEPTED, told, number.family)
            if number.statistic.lower(self._side) > log_max:
                return self._by_statistics(Ruling.REJECTED, told, number.family)
        return Ruling.UNDECIDED, f"too near to p = {self.p_max:g}: {told}", ""

    def _by_statistics(self, ruling: Ruling, told: str, family: str) -> tuple[Ruling, str, str]:
        sign = "<" if ruling is Ruling.ACCEPTED else ">"
        return ruling, f"p {sign} {self.p_max:g} by statistics at {self.confidence:g}: {told}", family


def test(
    problem: Problem,
    p_max: float,
    confidence: float = 0.95,
    *,
    seed: int = 0,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    max_evaluations: int | None = None,
    timeout: float | None = None,
    known: Estimate | Decision | None = None,
    progress: Told = None,
) -> Decision:
    """Decide by sampling whether the probability of a violation lies below `p_max`.

    Common thresholds: a test of the count of violations among independent inputs that may be looked at any time. Rare
    ones: the number of `Auto`, where its methods agree. A wrong ruling has probability at most 1 - confidence, if what
    the number assumes is true; the sentence says it. `known`: an earlier answer about this problem, whose evidence is
    used first. `progress` is that of `estimate`.
    """
    goal = Below(_checked(p_max), check_confidence(confidence), rigorous=False)
    auto, execution = Auto(proof_seconds=_BOUNDED), Execution(device=device, dtype=dtype)
    return _decide(problem, goal, auto, seed, execution, max_evaluations, timeout, known, progress)


def certify(
    problem: Problem,
    p_max: float,
    confidence: float = 0.95,
    *,
    timeout: float = 60.0,
    seed: int = 0,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    max_evaluations: int | None = None,
    known: Estimate | Decision | None = None,
    progress: Told = None,
) -> Decision:
    """Decide p < p_max by the strongest argument at hand; the decision's sentence says which it was.

    In turn: a proof that nothing violates, rigorous bounds on the probability (each with a share of `timeout`), and
    what `test` does. Proof and bounds have no error. `progress` is that of `estimate`.
    """
    goal = Below(_checked(p_max), check_confidence(confidence), rigorous=True)
    timeout = real(timeout, "timeout")
    auto, execution = Auto(proof_seconds=timeout / 3), Execution(device=device, dtype=dtype)
    return _decide(problem, goal, auto, seed, execution, max_evaluations, timeout, known, progress)


def _checked(given: float) -> float:
    p_max = real(given, "p_max")
    if not 0 < p_max < 1:
        raise InputError(f"p_max must lie strictly between 0 and 1, got {p_max:g}")
    return p_max


def _decide(
    problem: Problem, goal: Below, auto: Auto, seed: int, execution: Execution, most: int | None,
    timeout: float | None, known: Estimate | Decision | None, progress: Told,
) -> Decision:  # fmt: skip
    problem = as_problem(problem, "this question")
    spend = Spend(1, most, timeout)
    (found,) = gathered([problem], auto, goal, spend, execution, seed, evidence_of(known), progress)
    ruling, sentence, by = goal.rule(believe(found))
    confidence, calls = 1.0 if by == PROVED else goal.confidence, (int(spend.evaluations), int(spend.gradients))
    provenance = {
        "seed": seed,
        "estimator": describe(auto),
        "device": str(execution.resolve()),
        "dtype": str(execution.dtype or problem.adapted.dtype).removeprefix("torch."),
        **versions(),
    }
    return Decision(
        ruling, goal.p_max, confidence, sentence, *calls, spend.seconds, tuple(found), witnesses_of(found, problem),
        provenance, problem.name,
    )  # fmt: skip
