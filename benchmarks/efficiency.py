"""How many network calls a target precision costs: the tables of docs/benchmarks.md.

    python benchmarks/efficiency.py --data $RARELY_DATA --reference ../shared/reference --seeds 20

RMSE is of log p against a reference or an exact value, over `--seeds` independent runs that share one batch. Calls
count a gradient as three.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import rarely
from common import cifar_image, collision_problems, collision_references, mnist_image, mnist_network
from models import load_resnet
from rarely.kernels import HMC, PCN, Kernel, Langevin, RandomWalk
from rarely.methods import Estimator, Tilting

UNPROVED = rarely.Auto(proof_seconds=0)  # bounds through 20 convolutions take seconds and prove nothing here


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    problem: str
    truth: float
    method: str
    calls: float
    most: int
    bias: float
    rmse: float
    covered: float
    trusted: float
    seconds: float

    @property
    def efficiency(self) -> float:
        return self.calls * self.rmse**2


def measure(
    problem: rarely.Problem, truth: float, method: str, estimator: Estimator, seeds: int, device: str, group: int = 0
) -> Row:
    """Run `seeds` copies of a problem, `group` at a time (all at once by default), and compare with the truth."""
    started = time.monotonic()
    results: list[rarely.Estimate] = []
    size = group or seeds
    for first in range(0, seeds, size):
        copies = [problem] * min(size, seeds - first)
        results += rarely.estimate(copies, estimator, seed=first, device=device)
    errors = torch.tensor([r.log_prob - truth for r in results], dtype=torch.float64)
    finite = errors[torch.isfinite(errors)]
    return Row(
        problem.name,
        truth,
        method,
        sum(r.calls for r in results) / seeds,
        max(r.calls for r in results),
        float(finite.mean()),
        math.sqrt(float((finite**2).mean())) if len(finite) == seeds else math.inf,
        sum(truth in r.interval for r in results) / seeds,
        sum(r.outcome is rarely.Outcome.VIOLATED for r in results) / seeds,
        time.monotonic() - started,
    )


def show(title: str, rows: list[Row]) -> None:
    print(f"\n## {title}\n")
    print("| problem | log p | method | calls (mean) | most | bias | RMSE | covered | trusted | calls x MSE | s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r.problem} | {r.truth:.2f} | {r.method} | {r.calls:,.0f} | {r.most:,} | {r.bias:+.3f} | {r.rmse:.3f} "
            f"| {r.covered:.0%} | {r.trusted:.0%} | {r.efficiency:,.0f} | {r.seconds:.0f} |",
            flush=True,
        )


def black_box(problem: rarely.Problem) -> rarely.Problem:
    """The same problem behind a function without gradients. Copies of one problem share it, so they still batch."""
    module = problem.network

    class Closed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = module

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x)  # type: ignore[no-any-return]

    return rarely.Problem(Closed().eval(), problem.property, problem.inputs, name=problem.name)


def half_space(d: int, p: float) -> tuple[rarely.Problem, float]:
    """x . 1 / sqrt(d) >= beta for standard normal x."""
    beta = float(-torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))
    head = torch.nn.Linear(d, 1, bias=False)
    torch.nn.init.constant_(head.weight, 1 / math.sqrt(d))
    constraint = rarely.LinearConstraint([[-1.0]], [-beta])
    inputs = rarely.Gaussian(torch.zeros(d), 1.0)
    return rarely.Problem(head.eval(), constraint, inputs, name=f"half-space d={d}, p={p:g}"), math.log(p)


def resnet_problem(data: Path, index: int, eps: float, depth: int = 20) -> rarely.Problem:
    ball = rarely.LpBall(cifar_image(data, index), eps, clip=(0, 1))
    name = f"ResNet-{depth} image {index}, eps {eps:g}"
    return rarely.Problem(load_resnet(data / "cifar10_resnet", depth), rarely.Misclassification(), ball, name=name)


def resnet_problems(args: argparse.Namespace) -> list[tuple[rarely.Problem, float]]:
    """The referenced ResNet-20 problems with their log-probabilities; of others, large splitting runs are asked."""
    if args.resnet:
        problems = [resnet_problem(args.data, *which) for which in args.resnet]
        return [(problem, reference_value(problem, args.device)) for problem in problems]
    with (args.reference / "cifar10_resnet20_log_prob.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return [
        (resnet_problem(args.data, int(row["test_index"]), float(row["eps"])), float(row["log_prob"])) for row in rows
    ]


def mnist_problems(data: Path, reference: Path) -> list[tuple[rarely.Problem, float]]:
    """The referenced MNIST problems with their log-probabilities."""
    network, problems = mnist_network(data), []
    with (reference / "mnistfc_256x2_log_prob.csv").open() as lines:
        for row in csv.DictReader(lines):
            image, _ = mnist_image(data, int(row["test_index"]))
            ball = rarely.LpBall(image.reshape(784, 1), float(row["eps"]), clip=(0, 1))
            name = f"MNIST {row['test_index']}, eps {row['eps']}"
            prop = rarely.Misclassification(int(row["label"]))
            problems.append((rarely.Problem(network, prop, ball, name=name), float(row["log_prob"])))
    return problems


def reference_value(problem: rarely.Problem, device: str) -> float:
    """A value to compare with where none is published: 8 large runs of splitting, which `Auto` itself does not do."""
    large = rarely.Splitting(12_000, 0.1, 2, islands=8, keep="all")
    result = rarely.estimate(problem, large, seed=12345, device=device)
    print(f"reference for {problem.name}: log p = {result.log_prob:.3f} ± {result.log_prob_std:.3f}", flush=True)
    return result.log_prob


def section_mnist(args: argparse.Namespace) -> list[Row]:
    return [
        measure(p, truth, "Auto", rarely.Auto(), args.seeds, args.device)
        for p, truth in mnist_problems(args.data, args.reference)
    ]


def section_black_box(args: argparse.Namespace) -> list[Row]:
    return [
        measure(black_box(p), truth, "Auto, no gradients", rarely.Auto(), args.seeds, args.device, 5)
        for p, truth in mnist_problems(args.data, args.reference)
    ]


def section_half_space(args: argparse.Namespace) -> list[Row]:
    rows = []
    for d, p in ((1024, 1e-12), (100, 1e-6)):
        problem, truth = half_space(d, p)
        for method, estimator in (("Auto", rarely.Auto()), ("LineSampling", rarely.LineSampling())):
            rows.append(measure(problem, truth, method, estimator, args.seeds, args.device))
    return rows


def section_resnet(args: argparse.Namespace) -> list[Row]:
    return [measured(p, truth, "Auto", UNPROVED, args) for p, truth in resnet_problems(args)]


def section_resnet_black_box(args: argparse.Namespace) -> list[Row]:
    return [measured(black_box(p), truth, "Auto, no gradients", UNPROVED, args) for p, truth in resnet_problems(args)]


def section_resnet_methods(args: argparse.Namespace) -> list[Row]:
    """Each method alone: what `Auto` is held against."""
    methods: list[tuple[str, Estimator]] = [
        ("LineSampling", rarely.LineSampling()),
        ("Tilting", Tilting()),
        ("splitting, 8 islands of 1,200", rarely.Splitting(1200, 0.1, 1, islands=8, keep="all")),
        ("splitting, 8 islands of 3,600", rarely.Splitting(3600, 0.1, 1, islands=8, keep="all")),
    ]
    return [measured(p, truth, name, method, args) for p, truth in resnet_problems(args) for name, method in methods]


def measured(problem: rarely.Problem, truth: float, method: str, estimator: Estimator, args: argparse.Namespace) -> Row:
    """A row that is shown as soon as it is known."""
    row = measure(problem, truth, method, estimator, args.seeds, args.device, args.group)
    show("so far", [row])
    return row


def _collision(args: argparse.Namespace) -> tuple[dict[str, rarely.Problem], dict[str, float]]:
    truths = collision_references(args.reference / "collision_detection_log_prob.csv")
    return {p.name: p for p in collision_problems(args.data, verdict="SAT") if p.name in truths}, truths


def section_collision(args: argparse.Namespace) -> list[Row]:
    """All references as black boxes in one batch per seed; one row per seed, RMSE over the 60 properties."""
    problems, truths = _collision(args)
    names = sorted(truths)
    first = black_box(problems[names[0]])
    closed = [rarely.Problem(first.network, problems[n].property, problems[n].inputs, name=n) for n in names]
    rows = []
    for seed in range(args.seeds):
        started = time.monotonic()
        results = rarely.estimate(closed, rarely.Auto(), seed=seed, device=args.device)
        errors = torch.tensor([r.log_prob - truths[n] for r, n in zip(results, names, strict=True)])
        rows.append(
            Row(
                f"60 CollisionDetection properties, seed {seed}",
                math.nan,
                "Auto, no gradients",
                sum(r.calls for r in results) / len(results),
                max(r.calls for r in results),
                float(errors.mean()),
                float(errors.square().mean().sqrt()),
                sum(truths[n] in r.interval for r, n in zip(results, names, strict=True)) / len(names),
                sum(r.outcome is rarely.Outcome.VIOLATED for r in results) / len(names),
                time.monotonic() - started,
            )
        )
    return rows


def section_kernels(args: argparse.Namespace) -> list[Row]:
    """calls x MSE of one splitting scheme with each kernel: the paper's form, with its own rule for steps."""
    mnist = mnist_problems(args.data, args.reference)
    collision, truths = _collision(args)
    chosen: list[tuple[rarely.Problem, float]] = []
    for target in (-10.0, -20.0, -30.0):
        name = min(truths, key=lambda n: abs(truths[n] - target))
        chosen.append((collision[name], truths[name]))
    chosen += [mnist[3], mnist[1], mnist[2]]
    chosen.append(resnet_problems(args)[0])
    kernels: list[tuple[str, Kernel, int]] = [
        ("random walk", RandomWalk(), 100),
        ("pCN", PCN(), 10),
        ("Langevin", Langevin(), 5),
        ("HMC", HMC(), 4),
    ]
    rows = []
    for problem, truth in chosen:
        for method, kernel, steps in kernels:
            scheme = rarely.Splitting(1000, 0.1, steps, kernel, islands=2)
            rows.append(
                measure(problem, truth, f"{method}, {steps} steps", scheme, min(args.seeds, 10), args.device, 5)
            )
            show("partial", rows[-1:])
    return rows


