"""How near proved bounds on log p come to p itself: images, normal inputs, a table of data, ACAS Xu, convolutions.

    RARELY_DATA=... python benchmarks/proved.py [--tables mnist gaussian tabular acas conv] [--seconds 20] [--images 10]

A proof is asked twice: blind, and told the -log p it may hope for, as `rarely.estimate` does. The estimate beside it
does without proofs. What contradicts it, or outlasts its seconds, is listed below the tables.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import operator
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rarely
from common import acas_problem, mnist_image, mnist_network, onnx_network, options, parser, table, table_row, write_json
from rarely import Auto, Box, Estimate, Gaussian, LinearConstraint, LpBall, Misclassification, Outcome, Problem
from rarely.bounds import probability_bounds, prove
from rarely.core.properties import Property
from rarely.inputs import Choice, Empirical, GaussianNoise, InputModel, Normal, OneHot, Tabular, Uniform

REFERENCED = (3, 18)  # test images with published log p
GOALS = {-20.0: (3.0, 6.0), -40.0: (5.0, 10.0)}  # log p, and the gaps that the summary counts
TOLERANCE = 1.5  # nats of log p by which a goal may be missed
CALLS = 200_000  # of the network that one estimate may take
COPIES = 3  # estimates of one number: at log p = -37 of image 5, 4 of 10 trusted ones missed the likeliest class
PRECISE = 0.3  # standard deviation up to which estimates are compared
RARE = math.log(1e-6)  # what is to be proved of convolutions
HOPE = -RARE + 0.7  # a bound twice as good leaves room for failures
FACTORS, HALVINGS = (0.25, 8.0), 6  # of the half-widths of a box
CONVOLUTIONS = {
    "cifar_base_kw": ("oval21/nets/cifar_base_kw.onnx", "oval21/vnnlib/cifar_base_kw-*"),
    "cifar_wide_kw": ("oval21/nets/cifar_wide_kw.onnx", "oval21/vnnlib/cifar_wide_kw-*"),
    "cifar_deep_kw": ("oval21/nets/cifar_deep_kw.onnx", "oval21/vnnlib/cifar_deep_kw-*"),
    "resnet_2b": ("cifar10_resnet/onnx/resnet_2b.onnx", "cifar10_resnet/*/resnet2b_pgd_filtered/*"),
    "resnet_4b": ("cifar10_resnet/onnx/resnet_4b.onnx", "cifar10_resnet/*/resnet4b_pgd_filtered/*"),
}


@dataclass(frozen=True)
class Proved:
    """What was proved: log_lower <= log p <= log_upper."""

    log_lower: float = -math.inf
    log_upper: float = 0.0
    pieces: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Number:
    """What is believed of log p."""

    log_prob: float
    std: float
    outcome: str = Outcome.VIOLATED.value

    @classmethod
    def of(cls, result: Estimate) -> Number:
        return cls(result.log_prob, result.log_prob_std, result.outcome.value)

    @property
    def known(self) -> bool:
        return self.outcome == Outcome.VIOLATED.value and math.isfinite(self.log_prob)

    def __str__(self) -> str:
        guess = f", perhaps {self.log_prob:.1f}" if math.isfinite(self.log_prob) else ""
        return f"{self.log_prob:.2f} ± {self.std:.2f}" if self.known else f"{self.outcome}{guess}"


@dataclass(frozen=True)
class Row:
    """One problem, its number and two proofs."""

    name: str
    size: float | None  # of the noise, or a threshold
    number: Number
    blind: Proved
    told: Proved | None  # None where there is no number to tell

    HEADER = ("log p", *(f"{what}, {who}" for who in ("blind", "told") for what in ("upper", "lower", "gap", "s")))

    def cells(self) -> list[object]:
        size = "" if self.size is None else f"{self.size:.4g}"
        return [self.name, size, self.number, *self._of(self.blind), *self._of(self.told)]

    def _of(self, proof: Proved | None) -> list[object]:
        if proof is None:
            return ["", "", "", ""]
        lower = f"{proof.log_lower:.2f}" if proof.log_lower > -math.inf else "none"
        gap = f"{proof.log_upper - self.number.log_prob:.2f}" if self.number.known else ""
        return [f"{proof.log_upper:.2f}", lower, gap, f"{proof.seconds:.1f}"]


@dataclass
class Bench:
    """The settings, and what was odd."""

    data: Path
    reference: Path
    device: str
    seconds: float
    images: int
    instances: int
    odd: list[str] = field(default_factory=list)

    def estimated(
        self, problem: Problem, calls: int | None = CALLS, timeout: float | None = None, copies: int = COPIES
    ) -> Estimate:
        """The largest of a few precise estimates: what one has missed only makes it smaller. Else simply the first.

        The largest of vague ones would be large by chance.
        """
        found = rarely.estimate(
            [problem] * copies, Auto(proof_seconds=0), device=self.device, max_evaluations=calls, timeout=timeout
        )
        good = sorted((f for f in found if precise(f)), key=lambda f: f.log_prob) or found[:1]
        if good[-1].log_prob - good[0].log_prob > 4 * math.hypot(good[0].log_prob_std, good[-1].log_prob_std):
            self.odd.append(f"{problem.name}: trusted estimates differ, {Number.of(good[0])} and {Number.of(good[-1])}")
        return good[-1]

    def proved(
        self, problem: Problem, target: float | None = None, enough: float = -math.inf, seconds: float = 0.0
    ) -> Proved:
        """The last of the bounds, or the first whose upper one is `enough`."""
        limit, begin, best = seconds or self.seconds, time.perf_counter(), Proved()
        for bounds in probability_bounds(problem, limit, target=target):
            if bounds.log_upper > best.log_upper or bounds.log_lower < best.log_lower:
                self.odd.append(f"{problem.name}: bounds got worse, {best} then {bounds}")
            spent = time.perf_counter() - begin
            best = Proved(bounds.log_lower, bounds.log_upper, bounds.boxes, spent)
            if bounds.log_upper <= enough:
                break
        self.timely(f"{problem.name}, target {target}", time.perf_counter() - begin, limit)
        return best

    def timely(self, what: str, spent: float, limit: float) -> None:
        if spent > 1.1 * limit + 1:
            self.odd.append(f"{what}: {spent:.1f} s instead of {limit:g} s")

    def compared(self, problem: Problem, size: float | None, number: Number, seconds: float = 0.0) -> Row:
        blind = self.proved(problem, seconds=seconds)
        told = self.proved(problem, -number.log_prob, seconds=seconds) if number.known else None
        for proof in [blind] if told is None else [blind, told]:
            above, below = number.log_prob - proof.log_upper, proof.log_lower - number.log_prob
            if number.known and max(above, below) > 4 * number.std:
                self.odd.append(f"UNSOUND? {problem.name}, {size}: {number} against {proof}")
        return Row(problem.name, size, number, blind, told)

    def at_goal(self, make: Callable[[float], Problem], goal: float) -> Row:
        """The row of the noise at which log p is about `goal`."""
        log_size, result = solved(lambda x: self.estimated(make(math.exp(-x))), *NOISES, goal)
        size = math.exp(-log_size)
        if not precise(result) or abs(result.log_prob - goal) > TOLERANCE:
            self.odd.append(f"{make(size).name}: no noise with a precise log p of about {goal:g} was found")
        return self.compared(make(size), size, Number.of(result))


def precise(result: Estimate) -> bool:
    return result.outcome is Outcome.VIOLATED and result.log_prob_std <= PRECISE


NOISES = (-math.log(0.5), -math.log(0.004))  # -log of the largest and the smallest


def solved(
    estimated: Callable[[float], Estimate], low: float, high: float, goal: float, tolerance: float = TOLERANCE
) -> tuple[float, Estimate]:
    """Where in [low, high] log p, which falls there, is about `goal`; log(-log p) is nearly a line in -log(noise)."""
    ends = {low: -math.inf, high: math.inf}
    wanted, tried = math.log(-goal), []
    for _ in range(12):
        (x, y), (u, v) = sorted(ends.items())
        share = (wanted - y) / (v - y) if math.isfinite(y) and math.isfinite(v) else 0.5
        middle = x + (u - x) * min(0.95, max(0.05, share))
        result = estimated(middle)
        far = abs(result.log_prob - goal)
        tried.append((far, middle, result))
        if far < tolerance and precise(result):
            break
        height = math.log(max(1e-3, -result.log_prob))  # infinite where no violation was found
        ends = {middle: height, u: v} if height < wanted else {x: y, middle: height}
    return min(tried, key=operator.itemgetter(0))[1:]


# Images -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """MNIST behind one network."""

    network: nn.Module
    data: Path

    def problem(self, index: int, noise: Callable[[Tensor, float], InputModel], size: float) -> Problem:
        image, label = mnist_image(self.data, index)
        shape = tuple(getattr(self.network, "input_shape", (784,)))
        return Problem(self.network, Misclassification(label), noise(image.reshape(shape), size), f"image {index}")

    def others(self, count: int) -> list[int]:
        """The first test images that are classified right and have no reference."""
        found: list[int] = []
        index = 0
        while len(found) < count:
            if index not in REFERENCED and self._right(index):
                found.append(index)
            index += 1
        return found

    def _right(self, index: int) -> bool:
        image, label = mnist_image(self.data, index)
        shape = tuple(getattr(self.network, "input_shape", (784,)))
        return int(self.network(image.reshape(1, *shape)).argmax()) == label


def uniform(image: Tensor, size: float) -> LpBall:
    return LpBall(image, size, clip=(0, 1))


def references(path: Path) -> Iterator[tuple[int, float, Number]]:
    with path.open() as lines:
        for row in csv.DictReader(lines):
            yield int(row["test_index"]), float(row["eps"]), Number(float(row["log_prob"]), float(row["log_prob_sd"]))


def mnist(bench: Bench) -> Iterator[Row]:
    images = Images(mnist_network(bench.data), bench.data)
    for index, eps, number in references(bench.reference):
        yield bench.compared(images.problem(index, uniform, eps), eps, number)
    for index in images.others(bench.images):
        for goal in GOALS:
            yield bench.at_goal(functools.partial(images.problem, index, uniform), goal)


def gaussian(bench: Bench) -> Iterator[Row]:
    images = Images(mnist_network(bench.data), bench.data)
    for index in (*REFERENCED, *images.others(bench.images)):
        yield bench.at_goal(functools.partial(images.problem, index, Gaussian), -20.0)


def clipped(bench: Bench) -> Iterator[Row]:
    images = Images(mnist_network(bench.data), bench.data)
    for index in REFERENCED:
        yield bench.at_goal(functools.partial(images.problem, index, GaussianNoise), -20.0)


def shares(rows: Sequence[Row]) -> Iterator[str]:
    """How often the gap between the proved upper bound and log p is small."""
    for goal, limits in GOALS.items():
        near = [row for row in rows if row.number.known and abs(row.number.log_prob - goal) < TOLERANCE]
        for who in ("blind", "told"):
            gaps = [getattr(row, who).log_upper - row.number.log_prob for row in near]
            counts = (f"{sum(gap <= limit for gap in gaps)} of {len(gaps)} within {limit:g}" for limit in limits)
            yield f"log p about {goal:g}, {who}: {', '.join(counts)} nats"


# A table of data ----------------------------------------------------------------------------------------------------


def credit_table(generator: torch.Generator) -> Tabular:
    """Applicants for credit, in units that make every column about as large as any other."""

    def seen(shape: float) -> Tensor:
        return torch.rand(2000, generator=generator).clamp(1e-3).log().neg().pow(shape)

    return Tabular(
        {
            "log income": Normal(0.0, 1.0),
            "log loan": Normal(0.0, 0.8),
            "log wealth": Normal(0.2, 1.2),
            "debt ratio": Uniform(0.0, 1.0),
            "interest": Uniform(0.0, 2.0),
            "age": Empirical(seen(0.5)),
            "employed": Empirical(seen(1.0)),
            "savings": Empirical(seen(0.8)),
            "late payments": Choice([0.0, 0.5, 1.0, 1.5, 2.0], [0.6, 0.2, 0.1, 0.07, 0.03]),
            "accounts": Choice(torch.arange(6) / 3),
            "purpose": OneHot([0.4, 0.3, 0.2, 0.1]),
            "home": OneHot([0.5, 0.3, 0.2]),
        }
    )


def default_logit(x: Tensor) -> Tensor:
    """The smooth rule behind the labels."""
    income, loan, wealth, debt, interest, age, employed, savings, late, accounts = x[:, :10].unbind(1)
    burden = (loan - income) * 0.8 + debt * interest + late * (1 + 0.5 * debt) - 0.4 * wealth
    return burden - 0.5 * age - 0.3 * employed - 0.4 * savings + 0.2 * accounts**2 + 0.5 * x[:, 13] + 0.6 * x[:, 16] - 1


def credit_network(inputs: Tabular) -> nn.Module:
    """Trained on 5,000 rows; its logit says how likely an applicant is to default."""
    torch.manual_seed(0)
    x = inputs.from_normal(torch.randn(5000, inputs.normal_dim))
    label = torch.bernoulli(default_logit(x).mul(2).sigmoid())
    width = x.shape[1]
    network = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    # The decay was chosen for the share of fresh rows that are classified right: 0.854 of the 0.861 that can be.
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=2.0)
    for _ in range(300):
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(network(x).squeeze(1), label))
        optimiser.step()
    return network.eval().requires_grad_(False)


def tabular(bench: Bench) -> Iterator[Row]:
    inputs = credit_table(torch.Generator().manual_seed(0))
    network = credit_network(inputs)
    drawn = network(inputs.from_normal(torch.randn(100_000, inputs.normal_dim)))
    middle, top = float(drawn.median()), float(drawn.max())

    def exceeding(threshold: float) -> Problem:
        return Problem(network, LinearConstraint([[-1.0]], [-threshold]), inputs, "credit")

    for p in (1e-4, 1e-6, 1e-9):
        ends = middle, 3 * top - 2 * middle
        threshold, result = solved(lambda x: bench.estimated(exceeding(x)), *ends, math.log(p), 0.5)
        yield bench.compared(exceeding(threshold), threshold, Number.of(result))


# ACAS Xu ------------------------------------------------------------------------------------------------------------


def acas_path(data: Path, name: str) -> Path:
    return data / "acasxu" / "onnx" / f"ACASXU_run2a_{name}_batch_2000.onnx"


def another_advisory(outputs: Tensor) -> Property:
    """The least output, which is the advice, is no longer the one it is here."""
    eye, label = torch.eye(outputs.numel()), int(outputs.argmin())
    others = [LinearConstraint((eye[j] - eye[label])[None], [0.0]) for j in range(len(eye)) if j != label]
    return functools.reduce(operator.or_, others)


def acas(bench: Bench) -> Iterator[Row]:
    rule = bench.data / "acasxu" / "vnnlib" / "prop_7.vnnlib"
    problem = rarely.load_problem(acas_path(bench.data, "1_9"), rule, name="1_9, property 7")
    number = Number.of(bench.estimated(problem, None, 3 * bench.seconds, copies=1))
    yield bench.compared(problem, None, number, 3 * bench.seconds)
    middle = acas_problem(bench.data).inputs.center
    for name in ("1_1", "2_3", "4_5"):
        network = onnx_network(acas_path(bench.data, name), [5, *[50] * 6, 5])
        advice = another_advisory(network(middle.unsqueeze(0)))
        for std in (0.02, 0.05):
            problem = Problem(network, advice, Gaussian(middle, std), f"{name}, normal")
            yield bench.compared(problem, std, Number.of(bench.estimated(problem)))


# Convolutions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reach:
    """How far a box of inputs can grow before a proof fails: of p <= 1e-6, and of p = 0."""

    network: str
    instance: str
    rare: float | None  # factors of the half-widths, None below the least that was tried
    never: float | None
    number: Number  # at `rare`

    HEADER = ("network", "instance", "p <= 1e-6 up to", "p = 0 up to", "ratio", "log p where p <= 1e-6 is proved")

    def cells(self) -> list[object]:
        ratio = f"{self.rare / self.never:.2f}" if self.rare and self.never else ""
        factors = [f"{f:.2f}" if f else f"below {FACTORS[0]}" for f in (self.rare, self.never)]
        return [self.network, self.instance, *factors, ratio, self.number if self.rare else ""]


def largest(holds: Callable[[float], bool]) -> float | None:
    """The largest factor that was seen to hold, by bisection of its logarithm."""
    low, high = map(math.log, FACTORS)
    best = None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if holds(math.exp(middle)):
            low = middle
            best = math.exp(middle)
        else:
            high = middle
    return best


def scaled(problem: Problem, factor: float) -> Problem:
    low, high = problem.inputs.low.double(), problem.inputs.high.double()  # type: ignore[attr-defined]
    middle, half = (low + high) / 2, (high - low) / 2 * factor
    dtype = problem.adapted.dtype
    return problem.drawn_from(Box((middle - half).to(dtype), (middle + half).to(dtype)))


def conv(bench: Bench) -> Iterator[Reach]:
    with tempfile.TemporaryDirectory() as folder:
        for archive in ("oval21", "cifar10_resnet"):
            with tarfile.open(bench.data / "vnncomp" / f"{archive}.tar.xz") as tar:
                tar.extractall(folder, filter="data")
        for name, (network, pattern) in CONVOLUTIONS.items():
            for file in sorted(Path(folder).glob(pattern))[: bench.instances]:
                instance = file.stem.removeprefix(f"{name}-")
                problem = rarely.load_problem(Path(folder) / network, file, name=f"{name} {instance}")
                yield reach(bench, problem, name, instance)


def reach(bench: Bench, problem: Problem, name: str, instance: str) -> Reach:
    def rare(factor: float) -> bool:
        return bench.proved(scaled(problem, factor), HOPE, RARE).log_upper <= RARE

    def never(factor: float) -> bool:
        begin = time.perf_counter()
        status = prove(scaled(problem, factor), bench.seconds).status
        bench.timely(f"{problem.name}, factor {factor:.3f}, prove", time.perf_counter() - begin, bench.seconds)
        return status == "proved"

    far, near = largest(rare), largest(never)
    # One copy, and longer than a proof: calls are dear here.
    number = Number.of(bench.estimated(scaled(problem, far or FACTORS[0]), None, 4 * bench.seconds, copies=1))
    if number.known and far and number.log_prob - 4 * number.std > RARE:
        bench.odd.append(f"UNSOUND? {problem.name}, factor {far:.4f}: {number} against p <= 1e-6")
    return Reach(name, instance, far, near, number)


# All of it ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A table with its title, its rows one by one, and what is to be said below."""

    title: str
    header: tuple[str, ...]
    rows: Callable[[Bench], Iterator[Row] | Iterator[Reach]]
    below: Callable[[Any], Iterator[str]] = lambda rows: iter(())


