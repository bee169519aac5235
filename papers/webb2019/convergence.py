"""The study of section 6.3, for any image network: log p over a grid of eps by three methods, on the same problems.

`auto` is the default estimator, on all images. It goes first, and decides what is worth the time of the others: the
image of the figure is the one with most radii in reach (`deepest` < log p < -1). `plain` is Monte Carlo on that image,
where ten hits are expected, in rounds until there are 10000 of them or all samples are drawn. `paper` is Algorithm 1
with the paper's random walk, on that image for every M, with repeats, and on the other images for the second M; only
where log p > `deepest`. Work goes in the order of its value, so that a time limit costs late repeats first.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

import rarely
from papers.webb2019 import common
from papers.webb2019.data import Images
from papers.webb2019.streamed import ENOUGH
from rarely.kernels import RandomWalk

COLUMNS = (
    "dataset", "image", "eps", "method", "steps", "particles", "repeat",
    "outcome", "log_prob", "std", "evaluations", "gradients", "seconds",
)  # fmt: skip
UNIT = ("dataset", "image", "method", "steps", "particles", "repeat")

EARLY = 3  # runs on the image of the figure before the other images have one
ROUND = 100_000_000  # samples of plain Monte Carlo in one unit

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Study:
    dataset: str
    radii: tuple[float, ...]
    steps: tuple[int, ...]  # the paper's M, at least two
    images: int = 10
    particles: int = 10_000
    repeats: int = 30
    plain: int = 5_000_000_000  # samples of plain Monte Carlo
    deepest: float = -60.0
    most: int | None = None  # network calls that the default estimator may spend on one problem

    @property
    def round(self) -> int:
        return min(self.plain, ROUND)


@dataclass(frozen=True)
class Unit:
    """One batch: some images at several eps with one method."""

    images: tuple[int, ...]
    method: str
    steps: int = 0
    repeat: int = 0


def units(study: Study, shown: int) -> Iterator[Unit]:
    """What follows the first run of the default estimator."""
    one, rounds = (shown,), math.ceil(study.plain / study.round)
    for repeat in range(max(study.repeats, rounds)):
        if repeat < rounds:
            yield Unit(one, "plain", repeat=repeat)
        if repeat == min(EARLY, study.repeats - 1):
            yield from (Unit((i,), "paper", study.steps[1]) for i in range(study.images) if i != shown)
        if 0 < repeat < study.repeats:
            yield Unit(one, "auto", repeat=repeat)
        if repeat < study.repeats:
            yield from (Unit(one, "paper", steps, repeat) for steps in study.steps)


def estimator(study: Study, unit: Unit) -> rarely.Auto | rarely.MonteCarlo | rarely.Splitting:
    if unit.method == "auto":
        return rarely.Auto(proof_seconds=0)  # no proofs: this is about probabilities
    if unit.method == "plain":
        return rarely.MonteCarlo(study.round, chunk=max(1000, min(50_000, study.round // 10)))
    return rarely.Splitting(
        particles=study.particles, quantile=0.1, steps=unit.steps, kernel=RandomWalk(), islands=1, rule="paper",
        log_p_min=-250.0,
    )  # fmt: skip


@dataclass(frozen=True)
class Runner:
    """Does what the table does not hold yet. The `seconds` of a row are those of its whole batch."""

    context: common.Context
    study: Study
    network: Network
    test: Images
    table: common.Table
    execution: rarely.Execution

    def run(self) -> None:
        index = right_ones(self.test, self.network, self.study.images)
        first = Unit(tuple(range(self.study.images)), "auto")
        if not self._finished(first, index):
            with common.progress(f"{self.study.dataset}, default estimator", 1) as display:
                self._do(first, index, display)
        shown = most_in_reach(self.table, self.study, index)
        later = self.context.mine(units(self.study, shown))
        todo = [unit for unit in later if not self._finished(unit, index)]
        speed: dict[str, float] = {}  # calls in a second by method, as measured on the last unit
        with common.progress(self.study.dataset, len(todo)) as display:
            for unit in todo:
                calls = expected_calls(self.table, self.study, unit, index)
                if self.context.late or calls / speed.get(unit.method, math.inf) > self.context.left:
                    continue  # a shorter one may still fit
                started = time.monotonic()
                self._do(unit, index, display)
                if calls:
                    speed[unit.method] = calls / (time.monotonic() - started)

    def _do(self, unit: Unit, index: Sequence[int], display: common.Display) -> None:
        pairs = worthwhile(self.table, self.study, unit, index)
        if pairs:
            found = rarely.estimate(
                [self._problem(*pair) for pair in pairs], estimator(self.study, unit),
                seed=1000 * unit.repeat + unit.steps, execution=self.execution, progress=display.note,
                max_evaluations=self.study.most if unit.method == "auto" else None,
            )  # fmt: skip
            rows = [_row(self.study, unit, *pair, e) for pair, e in zip(pairs, found, strict=True)]
            for image in unit.images:  # a batch may hold several images, each a unit of the table
                self.table.add([row for row in rows if row["image"] == index[image]])
        display.done(f"{unit.method} M={unit.steps} repeat {unit.repeat}")

    def _finished(self, unit: Unit, index: Sequence[int]) -> bool:
        return all(self.table.has(image=index[i], **_key(self.study, unit)) for i in unit.images)

    def _problem(self, image: int, eps: float) -> rarely.Problem:
        """The paper's input model: uniform in the part of the l-infinity ball that holds pixels."""
        label = rarely.Misclassification(int(self.test.labels[image]))
        return rarely.Problem(self.network, label, rarely.LpBall(self.test.inputs(image), eps, clip=(0, 1)))


