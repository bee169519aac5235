"""One problem on its way to an answer: what is known of it, what is asked, and what a step is."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.evidence import SPLITTING, Evidence, Found, Levels, Number
from rarely.core.rng import Rng
from rarely.inputs.mixture import Mixture
from rarely.methods.base import Estimator, Progress
from rarely.methods.compass import Compass
from rarely.methods.islands import Island
from rarely.methods.lined import LinedRegion
from rarely.methods.proofs import Attempts
from rarely.questions.conclude import Belief, apart, believe

Work = Generator[Progress, None, None]


class Goal(Protocol):
    """What is asked."""

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the steps to take, in turn."""
        ...

    @property
    def last(self) -> tuple[str, ...]:
        """Names of steps to take in the end, whether it is answered or not."""
        ...

    @property
    def draws(self) -> int:
        """Independent inputs that could answer it on their own; 0 where that depends on what is found."""
        ...

    @property
    def patience(self) -> float:
        """Share of the seconds left that a longer proof may take; a first one takes no more than the rest."""
        ...

    def hope(self, case: Case) -> float | None:
        """The log p down to which a proof that p is small would be of use, where one can say."""
        ...

    def admitted(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """What of new evidence counts for this question."""
        ...

    def reached(self, case: Case) -> bool:
        """Whether no step has to follow."""
        ...


@dataclass
class Case:
    """One problem: what is known of it."""

    row: int
    evidence: list[Evidence]
    points: Tensor | None = None  # violating points (n, d) of z-space in which most populations ended
    held: Tensor | None = None  # those of every fourth, which check what was built on the others
    islands: list[Island] = field(default_factory=list)  # the last populations, with others of their size
    explored: list[Tensor] = field(default_factory=list)  # violating inputs (n, parts) that each population has found
    far: Tensor | None = None  # violating points that draws from far out have led to
    lined: LinedRegion | None = None  # what lines hold of p
    compass: Compass | None = None  # what populations know of the direction in which scores rise
    scale: int = 1  # size of the last populations over the referee's
    cost: int = 0  # calls of the referee
    attempts: Attempts = field(default_factory=Attempts)  # to prove it and the others of its run, which share them
    _believed: tuple[int, Belief] | None = field(default=None, repr=False)

    @property
    def belief(self) -> Belief:
        if self._believed is None or self._believed[0] != len(self.evidence):
            self._believed = len(self.evidence), believe(self.evidence)
        return self._believed[1]

    @property
    def witnessed(self) -> bool:
        return any(isinstance(e, Found) and len(e.witnesses) for e in self.evidence)

    @property
    def split(self) -> Number | Levels | None:
        """The last word of splitting."""
        said = [e for e in self.evidence if isinstance(e, Levels) or (isinstance(e, Number) and e.family == SPLITTING)]
        return said[-1] if said else None

    @property
    def floored(self) -> bool:
        """Whether populations met nothing down to the floor."""
        split = self.split
        return isinstance(split, Levels) and split.ended == "floor" and not split.doubt

    @property
    def contradicted(self) -> bool:
        """Whether splitting contradicts one of the rivals."""
        split = self.split
        return isinstance(split, Number) and any(apart(rival, split) for rival in self.rivals)

    @property
    def rivals(self) -> list[Number]:
        """Numbers of methods other than splitting that these stand by."""
        return [e for e in self.evidence if isinstance(e, Number) and e.family != SPLITTING and not e.doubt]


@dataclass(frozen=True)
class Step:
    """Something to learn, why, and for which cases; whether inputs that are all categories are seen as such."""

    why: str
    wanted: Callable[[Batch, Case, Goal], bool]
    work: Callable[[Batch, list[Case], Goal, Rng], Work]
    in_codes: bool = False


def learn(method: Estimator, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
    """Run a method for all of some cases, the rows of the batch."""
    learnt = yield from method.run(batch, rng)
    note(cases, learnt, goal)


def note(cases: Sequence[Case], learnt: Sequence[Sequence[Evidence]], goal: Goal) -> None:
    for case, evidence in zip(cases, learnt, strict=True):
        case.evidence += goal.admitted(evidence)


def part_of(batch: Batch, cases: Sequence[Case], some: Sequence[Case]) -> Batch:
    """The rows of some of the cases of a batch."""
    place = {id(case): i for i, case in enumerate(cases)}
    return batch.take(torch.tensor([place[id(case)] for case in some]))


def dimension(batch: Batch) -> int:
    return math.prod(batch.inputs.event_shape)


def mixture_of(batch: Batch, case: Case) -> Mixture | None:
    inputs = batch.problems[int(batch.rows[case.row])].inputs
    return inputs if isinstance(inputs, Mixture) else None
