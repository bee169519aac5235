"""`verify`: is there any violation at all? Found and replayed, proved absent, or unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from rarely.bounds.problems import components
from rarely.core.arguments import real
from rarely.core.evidence import REAL, Bracket, Evidence, Found, Searched, Witnesses
from rarely.core.execution import Execution
from rarely.core.problem import Problem
from rarely.core.spend import Spend
from rarely.questions.case import Case
from rarely.questions.conclude import believe
from rarely.questions.estimate import gathered, witnesses_of
from rarely.questions.given import Told, as_problems, evidence_of
from rarely.questions.result import Concluded, Estimate, Outcome
from rarely.questions.strategy import Auto

Judge = Callable[[Tensor], int | None]  # candidates (n, *event), best first: which of them stands, if any


Status = Literal["sat", "unsat", "unknown", "timeout"]


@dataclass(frozen=True)
class Verdict(Concluded):
    """What is known: `sat` comes with a violating input that was replayed, `unsat` only from a proof.

    A proof holds for the network as it runs in its `arithmetic`, or, where that is "real", in real arithmetic only.
    """

    status: Status
    sentence: str
    seconds: float
    evaluations: int
    gradients: int
    evidence: tuple[Evidence, ...] = field(repr=False)
    witnesses: Witnesses = field(repr=False)
    arithmetic: str = ""  # of an `unsat`

    @property
    def word(self) -> str:
        """The status, and that it is about real arithmetic where it is."""
        return f"{self.status}{' in real arithmetic' * (self.arithmetic == REAL)}"

    def __str__(self) -> str:
        return self._line(self.word)


@dataclass
class Settled:
    """The goal: a violation that the judge accepts, or a proof that there is none in any part of the inputs."""

    judge: Judge | None
    order: tuple[str, ...] = ("draws", "attack", "proof", "climbs", "longer proof", "splitting")
    last: tuple[str, ...] = ()
    draws: int = 0
    patience: float = 0.9
    accepted: bool = False

    def admitted(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """A candidate that the judge does not accept is no witness."""
        return [self._judged(e) if isinstance(e, Found) else e for e in evidence]

    def _judged(self, found: Found) -> Evidence:
        if found.witnesses.counted:
            return Searched(found.method, f"{found.sentence}, which were not saved with the answer")
        which = 0 if self.judge is None else self.judge(found.witnesses.inputs)
        if which is None:
            told = f"{len(found.witnesses)} candidates violate the property here and not in the replay"
            return Searched(found.method, told, found.calls)
        self.accepted = True
        best = Witnesses(found.witnesses.inputs[which : which + 1], found.witnesses.scores[which : which + 1])
        return replace(found, witnesses=best)

    def hope(self, case: Case) -> float | None:
        return None

    def reached(self, case: Case) -> bool:
        return self.accepted or case.belief.outcome is Outcome.PROVED_SAFE


def verify(
    problem: Problem | Sequence[Problem],
    timeout: float = 60.0,
    *,
    seed: int = 0,
    device: str = "auto",
    max_evaluations: int | None = None,
    judge: Judge | None = None,
    known: Estimate | Verdict | None = None,
    progress: Told = None,
) -> Verdict:
    """Find an input that violates the property, or prove that there is none, in `timeout` seconds.

    A probability alone never decides: then the status is "unknown" ("timeout" when time ran out), and the sentence says
    what statistics know. `judge` may be stricter than the property: a replay in another runtime, say. `known`: an
    earlier answer about this problem, whose evidence is used first. Of several problems any may be violated. `progress`
    is that of `estimate`.
    """
    parts = [part for one in as_problems(problem) for part in components(one)]
    timeout = real(timeout, "timeout")
    spend, goal = Spend(len(parts), max_evaluations, timeout), Settled(judge)
    before = evidence_of(known) if len(parts) == 1 else ()
    found = gathered(parts, Auto(proof_seconds=timeout), goal, spend, Execution(device=device), seed, before, progress)
    status, sentence, arithmetic = _conclude(found, spend.seconds >= timeout)
    evidence = tuple(e for part in found for e in part)
    calls = int(spend.evaluations.sum()), int(spend.gradients.sum())
    return Verdict(status, sentence, spend.seconds, *calls, evidence, witnesses_of(evidence, *parts[:1]), arithmetic)


def _conclude(found: Sequence[Sequence[Evidence]], late: bool) -> tuple[Status, str, str]:
    beliefs = [believe(part) for part in found]
    if any(isinstance(e, Found) and len(e.witnesses) for part in found for e in part):
        return "sat", "a violating input was found and replayed", ""
    if beliefs and all(belief.outcome is Outcome.PROVED_SAFE for belief in beliefs):
        proofs = [e for part in found for e in part if isinstance(e, Bracket)]
        boxes = sum(proof.boxes for proof in proofs)
        kinds = [belief.bracket.arithmetic for belief in beliefs]
        kind = REAL if REAL in kinds else kinds[0]
        where = " in real arithmetic" if kind == REAL else ""
        told = f"{len(proofs)} parts proved{where}, {boxes:,} pieces in all"
        return "unsat", proofs[0].sentence if len(proofs) == 1 else told, kind
    notes = [note for belief in beliefs for note in belief.notes]
    told = "; ".join(dict.fromkeys([beliefs[0].draws.sentence, *notes])) if beliefs else "nothing was learnt"
    return "timeout" if late else "unknown", f"statistics, not a proof: {told}", ""
