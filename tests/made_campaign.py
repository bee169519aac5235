"""A campaign made up for tests of the report: every outcome, pictures and numbers, as many problems as wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from rarely.campaign.store import Header, Record
from rarely.campaign.witnesses import WitnessSet
from rarely.core.evidence import SPLITTING, Draws, Nearest, Number
from rarely.core.witnesses import Witnesses
from rarely.questions.result import Estimate, Outcome
from rarely.stats.statistic import Interval, LogNormal

CLASSES = ("stop", "give way", "no entry", "ahead only", "roundabout", "no overtaking")
KINDS = ("nearest found", "weighed draw")
NEAR = Witnesses(torch.zeros(1, 1, 28, 28), torch.zeros(1))
RADII = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)


def header(**changes: str) -> Header:
    settled = {
        "name": "Road signs under noise",
        "plan": '[campaign]\nname = "Road signs under noise"\nseed = 7\n\n[[networks]]\npath = "signs.onnx"\n'
        f'\n[[problems]]\ndataset = "signs.npz"\nclasses = {json.dumps(CLASSES)}\n',
        "digest": "9f2c41d07ab3e655",
        "created": "2026-11-15T21:04:09+00:00",
        "command": "rarely campaign run signs.toml --out signs",
        **changes,
    }
    versions = {"rarely": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.2", "platform": "Linux-6.1-x86_64"}
    return Header(seed=7, versions=versions, **settled)


def violated(log_prob: float, **changes: object) -> Estimate:
    levels = tuple(np.linspace(-4.0, 0.0, max(2, int(-log_prob / 2.3) + 1)).round(3).tolist())
    acceptance = tuple(round(0.55 - 0.3 * i / len(levels), 3) for i in range(len(levels)))
    settled: dict[str, object] = {
        "outcome": Outcome.VIOLATED,
        "log_prob": log_prob,
        "log_prob_std": 0.08,
        "interval": Interval(0.95, log_prob - 0.16, min(0.0, log_prob + 0.16)),
        "upper_bound": min(0.0, log_prob + 0.13),
        "evaluations": 48_102,
        "gradients": 412,
        "seconds": 0.71,
        "evidence": (
            Draws(2200, 0, 1000),
            Number(
                "splitting", SPLITTING, LogNormal(log_prob + 0.21, 0.45), 36_660, levels=levels, acceptance=acceptance
            ),
            Number("line sampling", "lines", LogNormal(log_prob, 0.08), 12_678, note="9 lines"),
            Nearest("search for the nearest", NEAR, 0.431, "radius", 0.982, 203, replayed=True),
        ),
        "notes": ("effective sample size 1277 of 4000, Pareto index 0.31",),
        "provenance": {"estimator": {"name": "Auto", "target_error": 0.1}, "device": "cpu", "dtype": "float32"},
        **changes,
    }
    return Estimate(**settled)  # type: ignore[arg-type]


def unseen(outcome: Outcome, bound: float) -> Estimate:
    interval = Interval(0.95, -math.inf, bound)
    nothing = {"log_prob": -math.inf, "log_prob_std": math.inf, "interval": interval, "upper_bound": bound}
    return replace(violated(-12.0), outcome=outcome, evidence=violated(-12.0).evidence[:2], notes=(), **nothing)  # type: ignore[arg-type]


def record(index: int, estimate: Estimate | None, **changes: object) -> Record:
    image, radius = index // len(RADII), RADII[index % len(RADII)]
    state = "done" if estimate is not None else "failed"
    settled: dict[str, object] = {
        "key": f"{index:016x}",
        "index": index,
        "name": f"signs.onnx signs.npz[{image}] linf {radius:g}",
        "network": "signs.onnx",
        "item": f"signs.npz[{image}]",
        "label": CLASSES[image % len(CLASSES)],
        "norm": "inf",
        "radius": radius,
        "replicate": 0,
        "state": state,
        "attempts": 3 if state == "failed" else 1,
        "reason": "" if estimate is not None else "NetworkError: the score became NaN during the run",
        "estimate": estimate,
        **changes,
    }
    return Record(**settled)  # type: ignore[arg-type]


def records(count: int, seed: int = 0) -> Iterator[Record]:
    """Problems as a campaign over images and radii gives them: rarer at small radii, and not all of them done."""
    rng = np.random.default_rng(seed)
    strength = 0.0
    for index in range(count):
        if index % len(RADII) == 0:
            strength = rng.uniform(0.3, 2.5)
        log_prob = -strength / RADII[index % len(RADII)] ** 1.3 + rng.normal(0, 0.2)
        kind = index % 41  # no divisor of the number of radii: every radius has them all
        if kind == 7:
            yield record(index, None)
        elif kind == 11:
            yield record(index, violated(min(log_prob, -1.0), outcome=Outcome.STALLED, notes=("the checks disagree",)))
        elif log_prob < -60:
            yield record(index, unseen(Outcome.PROVED_SAFE, -math.inf))
        elif log_prob < -45:
            yield record(index, unseen(Outcome.BELOW_FLOOR, -230.26))
        elif kind == 23:
            yield record(index, unseen(Outcome.OUT_OF_BUDGET, -9.4))
        else:
            yield record(index, violated(min(log_prob, -0.01)))


def witnesses(key: str) -> WitnessSet:
    """A drawn disc under noise; every fourth problem has six numbers in its place."""
    rng = np.random.default_rng(int(key, 16))
    if int(key, 16) % 4 == 3:
        centre = rng.uniform(-1, 1, 6)
        found = centre + rng.uniform(-0.2, 0.2, (2, 6))
        return WitnessSet(found, np.array([0.1, 0.4]), centre, KINDS, rng.uniform(-1, 1, (2, 6)))
    y, x = np.mgrid[-1:1:28j, -1:1:28j]
    disc = (np.hypot(x, y) < 0.8) * 0.8 - (abs(y) < 0.2) * (abs(x) < 0.55) * 0.6 + 0.1
    noisy = (disc + rng.uniform(-0.2, 0.2, (2, 1, 28, 28))).clip(0, 1)
    return WitnessSet(noisy, np.array([0.3, 0.2]), disc[None], KINDS, rng.uniform(-5, 5, (2, 6)))
