"""Trains the dense networks of section 6.3, and holds the training loop that the other image experiments share.

python -m papers.webb2019.train        # writes weights/mnist-256x2.safetensors and weights/cifar10-256x2.safetensors
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import rarely
from papers.webb2019 import common, nets
from papers.webb2019.data import Images, load

# (network, inputs, labels, progress from 0 to 1) -> loss
Objective = Callable[[nn.Module, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Recipe:
    """One cycle of the learning rate over `epochs`."""

    epochs: int
    rate: float
    batch: int = 256
    optimizer: Literal["sgd", "adam"] = "sgd"
    weight_decay: float = 0.0
    augment: bool = False  # shift by up to 4 pixels, mirror
    short: bool = False  # forward and backward passes in bfloat16; weights stay in float32


@dataclass(frozen=True)
class Epoch:
    number: int  # from 1
    loss: float  # mean over the epoch
    seconds: float


def cross_entropy(network: nn.Module, x: Tensor, y: Tensor, progress: float) -> Tensor:
    return functional.cross_entropy(network(x), y)


def fit(
    network: nn.Module,
    images: Images,
    recipe: Recipe,
    objective: Objective = cross_entropy,
    after_epoch: Callable[[Epoch], None] = lambda epoch: None,
    seed: int = 0,
) -> None:
    """Train `network` where it lies; `images` must lie there, too."""
    device = images.labels.device
    generator = torch.Generator(device).manual_seed(seed)
    steps = max(1, len(images) // recipe.batch)
    network.train()
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            network.parameters(), recipe.rate, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay
        )
    else:
        optimizer = torch.optim.Adam(network.parameters(), recipe.rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, total_steps=max(10, recipe.epochs * steps + 1), pct_start=0.25
    )
    for epoch in range(recipe.epochs):
        started, total = time.monotonic(), torch.zeros((), device=device)
        order = torch.randperm(len(images), generator=generator, device=device)
        for step, index in enumerate(order[: steps * recipe.batch].split(recipe.batch)):
            x = images.pixels[index].float() / 255
            if recipe.augment:
                x = augmented(x, generator)
            if recipe.short:
                x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16) if recipe.short else nullcontext():
                loss = objective(network, x, images.labels[index], (epoch + step / steps) / recipe.epochs)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach().float()
        after_epoch(Epoch(epoch + 1, float(total) / steps, time.monotonic() - started))
    network.eval()


def augmented(x: Tensor, generator: torch.Generator, most: int = 4) -> Tensor:
    """Each image shifted by up to `most` pixels either way, and mirrored in half of the cases."""
    n, _, height, width = x.shape
    padded = functional.pad(x, (most,) * 4, mode="reflect")
    top, left = (torch.randint(0, 2 * most + 1, (n, 1), generator=generator, device=x.device) for _ in range(2))
    rows = top + torch.arange(height, device=x.device)
    columns = left + torch.arange(width, device=x.device)
    mirrored = torch.rand(n, 1, generator=generator, device=x.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    first = torch.arange(n, device=x.device)[:, None, None]
    # Indices around a slice put the sliced dimension last: (n, height, width, channels).
    return padded[first, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.no_grad()
def accuracy(network: Callable[[Tensor], Tensor], images: Images, rows: int = 2000) -> float:
    right = torch.zeros((), device=images.labels.device)
    for pixels, labels in zip(images.pixels.split(rows), images.labels.split(rows), strict=True):
        right += (network(pixels.float() / 255).argmax(1) == labels).sum()
    return float(right) / len(images)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network with the initial weights of `seed`, whatever else draws random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@dataclass(frozen=True)
class Dense:
    """A dense network of section 6.3."""

    inputs: int
    recipe: Recipe

    def make(self) -> nn.Module:
        return nets.perceptron(self.inputs)


DENSE = {
    "mnist": Dense(784, Recipe(epochs=10, rate=0.1, weight_decay=1e-4)),
    "cifar10": Dense(3072, Recipe(epochs=20, rate=0.05, weight_decay=5e-4, augment=True)),
}


def dense_network(dataset: str, folder: Path = nets.WEIGHTS) -> nn.Module:
    """The trained network, as committed."""
    return nets.load_weights(folder / f"{dataset}-256x2.safetensors", DENSE[dataset].make)


def main(argv: Sequence[str] | None = None) -> None:
    def options(parser: object) -> None:
        parser.add_argument("--datasets", nargs="+", default=list(DENSE), choices=list(DENSE))  # type: ignore[attr-defined]

    context = common.start("train", __doc__, argv, options)
    device = rarely.Execution(device=context.device).resolve()
    columns = ("dataset", "epochs", "images", "parameters", "train_accuracy", "test_accuracy", "seconds")
    table = common.Table(context.out / "training.csv", columns, ("dataset", "epochs"))
    for name in context.args.datasets:
        dense = DENSE[name]
        recipe = Recipe(1, dense.recipe.rate) if context.quick else dense.recipe
        if table.has(dataset=name, epochs=recipe.epochs):
            continue
        images = load(name, context.data, "train").to(device)
        if context.quick:
            images = images.take(slice(5000))
        network, started = seeded(dense.make).to(device), time.monotonic()
        with common.progress(f"training on {name}", recipe.epochs) as display:
            fit(network, images, recipe, after_epoch=lambda e, show=display: show.done(f"loss {e.loss:.3f}"))  # type: ignore[misc]
        seconds = time.monotonic() - started
        folder = context.out if context.quick else nets.WEIGHTS
        nets.save_weights(network, folder / f"{name}-256x2.safetensors")
        stored = dense_network(name, folder).to(device)
        test = load(name, context.data, "test").to(device)
        table.add([{
            "dataset": name, "epochs": recipe.epochs, "images": len(images), "parameters": nets.parameters(stored),
            "train_accuracy": accuracy(stored, images), "test_accuracy": accuracy(stored, test), "seconds": seconds,
        }])  # fmt: skip


if __name__ == "__main__":
    main()
