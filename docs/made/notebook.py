"""What a notebook shows of the problem of docs/how-to/notebooks.md, of its estimate and of a list of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import rarely
from rarely.demo import assets, images


def shown(what: str) -> str:
    """`problem`, `estimate` or `list`, as HTML in which no empty line ends the block."""
    return f"\n{_parts()[what]._repr_html_()}\n"


@cache
def _parts() -> dict[str, Any]:
    pictures, labels, names = images()
    network = rarely.load_network(assets() / "signs.onnx")
    property = rarely.Misclassification(int(labels[2]))
    problems = [
        rarely.Problem(network, property, rarely.LpBall(pictures[2], eps, clip=(0, 1)), f"{names[2]}, radius {eps}")
        for eps in (0.2, 0.1)
    ]
    estimates = rarely.estimate(problems)
    return {"problem": problems[0], "estimate": estimates[-1], "list": estimates}
