"""Network evaluations per second inside Splitting against the bare forward pass on the same batch.

    RARELY_DATA=... python benchmarks/throughput.py [--device cuda] [--quick] [--json FILE]

Sampler and bare network take turns within one run and the median of the ratios is reported, so that a busy machine
slows both. A turn of the sampler is some whole levels: choosing a level, cloning, and M moves of all N particles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import models
from common import (
    acas_problem,
    cifar_problem,
    collision_problems,
    median_ratio,
    mnist_problem,
    options,
    parser,
    sync,
    table,
    table_row,
    timed,
    write_json,
)
from rarely import Execution, Problem, Splitting
from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.kernels import PCN, Kernel, RandomWalk
from rarely.methods.base import Progress


@dataclass(frozen=True)
class Case:
    name: str
    problem: Problem
    particles: int
    steps: int
    repeats: int


def cases(data: Path, device: str, quick: bool) -> list[Case]:
    cuda = device.startswith("cuda")
    torch.manual_seed(0)
    dense = models.dense_net().eval().requires_grad_(False)
    many = 1_000_000 if cuda else 10_000  # fewer leave a GPU idle while the host chooses the next level
    # On a GPU steps are recorded or compiled, for many of them; the paper takes 100 to 1000.
    few = 250 if cuda else 5 if quick else 20
    return [
        Case("6-40-19-2", collision_problems(data, 1, "SAT")[0], many, max(few, 20), 5),
        Case("ACAS Xu", acas_problem(data), many, max(few, 20), 5),
        Case("MNIST MLP 256x2", mnist_problem(data), 10_000, few, 3 if quick else 5),
        Case(
            "CIFAR-10 ResNet-20",
            cifar_problem(data, models.load_resnet(data / "cifar10_resnet")),
            10_000 if cuda else (64 if quick else 512), 2, 3,
        ),
        Case("DenseNet-BC 40, growth 40", cifar_problem(data, dense), 2_000 if cuda else (16 if quick else 128), 2, 3),
    ]  # fmt: skip


def levels(batch: Batch, case: Case, kernel: Kernel, seed: int) -> Iterator[Progress]:
    # The level rises by a tenth at a time, so that no population finishes within a turn.
    settings = Splitting(case.particles, 0.9, case.steps, kernel, islands=1)
    return settings.run(batch, Rng(seed, batch.device))


def sampler_rate(batch: Batch, case: Case, kernel: Kernel, seed: int, count: int = 1) -> float:
    """Evaluations per second over `count` levels, after the first draw and one level, in which a step is recorded."""
    run = levels(batch, case, kernel, seed)
    next(run)
    next(run)
    before = int(batch.spend.evaluations.sum())
    seconds = timed(lambda: [next(run) for _ in range(count)], batch.device)
    return (int(batch.spend.evaluations.sum()) - before) / seconds


def bare_rate(batch: Batch, case: Case, passes: int) -> float:
    """Evaluations per second of the network alone, the same rows in the same pieces."""
    x = batch.sample(case.particles, Rng(0, batch.device)).flatten(0, 1)
    pieces = x.split(batch.chunk)

    def all_passes() -> None:
        with torch.no_grad():
            for piece in pieces * passes:
                batch.network.call(piece)

    seconds = timed(all_passes, batch.device)
    return passes * case.particles / seconds


def against_bare(case: Case, device: str) -> list[dict[str, Any]]:
    rows = []
    (batch,) = Execution(device=device).place([case.problem], Spend(1))
    for kernel in (PCN(), RandomWalk()):
        name = type(kernel).__name__
        bare_rate(batch, case, 1)
        sampler_rate(batch, case, kernel, 0)
        turns = [
            (sampler_rate(batch, case, kernel, seed), bare_rate(batch, case, case.steps))
            for seed in range(case.repeats)
        ]
        sampler, bare = (statistics.median(turn[k] for turn in turns) for k in (0, 1))
        row = {"network": case.name, "kernel": name, "N": case.particles, "M": case.steps, "chunk": batch.chunk}
        rows.append({**row, "sampler": sampler, "bare": bare, "ratio": median_ratio(turns)})
    return rows


def batch_against_single(data: Path, device: str, quick: bool) -> dict[str, Any]:
    """Evaluations per second of 500 problems in one batch over those of one problem at a time, whole runs."""
    problems = collision_problems(data, 100 if quick else 500)
    alone = problems[:: len(problems) // (5 if quick else 10)]
    settings = Splitting(100, 0.1, 10, PCN(), islands=1, log_p_min=-12.0)

    def rate(chosen: list[Problem]) -> float:
        """Placing the problems, the run, its estimates and witnesses, as a user waits for them."""
        sync(device)
        start = time.perf_counter()
        spend = Spend(len(chosen))
        for batch in Execution(device=device).place(chosen, spend, at_once=settings.at_once):
            for _ in settings.run(batch, Rng(0, batch.device)):
                pass
        sync(device)
        return int(spend.evaluations.sum()) / (time.perf_counter() - start)

    def one_at_a_time() -> float:
        return statistics.harmonic_mean([rate([problem]) for problem in alone])

    rate(problems[:3])
    turns = [(rate(problems), one_at_a_time()) for _ in range(3)]
    return {
        "problems": len(problems), "batch": statistics.median(t[0] for t in turns),
        "single": statistics.median(t[1] for t in turns), "ratio": median_ratio(turns),
    }  # fmt: skip


def threads(case: Case) -> dict[str, Any]:
    """Two threads against one, sampler evaluations per second."""
    (batch,) = Execution(device="cpu").place([case.problem], Spend(1))
    before, turns = torch.get_num_threads(), []
    rate = partial(sampler_rate, batch, case, PCN())
    try:
        for seed in range(3):
            pair = []
            for count in (2, 1):
                torch.set_num_threads(count)
                pair.append(rate(seed))
            turns.append((pair[0], pair[1]))
    finally:
        torch.set_num_threads(before)
    two, one = (statistics.median(t[k] for t in turns) for k in (0, 1))
    return {"network": case.name, "N": case.particles, "two": two, "one": one, "ratio": median_ratio(turns)}


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--only", default="", help="names that contain this, and no other tables")
    args = options(wanted)
    chosen = [case for case in cases(args.data, args.device, args.quick) if args.only in case.name]
    results: dict[str, Any] = {"bare": [], "batch": None, "threads": []}
    header: tuple[str, ...]
    header = ("network", "kernel", "N", "M", "rows per pass", "sampler evaluations/s", "bare forward/s", "ratio")
    print(table(header, []))
    for case in chosen:
        for row in against_bare(case, args.device):
            print(table_row(tuple(row.values())), flush=True)
            results["bare"].append(row)
    print()
    if not args.only:
        batch = results["batch"] = batch_against_single(args.data, args.device, args.quick)
        header = ("problems", "in one batch, evaluations/s", "one at a time", "ratio")
        print(table(header, [tuple(batch.values())]), "\n")
    if not args.only and args.device == "cpu":
        results["threads"] = [threads(case) for case in chosen]
        header = ("network", "N", "two threads, evaluations/s", "one thread", "ratio")
        print(table(header, [tuple(row.values()) for row in results["threads"]]), "\n")
    write_json(args.json, args.device, results)


if __name__ == "__main__":
    main()
