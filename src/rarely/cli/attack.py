"""Looking for a counterexample that a referee accepts: random inputs, gradients, then splitting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.io.formats.specification import Case, Polytope, Specification
from rarely.io.onnx.model import input_port, read_onnx
from rarely.io.onnx.runtime import replay
from rarely.io.problems import problem_from
from rarely.kernels import PCN, HitAndRun, RandomWalk
from rarely.methods import Estimator, MonteCarlo, Splitting
from rarely.questions.estimate import Running
from rarely.questions.result import Estimate

Floats = NDArray[np.float64]
_TRIED = 20  # candidates replayed of those that one search finds, best first
_ROUNDING = 1e-5  # distance to a region, in its own width, that rounding explains


@dataclass(frozen=True)
class Counterexample:
    x: Floats  # (n_inputs,) inside its region; cast to the network's type it is what was replayed
    y: Floats  # (n_outputs,) replayed


class Referee:
    """Accepts a counterexample only if its replay violates the specification with no tolerance at all."""

    def __init__(self, path: str | Path, network: Any, specification: Specification) -> None:
        self.specification = specification
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        if str(path).lower().endswith((".onnx", ".onnx.gz")):
            self.dtype = input_port(read_onnx(path)).dtype
            self._replay: Callable[[NDArray[Any]], NDArray[Any]] = lambda x: replay(path, x)
        else:
            self._replay = lambda x: _run_alone(network, x)

    def judge(self, candidates: Tensor) -> Counterexample | None:
        """The first candidate (n, *event) that stands."""
        for candidate in candidates[:_TRIED].flatten(1).double().cpu().numpy():
            for case in self.specification.cases:
                x = inside(candidate, case, self.dtype)
                if x is None or not _meets(case.input_constraints, x):
                    continue
                y = self._replay(x.astype(self.dtype)).astype(np.float64).ravel()
                if any(_meets(polytope, y) for polytope in case.outputs):
                    return Counterexample(x, y)
        return None


def inside(x: Floats, case: Case, dtype: np.dtype[Any]) -> Floats | None:
    """The nearest point of the case's box that `dtype` can represent, None when that is further than rounding.

    Where a bound pins an input to a value between two representable ones, the bound itself is given: it lies in the
    box, and casts to the value that is replayed.
    """
    if (np.maximum(case.low - x, x - case.high) > _ROUNDING * (1 + np.abs(x))).any():
        return None
    lowest, highest = case.low.astype(dtype), case.high.astype(dtype)
    lowest = np.where(lowest.astype(np.float64) < case.low, np.nextafter(lowest, np.inf, dtype=dtype), lowest)
    highest = np.where(highest.astype(np.float64) > case.high, np.nextafter(highest, -np.inf, dtype=dtype), highest)
    moved = np.clip(x.astype(dtype), lowest, highest).astype(np.float64)
    result: Floats = np.clip(moved, case.low, case.high)
    return result


def _meets(polytope: Polytope | None, v: Floats) -> bool:
    return polytope is None or bool((polytope.A @ v <= polytope.b).all())


def _run_alone(network: Any, x: NDArray[Any]) -> NDArray[Any]:
    """One input through a network that is no ONNX file, in its own precision."""
    shape = getattr(network, "input_shape", x.shape)
    with torch.no_grad():
        y: Tensor = network(torch.from_numpy(x).reshape(1, *shape))
    return y.cpu().numpy()


class Attack:
    """Searches for a counterexample of one instance, from quick to thorough."""

    def __init__(self, network: Any, specification: Specification, referee: Referee, seed: int = 0) -> None:
        self.referee, self.seed, self.rng = referee, seed, Rng(seed)
        self.whole = problem_from(network, specification)
        # Witnesses on the edge of the violation may not survive another arithmetic: every second climb asks for more.
        firm = _tightened(specification, 1e-6 * _scale(self.whole))
        self.regions = [
            [problem_from(network, replace(wanted, cases=(case,))) for case in wanted.cases]
            for wanted in (specification, firm)
        ]
        self.last: Estimate | None = None  # what statistics say so far

    def sample(self, deadline: float) -> Counterexample | None:
        """Random inputs. `deadline` is on the clock of time.monotonic."""
        return self._search([MonteCarlo(samples=100_000, hits=1, chunk=20_000)], deadline)

    def climb(self, deadline: float) -> Counterexample | None:
        """Up from the best of many points, again and again."""
        return self._search([None] * 10, deadline)

    def split(self, deadline: float) -> Counterexample | None:
        """Splitting, which also says how improbable a violation is, and more climbs."""
        walks = self.whole.inputs.normal_dim is None
        first = Splitting(particles=1000, islands=4, kernel=RandomWalk() if walks else HitAndRun(), max_steps=20)
        second = Splitting(particles=4000, islands=4, kernel=RandomWalk() if walks else PCN(), max_steps=40)
        return self._search([*[None] * 6, first, *[None] * 20, second], deadline)

    def _search(self, searches: Sequence[Estimator | None], deadline: float) -> Counterexample | None:
        """Run estimators, or climbs for None, until one finds what the referee accepts."""
        for number, estimator in enumerate(searches):
            if time.monotonic() >= deadline:
                break
            if estimator is None:
                found = [_climb(region, self.rng, deadline) for region in self.regions[number % 2]]
            else:
                self.last = _run(self.whole, estimator, deadline, self.seed + number)
                found = [self.last.witnesses.inputs]
            for candidates in found:
                accepted = self.referee.judge(candidates) if len(candidates) else None
                if accepted is not None:
                    return accepted
        return None


def _run(problem: Problem, estimator: Estimator, deadline: float, seed: int) -> Estimate:
    running = Running([problem], estimator, seed=seed, timeout=max(0.01, deadline - time.monotonic()))
    for _ in running:
        pass
    (result,) = running.results
    assert result is not None
    return result


def _climb(problem: Problem, rng: Rng, deadline: float) -> Tensor:
    """What violates among many points and on the way up from the best of them, best first.

    Networks are nearly linear in pieces, so that their extremes lie on the faces of a box: every coordinate of a start
    is at one of its bounds with probability two thirds.
    """
    support = problem.inputs.support
    assert support is not None  # a case is a box
    dtype = problem.adapted.dtype
    low, high = (bound.to(dtype) for bound in support)
    rows = max(200, min(20_000, 4_000_000 // max(1, low.numel())))
    kept = []
    for _ in range(10):
        place = rng.uniform((rows, *low.shape), dtype).mul(3).sub(1).clamp(0, 1)
        x = torch.addcmul(low, place, high - low).clamp(low, high)
        kept.append(_best(problem, x, max(20, rows // 400)))
        if float(kept[-1][1].max()) >= 0 or time.monotonic() > deadline:
            break
    x, score = torch.cat([x for x, _ in kept]), torch.cat([score for _, score in kept])
    if float(score.max()) < 0 and problem.adapted.differentiable:
        x, score = _ascend(problem, x, low, high, deadline)
    order = score.argsort(descending=True)
    return x[order][score[order] >= 0]


def _best(problem: Problem, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    score = problem.score(x)
    # Linear constraints across inputs cut the box: what they exclude is no candidate.
    score = score.where(problem.inputs.log_density(x) > -torch.inf, -torch.inf)
    top = score.topk(count)
    return x[top.indices], top.values


def _ascend(problem: Problem, x: Tensor, low: Tensor, high: Tensor, deadline: float) -> tuple[Tensor, Tensor]:
    """Signed gradient steps, shorter and shorter, each start towards one way to fail; the best point of each."""
    best, peak = x, x.new_full((len(x),), -torch.inf)
    for step in range(60):
        x = x.detach().requires_grad_()
        with torch.enable_grad(), problem.adapted.evaluating():
            parts = problem.property.parts(x, problem.adapted.call(x))
            way = torch.arange(len(x)).remainder(parts.shape[1]).unsqueeze(1)
            (slope,) = torch.autograd.grad(parts.gather(1, way).sum(), x)
        score = parts.detach().amax(1)
        better = score > peak
        best = torch.where(better.reshape(-1, *[1] * (x.ndim - 1)), x.detach(), best)
        peak = torch.maximum(peak, score)
        if float(peak.max()) >= 0 or time.monotonic() > deadline:
            break
        x = (x.detach() + 0.05 * 0.92**step * (high - low) * slope.sign()).clamp(low, high)
    return best, peak


def _scale(problem: Problem) -> float:
    """A typical size of the property's scores."""
    return float(problem.score(problem.inputs.sample(256, Rng(1))).abs().median())


def _tightened(specification: Specification, margin: float) -> Specification:
    cases = tuple(
        replace(case, outputs=tuple(Polytope(polytope.A, polytope.b - margin) for polytope in case.outputs))
        for case in specification.cases
    )
    return replace(specification, cases=cases)
