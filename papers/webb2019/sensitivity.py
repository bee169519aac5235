"""Experiment 2 (section 6.2, figures 1b, 1c and 4): the influence of rho, N and M on CollisionDetection.

Algorithm 1 with the paper's random walk at rho in {0.1, 0.25, 0.5}, N in {1e3, 1e4, 1e5}, M in {100, 250, 1000}, with
the rule as printed (survivors have s >= L) and with the strict one (s > L) beside it, on the 172 satisfiable
properties, 30 runs of each. All of it is 4e13 network evaluations, half of them for M = 1000 at N = 1e5: work goes in
rounds, in each from the setting of the paper's figures to the dearest one, and `--seconds` may cut it anywhere.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import rarely
from papers.webb2019 import collision, common, drawing
from papers.webb2019.collision import Truth
from papers.webb2019.common import Context, log_mean
from papers.webb2019.replicates import Single, independent_runs
from rarely.kernels import RandomWalk

Rule = Literal["paper", "strict"]
RULES: tuple[Rule, ...] = ("paper", "strict")

COLUMNS = ("rule", "quantile", "particles", "steps", "round", "file", "replicates", "log_mean", "error", "lost",
           "calls", "seconds", "device")  # fmt: skip
UNIT = COLUMNS[:5]


@dataclass(frozen=True)
class Grid:
    quantiles: tuple[float, ...]
    steps: tuple[int, ...]
    replicates: dict[int, int]  # N, in the order of value, and the runs of one round: together some 1e7 particles
    properties: int = 1000  # at most


FULL = Grid((0.1, 0.25, 0.5), (100, 250, 1000), {10_000: 10, 1_000: 30, 100_000: 1})
QUICK = Grid((0.1, 0.5), (5, 20), {300: 2, 100: 4}, properties=8)


@dataclass(frozen=True)
class Cell:
    rule: Rule
    quantile: float
    particles: int
    steps: int

    def estimator(self) -> rarely.Splitting:
        return rarely.Splitting(
            self.particles, self.quantile, self.steps, RandomWalk(), log_p_min=collision.LOG_FLOOR, islands=1,
            rule=self.rule,
        )  # fmt: skip

    def calls(self, log_prob: float) -> float:
        """Of one run, as expected: N at first, N M a level."""
        return self.particles * (1 + self.steps * math.floor(log_prob / math.log(self.quantile)))


def cells(grid: Grid) -> list[Cell]:
    """By value: the N of the paper's figures first, the longest chains of the largest populations last."""
    every = [Cell(r, q, n, m) for n in grid.replicates for m in grid.steps for q in grid.quantiles for r in RULES]
    last = max(grid.replicates), max(grid.steps)
    return sorted(every, key=lambda cell: (cell.particles, cell.steps) == last)


@dataclass(frozen=True)
class Work:
    """A unit: some runs of one cell on every property."""

    cell: Cell
    number: int  # of the round
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        cell = self.cell
        return {
            "rule": cell.rule, "quantile": cell.quantile, "particles": cell.particles, "steps": cell.steps,
            "round": self.number,
        }  # fmt: skip


def units(grid: Grid, args: argparse.Namespace) -> list[Work]:
    """Rounds until every cell that is asked for has `--runs` runs."""
    rounds = {n: math.ceil(args.runs / each) for n, each in grid.replicates.items()}
    return [
        Work(cell, number, 1000 * number + index)
        for number in range(max(rounds.values()))
        for index, cell in enumerate(cells(grid))
        if number < rounds[cell.particles]
        and (args.particles is None or cell.particles in args.particles)
        and (args.steps is None or cell.steps in args.steps)
    ]


def options(parser: argparse.ArgumentParser) -> None:
    collision.add_reference(parser)
    parser.add_argument("--runs", type=int, help="of each setting at least (30, as in the paper)")
    parser.add_argument("--particles", type=int, nargs="+", metavar="N", help="only these N of the grid")
    parser.add_argument("--steps", type=int, nargs="+", metavar="M", help="only these M of the grid")


def truth(context: Context) -> dict[str, Truth]:
    """What is known of every property, rarest first: the references, and the runs of rarely's default for the others.

    Those runs are the ones that are kept beside this script. Plain Monte Carlo, which they agree with, has one per cent
    at best.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for row in common.read(common.RESULTS / "collision" / "auto.csv"):
        if row["verdict"] == "SAT":
            groups[row["file"]].append(float(row["log_prob"]))
    known = {file: Truth(*log_mean(values)) for file, values in groups.items()}
    known |= collision.references(collision.reference_path(context))
    if not known:
        common.stop("no reference probabilities: give --reference FILE, or run papers.webb2019.collision first")
    return {file: known[file] for file in sorted(known, key=lambda file: known[file].log_prob)}


def _spread(files: Sequence[str], most: int) -> list[str]:
    """At most `most` of the files, evenly from rare to common, the rarest among them."""
    return [files[i * len(files) // most] for i in range(most)] if len(files) > most else list(files)


def measure(context: Context, grid: Grid) -> None:
    known = truth(context)
    files = _spread(list(known), grid.properties)
    named = {problem.name: problem for problem in collision.load(context, "SAT", files)}
    problems = [named[file] for file in files]
    table = common.Table(context.out / "sensitivity.csv", COLUMNS, UNIT)
    todo = [work for work in context.mine(units(grid, context.args)) if not table.has(**work.key)]
    speed = math.inf  # calls in a second, as measured on the last unit
    with common.progress("sensitivity", len(todo)) as display:
        for work in todo:
            runs = grid.replicates[work.cell.particles]
            calls = runs * sum(work.cell.calls(known[file].log_prob) for file in files)
            if context.late or calls / speed > context.left:
                continue  # a shorter one may still fit
            started = time.monotonic()
            found = independent_runs(
                problems, work.cell.estimator(), runs, seed=work.seed, device=context.device, note=display.note
            )
            seconds = time.monotonic() - started
            speed = sum(run.calls for own in found for run in own) / seconds
            device = rarely.Execution(device=context.device).resolve()
            each = {**work.key, "seconds": seconds / (runs * len(files)), "device": device}
            table.add([{**each, "file": file, **_row(own)} for file, own in zip(files, found, strict=True)])
            display.done(f"{work.cell}, {speed:.1e} calls a second")


def _row(runs: Sequence[Single]) -> dict[str, Any]:
    """One property in one cell: the logarithm of the mean over its runs."""
    mean, error = log_mean([run.log_prob for run in runs])
    return {
        "replicates": len(runs), "log_mean": mean, "error": runs[0].std if len(runs) == 1 else error,
        "lost": sum(run.log_prob == -math.inf for run in runs),
        "calls": sum(run.calls for run in runs) / len(runs),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    from papers.webb2019.sensitivity_figures import figures

    context = common.start("sensitivity", __doc__, argv, options)
    context.fill({"runs": 2 if context.quick else 30})
    if not context.args.figures_only:
        measure(context, QUICK if context.quick else FULL)
    drawing.draw(context, figures)


if __name__ == "__main__":
    main()
