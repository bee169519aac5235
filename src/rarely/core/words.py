"""Input models and properties in words, for people who read an answer. What has `words` of its own says them."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from rarely.core.properties import Both, Either, LinearConstraint, Misclassification, Scored, Targeted

_FEW = 8  # numbers of an input that are told one by one


def inputs_in_words(model: Any) -> str:
    """How inputs fall: what an input model says of itself."""
    told = getattr(model, "words", None)
    return told if isinstance(told, str) else f"drawn from {type(model).__name__}"


def property_in_words(prop: Any) -> str:
    """What counts as a violation; a property may say it itself."""
    told = getattr(prop, "words", None)
    if isinstance(told, str):
        return told
    if isinstance(prop, Misclassification) and prop.label is not None:
        return f"another output is at least as high as output {int(prop.label)}, so that its class is not the answer"
    if isinstance(prop, Targeted):
        return f"output {int(prop.target)} is at least as high as output {int(prop.label)}"
    if isinstance(prop, LinearConstraint):
        return _constraints(prop.A, prop.b)
    if isinstance(prop, Both | Either):
        joint = "and" if isinstance(prop, Both) else "or"
        return f"{property_in_words(prop.left)}; {joint} {property_in_words(prop.right)}"
    if isinstance(prop, Scored):
        name = getattr(prop.function, "__name__", type(prop.function).__name__)
        return f"the score {name.replace('<lambda>', 'of a function')} is at least 0"
    return f"the score of {type(prop).__name__} is at least 0"


def span(values: Tensor) -> str:
    """The least and the largest of some numbers."""
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def ranges(low: Tensor, high: Tensor) -> str:
    """Bounds of every number of an input, or of all of them together where they are many."""
    lows, highs = low.flatten(), high.flatten()
    if len(lows) > _FEW:
        free, widest = int((highs > lows).sum()), float((highs - lows).max())
        return (
            f"a box of {len(lows):,} numbers, {free:,} of them free, between {float(lows.min()):.4g} and "
            f"{float(highs.max()):.4g}, each over a width of at most {widest:.4g}"
        )
    return "the box " + ", ".join(
        f"x{i} in [{a:.4g}, {b:.4g}]" if b > a else f"x{i} = {a:.4g}"
        for i, (a, b) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True))
    )


def _constraints(A: Tensor, b: Tensor) -> str:
    """Outputs y with A y <= b, in any of several ways (ways, rows, outputs), where that is short."""
    if A.ndim != 3 or A.shape[0] * A.shape[1] > _FEW or A.shape[-1] > _FEW:
        return "the outputs y meet linear constraints A y <= b"
    ways = (
        " and ".join(_row(row, bound) for row, bound in zip(rows, bounds, strict=True) if any(row))
        for rows, bounds in zip(A.tolist(), b.tolist(), strict=True)
    )
    return " or ".join(filter(None, ways)) or "always"


def _row(row: list[float], bound: float) -> str:
    """a y <= b, with the sign that reads best where there is one output."""
    used = [(i, a) for i, a in enumerate(row) if a]
    if len(used) == 1:
        ((i, a),) = used
        return f"output {i} {'<=' if a > 0 else '>='} {bound / a + 0.0:.6g}"
    return f"{' '.join(f'{a:+g} y{i}' for i, a in used)} <= {bound:.6g}"


def law_in_words(model: Any) -> str:
    """The law of one number: its name, and where its values lie."""
    names = getattr(model, "names", None)
    if names:
        return f"one of {', '.join(names[:_FEW])}{', …' * (len(names) > _FEW)}"
    low, high = (float(end.min()) for end in model.support)
    return type(model).__name__.lower() + (f" in [{low:g}, {high:g}]" if math.isfinite(high - low) else "")