TABLES: dict[str, list[Part]] = {
    "mnist": [Part("MNIST 256x2, uniform noise", ("image", "eps", *Row.HEADER), mnist, shares)],
    "gaussian": [
        Part("MNIST 256x2, normal noise", ("image", "std", *Row.HEADER), gaussian),
        Part("MNIST 256x2, normal noise, clipped", ("image", "std", *Row.HEADER), clipped),
    ],
    "tabular": [Part("A table of data, MLP 32x2: the logit exceeds", ("network", "t", *Row.HEADER), tabular)],
    "acas": [Part("ACAS Xu", ("problem", "std", *Row.HEADER), acas)],
    "conv": [Part("Convolutions: factors by which a box can grow", Reach.HEADER, conv)],
}


def shown(part: Part, bench: Bench) -> dict[str, Any]:
    """Print a table row by row, for those who wait."""
    print(f"## {part.title}\n\n{table(part.header, [])}", flush=True)
    begin, rows = time.perf_counter(), []
    for row in part.rows(bench):
        print(table_row(row.cells()), flush=True)
        rows.append(row)
    minutes = (time.perf_counter() - begin) / 60
    print("", *part.below(rows), f"{minutes:.1f} minutes", "", sep="\n", flush=True)
    return {"title": part.title, "minutes": minutes, "rows": [asdict(row) for row in rows]}


def settings() -> argparse.Namespace:
    wanted = parser(__doc__)
    wanted.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    wanted.add_argument("--seconds", type=float, default=20.0, help="for each proof")
    wanted.add_argument("--images", type=int, default=10, metavar="N", help="beside those with a reference")
    wanted.add_argument("--instances", type=int, default=2, metavar="N", help="of each convolutional network")
    wanted.add_argument("--reference", type=Path, metavar="CSV", help="log-probabilities of MNIST problems")
    return options(wanted)


def main() -> None:
    args = settings()
    reference = args.reference or args.data / ".." / "reference" / "mnistfc_256x2_log_prob.csv"
    images, instances = (min(args.images, 2), 1) if args.quick else (args.images, args.instances)
    bench = Bench(args.data, reference, args.device, args.seconds, images, instances)
    results = {name: [shown(part, bench) for part in TABLES[name]] for name in args.tables}
    print("Odd:\n\n" + "\n".join(f"- {line}" for line in bench.odd) if bench.odd else "Nothing odd.")
    write_json(args.json, args.device, {"tables": results, "odd": bench.odd})


if __name__ == "__main__":
    main()
