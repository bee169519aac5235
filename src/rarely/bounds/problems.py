"""Proofs for problems: from a network, a property and an input model to regions and polytopes, and back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rarely.bounds.crown import linear_bounds
from rarely.bounds.decide import decide_balls, decide_boxes
from rarely.bounds.graph import Graph, Unprovable
from rarely.bounds.graphs import Graphs
from rarely.bounds.inputsplit import CROWDED
from rarely.bounds.laws import measure_of, tails_of
from rarely.bounds.ledger import Proof
from rarely.bounds.placing import CPU, pays_from, worthwhile
from rarely.bounds.probability import ProbabilityBounds, bracket
from rarely.bounds.probable import half_space_bounds
from rarely.bounds.region import BoxRegion
from rarely.bounds.spec import Polytope, polytopes, spec_of
from rarely.core.errors import InputError
from rarely.core.evidence import REAL
from rarely.core.problem import Problem
from rarely.core.stacking import place
from rarely.core.thresholds import HALVED, SEARCHED
from rarely.inputs import LpBall, Mixture
from rarely.stats.statistic import log_sum

_FEW_SHARE = 0.2  # of the time for half-spaces where boxes can be halved, too
_WORK, _FEWEST = 2**28, 8  # visits of leaves, where work limits them: 430 on MNIST take 1.5 s; fewer of wide networks
_QUICK_ROWS = 512  # neurons of a layer that a quick proof bounds by CROWN; wider layers get intervals
_NO_WITNESS = "a violation in the bounding box of the inputs or on the border of the property, not inside"


@dataclass(frozen=True)
class Question:
    """A problem as bounds see it."""

    problem: Problem
    module: nn.Module
    low: Tensor  # (*event) box around all inputs, on the CPU in float64
    high: Tensor
    outputs: list[Polytope]
    ball: tuple[Tensor, float] | None  # centre and radius of an l2 ball of inputs

    @classmethod
    def of(cls, problem: Problem, graphs: Graphs) -> Question:
        """Read a problem, or say with Unprovable why it cannot be bounded."""
        model, module = problem.inputs, graphs.module(problem)
        if model.support is None:
            raise Unprovable(f"inputs of kind {type(model).__name__} are not confined to a box or a ball")
        low, high = (side.expand(model.event_shape).to(CPU, torch.float64) for side in model.support)
        if not bool(torch.isfinite(low).all() & torch.isfinite(high).all()):
            raise Unprovable("the inputs are not bounded")
        ball = (model.middle, float(model.radius)) if isinstance(model, LpBall) and model.norm == 2 else None
        return cls(problem, module, low, high, polytopes(problem.property, problem.outputs), ball)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for questions that can be bounded in one batch."""
        shapes = tuple(tuple(A.shape) for A, _ in self.outputs)
        return id(self.problem.network), tuple(self.low.shape), self.ball is None, shapes


def prove(problem: Problem, timeout: float = 60.0) -> Proof:
    """Prove that no input violates the property, or give up after `timeout` seconds.

    "proved" is about the network as it runs, or, where the proof says so, in real arithmetic; "violated" comes with an
    input met on the way, replayed by the network itself. What cannot be bounded (an unknown operator, an unbounded
    input model) is "unknown" with the reason. Of a mixture every component is proved.
    """
    return prove_all([problem], timeout)[0]


def prove_all(
    problems: Sequence[Problem],
    seconds: float,
    *,
    boxes: int | None = None,
    quick: bool = False,
    graphs: Graphs | None = None,
    earlier: Sequence[Proof] = (),
    device: torch.device = CPU,
) -> list[Proof]:
    """As `prove`, problems that share a network as one batch. `seconds` are for all of them.

    `boxes` ends the halving of inputs by work. `quick`: in many dimensions one linear bound each and no more.
    `earlier`: what was said of these problems before, to go on from while neither they nor their networks change.
    Bounds are computed on the `device` where that pays; networks are run where the user keeps them.
    """
    graphs = graphs or Graphs()
    proofs: list[Proof] = [Proof("unknown", math.inf, 0)] * len(problems)
    groups: dict[tuple[object, ...], list[int]] = {}
    questions: dict[int, Question] = {}
    deadline = time.monotonic() + seconds
    for i, problem in enumerate(problems):
        try:
            if isinstance(problem.inputs, Mixture):
                proofs[i] = _prove_components(problem, deadline, boxes, quick, graphs, device)
                continue
            questions[i] = question = Question.of(problem, graphs)
        except Unprovable as reason:
            proofs[i] = Proof("unknown", math.inf, 0, reason=str(reason))
            continue
        groups.setdefault(question.kind, []).append(i)
    for number, rows in enumerate(groups.values()):
        share = max(0.0, deadline - time.monotonic()) / (len(groups) - number)
        some, before = [questions[i] for i in rows], [earlier[i] for i in rows] if earlier else []
        for i, proof in zip(rows, _decided(some, share, boxes, quick, graphs, before, device), strict=True):
            if proof.status == "violated":
                possible, calls = _possible(questions[i].problem, proof), proof.calls + 1
                no_witness = Proof("unknown", math.inf, proof.boxes, reason=_NO_WITNESS)
                proof = replace(proof if possible else no_witness, calls=calls)
            proofs[i] = proof
    return proofs


