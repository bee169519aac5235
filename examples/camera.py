"""For machine learning engineers: how often does a camera make a classifier fail? Blur and light, noise, dead pixels.

Run it with `python examples/camera.py`. It prints what happens to a picture, and how often the shipped network then
sees another sign. `--figure FILE` draws a few of the corrupted pictures instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import rarely
from rarely.core.rng import Rng
from rarely.demo import assets, images
from rarely.inputs import (
    Corruptions,
    GaussianNoise,
    InputModel,
    Normal,
    PixelDropout,
    PoissonNoise,
    Uniform,
)

CHOSEN = 2  # the square


def what_happens(picture: torch.Tensor) -> dict[str, InputModel]:
    return {
        "held askew": Corruptions(picture, rotation=Normal(0, 3), shift_x=Normal(0, 0.5), shift_y=Normal(0, 0.5)),
        "dusk, out of focus": Corruptions(picture, brightness=Uniform(-0.2, 0.0), blur=Normal(0, 0.4)),
        "sensor noise of 6 %": GaussianNoise(picture, 0.06),
        "100 photons at full light": PoissonNoise(picture, photons=100),
        "3 % dead pixels": PixelDropout(picture, 0.03),
    }


def draw(path: Path, picture: torch.Tensor) -> None:
    """The picture, and three draws of everything that may happen to it."""
    from matplotlib import pyplot as plt

    models = what_happens(picture)
    figure, axes = plt.subplots(3, len(models) + 1, figsize=(8.2, 4.4), layout="constrained")
    for column, (what, model) in enumerate({"the picture": None, **models}.items()):
        shown = picture.expand(3, *picture.shape) if model is None else model.sample(3, Rng(0))
        axes[0, column].set_title(what.replace(", ", ",\n").replace("at full", "\nat full"), fontsize=8)
        for row in range(3):
            axes[row, column].axis("off")
            if model is not None or row == 0:
                axes[row, column].imshow(shown[row, 0].numpy(), vmin=0, vmax=1, cmap="gray")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="draw into this file")
    options = parser.parse_args()
    pictures, labels, names = images()
    network = rarely.load_network(assets() / "signs.onnx")  # put your own torch module here
    picture, label = torch.from_numpy(pictures[CHOSEN]), int(labels[CHOSEN])
    if options.figure:
        draw(options.figure, picture)
        return
    problems = [
        rarely.Problem(network, rarely.Misclassification(label), model, name=f"{names[label]}, {what}")
        for what, model in what_happens(picture).items()
    ]
    for found in rarely.estimate(problems, rarely.Auto(target_error=0.3), max_evaluations=40_000):
        print(found)


if __name__ == "__main__":
    main()
