"""Experiment 1 (section 6.1, figure 1a): emulating formal verification on the 500 CollisionDetection properties.

Three methods: the paper's (Algorithm 1 as printed, random walk, rho = 0.1, N = 10000, M = 1000, 30 runs), the default
estimator of rarely (with its proofs), and plain Monte Carlo, streamed on the device until a property has 10000
violations or its samples are spent. Properties that no input violates are run with fewer steps (--unsat-steps): the
levels creep up to a maximum below 0 there, about forty of them before float32 has no more to tell them apart.
"""

from __future__ import annotations

import argparse
import csv
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rarely
from papers.webb2019 import common
from papers.webb2019.common import Context
from papers.webb2019.streamed import Fused, stream
from rarely.kernels import RandomWalk
from rarely.methods import Estimator

LOG_FLOOR = -250.0  # the paper's P_min, natural log
TOGETHER = 3  # runs in one batch: 172 properties of 10000 particles alone would leave a GPU waiting

ESTIMATES = ("method", "run", "file", "verdict", "log_prob", "std", "low", "high", "outcome", "witnesses", "calls",
             "seconds", "particles", "steps", "device")  # fmt: skip


# Problems ------------------------------------------------------------------------------------------------------------


def load(context: Context, verdict: str, names: Sequence[str] | None = None) -> list[rarely.Problem]:
    """The properties with that verdict (SAT: a violation exists), or the named ones, in the manifest's order."""
    with context.file("collision_detection", "manifest.csv").open() as lines:
        listed = [row["file"] for row in csv.DictReader(lines) if row["verdict"] == verdict]
    wanted = [name for name in listed if names is None or name in names]
    archive = context.file("collision_detection", "collisionDetection.tar.gz")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
        return [rarely.load_problem(Path(folder, "collisionDetection", name), name=name) for name in wanted]


@dataclass(frozen=True)
class Truth:
    log_prob: float
    std: float


def references(path: Path) -> dict[str, Truth]:
    """Log-probabilities that somebody computed with very many samples; none when the file is not there."""
    return {row["file"]: Truth(float(row["log_prob"]), float(row["log_prob_sd"])) for row in common.read(path)}