def _decided(
    questions: Sequence[Question],
    seconds: float,
    boxes: int | None,
    quick: bool,
    graphs: Graphs,
    earlier: Sequence[Proof],
    device: torch.device,
) -> list[Proof]:
    """The answers to questions about one network, on the device or the CPU, as it pays."""
    first, deadline = questions[0], time.monotonic() + seconds
    with first.problem.adapted.evaluating():
        try:
            graph = graphs.of(first.module, tuple(first.low.shape), (first.low, first.high))
        except Unprovable as reason:
            return [Proof("unknown", math.inf, 0, reason=str(reason))] * len(questions)
        regions = sum(1 if proof.rest is None else len(proof.rest.todo) for proof in earlier) or len(questions)
        here = worthwhile(device, graph, regions)
        most = pays_from(device, graph) if here == CPU else math.inf
        proofs: list[Proof] = []
        with suppress(torch.OutOfMemoryError):
            proofs = _asked(questions, graphs.on(here, graph), here, seconds, boxes, most, quick, earlier)
    if not proofs:  # there is more room beside a GPU
        return _decided(questions, deadline - time.monotonic(), boxes, quick, graphs, earlier, CPU)
    if crowded := [i for i, proof in enumerate(proofs) if proof.reason == CROWDED]:
        some, before = [questions[i] for i in crowded], [proofs[i] for i in crowded]
        found = _decided(some, deadline - time.monotonic(), boxes, quick, graphs, before, device)
        for i, proof in zip(crowded, found, strict=True):
            proofs[i] = replace(proof, calls=proof.calls + proofs[i].calls)
    return proofs


def _asked(
    questions: Sequence[Question],
    graph: Graph,
    here: torch.device,
    seconds: float,
    boxes: int | None,
    open_boxes: float,
    quick: bool,
    earlier: Sequence[Proof],
) -> list[Proof]:
    """The answers from bounds that are computed `here`, where the graph is."""
    module = questions[0].module
    low, high = (torch.stack([getattr(q, side) for q in questions]).to(here) for side in ("low", "high"))
    count = len(questions[0].outputs)
    stacked = ((torch.stack([q.outputs[p][k] for q in questions]) for k in (0, 1)) for p in range(count))
    outputs = [(A, b) for A, b in stacked]
    if quick and low[0].numel() > SEARCHED:
        return _bounded(graph, BoxRegion(low, high), outputs)
    balls = [q.ball for q in questions if q.ball is not None]
    if balls:
        centres, radii = torch.stack([centre for centre, _ in balls]), torch.tensor([radius for _, radius in balls])
        return decide_balls(module, centres.to(here), radii.to(here), outputs, seconds, graph=graph)
    return decide_boxes(
        module, low, high, outputs, seconds, graph=graph, boxes=boxes, open_boxes=open_boxes, earlier=earlier
    )


def _bounded(graph: Graph, region: BoxRegion, outputs: Sequence[Polytope]) -> list[Proof]:
    """One linear bound of each problem."""
    spec = spec_of(outputs, graph.classes, len(region.low), region.low.device)
    bound = linear_bounds(graph, region, spec.C, spec.d, rows=_QUICK_ROWS)
    # A polytope is out of reach when one of its rows A y - b is positive on the whole region.
    reach = (-spec.by_polytope(bound.lower)).amax(1).tolist()
    name = graph.arithmetic.name
    return [Proof("proved", r, 1, arithmetic=name) if r < 0 else Proof("unknown", r, 1) for r in reach]


def _prove_components(
    problem: Problem, deadline: float, boxes: int | None, quick: bool, graphs: Graphs, device: torch.device
) -> Proof:
    """The components one after the other, each with its share of the time that is left."""
    proofs: list[Proof] = []
    parts = components(problem)
    for i, part in enumerate(parts):
        seconds = max(0.0, deadline - time.monotonic()) / (len(parts) - i)
        (proof,) = prove_all([part], seconds, boxes=boxes, quick=quick, graphs=graphs, device=device)
        if proof.status == "violated":
            return proof
        proofs.append(proof)
    open_ones = [proof for proof in proofs if proof.status != "proved"]
    worst = (open_ones or sorted(proofs, key=lambda proof: (proof.arithmetic == REAL, proof.bound)))[-1]
    return replace(worst, boxes=sum(proof.boxes for proof in proofs), calls=sum(proof.calls for proof in proofs))


def components(problem: Problem) -> list[Problem]:
    """One problem for each component of a mixture that has any weight; itself for other inputs."""
    return [part for _, part in _weighted(problem)]