def right_ones(images: Images, network: Network, count: int) -> list[int]:
    """The first test images that the network gets right."""
    index: list[int] = []
    for start in range(0, len(images), 100):
        part = images.take(slice(start, start + 100))
        right = network(part.pixels.float() / 255).argmax(1) == part.labels
        index += (right.nonzero().squeeze(1) + start).tolist()
        if len(index) >= count:
            return index[:count]
    raise rarely.RarelyError(f"the network gets only {len(index)} of {len(images)} images right; train it for longer")


def default_says(table: common.Table, dataset: str) -> dict[tuple[int, float], float]:
    """log p by image and eps, from the first run of the default estimator."""
    rows = [row for row in table.rows if row["dataset"] == dataset and row["method"] == "auto" and row["repeat"] == "0"]
    return {(int(row["image"]), float(row["eps"])): float(row["log_prob"]) for row in rows}


def most_in_reach(table: common.Table, study: Study, index: Sequence[int]) -> int:
    default = default_says(table, study.dataset)
    reach = [sum(study.deepest < default[image, eps] < -1 for eps in study.radii) for image in index]
    return reach.index(max(reach))


def worthwhile(table: common.Table, study: Study, unit: Unit, index: Sequence[int]) -> list[tuple[int, float]]:
    """The images and radii of a unit that are worth its method."""
    pairs = [(index[i], eps) for i in unit.images for eps in study.radii]
    if unit.method == "auto":
        return pairs
    default = default_says(table, study.dataset)
    if unit.method == "paper":
        return [pair for pair in pairs if default[pair] > study.deepest]
    expected = {pair: math.exp(default[pair]) for pair in pairs}  # hits per sample
    drawn = unit.repeat * study.round
    return [pair for pair in pairs if expected[pair] * study.plain > 10 and expected[pair] * drawn < ENOUGH]


def expected_calls(table: common.Table, study: Study, unit: Unit, index: Sequence[int]) -> float:
    """Of the paper's setting: N M a level, and a level for every factor of ten; 0 for the default, which is short."""
    default, pairs = default_says(table, study.dataset), worthwhile(table, study, unit, index)
    if unit.method == "auto":
        return 0.0
    if unit.method == "plain":
        return len(pairs) * study.round
    return study.particles * sum(1 + unit.steps * math.floor(-default[pair] / math.log(10)) for pair in pairs)


def _key(study: Study, unit: Unit) -> dict[str, object]:
    size = {"paper": study.particles, "plain": study.round, "auto": 0}[unit.method]
    settings = {"method": unit.method, "steps": unit.steps, "particles": size, "repeat": unit.repeat}
    return {"dataset": study.dataset, **settings}


def _row(study: Study, unit: Unit, image: int, eps: float, found: rarely.Estimate) -> dict[str, object]:
    return {
        **_key(study, unit), "image": image, "eps": eps,
        "outcome": found.outcome.value, "log_prob": found.log_prob, "std": found.log_prob_std,
        "evaluations": found.evaluations, "gradients": found.gradients, "seconds": found.seconds,
    }  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--particles", type=int, help="N of the paper's setting")
    parser.add_argument("--repeats", type=int, help="runs for the error bars; the paper has 30")
    parser.add_argument("--steps", type=int, nargs="+", help="M of the paper's setting, two values at least")
    parser.add_argument("--plain", type=int, help="samples of plain Monte Carlo")
    parser.add_argument("--deepest", type=float, help="log p below which the paper's setting is not run")
    parser.add_argument("--images", type=int, help="test images")
    parser.add_argument("--most", type=int, help="network calls that the default estimator may spend on a problem")


def adjusted(study: Study, args: argparse.Namespace) -> Study:
    """The study with what the command line changes."""
    names = ("particles", "repeats", "plain", "deepest", "images", "most")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return replace(study, **given, steps=tuple(args.steps or study.steps))
