"""Section 6.3, Fig. 2, upper rows: dense ReLU networks (two layers of 256) on MNIST and CIFAR-10.

Ten test images that the networks get right, a grid of eps, N = 10000, M up to 1000 (MNIST) or 2000 (CIFAR-10), 30 runs
for error bars. The weights are those that `python -m papers.webb2019.train` made. `convergence.py` says what runs in
which order; `--seconds` stops after the time there is, and the figures say how many runs there were.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import rarely
from papers.webb2019 import common, convergence, convergence_figures, drawing
from papers.webb2019.convergence import Study
from papers.webb2019.data import load
from papers.webb2019.nets import on_device
from papers.webb2019.train import dense_network

MNIST = Study("mnist", (0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25, 0.3, 0.35), (100, 250, 1000), most=3_000_000)
CIFAR10 = Study("cifar10", (0.03, 0.035, 0.04, 0.05, 0.06, 0.08, 0.12), (100, 250, 500, 1000, 2000), most=3_000_000)
TINY: dict[str, Any] = {
    "images": 2, "steps": (5, 10), "particles": 200, "repeats": 2, "plain": 10_000, "most": 40_000, "deepest": -12.0,
}  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    names = [study.dataset for study in (MNIST, CIFAR10)]
    parser.add_argument("--datasets", nargs="+", default=names, choices=names)
    convergence.options(parser)


def main(argv: Sequence[str] | None = None) -> None:
    context = common.start("images", __doc__, argv, options)
    path = context.out / "images.csv"
    if not context.args.figures_only:
        table = common.Table(path, convergence.COLUMNS, convergence.UNIT)
        execution = rarely.Execution(device=context.device)
        tiny = (replace(MNIST, **TINY, radii=(0.2, 0.3)), replace(CIFAR10, **TINY, radii=(0.1, 0.2)))
        for study in tiny if context.quick else (MNIST, CIFAR10):
            if study.dataset in context.args.datasets:
                network = on_device(dense_network(study.dataset), execution.resolve())
                test = load(study.dataset, context.data, "test")
                adjusted = convergence.adjusted(study, context.args)
                convergence.Runner(context, adjusted, network, test, table, execution).run()
    drawing.draw(context, lambda context: convergence_figures.figures(path, context.out))


if __name__ == "__main__":
    main()
