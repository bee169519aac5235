"""All 500 CollisionDetection properties as one batch, and the 186 ACAS Xu instances: time, evaluations, verdicts, RMSE.

RARELY_DATA=... python benchmarks/suite.py [--device cuda] [--acas 186] [--estimators splitting,auto]
"""

from __future__ import annotations

import csv
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import collision_problems, collision_references, options, parser, sync, table, write_json
from rarely import Auto, Estimate, Problem, Splitting, estimate
from rarely.methods import Estimator

ESTIMATORS: dict[str, Estimator] = {
    "splitting": Splitting(particles=16000, quantile=0.1, steps=1, islands=8, keep="all"),
    "auto": Auto(),
}


def run(problems: list[Problem], estimator: Estimator, device: str, seed: int) -> tuple[list[Estimate], float]:
    sync(device)
    start = time.perf_counter()
    found = estimate(problems, estimator, seed=seed, device=device)
    sync(device)
    return found, time.perf_counter() - start


def summary(found: list[Estimate], wanted: list[bool], truth: dict[str, float]) -> dict[str, Any]:
    """Verdicts against those of the files (True: a violation exists), and log p against the references."""
    violated = [len(result.witnesses) > 0 for result in found]
    errors = [r.log_prob - truth[r.name] for r in found if r.name in truth]
    covered = [r.interval.low <= truth[r.name] <= r.interval.high for r in found if r.name in truth]
    return {
        "evaluations": sum(result.calls for result in found),
        "violated of satisfiable": f"{sum(v and w for v, w in zip(violated, wanted, strict=True))} of {sum(wanted)}",
        "violated of unsatisfiable": sum(v and not w for v, w in zip(violated, wanted, strict=True)),
        "references": len(errors),
        "rmse": math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else math.nan,
        "bias": sum(errors) / len(errors) if errors else math.nan,
        "covered": f"{sum(covered)} of {len(covered)}",
        "outcomes": ", ".join(f"{k.value} {n}" for k, n in Counter(r.outcome for r in found).items()),
    }


def collision(
    data: Path, reference: Path, device: str, names: list[str], quick: bool, seed: int
) -> list[dict[str, Any]]:
    truth = collision_references(reference) if reference.exists() else {}
    kinds = {"172 satisfiable": "SAT"} if quick else {"172 satisfiable": "SAT", "all 500": ""}
    rows = []
    for kind, verdict in kinds.items():
        problems = collision_problems(data, None, verdict)
        wanted = ["UNSAT" not in problem.name for problem in problems]
        for name in names:
            if device.startswith("cuda"):
                run(problems[:20], ESTIMATORS[name], device, seed)  # warm-up
            found, seconds = run(problems, ESTIMATORS[name], device, seed)
            rows.append({"suite": kind, "estimator": name, "seconds": seconds, **summary(found, wanted, truth)})
    return rows


def acas(data: Path, device: str, names: list[str], limit: int, seed: int) -> list[dict[str, Any]]:
    from rarely import load_problem

    folder = data / "acasxu"
    with (folder / "acasxu_verdicts.csv").open() as lines:
        chosen = list(csv.DictReader(lines))[:limit]
    problems = [
        load_problem(folder / "onnx" / row["network"], folder / "vnnlib" / row["property"], name=row["network"])
        for row in chosen
    ]
    wanted = [row["verdict"] == "sat" for row in chosen]
    rows = []
    for name in names:
        found, seconds = run(problems, ESTIMATORS[name], device, seed)
        summed = summary(found, wanted, {})
        rows.append({"suite": f"{len(problems)} ACAS Xu", "estimator": name, "seconds": seconds, **summed})
        print_instances(name, chosen, found)
    return rows


def print_instances(name: str, chosen: list[dict[str, str]], found: list[Estimate]) -> None:
    """The probabilities of those that are violated, or where the verdict differs."""
    lines = []
    for row, result in zip(chosen, found, strict=True):
        violated = len(result.witnesses) > 0
        if violated or row["verdict"] == "sat":
            network = row["network"].removeprefix("ACASXU_run2a_").removesuffix("_batch_2000.onnx")
            agrees = "yes" if violated == (row["verdict"] == "sat") else "NO"
            number = result.log_prob if math.isfinite(result.log_prob) else "none"
            lines.append((network, row["property"], row["verdict"], result.outcome.value, number, result.calls, agrees))
    header = ("network", "property", "verdict", "outcome", "log p", "calls", "agrees")
    print(f"ACAS Xu, {name}\n\n{table(header, lines)}\n")


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--reference", type=Path, help="log-probabilities (csv: file, log_prob)")
    wanted.add_argument("--acas", type=int, default=186, metavar="N", help="first N instances of ACAS Xu; 0 for none")
    wanted.add_argument("--estimators", default="splitting,auto")
    wanted.add_argument("--seed", type=int, default=0)
    args = options(wanted)
    reference = args.reference or args.data / ".." / "reference" / "collision_detection_log_prob.csv"
    names = args.estimators.split(",")
    rows = collision(args.data, reference, args.device, names, args.quick, args.seed)
    print(table(tuple(rows[0]), [tuple(row.values()) for row in rows]), "\n")
    if args.acas:
        more = acas(args.data, args.device, names, 20 if args.quick else args.acas, args.seed)
        print(table(tuple(more[0]), [tuple(row.values()) for row in more]), "\n")
        rows += more
    write_json(args.json, args.device, rows)


if __name__ == "__main__":
    main()
