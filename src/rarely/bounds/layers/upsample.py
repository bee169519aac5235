"""Making pictures larger: by repeating entries, or linearly between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.layers.dense import Dense
from rarely.bounds.layers.move import rearrange
from rarely.bounds.operators import Terms
from rarely.bounds.reader import Handle, Reader, reads

_LINEAR = ("linear", "bilinear", "trilinear")


@dataclass(frozen=True)
class Between(Dense):
    """Entries between those of the last axis: rows of two weights that sum to one.

    The network finds its weights from positions up to the length of the axis, so they are off by as many roundings,
    and where they should vanish they need not: each is charged against the two entries on either side.
    """

    def terms(self, *H: Tensor) -> Terms:
        out, n = self.weight.shape
        used = (self.weight != 0).to(self.weight)
        near = used.clone()
        near[:, 1:] += used[:, :-1]
        near[:, :-1] += used[:, 1:]
        return Terms(F.linear(H[0], near), 4 * (n + out), out)


def _along(r: Reader, x: Handle, axis: int, weight: Tensor) -> Handle:
    """The weights (out, in) applied along an axis, counted without the batch."""
    last = rearrange(r, lambda v: v.movedim(axis + 1, -1), x)
    op = Between(weight, weight.new_zeros(len(weight)))
    out = r.add(op, (*last.shape[:-1], len(weight)), last)
    return rearrange(r, lambda v: v.movedim(-1, axis + 1), out)  # type: ignore[no-any-return]


@reads("interpolate", nn.Upsample)
def interpolate(
    r: Reader,
    input: Handle,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Handle:
    how: dict[str, Any] = {"mode": mode, "align_corners": align_corners}
    how["recompute_scale_factor"] = recompute_scale_factor
    if mode in ("nearest", "nearest-exact"):
        call = lambda v: F.interpolate(v, size, scale_factor, **how)  # noqa: E731
        return rearrange(r, call, input)  # type: ignore[no-any-return]
    if mode not in _LINEAR or antialias:
        raise Unprovable(f"upsampling in mode {mode!r}")
    rank = len(input.shape) - 1

    def each(value: Any) -> list[Any]:
        return list(value) if isinstance(value, Sequence) else [value] * rank

    x = input
    for axis, (new, factor) in enumerate(zip(each(size), each(scale_factor), strict=True), 1):
        eye = torch.eye(input.shape[axis], dtype=torch.float64, device=r.device).unsqueeze(0)
        weight = F.interpolate(eye, new, factor, **{**how, "mode": "linear"})[0].mT
        x = _along(r, x, axis, weight)
    return x
