"""Is a trusted answer right? Problems with exact or brute-force answers in many families: coverage among trusted.

    RARELY_DATA=... python benchmarks/trust.py [FAMILY ...] [--repeats 20] [--part tuned|kept|all] [--decisions]

An answer counts as trusted unless its outcome is `stalled`; it covers when the 95 % interval (or the bound, where there
is no number) holds the truth. Families are of three kinds: those that methods and thresholds were tuned on, those kept
back, which are looked at once a change is finished, and those known to fail; docs/benchmarks.md has the tables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

import trust_families as families
from common import parser, table, write_json
from rarely import Auto, Estimate, Outcome, certify, estimate, test
from rarely.questions.threshold import Ruling

FACTORS = (0.1, 0.5, 2.0, 10.0)  # p_max over p
TIMEOUT = 20.0  # seconds of a decision


@dataclass(frozen=True)
class Row:
    """One problem, all repeats."""

    family: str
    part: str
    problem: str
    truth: float
    runs: int
    trusted: int
    covered: int  # of the trusted
    numbers: int  # trusted ones that are numbers
    calls: float
    rmse: float  # of trusted numbers
    seconds: float


def covers(result: Estimate, truth: float, error: float) -> bool:
    """Whether the interval holds the truth, give or take two of the truth's own standard deviations."""
    if result.outcome is Outcome.VIOLATED:
        return result.interval.low - 2 * error <= truth <= result.interval.high + 2 * error
    if result.outcome is Outcome.PROVED_SAFE:
        return truth == -math.inf
    return truth <= result.upper_bound + 2 * error


def run_problem(job: tuple[str, str, int, int]) -> Row:
    """All repeats of one problem, in batches: every copy has random numbers of its own."""
    family, name, repeats, seed = job
    torch.set_num_threads(1)
    case = families.ALL[family].cases()[name]
    begun, results = time.monotonic(), list[Estimate]()
    while len(results) < repeats:
        copies = min(case.at_once, repeats - len(results))
        results += estimate([case.problem] * copies, Auto(), seed=seed + len(results), device="cpu")
    trusted = [r for r in results if r.outcome is not Outcome.STALLED]
    errors = [r.log_prob - case.truth for r in trusted if r.outcome is Outcome.VIOLATED]
    rmse = math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else math.nan
    covered = sum(covers(r, case.truth, case.error) for r in trusted)
    calls = sum(r.calls for r in results) / len(results)
    return Row(
        family, families.ALL[family].part, name, case.truth, len(results), len(trusted), covered, len(errors), calls,
        rmse, time.monotonic() - begun,
    )  # fmt: skip


def summed(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """A line for each family, and one for all."""
    lines: list[tuple[object, ...]] = []
    for family in dict.fromkeys(row.family for row in rows):
        lines.append(_line(family, [row for row in rows if row.family == family]))
    for part in dict.fromkeys(row.part for row in rows):
        lines.append(_line(f"**all, {part}**", [row for row in rows if row.part == part]))
    return lines


def _line(name: str, rows: Sequence[Row]) -> tuple[object, ...]:
    runs, trusted, covered = (sum(getattr(row, key) for row in rows) for key in ("runs", "trusted", "covered"))
    share = f"{covered / trusted:.1%} ({covered} of {trusted})" if trusted else "none trusted"
    square = sum(row.rmse**2 * row.numbers for row in rows if row.numbers)
    numbers = sum(row.numbers for row in rows)
    rmse = f"{math.sqrt(square / numbers):.2f}" if numbers else "-"
    calls = sum(row.calls * row.runs for row in rows) / runs
    return name, len(rows), share, f"{1 - trusted / runs:.0%}", f"{calls:,.0f}", rmse


# Decisions: p_max beside the truth ---------------------------------------------------------------------------------


def decide_problem(job: tuple[str, str, int, int]) -> list[tuple[str, str, float, int, int, int]]:
    """(family, question, p_max over p, runs, wrong, undecided) of one problem."""
    family, name, repeats, seed = job
    torch.set_num_threads(1)
    case, found = families.ALL[family].cases()[name], []
    for question in (test, certify):
        for factor in FACTORS:
            p_max = math.exp(case.truth) * factor
            if not 1e-200 < p_max < 1:
                continue
            wrong = undecided = 0
            for i in range(repeats):
                decision = question(case.problem, p_max, seed=seed + i, device="cpu", timeout=TIMEOUT)
                wrong += decision.ruling is (Ruling.ACCEPTED if factor < 1 else Ruling.REJECTED)
                undecided += decision.ruling is Ruling.UNDECIDED
            found.append((family, question.__name__, factor, repeats, wrong, undecided))
    return found


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("families", nargs="*", help=", ".join(families.ALL))
    wanted.add_argument("--repeats", type=int, default=20)
    wanted.add_argument("--seed", type=int, default=0)
    wanted.add_argument("--part", choices=("tuned", "kept", "open", "all"), default="tuned")
    wanted.add_argument("--decisions", action="store_true", help="error rates of test and certify instead")
    wanted.add_argument("--problems", action="store_true", help="a line for each problem, too")
    wanted.add_argument("--workers", type=int, default=2)
    args = wanted.parse_args()
    chosen = args.families or [n for n, f in families.ALL.items() if args.part in (f.part, "all")]
    jobs = [(family, name, args.repeats, args.seed) for family in chosen for name in families.ALL[family].cases()]
    print(f"{len(jobs)} problems in {len(chosen)} families, {args.repeats} repeats, seed {args.seed}\n", flush=True)
    begun = time.monotonic()
    with ProcessPoolExecutor(args.workers) as pool:
        if args.decisions:
            lines = [line for found in pool.map(decide_problem, jobs) for line in found]
            _show_decisions(lines)
            return
        rows = []
        for row in pool.map(run_problem, jobs):
            rows.append(row)
            if args.problems:
                share = f"{row.covered} of {row.trusted}"
                print(f"{row.family:28} {row.problem:34} {row.truth:8.2f} {share:>10} trusted of {row.runs}, "
                      f"{row.calls:9,.0f} calls, rmse {row.rmse:.2f}, {row.seconds:.0f} s", flush=True)  # fmt: skip
    header = ("family", "problems", "covered among trusted", "flagged", "calls", "RMSE")
    print("\n" + table(header, summed(rows)))
    print(f"\n{time.monotonic() - begun:.0f} s")
    write_json(args.json, "cpu", [row.__dict__ for row in rows])


def _show_decisions(lines: Sequence[tuple[str, str, float, int, int, int]]) -> None:
    groups: dict[tuple[str, str, float], list[int]] = {}
    for family, question, factor, *counts in lines:
        total = groups.setdefault((family, question, factor), [0, 0, 0])
        for k in range(3):
            total[k] += counts[k]
    rows = [(f, q, x, n, w, f"{w / n:.1%}", f"{u / n:.0%}") for (f, q, x), (n, w, u) in groups.items()]
    print(table(("family", "question", "p_max / p", "runs", "wrong", "share", "undecided"), rows))


if __name__ == "__main__":
    main()
