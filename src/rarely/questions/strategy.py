"""`Auto`: a list of steps, each taken where what is known so far does not answer the question yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.evidence import COUNTS, SPLITTING, Bracket, Evidence, Found, Levels, Number, Searched, Stratum, pooled
from rarely.core.input_model import stack_inputs
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.stacking import place
from rarely.core.thresholds import (
    BOXES,
    BRACKETED,
    CHANCE,
    COMMON,
    COUNTED_SHARE,
    FEW_DIMENSIONS,
    FITTED,
    LARGEST,
    LOG_FLOOR,
    LOST,
    PILOT,
    QUICK_COUNT,
    REFEREE_ERROR,
    SEARCHED,
    VAGUE,
)
from rarely.inputs.mixture import Mixture
from rarely.methods.attack import Attack
from rarely.methods.base import Estimator, Progress, Run, progress
from rarely.methods.counting import Counting
from rarely.methods.importance import ImportanceSampling
from rarely.methods.islands import evidence_of
from rarely.methods.line_sampling import LineSampling
from rarely.methods.modes import FarDraws, unseen_points
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.proofs import Brackets, Proofs
from rarely.methods.splitting import Splitting
from rarely.methods.unseen import compare
from rarely.questions.conclude import Belief, believe
from rarely.questions.result import Outcome

Work = Generator[Progress, None, None]
FAR = "draws from far out"
_CLIMBS = (Attack(64, 16, 10), *(Attack(1000, 64, 40),) * 4, *(Attack(4000, 256, 60),) * 5)
_CLIMBED = 0.4  # share of the seconds left that they may take
_WALKERS = 500  # particles of an island of the random walk, which mixes less
_ENDLESS = 100_000_000  # inputs: what a count that is not rare may take


class Goal(Protocol):
    """What is asked."""

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the steps to take, in turn."""
        ...

    @property
    def draws(self) -> int:
        """Independent inputs that could answer it on their own; 0 where that depends on what is found."""
        ...

    @property
    def patience(self) -> float:
        """Share of the seconds left that a longer proof may take."""
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
    far: Tensor | None = None  # violating points that draws from far out have led to
    cost: int = 0  # calls of the referee
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


