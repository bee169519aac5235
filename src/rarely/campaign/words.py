"""A problem in words, for people who read an answer without the files that it is about."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rarely.core.problem import Problem
from rarely.core.properties import Either, LinearConstraint, Misclassification, Targeted
from rarely.inputs import (
    Box,
    Constrained,
    Corruptions,
    Gaussian,
    GaussianNoise,
    LpBall,
    Mixture,
    TruncatedGaussian,
)

_FEW = 8  # inputs whose ranges are told one by one, and rows of a property


def in_words(problem: Problem) -> dict[str, str]:
    """What the network is, what counts as a violation, and how inputs fall."""
    shape = " × ".join(map(str, problem.inputs.event_shape)) or "one number"
    dtype = str(problem.adapted.dtype).removeprefix("torch.")
    return {
        "network": f"inputs {shape}, {problem.outputs} output{'s' * (problem.outputs != 1)}, stored in {dtype}",
        "property": property_in_words(problem.property),
        "inputs": inputs_in_words(problem.inputs),
    }


def property_in_words(prop: Any) -> str:
    if isinstance(prop, Misclassification) and prop.label is not None:
        return f"another output is at least as high as output {int(prop.label)}, so that its class is not the answer"
    if isinstance(prop, Targeted):
        return f"output {int(prop.target)} is at least as high as output {int(prop.label)}"
    if isinstance(prop, LinearConstraint):
        return _constraint_in_words(prop)
    if isinstance(prop, Either):
        return f"{property_in_words(prop.left)}; or {property_in_words(prop.right)}"
    return f"the score of {type(prop).__name__} is at least 0"


def inputs_in_words(model: Any) -> str:
    told = _LAWS.get(type(model))
    return told(model) if told is not None else f"drawn from the input model {type(model).__name__}"


def _constraint_in_words(prop: LinearConstraint) -> str:
    A, b = prop.A, prop.b
    if A.ndim != 3 or A.shape[0] * A.shape[1] > _FEW or A.shape[-1] > _FEW:
        return "the outputs y meet linear constraints A y <= b"
    ways = (
        " and ".join(_row(row, bound) for row, bound in zip(rows.tolist(), bounds.tolist(), strict=True) if any(row))
        for rows, bounds in zip(A, b, strict=True)
    )
    return " or ".join(filter(None, ways)) or "always"


def _row(row: list[float], bound: float) -> str:
    """a y <= b, with the sign that reads best where there is one output."""
    used = [(i, a) for i, a in enumerate(row) if a]
    if len(used) == 1:
        i, a = used[0]
        return f"output {i} {'<=' if a > 0 else '>='} {bound / a + 0.0:.6g}"
    return f"{' '.join(f'{a:+g} y{i}' for i, a in used)} <= {bound:.6g}"


def _box(model: Box) -> str:
    return f"uniform{_ranges(model.low, model.high)}"


def _ranges(low: Tensor, high: Tensor) -> str:
    lows, highs = low.flatten(), high.flatten()
    if len(lows) > _FEW:
        widths = highs - lows
        free = int((widths > 0).sum())
        return (
            f" in a box of {len(lows)} inputs, {free} of them free, between {float(lows.min()):.4g} and "
            f"{float(highs.max()):.4g}, each over a width of at most {float(widths.max()):.4g}"
        )
    told = (
        f"x{i} in [{a:.6g}, {b:.6g}]" if b > a else f"x{i} = {a:.6g}"
        for i, (a, b) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True))
    )
    return f": {', '.join(told)}"


def _ball(model: LpBall) -> str:
    norm = "∞" if model.norm == math.inf else f"{model.norm:g}"
    low, high = float(model.low.min()), float(model.high.max())
    return (
        f"uniform in the ball of radius {float(model.radius):g} in the {norm}-norm around one input; values between "
        f"{low:.4g} and {high:.4g}"
    )


def _span(values: Tensor) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _gaussian(model: Gaussian) -> str:
    return f"normal around one input, with standard deviation {_span(model.std)}" + (
        "" if model.independent else " and correlations"
    )


def _truncated(model: TruncatedGaussian) -> str:
    ranges = _ranges(model.low, model.high).removeprefix(" in").removeprefix(":")
    return f"normal with standard deviation {_span(model.std)}, conditioned on{ranges}"


def _noisy(model: GaussianNoise) -> str:
    cut = f"cut to {_span(torch.stack([model.low.min(), model.high.max()]))}"
    return f"one input with normal noise of standard deviation {_span(model.std)} on every value, {cut}"


def _corrupted(model: Corruptions) -> str:
    told = []
    for kind, law in zip(model.kinds, model.laws, strict=True):
        low, high = (float(end) for end in law.support)
        told.append(f"{kind} {type(law).__name__.lower()} in [{low:g}, {high:g}]" if math.isfinite(high - low) else
                    f"{kind} {type(law).__name__.lower()}")  # fmt: skip
    return f"one picture with {', '.join(told)}{', independent of each other' * (len(told) > 1)}"


def _mixture(model: Mixture) -> str:
    weights = torch.exp(model.log_weights.double()).tolist()
    parts = [
        f"with probability {w:.3g} {inputs_in_words(part)}" for w, part in zip(weights, model.components, strict=True)
    ]
    return "; ".join(parts) if len(parts) <= _FEW else f"one of {len(parts)} parts, the first of them: {parts[0]}"


_LAWS: dict[type, Callable[[Any], str]] = {
    Box: _box,
    LpBall: _ball,
    Gaussian: _gaussian,
    TruncatedGaussian: _truncated,
    GaussianNoise: _noisy,
    Corruptions: _corrupted,
    Mixture: _mixture,
    Constrained: lambda model: f"{inputs_in_words(model.base)}; only where linear constraints on the inputs hold",
}