def add_reference(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reference", type=Path, help="csv: file, log_prob, log_prob_sd (default: beside the data)")


def reference_path(context: Context) -> Path:
    beside = context.data / ".." / "reference" / "collision_detection_log_prob.csv"
    return Path(context.args.reference or beside)


# Runs ----------------------------------------------------------------------------------------------------------------


def options(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    parser.add_argument("--methods", default="auto,paper,plain", help="which of auto, paper, plain, and in which order")
    parser.add_argument("--runs", type=int, help="repetitions for error bars (30, as in the paper)")
    parser.add_argument("--particles", type=int, help="N of the paper's method (10000)")
    parser.add_argument("--steps", type=int, help="M of the paper's method (1000)")
    parser.add_argument("--unsat-steps", type=int, help="M where no violation exists (100)")
    parser.add_argument(
        "--samples", type=float, help="plain Monte Carlo: most samples of a satisfiable property (1e10)"
    )
    parser.add_argument("--unsat-samples", type=float, help="plain Monte Carlo: samples of the others (1e9)")
    parser.add_argument(
        "--no-fused", action="store_true", help="plain Monte Carlo by the network itself, not by Triton"
    )


FULL = {"runs": 30, "particles": 10_000, "steps": 1000, "unsat_steps": 100, "samples": 1e10, "unsat_samples": 1e9}
QUICK = {"runs": 2, "particles": 300, "steps": 20, "unsat_steps": 5, "samples": 1e5, "unsat_samples": 1e4}


def papers_method(particles: int, steps: int) -> Estimator:
    """Algorithm 1 as printed: one population, survivors with s >= L, M steps of the random walk."""
    return rarely.Splitting(
        particles, quantile=0.1, steps=steps, kernel=RandomWalk(), log_p_min=LOG_FLOOR, islands=1, rule="paper"
    )


def measure(context: Context) -> None:
    args = context.args
    every = {"SAT": 12, "UNSAT": 40} if context.quick else {"SAT": 1, "UNSAT": 1}
    problems = {verdict: load(context, verdict)[::step] for verdict, step in every.items()}
    for method in args.methods.split(","):
        if method == "plain":
            count(context, problems)
        elif method == "auto":
            estimates(context, problems, method, {"SAT": rarely.Auto(), "UNSAT": rarely.Auto()})
        elif method == "paper":
            steps = {"SAT": args.steps, "UNSAT": args.unsat_steps}
            chosen = {verdict: papers_method(args.particles, m) for verdict, m in steps.items()}
            estimates(context, problems, method, chosen)
        else:
            common.stop(f"--methods knows auto, paper and plain, not {method!r}")


def estimates(
    context: Context, problems: dict[str, list[rarely.Problem]], method: str, chosen: dict[str, Estimator]
) -> None:
    """`--runs` runs where a violation exists, one where none does."""
    table = common.Table(context.out / f"{method}.csv", ESTIMATES, ("method", "run", "verdict"))
    units = context.mine([("SAT", 0), ("UNSAT", 0), *(("SAT", run) for run in range(1, context.args.runs))])
    todo = [(kind, run) for kind, run in units if not table.has(method=method, run=run, verdict=kind)]
    with common.progress(f"collision, {method}", len(todo)) as display:
        slowest = 0.0  # seconds of one run so far
        while todo and context.left > slowest:
            verdict = todo[0][0]
            fitting = max(1, min(TOGETHER, int(min(context.left, 1e6) / max(slowest, 1e-6))))
            group = [run for kind, run in todo if kind == verdict][:fitting]
            if context.quick or verdict == "UNSAT" or todo[0][1] == 0:
                group = group[:1]  # the first alone: it is a result that a cut-off cannot take
            todo = [(kind, run) for kind, run in todo if kind != verdict or run not in group]
            started = time.monotonic()
            found = rarely.estimate(
                problems[verdict] * len(group), chosen[verdict], seed=group[0], device=context.device,
                progress=display.note,
            )  # fmt: skip
            each = (time.monotonic() - started) / len(found)
            slowest = max(slowest, each * len(problems[verdict]))
            rows = [
                _row(method, run, verdict, result, each, chosen[verdict])
                for run, results in zip(group, _parts(found, len(group)), strict=True)
                for result in results
            ]
            table.add(rows)
            for _ in group:
                display.done(f"{verdict}: {sum(int(row['witnesses']) > 0 for row in rows)} of {len(rows)} violated")


def _parts(found: list[rarely.Estimate], count: int) -> list[list[rarely.Estimate]]:
    size = len(found) // count
    return [found[i * size : (i + 1) * size] for i in range(count)]


def _row(
    method: str, run: int, verdict: str, result: rarely.Estimate, seconds: float, chosen: Estimator
) -> dict[str, str | float | int]:
    """A line of the table. Seconds are those of the batch, shared evenly."""
    walk = chosen if isinstance(chosen, rarely.Splitting) else None
    return {
        "method": method, "run": run, "file": result.name, "verdict": verdict, "log_prob": result.log_prob,
        "std": result.log_prob_std, "low": result.interval.low, "high": result.interval.high,
        "outcome": result.outcome.value, "witnesses": len(result.witnesses), "calls": result.calls,
        "seconds": seconds, "particles": walk.particles if walk else "", "steps": walk.steps if walk else "",
        "device": result.provenance["device"],
    }  # fmt: skip


def count(context: Context, problems: dict[str, list[rarely.Problem]]) -> None:
    """Plain Monte Carlo, by one kernel for this network where that can be had."""
    device = rarely.Execution(device=context.device).resolve()
    wanted = Fused.available(device) and not context.args.no_fused
    fused = Fused(problems["SAT"][0].network) if wanted else None
    if fused is not None:
        fused.check(problems["SAT"], device)
    samples = {"SAT": int(context.args.samples), "UNSAT": int(context.args.unsat_samples)}
    stream(context, "collision, plain Monte Carlo", problems, samples, fused)


def main(argv: Sequence[str] | None = None) -> None:
    from papers.webb2019.collision_figures import figures

    context = common.start("collision", __doc__, argv, options)
    context.fill(QUICK if context.quick else FULL)
    if not context.args.figures_only:
        measure(context)
    common.draw(context, figures)


if __name__ == "__main__":
    main()
