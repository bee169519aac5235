"""Cost against particles, dimension, number of problems and rarity: exponents by least squares on logarithms.

    RARELY_DATA=... python benchmarks/scaling.py [--threads 1]

Sizes take turns and the smallest time of each counts, which is what a busy machine leaves of the truth. An exponent
of 1 means cost in proportion. Calls have no noise from the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from common import collision_problems, exponent, options, parser, sync, table, write_json
from rarely import Gaussian, LinearConstraint, Problem, Splitting, estimate
from rarely.kernels import PCN

Task = Callable[[], int]  # returns the network calls


def half_space(dimension: int, log10_p: float) -> Problem:
    layer = nn.Linear(dimension, 1)
    with torch.no_grad():
        layer.weight.fill_(dimension**-0.5)
        layer.bias.zero_()
    edge = -float(torch.special.ndtri(torch.tensor(10.0**log10_p, dtype=torch.float64)))
    inputs = Gaussian(torch.zeros(dimension), 1.0)
    return Problem(layer.eval().requires_grad_(False), LinearConstraint([[-1.0]], [-edge]), inputs)


def task(problems: Problem | list[Problem], settings: Splitting, device: str) -> Task:
    chosen = problems if isinstance(problems, list) else [problems]

    def run() -> int:
        return sum(result.calls for result in estimate(chosen, settings, device=device))

    return run


def measure(sizes: Sequence[float], tasks: Sequence[Task], device: str, repeats: int) -> dict[str, Any]:
    seconds, cpu, calls = [[float("inf")] * len(tasks) for _ in range(2)] + [[0.0] * len(tasks)]
    tasks[0]()
    for _ in range(repeats):
        for i, one in enumerate(tasks):
            sync(device)
            start, began = time.perf_counter(), time.process_time()
            calls[i] = float(one())
            sync(device)
            seconds[i] = min(seconds[i], time.perf_counter() - start)
            cpu[i] = min(cpu[i], time.process_time() - began)
    return {
        "sizes": ", ".join(f"{size:g}" for size in sizes),
        "seconds": ", ".join(f"{s:.3g}" for s in seconds),
        "exponent of time": exponent(sizes, seconds),
        "exponent of CPU time": exponent(sizes, cpu),
        "exponent of calls": exponent(sizes, calls),
        "exponent of time per call": exponent(sizes, [s / c for s, c in zip(seconds, calls, strict=True)]),
    }


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--repeats", type=int, default=3)
    args = options(wanted)
    device, quick = args.device, args.quick

    def split(n: int, islands: int = 1) -> Splitting:
        return Splitting(n, 0.1, 10, PCN(), islands=islands)

    counts = [1000, 2000, 4000, 8000] if quick else [1000, 4000, 16000, 64000]
    dims = [50, 200, 800] if quick else [50, 200, 800, 3200]
    rarity = [4, 8, 16, 32] if quick else [4, 8, 16, 32, 64]
    many = [25, 50, 100] if quick else [32, 64, 125, 250, 500]
    collision = collision_problems(args.data, 500)
    shuffled = [collision[i] for i in torch.randperm(500, generator=torch.Generator().manual_seed(0)).tolist()]
    short = Splitting(200, 0.1, 5, PCN(), islands=8, log_p_min=-12.0)
    plan: dict[str, tuple[Sequence[float], list[Task]]] = {
        "particles N (d=100, p=1e-6)": (counts, [task(half_space(100, -6), split(n), device) for n in counts]),
        "dimension d (N=2000, p=1e-6)": (dims, [task(half_space(d, -6), split(2000), device) for d in dims]),
        "rarity -log10 p (N=2000, d=100)": (rarity, [task(half_space(100, -r), split(2000), device) for r in rarity]),
        "CollisionDetection problems in a batch": (many, [task(shuffled[:b], short, device) for b in many]),
    }
    rows = []
    for name, (sizes, tasks) in plan.items():
        rows.append({"cost against": name, **measure(sizes, tasks, device, args.repeats)})
    print(table(tuple(rows[0]), [tuple(row.values()) for row in rows]), "\n")
    write_json(args.json, device, rows)


if __name__ == "__main__":
    main()
