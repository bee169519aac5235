"""Experiment 1 (section 6.1, figure 1a): emulating formal verification on the 500 CollisionDetection properties.

Three methods: the paper's (Algorithm 1 as printed, random walk, rho = 0.1, N = 10000, M = 1000, 30 runs), the default
estimator of rarely (with its proofs), and plain Monte Carlo, streamed on the device until a property has 10000
violations or its samples are spent. Properties that no input violates have a number of runs of their own
(--unsat-runs): the levels creep up to a maximum below 0 there, about forty of them before float32 has no more to tell
them apart, so that one run of all costs as much as twenty of those that are violated.
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
from papers.webb2019 import common, drawing
from papers.webb2019.common import Context
from papers.webb2019.replicates import Single, independent_runs
from papers.webb2019.streamed import Fused, stream
from rarely.kernels import RandomWalk

LOG_FLOOR = -250.0  # the paper's P_min, natural log
LONGEST = 60.0  # seconds that one batch may take: what a killed run loses

ESTIMATES = ("method", "run", "file", "verdict", "log_prob", "std", "low", "high", "outcome", "witnesses", "calls",
             "seconds", "particles", "steps", "device")  # fmt: skip
UNIT = ("method", "run", "verdict")


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
    parser.add_argument("--unsat-runs", type=int, help="runs of the paper's method where no violation exists (30)")
    parser.add_argument("--particles", type=int, help="N of the paper's method (10000)")
    parser.add_argument("--steps", type=int, help="M of the paper's method (1000)")
    parser.add_argument("--unsat-steps", type=int, help="M where no violation exists (1000)")
    parser.add_argument("--together", type=int, default=10, help="runs of the paper's method in one batch (10)")
    parser.add_argument(
        "--samples", type=float, help="plain Monte Carlo: most samples of a satisfiable property (1e10)"
    )
    parser.add_argument("--unsat-samples", type=float, help="plain Monte Carlo: samples of the others (1e10)")
    parser.add_argument(
        "--no-fused", action="store_true", help="plain Monte Carlo by the network itself, not by Triton"
    )


FULL = {"runs": 30, "unsat_runs": 30, "particles": 10_000, "steps": 1000, "unsat_steps": 1000, "samples": 1e10,
        "unsat_samples": 1e10}  # fmt: skip
QUICK = {"runs": 2, "unsat_runs": 1, "particles": 300, "steps": 20, "unsat_steps": 5, "samples": 1e5,
         "unsat_samples": 1e4}  # fmt: skip


def papers_method(particles: int, steps: int) -> rarely.Splitting:
    """Algorithm 1 as printed: one population, survivors with s >= L, M steps of the random walk."""
    return rarely.Splitting(
        particles, quantile=0.1, steps=steps, kernel=RandomWalk(), log_p_min=LOG_FLOOR, islands=1, rule="paper"
    )


def measure(context: Context) -> None:
    methods, wanted = {"auto": default_runs, "paper": papers_runs, "plain": count}, context.args.methods.split(",")
    for unknown in (method for method in wanted if method not in methods):
        common.stop(f"--methods knows {', '.join(methods)}, not {unknown!r}")
    every = {"SAT": 12, "UNSAT": 40} if context.quick else {"SAT": 1, "UNSAT": 1}
    problems = {verdict: load(context, verdict)[::step] for verdict, step in every.items()}
    for method in wanted:
        methods[method](context, problems)


def default_runs(context: Context, problems: dict[str, list[rarely.Problem]]) -> None:
    """rarely's default: `--runs` runs where a violation exists, one where none does."""
    table = common.Table(context.out / "auto.csv", ESTIMATES, UNIT)
    units = context.mine([("SAT", 0), ("UNSAT", 0), *(("SAT", run) for run in range(1, context.args.runs))])
    todo = [(kind, run) for kind, run in units if not table.has(method="auto", run=run, verdict=kind)]
    with common.progress("collision, auto", len(todo)) as display:
        for verdict, run in todo:
            if context.late:
                return
            started = time.monotonic()
            found = rarely.estimate(problems[verdict], seed=run, device=context.device, progress=display.note)
            each = (time.monotonic() - started) / len(found)
            table.add([_default(run, verdict, result, each) for result in found])
            display.done(_violated(verdict, [len(result.witnesses) for result in found]))


def _default(run: int, verdict: str, result: rarely.Estimate, seconds: float) -> dict[str, object]:
    return {
        "method": "auto", "run": run, "file": result.name, "verdict": verdict, "log_prob": result.log_prob,
        "std": result.log_prob_std, "low": result.interval.low, "high": result.interval.high,
        "outcome": result.outcome.value, "witnesses": len(result.witnesses), "calls": result.calls,
        "seconds": seconds, "particles": "", "steps": "", "device": result.provenance["device"],
    }  # fmt: skip


def papers_runs(context: Context, problems: dict[str, list[rarely.Problem]]) -> None:
    """Algorithm 1, several runs in one batch: first those that say something of p, then those that end as 0."""
    args = context.args
    table = common.Table(context.out / "paper.csv", ESTIMATES, UNIT)
    for verdict, runs, steps in (("SAT", args.runs, args.steps), ("UNSAT", args.unsat_runs, args.unsat_steps)):
        settings = papers_method(args.particles, steps)
        units = context.mine(range(runs))
        todo = [run for run in units if not table.has(method="paper", run=run, verdict=verdict)]
        pace = 0.0  # seconds of a run in the last batch
        with common.progress(f"collision, Algorithm 1, {verdict}", len(todo)) as display:
            while todo and context.left > pace:
                # The first alone: a result that a cut-off cannot take, and it tells how long one lasts.
                size = max(1, int(min(args.together, min(context.left, LONGEST) / pace))) if pace else 1
                group, todo = todo[:size], todo[size:]
                pace = _papers_batch(context, table, problems[verdict], verdict, settings, group, display)


def _papers_batch(
    context: Context, table: common.Table, problems: list[rarely.Problem], verdict: str, settings: rarely.Splitting,
    group: list[int], display: common.Display,
) -> float:  # fmt: skip
    """Seconds of a run, shared evenly."""
    started = time.monotonic()
    found = independent_runs(
        problems, settings, len(group), seed=group[0], device=context.device, note=display.note
    )  # fmt: skip
    seconds = (time.monotonic() - started) / len(group)
    device = str(rarely.Execution(device=context.device).resolve())
    for i, run in enumerate(group):
        own = [runs[i] for runs in found]
        table.add([
            {"run": run, "file": problem.name, "verdict": verdict, "seconds": seconds / len(problems),
             "device": device, **_papers(single, settings)}
            for problem, single in zip(problems, own, strict=True)
        ])  # fmt: skip
        display.done(_violated(verdict, [single.witnesses for single in own]))
    return seconds


def _papers(single: Single, settings: rarely.Splitting) -> dict[str, object]:
    """Algorithm 1 gives a single run no interval."""
    return {
        "method": "paper", "log_prob": single.log_prob, "std": single.std, "low": "", "high": "",
        "outcome": single.outcome.value, "witnesses": single.witnesses, "calls": single.calls,
        "particles": settings.particles, "steps": settings.steps,
    }  # fmt: skip


def _violated(verdict: str, witnesses: Sequence[int]) -> str:
    return f"{verdict}: {sum(count > 0 for count in witnesses)} of {len(witnesses)} violated"


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
    drawing.draw(context, figures)


if __name__ == "__main__":
    main()
