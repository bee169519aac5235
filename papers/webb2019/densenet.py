"""Section 6.3, Fig. 2, bottom row: a DenseNet of depth 40 and growth rate 40 (bottlenecks, 1.9 million parameters).

The paper uses CIFAR-100 and a network it was given. The default here is CIFAR-10 and a network trained by this script
(bfloat16, one cycle of the learning rate); `--dataset cifar100` does the same for whoever has the original files.
On a GPU the estimates are of the network whose convolutions are computed in bfloat16 (batch norm, pooling and the last
layer in float32), with the weights as stored in half precision; its accuracy is the one in training.csv.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

import rarely
from papers.webb2019 import common, convergence, convergence_figures, drawing, nets
from papers.webb2019.convergence import Study
from papers.webb2019.data import load
from papers.webb2019.train import Recipe, accuracy, fit, seeded

CLASSES = {"cifar10": 10, "cifar100": 100}
STUDY = Study(
    "cifar10", (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1), (100, 250, 500, 1000, 2000),
    images=4, particles=300, repeats=10, plain=5_000_000, deepest=-40.0, most=500_000,
)  # fmt: skip
TRAINING = ("dataset", "epochs", "images", "parameters", "train_accuracy", "test_accuracy", "seconds")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", default="cifar10", choices=list(CLASSES))
    parser.add_argument("--epochs", type=int, default=20, help="of training")
    parser.add_argument("--rows", type=int, default=2048, help="images in one forward pass")
    parser.add_argument("--compile", action="store_true", help="torch.compile for the estimates")
    parser.add_argument("--train-only", action="store_true", help="stop when the weights are written")
    convergence.options(parser)


def architecture(context: common.Context) -> Callable[[], nn.Module]:
    depth, growth = (10, 6) if context.quick else (40, 40)
    return partial(nets.dense_net, depth, growth, CLASSES[context.args.dataset])


def precision(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def trained(context: common.Context, device: torch.device) -> Path:
    """The weights: those of an earlier run, those that are committed, or new ones."""
    name = f"densenet-{context.args.dataset}.safetensors"
    folders = [context.out] if context.quick else [context.out, nets.WEIGHTS]
    there = [folder / name for folder in folders if (folder / name).is_file()]
    if there:
        return there[0]
    images = load(context.args.dataset, context.data, "train").to(device)
    recipe = Recipe(context.args.epochs, rate=0.2, weight_decay=5e-4, augment=True, short=device.type == "cuda")
    if context.quick:
        images, recipe = images.take(slice(1500)), replace(recipe, epochs=2, batch=50)
    make = architecture(context)
    network, started = seeded(make).to(device, memory_format=torch.channels_last), time.monotonic()  # type: ignore[call-overload]
    with common.progress(f"training on {len(images)} images", recipe.epochs) as display:
        fit(network, images, recipe, after_epoch=lambda e: display.done(f"loss {e.loss:.3f}, {e.seconds:.1f} s"))
    seconds = time.monotonic() - started
    nets.save_weights(network, context.out / name)
    stored = nets.dense_net_on_device(nets.load_weights(context.out / name, make), device, precision(device))
    test = load(context.args.dataset, context.data, "test").to(device)
    table = common.Table(context.out / "training.csv", TRAINING, ("dataset", "epochs"))
    table.add([{
        "dataset": context.args.dataset, "epochs": recipe.epochs, "images": len(images),
        "parameters": nets.parameters(network), "train_accuracy": accuracy(stored, images),
        "test_accuracy": accuracy(stored, test.take(slice(500)) if context.quick else test), "seconds": seconds,
    }])  # fmt: skip
    return context.out / name


def study(context: common.Context) -> Study:
    chosen = replace(STUDY, dataset=context.args.dataset)
    if context.quick:
        chosen = replace(
            chosen, radii=(0.3, 0.6), steps=(3, 6), images=2, particles=60, repeats=1, plain=1000, most=8000
        )
    return convergence.adjusted(chosen, context.args)


def main(argv: Sequence[str] | None = None) -> None:
    context = common.start("densenet", __doc__, argv, options)
    path = context.out / "densenet.csv"
    if not context.args.figures_only:
        execution = rarely.Execution(device=context.device, rows=context.args.rows)
        device = execution.resolve()
        weights = trained(context, device)
        if context.args.train_only:
            return
        network = nets.load_weights(weights, architecture(context))
        call = nets.dense_net_on_device(network, device, precision(device), context.args.compile)
        table = common.Table(path, convergence.COLUMNS, convergence.UNIT)
        test = load(context.args.dataset, context.data, "test")
        convergence.Runner(context, study(context), call, test, table, execution).run()
    drawing.draw(context, lambda context: convergence_figures.figures(path, context.out, "DenseNet, "))


if __name__ == "__main__":
    main()
