"""OpenTURNS SubsetSampling and the paper's settings against Splitting and Auto: same problem, same machine, one run.

    RARELY_DATA=... python benchmarks/peers.py [--seeds 20]

The measure is network calls x mean squared error of log p: halving the error by running four times as long leaves it
alone. Runs that found no violation are counted apart and left out of the error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from common import collision_problems, collision_references, options, parser, table, write_json
from rarely import Auto, Gaussian, LinearConstraint, Problem, Splitting, estimate
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


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--seeds", type=int, default=20)
    args = options(wanted)
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
    write_json(args.json, args.device, rows)


if __name__ == "__main__":
    main()
