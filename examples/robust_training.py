"""For machine learning engineers: how much does it help to train with the inputs that a network gets wrong?

Run it with `python examples/robust_training.py` for a taste of a few seconds, and with `--full` for the table and
the figure of docs/how-to/train-with-violations.md (minutes). Three trainings start from the shipped network and take
the same steps on batches of the same size; they differ in what fills the second half of every batch:

    plain       more of the clean pictures
    noise       the pictures with uniform noise
    violations  the pictures with noise that the network gets wrong at that time, from rarely.augment
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import rarely
from rarely.demo import assets, draw_images

RADIUS = 0.15  # noise per pixel, of a brightness from 0 to 1
FLOOR = math.log(1e-15)  # rarer is not followed
BATCH = 128  # half of it pictures, half of it the extra


@dataclass(frozen=True)
class Size:
    pictures: int  # to train on
    judged: int  # fresh pictures whose probability of failure is estimated
    epochs: int  # of each training
    sources: int  # pictures that violations are looked for at, each epoch
    seed: int = 0


TASTE, FULL = Size(1_000, 6, 1, 100), Size(6_000, 40, 6, 1_000)


def shipped_network() -> nn.Module:
    network = rarely.load_network(assets() / "signs.onnx")  # put your own torch module here
    assert isinstance(network, nn.Module)
    return network.requires_grad_(True).train()


def extra(
    kind: str, network: nn.Module, images: Tensor, labels: Tensor, size: Size, seed: int
) -> tuple[Tensor, Tensor]:
    """What fills the second halves of the batches of one epoch."""
    if kind == "plain":
        return images, labels
    if kind == "noise":
        noise = RADIUS * (2 * torch.rand(images.shape) - 1)
        return (images + noise).clamp(0, 1), labels
    chosen = torch.randperm(len(images))[: size.sources]
    return rarely.augment(
        network, images[chosen], labels[chosen], RADIUS, per_image=2, particles=30, log_p_min=FLOOR, seed=seed
    )


def train_epoch(
    network: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor, labels: Tensor, more: tuple[Tensor, Tensor]
) -> None:
    half = BATCH // 2
    for rows in torch.randperm(len(images))[: len(images) // half * half].view(-1, half):
        x, y = images[rows], labels[rows]
        if len(more[0]):
            pick = torch.randint(len(more[0]), (half,))
            x, y = torch.cat([x, more[0][pick]]), torch.cat([y, more[1][pick]])
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()


def judge(network: nn.Module, images: Tensor, labels: Tensor, size: Size) -> tuple[float, list[float]]:
    """Accuracy on fresh pictures, and log10 of the probability of failure of the first few, right or wrong."""
    network.eval()
    with torch.no_grad():
        right = network(images).argmax(1) == labels
    problems = [
        rarely.Problem(network, rarely.Misclassification(int(y)), rarely.LpBall(x, RADIUS, clip=(0, 1)))
        for x, y in zip(images[: size.judged], labels[: size.judged], strict=True)
    ]
    splitting = rarely.Splitting(100, 0.1, 1, islands=4, keep="all", log_p_min=FLOOR)
    found = rarely.estimate(problems, splitting, seed=1)
    network.train()
    return float(right.float().mean()), [max(e.log_prob, FLOOR) / math.log(10) for e in found]


def describe(accuracy: float, logs: list[float]) -> str:
    low, middle, high = np.quantile(logs, [0.25, 0.5, 0.75])
    return f"accuracy {accuracy:.2%}, log10 p: median {middle:.1f}, quartiles {low:.1f} and {high:.1f}"


def run(size: Size) -> dict[str, list[tuple[float, list[float], float]]]:
    """Per training and epoch: accuracy, log10 p of the judged pictures, seconds of training so far."""
    torch.manual_seed(size.seed)
    images, labels = (torch.from_numpy(a) for a in draw_images(size.pictures, seed=size.seed + 1))
    fresh, answers = (torch.from_numpy(a) for a in draw_images(3_000, seed=size.seed + 2))
    before = judge(shipped_network(), fresh, answers, size)
    print(f"{'':10s}  before: {describe(*before)}")
    history: dict[str, list[tuple[float, list[float], float]]] = {}
    for kind in ("plain", "noise", "violations"):
        network = shipped_network()
        stepper = torch.optim.Adam(network.parameters(), lr=1e-3)
        torch.manual_seed(size.seed + 3)
        history[kind], seconds = [(*before, 0.0)], 0.0
        for epoch in range(size.epochs):
            begun = time.perf_counter()
            more = extra(kind, network, images, labels, size, seed=epoch)
            train_epoch(network, stepper, images, labels, more)
            seconds += time.perf_counter() - begun
            history[kind].append((*judge(network, fresh, answers, size), seconds))
            found = f"{len(more[0])} extra inputs, {seconds:.0f} s"
            print(f"{kind:10s} epoch {epoch + 1}: {describe(*history[kind][-1][:2])}, {found}")
    return history


def draw(history: dict[str, list[tuple[float, list[float], float]]], path: Path) -> None:
    from matplotlib import pyplot as plt

    colours = {"plain": "#999999", "noise": "#1f6fb4", "violations": "#c0392b"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.4), layout="constrained")
    for kind, rows in history.items():
        epochs = range(len(rows))
        middle, high = (np.quantile([logs for _, logs, _ in rows], q, axis=1) for q in (0.5, 0.75))
        left.plot(epochs, middle, "o-", color=colours[kind], ms=4, lw=1.4, label=kind)
        left.plot(epochs, high, "--", color=colours[kind], lw=1)
        right.plot(epochs, [100 * accuracy for accuracy, _, _ in rows], "o-", color=colours[kind], ms=4, lw=1.4)
    left.set(
        xlabel="epoch",
        ylabel="log10 of the probability of failure",
        title="fresh pictures: median, upper quartile dashed",
    )
    right.set(xlabel="epoch", ylabel="accuracy, %", title="3,000 fresh clean pictures")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the run of the documentation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="draw into this file")
    options = parser.parse_args()
    history = run(replace(FULL if options.full else TASTE, seed=options.seed))
    if options.figure:
        draw(history, options.figure)


if __name__ == "__main__":
    main()