SECTIONS = {
    "mnist": ("MNIST 784-d, gradients", section_mnist),
    "half-space": ("Gaussian half-spaces", section_half_space),
    "collision": ("CollisionDetection, black box", section_collision),
    "resnet": ("CIFAR-10 ResNet-20, 3072-d", section_resnet),
    "resnet-methods": ("CIFAR-10 ResNet-20, 3072-d, single methods", section_resnet_methods),
    "resnet-black-box": ("CIFAR-10 ResNet-20, 3072-d, black box", section_resnet_black_box),
    "black-box": ("MNIST 784-d, black box", section_black_box),
    "kernels": ("Kernels in one splitting scheme", section_kernels),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=f"any of {', '.join(SECTIONS)}")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("RARELY_DATA", "data")))
    parser.add_argument("--reference", type=Path, help="folder of reference CSVs; beside --data by default")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--resnet", type=json.loads, help="other images than the references: [[index, eps, depth], ...]"
    )
    parser.add_argument("--group", type=int, default=0, help="seeds that share a batch; all of them by default")
    parser.add_argument("--json", type=Path, help="write all rows here")
    args = parser.parse_args()
    args.reference = args.reference or args.data.parent / "reference"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and args.device != "cpu" else "CPU"
    print(f"machine: {platform.machine()}, {device}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    everything = {}
    for name in args.sections:
        title, section = SECTIONS[name]
        rows = section(args)
        show(title, rows)
        everything[name] = [asdict(row) for row in rows]
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
