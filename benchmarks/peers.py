"""OpenTURNS SubsetSampling and the paper's settings against Splitting and Auto: same problem, same machine, one run.

    RARELY_DATA=... python benchmarks/peers.py [--seeds 20 | --design-points]

The measure is network calls x mean squared error of log p: halving the error by running four times as long leaves it
alone. Runs that found no violation are counted apart and left out of the error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common import collision_problems, collision_references, options, parser, table, write_json
from rarely import Auto, Gaussian, LinearConstraint, Problem, Splitting, estimate
from rarely.core.evidence import Nearest
from rarely.kernels import RandomWalk
from rarely.methods import Estimator

Method = Callable[[int], tuple[float, int]]  # seed -> log p, network calls


def half_space(dimension: int = 100, p: float = 1e-6) -> tuple[Problem, float]:
    """x standard normal, violated when (x_1 + ... + x_d) / sqrt(d) passes the quantile."""
    layer = nn.Linear(dimension, 1)
    with torch.no_grad():
        layer.weight.fill_(dimension**-0.5)
        layer.bias.zero_()
    edge = -float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))
    inputs = Gaussian(torch.zeros(dimension), 1.0)
    return Problem(layer.eval().requires_grad_(False), LinearConstraint([[-1.0]], [-edge]), inputs), math.log(p)


def ours(problem: Problem, estimator: Estimator) -> Method:
    def run(seed: int) -> tuple[float, int]:
        found = estimate(problem, estimator, seed=seed, device="cpu")
        return found.log_prob, found.calls

    return run


def openturns(problem: Problem, size: int) -> Method | None:
    """SubsetSampling on the same network through the same map from normals; None when OpenTURNS is missing."""
    try:
        import openturns as ot
    except ImportError:
        return None
    model = problem.inputs
    dimension = model.normal_dim
    assert dimension is not None
    calls = [0]

    def score(z: Any) -> list[list[float]]:
        points = torch.tensor(list(z), dtype=torch.float32) if not isinstance(z, Tensor) else z
        calls[0] += len(points)
        values: list[list[float]] = problem.score(model.from_normal(points)).double().unsqueeze(1).tolist()
        return values

    def run(seed: int) -> tuple[float, int]:
        ot.RandomGenerator.SetSeed(seed)
        calls[0] = 0
        function = ot.PythonFunction(dimension, 1, func=lambda z: score([z])[0], func_sample=score)
        output = ot.CompositeRandomVector(ot.MemoizeFunction(function), ot.RandomVector(ot.Normal(dimension)))
        subset = ot.SubsetSampling(ot.ThresholdEvent(output, ot.GreaterOrEqual(), 0.0))
        subset.setMaximumOuterSampling(size // 100)
        subset.setBlockSize(100)
        subset.setConditionalProbability(0.1)
        subset.run()
        p = subset.getResult().getProbabilityEstimate()
        return (math.log(p) if p > 0 else -math.inf), calls[0]

    return run


def measure(method: Method, truth: float, seeds: int) -> dict[str, Any]:
    start = time.perf_counter()
    runs = [method(seed) for seed in range(seeds)]
    seconds = (time.perf_counter() - start) / seeds
    errors = [log_prob - truth for log_prob, _ in runs if math.isfinite(log_prob)]
    calls = sum(c for _, c in runs) / seeds
    mse = sum(e * e for e in errors) / len(errors) if errors else math.nan
    bias = sum(errors) / len(errors) if errors else math.nan
    return {
        "runs": seeds, "none found": seeds - len(errors), "calls": calls, "bias": bias, "rmse": math.sqrt(mse),
        "calls x mse": calls * mse, "seconds per run": seconds,
    }  # fmt: skip


def compare(title: str, problem: Problem, truth: float, seeds: int, quick: bool) -> list[dict[str, Any]]:
    particles, steps = (500, 50) if quick else (1000, 100)
    paper = Splitting(particles, 0.1, steps, RandomWalk("gaussian"), islands=1, rule="paper")
    methods: dict[str, Method | None] = {
        "OpenTURNS SubsetSampling, N=2000": openturns(problem, 2000),
        f"the paper: random walk, N={particles}, M={steps}": ours(problem, paper),
        "Splitting(keep='all'), 8 islands of 250": ours(problem, Splitting(250, steps=1, keep="all")),
        "Auto": ours(problem, Auto()),
    }
    rows = []
    for name, method in methods.items():
        if method is None:
            print(f"*{name}: openturns is not installed (pip install openturns); skipped*\n")
            continue
        rows.append({"problem": title, "method": name, **measure(method, truth, seeds)})
    print(table(tuple(rows[0]), [tuple(row.values()) for row in rows]), "\n")
    return rows


Limit = Callable[[Tensor], Tensor]  # normals (n, d) -> scores (n,)
LIMIT_STATES: dict[str, tuple[int, Limit]] = {
    "concave, beta = 2.5": (2, lambda u: (u[:, 0] + u[:, 1]) / 2**0.5 - 2.5 - 0.1 * (u[:, 0] - u[:, 1]) ** 2),
    "saddle": (2, lambda u: u[:, 0] * u[:, 1] - 6),
    "exponential": (2, lambda u: 0.3 * u[:, 0].exp() + u[:, 1] - 4.5),
    "ball, d=10": (10, lambda u: 2.0 - (u - 2.0).norm(dim=1)),
    "wavy plane, d=6": (6, lambda u: u.sum(1) / 6**0.5 - 4 + 0.3 * torch.sin(3 * u[:, 0])),
}


def form(dimension: int, limit: Limit, solver: str) -> str:
    """The reliability index that FORM of OpenTURNS ends with, and its calls; gradients are finite differences."""
    import openturns as ot

    calls = [0]

    def score(z: Any) -> list[float]:
        calls[0] += 1
        return [float(limit(torch.tensor([list(z)], dtype=torch.float64)))]

    output = ot.CompositeRandomVector(ot.PythonFunction(dimension, 1, score), ot.RandomVector(ot.Normal(dimension)))
    search = getattr(ot, solver)()
    search.setStartingPoint([0.1 if dimension > 2 else 1.0] * dimension)
    run = ot.FORM(search, ot.ThresholdEvent(output, ot.Greater(), 0.0))
    try:
        run.run()
    except (RuntimeError, TypeError) as error:
        return f"{str(error).splitlines()[0][:40]} ({calls[0]} calls)"
    return f"{run.getResult().getHasoferReliabilityIndex():.4f} ({calls[0]} calls)"


def nearest(dimension: int, limit: Limit, black: bool) -> str:
    """The distance of the nearest violation that `Auto` finds, and the calls of the search for it."""

    def network(x: Tensor) -> Tensor:
        return limit(torch.from_numpy(np.asarray(x)) if black else x).unsqueeze(-1)

    problem = Problem(network, lambda x, y: y[:, 0], Gaussian(torch.zeros(dimension, dtype=torch.float64), 1.0))
    found = estimate(problem, device="cpu", dtype=torch.float64)
    (record,) = [e for e in found.evidence if isinstance(e, Nearest)]
    return f"{record.distance:.4f} ({record.calls} calls)"


def design_points() -> list[dict[str, Any]]:
    """FORM's most probable point and our nearest violation, for limit states of standard normals."""
    try:
        import openturns  # noqa: F401
    except ImportError:
        print("*Design points: openturns is not installed (pip install openturns); skipped*\n")
        return []
    rows = []
    for name, (dimension, limit) in LIMIT_STATES.items():
        theirs = {f"FORM, {solver}": form(dimension, limit, solver) for solver in ("AbdoRackwitz", "Cobyla")}
        ours_ = {"rarely": nearest(dimension, limit, False), "rarely, black box": nearest(dimension, limit, True)}
        rows.append({"limit state": name, **theirs, **ours_})
    print(table(tuple(rows[0]), [tuple(row.values()) for row in rows]), "\n")
    return rows


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--seeds", type=int, default=20)
    wanted.add_argument("--design-points", action="store_true", help="FORM and the nearest violation, nothing else")
    args = options(wanted)
    points = design_points()
    if args.design_points:
        write_json(args.json, args.device, points)
        return
    problem, truth = half_space()
    rows = compare("Gaussian half-space, d=100, p=1e-6", problem, truth, args.seeds, args.quick)
    reference = args.data / ".." / "reference" / "collision_detection_log_prob.csv"
    if reference.exists():
        # The reference in the middle of those under 1e-5.
        known = sorted((v, k) for k, v in collision_references(reference).items() if v < math.log(1e-5))
        value, name = known[len(known) // 2]
        chosen = [problem for problem in collision_problems(args.data, None, "SAT") if problem.name == name]
        rows += compare(f"CollisionDetection, log p = {value:.2f}", chosen[0], value, args.seeds, args.quick)
    else:
        print(f"*{reference} is not there: no CollisionDetection property*\n")
    write_json(args.json, args.device, {"numbers": rows, "design points": points})


if __name__ == "__main__":
    main()
