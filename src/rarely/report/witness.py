"""A violating input for the page: beside the original with their difference as pictures, or as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rarely.campaign.witnesses import WitnessSet
from rarely.display.pictures import as_picture, png, shades, value_range

Array = NDArray[Any]
_NUMBERS = 8  # coordinates listed of an input that is no picture


@dataclass(frozen=True)
class Shown:
    """A witness as the page shows it: pictures, or else rows of numbers."""

    pictures: tuple[tuple[str, str], ...] = ()  # caption, and a PNG as an address
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[tuple[str, ...], float | None], ...] = ()  # cells, and the change as a share of the largest
    hint: str = ""


def shown(found: WitnessSet | None) -> Shown | None:
    """The witness with the highest score, if there is one."""
    if found is None or len(found.inputs) == 0:
        return None
    witness = np.asarray(found.inputs[int(np.argmax(found.scores))], dtype=float)
    original = None if found.original is None else np.asarray(found.original, dtype=float).reshape(witness.shape)
    picture = as_picture(witness)
    if picture is None:
        return _numbers(witness.ravel(), None if original is None else original.ravel())
    return _pictures(picture, None if original is None else as_picture(original))


def _pictures(witness: Array, original: Array | None) -> Shown:
    low, high = value_range([witness] if original is None else [original, witness])
    hint = "" if (low, high) == (0.0, 1.0) else f"Shades run from {low:.3g} to {high:.3g}."
    violates = ("violates", png(shades(witness, low, high)))
    if original is None:
        return Shown((violates,), hint=hint)
    change = witness - original
    largest = float(np.abs(change).max())
    change = change.mean(-1) if change.ndim == 3 else change
    difference = (f"difference, at most {largest:.2g}", png(shades(change, -largest, largest), signed=True))
    return Shown((("original", png(shades(original, low, high))), violates, difference), hint=hint)


def _numbers(witness: Array, original: Array | None) -> Shown:
    """The coordinates that changed most; the first ones where there is nothing to compare with."""
    change = np.zeros_like(witness) if original is None else witness - original
    kept = sorted(np.argsort(-np.abs(change), kind="stable")[:_NUMBERS].tolist())
    which = "" if original is None else ", those that changed most"
    hint = f"{len(kept)} of {len(witness):,} inputs{which}." if len(kept) < len(witness) else ""
    if original is None:
        plain = tuple(((str(i), f"{witness[i]:.4g}"), None) for i in kept)
        return Shown(heads=("input", "violates"), rows=plain, hint=hint)
    largest = float(np.abs(change).max()) or 1.0
    rows = tuple(
        ((str(i), f"{original[i]:.4g}", f"{witness[i]:.4g}", f"{change[i]:+.3g}"), abs(change[i]) / largest)
        for i in kept
    )
    return Shown(heads=("input", "centre", "violates", "change"), rows=rows, hint=hint)
