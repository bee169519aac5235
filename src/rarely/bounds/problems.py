"""Proofs for problems: from a network, a property and an input model to regions and polytopes, and back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rarely.bounds.crown import linear_bounds
from rarely.bounds.decide import decide_balls, decide_boxes
from rarely.bounds.graph import Unprovable
from rarely.bounds.measure import GaussianMeasure, Measure, UniformMeasure
from rarely.bounds.probability import ProbabilityBounds, bracket
from rarely.bounds.region import BoxRegion
from rarely.bounds.spec import Polytope, spec_of
from rarely.bounds.trace import build
from rarely.bounds.verdict import Verdict
from rarely.core.problem import Problem
from rarely.core.properties import Both, Either, LinearConstraint, Misclassification, Property, Targeted
from rarely.inputs import Box, Gaussian, InputModel, LpBall, Mixture, TruncatedGaussian

_MAX_POLYTOPES = 1000
SEARCHED = 8  # dimensions up to which splitting the input region gets somewhere quickly
_QUICK_ROWS = 512  # neurons of a layer that a quick proof bounds by CROWN; wider layers get intervals
_NO_WITNESS = "a violation in the bounding box of the inputs, not among the inputs themselves"


def polytopes(prop: Property, outputs: int) -> list[Polytope]:
    """The violating outputs as a union of {y : A y <= b}, or Unprovable."""
    eye = torch.eye(outputs, dtype=torch.float64)
    if isinstance(prop, Misclassification) and prop.label is not None:
        label = int(prop.label)
        return [((eye[label] - eye[i])[None], torch.zeros(1).double()) for i in range(outputs) if i != label]
    if isinstance(prop, Targeted):
        return [((eye[int(prop.label)] - eye[int(prop.target)])[None], torch.zeros(1).double())]
    if isinstance(prop, LinearConstraint):
        rows = [torch.isfinite(b) for b in prop.b]  # infinite bounds only pad
        return [(A[keep].double(), b[keep].double()) for A, b, keep in zip(prop.A, prop.b, rows, strict=True)]
    if isinstance(prop, Either):
        return polytopes(prop.left, outputs) + polytopes(prop.right, outputs)
    if isinstance(prop, Both):
        left, right = polytopes(prop.left, outputs), polytopes(prop.right, outputs)
        if len(left) * len(right) > _MAX_POLYTOPES:
            raise Unprovable(f"the property has more than {_MAX_POLYTOPES} alternatives")
        return [(torch.cat([a, c]), torch.cat([b, d])) for a, b in left for c, d in right]
    raise Unprovable(f"a property of kind {type(prop).__name__} is not a union of linear constraints on the outputs")


def on_cpu(problem: Problem) -> nn.Module:
    """The network as a module on the CPU, a copy where it lives elsewhere: proofs run there. Unprovable for others."""
    if not isinstance(problem.network, nn.Module):
        raise Unprovable("the network is a black box, not a torch module")
    module = problem.adapted.placed(torch.device("cpu"), None).module
    assert module is not None
    return module


def _outputs(problem: Problem, x: Tensor) -> int:
    with torch.no_grad(), problem.adapted.evaluating():
        return problem.adapted.call(x.unsqueeze(0).to(problem.adapted.dtype)).flatten(1).shape[1]


@dataclass(frozen=True)
class Question:
    """A problem as bounds see it."""

    module: nn.Module
    low: Tensor  # (*event) box around all inputs
    high: Tensor
    outputs: list[Polytope]
    ball: tuple[Tensor, float] | None  # centre and radius of an l2 ball of inputs

    @classmethod
    def of(cls, problem: Problem, module: nn.Module | None = None) -> Question:
        """Read a problem, or say with Unprovable why it cannot be bounded. `module` saves making it `on_cpu` again."""
        model, module = problem.inputs, on_cpu(problem) if module is None else module
        if model.support is None or not isinstance(model, Box | LpBall | TruncatedGaussian):
            raise Unprovable(f"inputs of kind {type(model).__name__} are not confined to a box or a ball")
        low, high = model.support
        if not bool(torch.isfinite(low).all() & torch.isfinite(high).all()):
            raise Unprovable("the inputs are not bounded")
        width = _outputs(problem, low)
        ball = (model.middle, float(model.radius)) if isinstance(model, LpBall) and model.norm == 2 else None
        return cls(module, low, high, polytopes(problem.property, width), ball)


def prove(problem: Problem, timeout: float = 60.0) -> Verdict:
    """Prove that no input violates the property, or find one that does, or give up after `timeout` seconds.

    "proved" is about the network in real arithmetic; a "violated" witness was replayed by the network itself. What
    cannot be bounded (an unknown operator, an unbounded input model) is "unknown" with the reason. Of a mixture every
    component is proved.
    """
    if isinstance(problem.inputs, Mixture):
        return _prove_components(problem, problem.inputs, timeout)
    try:
        question = Question.of(problem)
        with problem.adapted.evaluating():
            if question.ball is not None:
                centre, radius = question.ball
                radii = torch.tensor([radius], dtype=torch.float64)
                (verdict,) = decide_balls(question.module, centre[None], radii, question.outputs, timeout)
            else:
                low, high = question.low[None], question.high[None]
                (verdict,) = decide_boxes(question.module, low, high, question.outputs, timeout)
    except Unprovable as reason:
        return Verdict("unknown", math.inf, 0, reason=str(reason))
    if verdict.status == "violated" and not _possible(problem, verdict):
        return Verdict("unknown", math.inf, verdict.boxes, reason=_NO_WITNESS)
    return verdict


def _prove_components(problem: Problem, mixture: Mixture, timeout: float) -> Verdict:
    """The components one after the other, each with its share of the time that is left."""
    deadline = time.monotonic() + timeout
    pairs = zip(mixture.components, mixture.log_weights.tolist(), strict=True)
    chosen = [model for model, log_weight in pairs if log_weight > -math.inf]
    verdicts: list[Verdict] = []
    for i, model in enumerate(chosen):
        seconds = max(0.0, deadline - time.monotonic()) / (len(chosen) - i)
        verdict = prove(Problem(problem.network, problem.property, model), seconds)
        if verdict.status == "violated":
            return verdict
        verdicts.append(verdict)
    open_ones = [verdict for verdict in verdicts if verdict.status != "proved"]
    worst = (open_ones or sorted(verdicts, key=lambda verdict: verdict.bound))[-1]
    return replace(worst, boxes=sum(verdict.boxes for verdict in verdicts))


def _possible(problem: Problem, verdict: Verdict) -> bool:
    """Whether the witness is an input that the model can draw: a cut ball is proved by way of a larger region."""
    assert verdict.witness is not None
    point = verdict.witness.unsqueeze(0).to(problem.adapted.dtype)
    return float(problem.inputs.log_density(point)) > -math.inf and float(problem.score(point)) >= 0


def prove_quickly(problems: Sequence[Problem], seconds: float, boxes: int | None = None) -> list[Verdict | None]:
    """Verdicts that cost next to nothing: one bound each, and in few dimensions branch and bound for `seconds`.

    With `boxes` it stops after that many boxes per problem, too.

    None where there is no verdict. Problems that share a network are bounded as one batch.
    """
    verdicts: list[Verdict | None] = [None] * len(problems)
    groups: dict[tuple[int, tuple[tuple[int, ...], ...]], list[int]] = {}
    questions: dict[int, Question] = {}
    modules: dict[int, nn.Module] = {}  # one copy of a network that must move, not one per problem
    for i, problem in enumerate(problems):
        try:
            questions[i] = question = Question.of(problem, modules.get(id(problem.network)))
        except Unprovable:
            continue
        modules[id(problem.network)] = question.module
        shape = tuple(tuple(A.shape) for A, _ in question.outputs)
        groups.setdefault((id(problem.network), (tuple(question.low.shape), *shape)), []).append(i)
    deadline = time.monotonic() + seconds
    for rows in groups.values():
        try:
            answers = _quick([questions[i] for i in rows], deadline, boxes)
        except Unprovable:
            continue
        for i, verdict in zip(rows, answers, strict=True):
            verdicts[i] = verdict
    return verdicts


def _quick(questions: Sequence[Question], deadline: float, boxes: int | None) -> list[Verdict | None]:
    low, high = (torch.stack([getattr(q, side) for q in questions]).double() for side in ("low", "high"))
    parts = range(len(questions[0].outputs))
    outputs = [tuple(torch.stack([q.outputs[p][k] for q in questions]) for k in (0, 1)) for p in parts]
    module = questions[0].module
    if low[0].numel() <= SEARCHED:
        seconds = max(0.0, deadline - time.monotonic())
        found = decide_boxes(module, low, high, [(A, b) for A, b in outputs], seconds, boxes=boxes)
        return [v if v.status == "proved" else None for v in found]
    graph = build(module, tuple(low.shape[1:]))
    spec = spec_of([(A, b) for A, b in outputs], graph.classes, len(questions), low.device)
    bound = linear_bounds(graph, BoxRegion(low, high), spec.C, spec.d, rows=_QUICK_ROWS).lower
    # A polytope is out of reach when one of its rows A y - b is positive on the whole region.
    reach = -spec.by_polytope(bound)
    worst = reach.amax(1).tolist()
    return [Verdict("proved", w, 1) if w < 0 else None for w in worst]


def probability_bounds(problem: Problem, timeout: float = 60.0, gap: float = 0.05) -> Iterator[ProbabilityBounds]:
    """Ever tighter rigorous bounds on log P(violation), until they are within `gap` or time is up.

    For uniform inputs in a box and independent Gaussians (truncated or not); any other model, or a network that cannot
    be bounded, gives the one trivial item 0 <= P <= 1.
    """
    try:
        law, module, outputs = measurable(problem)
    except Unprovable:
        yield ProbabilityBounds(-math.inf, 0.0, 0, 0.0)
        return
    with problem.adapted.evaluating():
        yield from bracket(module, law, outputs, timeout, gap=gap)


def measurable(problem: Problem) -> tuple[Measure, nn.Module, list[Polytope]]:
    """A problem whose boxes have known masses, or Unprovable."""
    law, module = _law(problem.inputs), on_cpu(problem)
    return law, module, polytopes(problem.property, _outputs(problem, problem.inputs.center))


def _law(model: InputModel) -> Measure:
    if isinstance(model, Box) or (isinstance(model, LpBall) and model.norm == math.inf):
        return UniformMeasure(model.low.double(), model.high.double())
    if isinstance(model, Gaussian) and model.independent and bool((model.std > 0).all()):
        return GaussianMeasure(model.mean.double(), model.std.double())
    if isinstance(model, TruncatedGaussian):
        return GaussianMeasure(model.mean.double(), model.std.double(), model.low.double(), model.high.double())
    raise Unprovable(f"no exact masses of boxes are known for inputs of kind {type(model).__name__}")