def _weighted(problem: Problem) -> list[tuple[float, Problem]]:
    """The components with their log-weights."""
    mixture = problem.inputs
    if not isinstance(mixture, Mixture):
        return [(0.0, problem)]
    pairs = zip(mixture.log_weights.tolist(), mixture.components, strict=True)
    found = [(weight, problem.drawn_from(model)) for weight, model in pairs if weight > -math.inf]
    whole = log_sum([weight for weight, _ in found])  # 0 but for the rounding of stored weights
    return [(weight - whole, part) for weight, part in found]


def _possible(problem: Problem, proof: Proof) -> bool:
    """Whether the witness violates the property as written, and is an input that the model can draw.

    Bounds take strict rows as closed, and a cut ball is proved by way of a larger region.
    """
    assert proof.witness is not None
    point = proof.witness.unsqueeze(0).to(problem.adapted.dtype)
    try:
        density = float(problem.inputs.log_density(point))
    except InputError:  # of a law without a density nobody can say whether it draws this very point
        return False
    return density > -math.inf and float(problem.score(point)) >= 0


def probability_bounds(
    problem: Problem,
    timeout: float = 60.0,
    gap: float = 0.05,
    *,
    target: float | None = None,
    boxes: int | None = None,
    graphs: Graphs | None = None,
    device: torch.device = CPU,
) -> Iterator[ProbabilityBounds]:
    """Ever tighter rigorous bounds on log P(violation), until they are within `gap` or time is up.

    By half-spaces in any number of dimensions (see `leaves`), and by halving boxes too where there are few. `target` is
    the -log p that is hoped for, where one knows: it makes half-spaces faster and tighter. `boxes` ends each of the two
    by work. Inputs must have independent coordinates of a law that `laws` knows, or be normal, or uniform in an l2
    ball, or a mixture of such; any other model, or a network that cannot be bounded, gives the one trivial item
    0 <= P <= 1. `graphs` and `device` are those of `prove_all`.
    """
    weights, parts = zip(*_weighted(problem), strict=True)
    known = [ProbabilityBounds(-math.inf, 0.0, 0, 0.0)] * len(parts)
    graphs, begin = graphs or Graphs(), time.monotonic()
    for i, part in enumerate(parts):
        share = (timeout - (time.monotonic() - begin)) / (len(parts) - i)
        for known[i] in _component_bounds(part, share, gap, target, boxes, graphs, device):
            yield _mixed(weights, known, time.monotonic() - begin)


def _mixed(weights: Sequence[float], known: Sequence[ProbabilityBounds], seconds: float) -> ProbabilityBounds:
    """Bounds of a mixture from those of its components."""
    sides = ([w + getattr(k, side) for w, k in zip(weights, known, strict=True)] for side in ("log_lower", "log_upper"))
    low, high = (log_sum(side) for side in sides)
    margin = 0.0 if len(known) == 1 else 1e-12 * (1 + abs(high))
    return ProbabilityBounds(low - margin, min(0.0, high + margin), sum(k.boxes for k in known), seconds)


def _component_bounds(
    problem: Problem,
    timeout: float,
    gap: float,
    target: float | None,
    most: int | None,
    graphs: Graphs,
    device: torch.device,
) -> Iterator[ProbabilityBounds]:
    low, high, pieces, begin = -math.inf, 0.0, 0, time.monotonic()
    n = math.prod(problem.inputs.event_shape)
    ways: list[Iterator[ProbabilityBounds]] = []
    with problem.adapted.evaluating():
        try:
            module, outputs = graphs.module(problem), polytopes(problem.property, problem.outputs)
            graph = graphs.of(module, tuple(problem.inputs.event_shape))
        except Unprovable:
            yield ProbabilityBounds(low, high, pieces, 0.0)
            return
        here, law = worthwhile(device, graph, 1), None
        graph = graphs.on(here, graph)
        with suppress(Unprovable):
            law = place(measure_of(problem.inputs), here, torch.float64) if n <= HALVED else None
        share = timeout if law is None else _FEW_SHARE * timeout
        with suppress(Unprovable):
            tails = place(tails_of(problem.inputs), here, torch.float64)
            visits = None if most is None else min(most, max(_FEWEST, _WORK // graph.widest**2))
            ways.append(half_space_bounds(graph, tails, outputs, share, gap=gap, target=target, most=visits))
        if law is not None:  # before half-spaces where boxes alone are likely to do
            boxes = bracket(module, law, outputs, timeout - share, gap=gap, graph=graph, most=most)
            ways.insert(0 if n <= SEARCHED else len(ways), boxes)
        for way in ways:
            before = pieces
            with suppress(torch.OutOfMemoryError):  # what was proved before a GPU was full holds
                for found in way:
                    low, high, pieces = max(low, found.log_lower), min(high, found.log_upper), before + found.boxes
                    yield ProbabilityBounds(low, high, pieces, time.monotonic() - begin)
                    if high - low <= gap or high == -math.inf:
                        return
    if not ways:
        yield ProbabilityBounds(low, high, pieces, time.monotonic() - begin)