STEPS = (
    "attack", "proof", "draws", "count", "components", "short counting between bounds", "splitting",
    "draws from far out", "importance sampling", "line sampling", "larger splitting", "more draws", "longer proof",
    "counting between bounds",
)  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """The goal of `estimate`: a number to this error that does not rest on splitting alone.

    Islands that all lose a region agree, too.
    """

    target_error: float
    order: tuple[str, ...] = STEPS
    draws: int = 0
    patience: float = 0.4

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
class Step:
    """Something to learn, why, and for which cases."""

    why: str
    wanted: Callable[[Batch, Case, Goal], bool]
    work: Callable[[Batch, list[Case], Goal, Rng], Work]


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
    proof_seconds: float = 10.0  # for a proof before sampling, and as long for one where no violation was found
    proof_boxes: int | None = None  # limits the first proof by work and leaves the second away: no clock has a say

    def __post_init__(self) -> None:
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
        cases = [Case(row, goal.admitted(known)) for row in range(len(batch))]
        for name in goal.order:
            step = self.steps[name]
            todo = [case for case in cases if not goal.reached(case) and step.wanted(batch, case, goal)]
            if todo and not batch.spend.late:
                yield from step.work(batch.take(torch.tensor([case.row for case in todo])), todo, goal, rng)
        return [case.evidence for case in cases]

    @property
    def steps(self) -> dict[str, Step]:
        return {
            "attack": Step("a violation saves the proof", self._provable, self._attack),
            "proof": Step("a proof ends everything", self._unsettled, self._prove),
            "bracket": Step("a proof that p lies on one side", self._bracketable, self._bracket),
            "draws": Step("independent inputs bound p whatever follows", self._undrawn, self._draw),
            "draws until decided": Step("each look at the count is free", self._undecided, self._draw_on),
            "count": Step("a common event needs nothing else", self._common, self._count),
            "components": Step("a rare component hides among the others", self._mixed, self._stratify),
            "short counting between bounds": Step("exact where boxes close in", self._boxed, self._count_soon),
            "splitting": Step("the referee: it climbs from all of p(x)", self._rare, self._split),
            "draws from far out": Step("they meet what no climb leads to", self._blind, self._draw_far),
            "importance sampling": Step("cheap where a mixture fits", self._few_inputs, self._weigh),
            "line sampling": Step("cheap where gradients lead", self._smooth, self._draw_lines),
            "larger splitting": Step("nothing faster was confirmed", self._vague, self._split_more),
            "more draws": Step("nothing else can tell", self._lost, self._draw_more),
            "climbs": Step("few violations escape many starts", self._unwitnessed, self._climb),
            "longer proof": Step("no violation was found", self._never_violated, self._prove_longer),
            "counting between bounds": Step("nothing but splitting has a number", self._open, self._count_between),
        }

    # Proofs ---------------------------------------------------------------------------------------------------------

    @property
    def _proves(self) -> bool:
        return self.proof_seconds > 0 if self.proof_boxes is None else self.proof_boxes > 0

    @property
    def _seconds(self) -> float:
        """For bounds; where boxes limit them no clock has a say."""
        return self.proof_seconds if self.proof_boxes is None else math.inf

    def _unsettled(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._proves and batch.network.module is not None and not case.witnessed

    def _provable(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._unsettled(batch, case, goal) and _dimension(batch) <= SEARCHED

    def _attack(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from _learn(Attack(), batch, cases, goal, rng)

    def _prove(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from _learn(Proofs(self.proof_seconds, self.proof_boxes, quick=True), batch, cases, goal, rng)

    def _bracketable(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._proves and batch.network.module is not None and _dimension(batch) <= BRACKETED

    def _bracket(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        def enough(row: int, bracket: Bracket) -> bool:
            return goal.reached(Case(row, [*cases[row].evidence, bracket]))

        yield from _learn(Brackets(self.proof_seconds, enough), batch, cases, goal, rng)

    def _never_violated(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self.proof_boxes is None and self._unsettled(batch, case, goal)

    def _unwitnessed(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return not case.witnessed

    def _climb(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """Attacks, each larger than the one before, for some of the time."""
        with batch.spend.within(_CLIMBED * batch.spend.left_seconds):
            for attack in _CLIMBS:
                yield from _learn(attack, batch, cases, goal, rng)
                if batch.spend.late or all(goal.reached(case) for case in cases):
                    return

    def _prove_longer(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from _learn(Attack(), batch, cases, goal, rng)
        yield from _learn(Proofs(self.proof_seconds, share=goal.patience), batch, cases, goal, rng)

    def _boxed(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._open(batch, case, goal) and _dimension(batch) <= SEARCHED

    def _count_soon(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        most = BOXES if self.proof_boxes is None else min(BOXES, self.proof_boxes)
        count = Counting(self._seconds, most, self.target_error, QUICK_COUNT)
        yield from _learn(count, batch, cases, goal, rng)

    def _open(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._proves and batch.network.module is not None

    def _count_between(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from _learn(Counting(self._seconds, self.proof_boxes, self.target_error), batch, cases, goal, rng)

    # Independent inputs ---------------------------------------------------------------------------------------------

    def _undrawn(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return pooled(case.evidence).n < PILOT

    def _draw(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        left = batch.left()
        # What cannot pay for populations, too, is best spent on more draws.
        most = PILOT if left >= PILOT + 2 * self._size(batch) * self.islands else max(1, min(left, CHANCE))
        yield from _learn(MonteCarlo(samples=int(most)), batch, cases, goal, rng)

    def _common(self, batch: Batch, case: Case, goal: Goal) -> bool:
        draws = pooled(case.evidence)
        return draws.flat or draws.hits >= max(2.0, COMMON * draws.n)

    def _count(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        for flat in (True, False):  # a score of two values says nothing on the way, and chance is all there is
            some = [case for case in cases if pooled(case.evidence).flat == flat]
            if some:
                yield from self._counted(_part(batch, cases, some), some, goal, rng, CHANCE if flat else _ENDLESS)

    def _undecided(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return pooled(case.evidence).n < goal.draws

    def _draw_on(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """Twice as many draws at each look; the question must be one that may be looked at any time."""
        todo = cases
        while todo and not batch.spend.late:
            goals = [min(goal.draws, 2 * pooled(case.evidence).n) for case in todo]
            part, before = _part(batch, cases, todo), sum(pooled(case.evidence).n for case in todo)
            learnt = yield from MonteCarlo(max(goals)).run(part, rng, [pooled(case.evidence) for case in todo])
            _note(todo, learnt, goal)
            if sum(pooled(case.evidence).n for case in todo) == before:
                return
            todo = [case for case in todo if not goal.reached(case) and self._undecided(batch, case, goal)]

    def _lost(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """No number, or a doubtful one that plain counting can still reach."""
        belief = case.belief
        if self._is_mixture(batch, case):
            return False
        if belief.outcome is not Outcome.STALLED or belief.draws.n >= CHANCE:
            return False
        return belief.number is None or bool(belief.number.doubt) or belief.number.log_prob > math.log(20 / CHANCE)

    def _draw_more(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from self._counted(batch, cases, goal, rng, CHANCE)

    def _counted(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng, most: int) -> Work:
        plain = MonteCarlo(most, target_error=COUNTED_SHARE * self.target_error, chunk=2_000)
        learnt = yield from plain.run(batch, rng, [pooled(case.evidence) for case in cases])
        _note(cases, learnt, goal)

    # Mixtures -------------------------------------------------------------------------------------------------------

    def _mixed(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return self._is_mixture(batch, case) and not any(isinstance(e, Stratum) for e in case.evidence)

    @staticmethod
    def _is_mixture(batch: Batch, case: Case) -> bool:
        return isinstance(batch.problems[int(batch.rows[case.row])].inputs, Mixture)

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
                learnt = yield from self.pursue(part, rng, Precision(self.target_error))
            for k, evidence in zip(some, learnt, strict=True):
                weights = mixtures[k].log_weights
                count = int((weights > -math.inf).sum())
                stratum = Stratum(f"component {i + 1}", float(weights[i]), count, tuple(evidence))
                found = [replace(e, calls=0) for e in evidence if isinstance(e, Found)]  # violations of the whole, too
                cases[k].evidence += goal.admitted([*found, stratum])

    # Populations ----------------------------------------------------------------------------------------------------

    def _size(self, batch: Batch) -> int:
        """Particles of an island of the referee."""
        if batch.inputs.normal_dim is None:
            return max(_WALKERS, self.particles)
        return self.particles * (FEW_DIMENSIONS if batch.inputs.normal_dim <= FITTED else 1)

    def _rare(self, batch: Batch, case: Case, goal: Goal) -> bool:
        return not pooled(case.evidence).flat and case.split is None and not self._is_mixture(batch, case)

    def _split(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        yield from self._populations(batch, cases, goal, rng, 1, "splitting")

    def _vague(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Splitting has a number, and it is not good enough or contradicted."""
        split = case.split
        if not isinstance(split, Number) or batch.inputs.normal_dim is None:
            return False
        return case.belief.outcome is Outcome.STALLED or split.std > COUNTED_SHARE * self.target_error

    def _split_more(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        """Splitting at the size that the target asks for, problems of one size together."""
        factors = [self._factor(batch.spend.left(batch.rows[i : i + 1]), case) for i, case in enumerate(cases)]
        for factor in sorted(set(factors) - {0}):
            some = [case for case, own in zip(cases, factors, strict=True) if own == factor]
            yield from self._populations(_part(batch, cases, some), some, goal, rng, factor, "larger splitting")

    def _factor(self, left: float, case: Case) -> int:
        """How many times the referee's size, from its own spread, rounded to a power of two so that problems batch."""
        split = case.split
        assert isinstance(split, Number)
        # To decide between itself and a faster method it need not be as exact as to answer on its own.
        rival = any(isinstance(e, Number) and e.family != SPLITTING and not e.doubt for e in case.evidence)
        error = REFEREE_ERROR if rival else COUNTED_SHARE * self.target_error
        wanted = min((split.std / error) ** 2, float(LARGEST))
        affordable = left / max(1, case.cost)
        power = math.floor(math.log2(max(min(2.0 ** round(math.log2(max(wanted, 2.0))), affordable), 0.5)))
        return int(2.0**power)

    def _populations(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng, factor: int, method: str) -> Work:
        walks, size = batch.inputs.normal_dim is None, self._size(batch) * factor
        splitting = Splitting(size, 0.1, 1, log_p_min=self.log_p_min, islands=self.islands, keep="all")
        if walks:  # no z-space: the paper's random walk is all there is
            splitting = replace(splitting, steps="auto", keep="last")
        before = batch.calls()
        islands = yield from splitting.populations(batch, rng)
        for case, group, calls in zip(cases, islands, (batch.calls() - before).tolist(), strict=True):
            case.evidence += goal.admitted(evidence_of(group, method, calls))
            found = [i.survivors[:100] for i in group if i.survivors is not None and len(i.survivors)]
            if factor == 1:
                case.cost = calls
            if found and not walks:
                rest = [f for k, f in enumerate(found) if k % 4]
                case.points, case.held = torch.cat(rest or found), torch.cat(found[::4])

    def _blind(self, batch: Batch, case: Case, goal: Goal) -> bool:
        """Where gradients do not tell, or dimensions are few; with a map from normals."""
        dimension = batch.inputs.normal_dim
        return dimension is not None and (dimension <= FITTED or not batch.network.differentiable) and case.far is None

    def _draw_far(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
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
                self._compare(batch.take(torch.tensor([row])), case, points)
            case.evidence.append(Searched(FAR, told, calls))

    @staticmethod
    def _compare(batch: Batch, case: Case, points: Tensor) -> None:
        """Whether the referee has been where draws from far out have led."""
        split = case.split
        if not isinstance(split, Number) or case.held is None or case.points is None:
            return
        share = float(unseen_points(points, torch.cat([case.points, case.held])).double().mean())
        if share > LOST:
            told = f"{share:.0%} of the violations that {FAR} led to lie where it has none"
            case.evidence[case.evidence.index(split)] = replace(split, lost=told)

    # Faster methods -------------------------------------------------------------------------------------------------

    def _few_inputs(self, batch: Batch, case: Case, goal: Goal) -> bool:
        known = case.points is not None or case.far is not None
        return (batch.inputs.normal_dim or math.inf) <= FITTED and known

    def _weigh(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        sampler = ImportanceSampling(target_error=self.target_error)
        starts = [_joined(case.points, case.far) for case in cases]
        learnt = yield from sampler.weigh(batch, starts, rng, [case.held for case in cases])
        _note(cases, learnt, goal)

    def _smooth(self, batch: Batch, case: Case, goal: Goal) -> bool:
        # An input model may say that it is all steps: lines along no slope would spend calls and find nothing.
        smooth = batch.network.differentiable and getattr(batch.inputs, "smooth", True)
        # In few dimensions a proposal that does not fit is no place for lines either: a larger referee decides.
        return smooth and (batch.inputs.normal_dim or 0) > FITTED and case.split is not None

    def _draw_lines(self, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
        before, starts = batch.calls(), [_joined(case.points, case.far) for case in cases]
        regions = yield from LineSampling(target_error=self.target_error).lines(batch, starts, rng)
        looks = compare(batch, regions, [case.held for case in cases])
        spent = (batch.calls() - before).tolist()
        both = zip(regions, spent, looks, strict=True)
        learnt = [region.evidence(calls, look.unseen, look.lines) for region, calls, look in both]
        _note(cases, learnt, goal)


def _joined(*points: Tensor | None) -> Tensor | None:
    some = [p for p in points if p is not None]
    return torch.cat(some) if some else None


def _dimension(batch: Batch) -> int:
    return math.prod(batch.inputs.event_shape)


def _learn(method: Estimator, batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
    learnt = yield from method.run(batch, rng)
    _note(cases, learnt, goal)


def _note(cases: Sequence[Case], learnt: Sequence[Sequence[Evidence]], goal: Goal) -> None:
    for case, evidence in zip(cases, learnt, strict=True):
        case.evidence += goal.admitted(evidence)


def _part(batch: Batch, cases: Sequence[Case], some: Sequence[Case]) -> Batch:
    """The rows of some of the cases of a batch."""
    place = {id(case): i for i, case in enumerate(cases)}
    return batch.take(torch.tensor([place[id(case)] for case in some]))
