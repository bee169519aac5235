"""For researchers: which method is most accurate for what it costs, and are its intervals honest?

Run it with `python examples/compare_methods.py`. Two problems in 100 dimensions whose answers are known, every method
over a few seeds: the error of log p, the calls, how many 95 % intervals hold the truth, and calls times squared error,
which does not depend on how long a method ran (smaller is better). A method of your own goes into METHODS, a problem
into `problems`. `--seeds 30` gives a table that can be cited; comparison.csv has every run.
"""

from __future__ import annotations

import argparse
import csv
import math
from typing import Any

import torch
from torch import Tensor

import rarely
from rarely.kernels import RandomWalk

DIMENSIONS, RADIUS = 100, 13.2
CALLS = 200_000  # at most, of one run
METHODS: dict[str, Any] = {
    "Auto": rarely.Auto(),
    "splitting, pCN": rarely.Splitting(500, steps=5, islands=4),
    "splitting, the paper's walk": rarely.Splitting(500, steps=5, islands=4, kernel=RandomWalk()),
    "lines": rarely.LineSampling(),
    "importance sampling": rarely.ImportanceSampling(),
}


def two_planes(x: Tensor, y: Tensor) -> Tensor:
    """Two half-spaces, the second a little further out: whoever knows the first direction alone misses a third."""
    return torch.maximum(x[:, 0] - 5.0, -x[:, 1] - 5.15)


def outside(x: Tensor, y: Tensor) -> Tensor:
    """Outside a ball: no direction is better than any other."""
    return (x * x).sum(1) - RADIUS**2


def problems() -> dict[str, tuple[rarely.Problem, float]]:
    """Problems and their log p."""
    inputs = rarely.Gaussian(torch.zeros(DIMENSIONS), 1.0)
    network = torch.nn.Identity().eval()  # the score is all that matters here; put your own network in its place
    near, far = torch.special.ndtr(torch.tensor([-5.0, -5.15], dtype=torch.float64)).tolist()
    tail = torch.special.gammaincc(*torch.tensor([DIMENSIONS / 2, RADIUS**2 / 2], dtype=torch.float64)).item()
    return {
        "two planes": (rarely.Problem(network, two_planes, inputs), math.log(near + far - near * far)),
        "outside a ball": (rarely.Problem(network, outside, inputs), math.log(tail)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(parser.parse_args().seeds)
    rows = []
    print(f"{'':14s} {'method':28s} {'bias':>7s} {'rmse':>7s} {'calls':>9s} {'calls x mse':>12s}  held")
    for name, (problem, exact) in problems().items():
        for method, estimator in METHODS.items():
            found = [rarely.estimate(problem, estimator, seed=seed, max_evaluations=CALLS) for seed in seeds]
            errors = [e.log_prob - exact for e in found]
            bias, mse = sum(errors) / len(errors), sum(error**2 for error in errors) / len(errors)
            calls = sum(e.calls for e in found) / len(found)
            held = sum(exact in e.interval for e in found)
            print(
                f"{name:14s} {method:28s} {bias:+7.2f} {math.sqrt(mse):7.2f} {calls:9,.0f} {calls * mse:12,.0f}"
                f"  {held} of {len(found)}"
            )
            rows += [
                (name, method, seed, e.outcome.value, e.log_prob, exact, e.calls)
                for seed, e in zip(seeds, found, strict=True)
            ]
    with open("comparison.csv", "w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["problem", "method", "seed", "outcome", "log_prob", "exact", "calls"])
        table.writerows(rows)


if __name__ == "__main__":
    main()
