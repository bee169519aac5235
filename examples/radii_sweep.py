"""For machine learning engineers: how fast does a classifier's error fall as noise gets weaker? Many radii at once.

Run it with `python examples/radii_sweep.py`. It writes radii.csv beside you.
"""

from __future__ import annotations

import csv
import itertools

import torch

import rarely
from rarely.demo import assets, images

RADII = (0.2, 0.16, 0.12)
CHOSEN = (0, 2)  # disc and square


def main() -> None:
    pictures, labels, names = images()
    network = rarely.load_network(assets() / "signs.onnx")  # put your own torch module here
    problems = [
        rarely.Problem(
            network,
            rarely.Misclassification(int(labels[i])),
            rarely.LpBall(pictures[i], radius, clip=(0, 1)),
            name=f"{names[int(labels[i])]} at {radius}",
        )
        for i, radius in itertools.product(CHOSEN, RADII)
    ]
    found = rarely.estimate(problems, rarely.Auto(target_error=0.2))
    for estimate in found:
        print(estimate)

    # What can the square be mistaken for? (Witnesses say which classes, not in what shares.)
    witnesses = found[-1].witnesses.inputs
    if len(witnesses):
        with torch.no_grad():
            answers = network(witnesses).argmax(1).unique().tolist()
        print(found[-1].name, "can be seen as", ", ".join(names[answer] for answer in answers))

    with open("radii.csv", "w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["problem", "outcome", "log_prob", "low", "high", "calls"])
        for e in found:
            table.writerow([e.name, e.outcome.value, e.log_prob, e.interval.low, e.interval.high, e.calls])


if __name__ == "__main__":
    main()
