"""What `rarely demo` analyses: two small networks, their properties and pictures, shipped inside the package.

`scripts/train_demo.py` makes all of it from this project's own code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rarely.demo.data import CONTROL_INPUTS, SIGNS, Quantity, draw_images, expert_acceleration, physical

__all__ = [
    "CONTROL_INPUTS",
    "SIGNS",
    "DemoProblem",
    "Quantity",
    "assets",
    "draw_images",
    "expert_acceleration",
    "images",
    "manifest",
    "physical",
]


@dataclass(frozen=True)
class DemoProblem:
    """One question of the demo: a network and either a property file or an image with its noise, or both.

    Where both are given they describe the same problem. `log10_prob` was measured when the assets were made,
    by a splitting code that is not the library's; None means that the violation never happens.
    """

    name: str
    description: str
    network: Path
    property: Path | None
    image: int | None  # index into images(); its label is the class that must win
    eps: float | None  # uniform noise in [-eps, eps] per pixel
    clip: tuple[float, float] | None
    log10_prob: float | None
    log10_prob_error: float | None  # one standard error


def assets() -> Path:
    """The folder of networks, properties and pictures."""
    return Path(str(files("rarely.demo"))) / "assets"


def manifest() -> list[DemoProblem]:
    """The demo's problems: six noisy pictures, from common mistakes to very rare, then the controller."""
    folder = assets()
    entries = json.loads((folder / "demo.json").read_text(encoding="utf-8"))["problems"]
    for entry in entries:
        entry.update({key: folder / entry[key] for key in ("network", "property") if entry[key] is not None})
        entry["clip"] = entry["clip"] and tuple(entry["clip"])
    return [DemoProblem(**entry) for entry in entries]


def images() -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    """The shipped pictures (6, 1, 20, 20), their labels (6,) and the names of the classes."""
    with np.load(assets() / "signs.npz") as stored:
        return stored["images"], stored["labels"], tuple(str(name) for name in stored["names"])
