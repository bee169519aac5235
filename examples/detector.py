"""For machine learning engineers: how rarely does noise make a detector miss a sign, or a segmentation lose half of it?

Run it with `python examples/detector.py`. The shipped networks see a scene of two signs; the questions are about the
first. `--figure FILE` draws the scene, and pictures that make the networks fail.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rarely
from rarely.demo import assets
from rarely.demo.scenes import SCENE_SIGNS, Scenes, draw_scenes
from rarely.inputs import Corruptions, GaussianNoise, Normal
from rarely.vision import BoxLayout, MissedBox, MovedBox, WrongPixels

ROWS = BoxLayout("xyxy", scores="sigmoid")  # what detector.onnx gives: corners in pixels, then a logit for each sign
SEED = 7  # of the scene


def problems(scenes: Scenes) -> list[rarely.Problem]:
    detector = rarely.load_network(assets() / "detector.onnx")  # put your own torch modules here
    segmentation = rarely.load_network(assets() / "segmentation.onnx")
    picture, box, label = torch.from_numpy(scenes.images[0]), scenes.boxes[0, 0], int(scenes.labels[0, 0])
    mask = torch.from_numpy(scenes.classes[0] == 1 + label)
    # Light alone: a corruption that shifts or turns the picture moves the sign out of the box that is asked about.
    light = Corruptions(picture, brightness=Normal(0, 0.15), contrast=Normal(1, 0.15))
    noise = GaussianNoise(picture, 0.2)
    half = WrongPixels(1 + label, mask, count=int(mask.sum()) // 2)
    sign = SCENE_SIGNS[label]
    missed = MissedBox(box, label, layout=ROWS)
    moved = MovedBox(box, label, threshold=0.2, layout=ROWS)  # however unsure
    return [
        rarely.Problem(detector, missed, light, f"{sign} missed, bad light"),
        rarely.Problem(detector, missed, noise, f"{sign} missed, noise of 20 %"),
        rarely.Problem(detector, moved, noise, f"{sign} seen elsewhere, noise of 20 %"),
        rarely.Problem(segmentation, half, rarely.LpBall(picture, 0.1, clip=(0, 1)), f"half of the {sign} lost, noise"),
    ]


def draw(path: Path, scenes: Scenes, asked: list[rarely.Problem], found: list[rarely.Estimate]) -> None:
    """The scene, then a witness of each question: where the network sees the first sign, and its classes of pixels."""
    from matplotlib import patches
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 1 + len(found), figsize=(8.5, 2.3), layout="constrained")

    def show(axis: Any, picture: Any, boxes: Any, color: str, title: str) -> None:
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1, extent=(0, 32, 32, 0))
        axis.set_title(title, fontsize=8)
        axis.axis("off")
        for x1, y1, x2, y2 in boxes:
            axis.add_patch(patches.Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=color, lw=1.5))

    show(axes[0], scenes.images[0, 0], scenes.boxes[0], "#4caf50", "the scene,\nand where its signs are")
    for axis, problem, estimate in zip(axes[1:], asked, found, strict=True):
        if not len(estimate.witnesses):
            continue
        witness = estimate.witnesses.inputs[:1]
        with torch.no_grad():
            y = problem.network(witness)[0]
        label = int(scenes.labels[0, 0])
        boxes = y[y[:, 4 + label] > 0, :4] if y.ndim == 2 else []
        what, why = problem.name.split(", ")
        title = f"{what},\n{why}: p = {math.exp(estimate.log_prob):.1g}"
        show(axis, witness[0, 0], boxes, "#e8663c", title)
        if y.ndim == 3:
            seen = np.ma.masked_equal(y.argmax(0), 0)
            axis.imshow(seen, cmap="autumn", alpha=0.45, extent=(0, 32, 32, 0))
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="draw into this file")
    options = parser.parse_args()
    scenes = draw_scenes(1, SEED)
    asked = problems(scenes)
    found = [rarely.estimate(problem, rarely.Auto(target_error=0.3), max_evaluations=30_000) for problem in asked]
    for estimate in found:
        print(estimate)
    if options.figure:
        draw(options.figure, scenes, asked, found)


if __name__ == "__main__":
    main()
