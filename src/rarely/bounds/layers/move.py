"""Moving entries about: reshape, slice, concatenate, and their like.

None of these is interpreted. They are run once on numbered entries, and where each number lands is the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Unprovable
from rarely.bounds.operators import Affine, Interval, Terms
from rarely.bounds.reader import PROBE, Handle, Reader, reads

MOVES: set[str | type[nn.Module]] = {
    *("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "contiguous", "clone", "detach"),
    *("permute", "transpose", "movedim", "swapaxes", "flip", "roll"),
    *("getitem", "narrow", "index_select", "chunk", "split", "cat", "concat", "stack", "pad"),
    *(nn.Flatten, nn.Unflatten),
}


@dataclass(frozen=True)
class Gather(Affine):
    """Each output entry is one input entry, or zero.

    `index` holds, per output entry, a position in the inputs flattened and laid end to end; the position after
    the last is the constant zero. Only coefficients of entries that are read more than once round, as they add up.
    """

    index: Tensor  # out_shape, long
    in_shapes: tuple[tuple[int, ...], ...]
    plain: bool  # one input, order kept: a reshape
    entrywise: ClassVar[bool] = True

    def forward(self, *xs: Tensor) -> Tensor:
        if self.plain:
            return xs[0].reshape(-1, *self.index.shape)
        flat = torch.cat([x.flatten(1) for x in xs] + [xs[0].new_zeros(xs[0].shape[0], 1)], 1)
        return flat[:, self.index]

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(*(x[0] for x in xs)), self.forward(*(x[1] for x in xs))

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        lead = A.shape[:2]
        if self.plain:
            return (A.reshape(*lead, *self.in_shapes[0]),)
        sizes = [math.prod(shape) for shape in self.in_shapes]
        flat = A.new_zeros(*lead, sum(sizes) + 1).index_add(2, self.index.flatten(), A.flatten(2))
        parts = torch.split(flat[..., :-1], sizes, 2)
        return tuple(p.reshape(*lead, *s) for p, s in zip(parts, self.in_shapes, strict=True))

    def constant(self) -> None:
        return None

    def terms(self, *H: Tensor) -> Terms | None:
        return Terms(self.forward(*H), 0, self._repeats) if self._repeats > 1 else None

    @cached_property
    def _repeats(self) -> int:
        """How often the entry that is read most is read."""
        total = sum(math.prod(shape) for shape in self.in_shapes)
        return int(torch.bincount(self.index.flatten(), minlength=total)[:total].max())


def handles(value: Any) -> list[Handle]:
    """The values of the network among a call's arguments."""
    if isinstance(value, Handle):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [h for v in value for h in handles(v)]
    return []


def _fill(value: Any, known: dict[Handle, Tensor]) -> Any:
    if isinstance(value, Handle):
        return known[value]
    if isinstance(value, dict):
        return {key: _fill(v, known) for key, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_fill(v, known) for v in value)
    if isinstance(value, Tensor) and value.is_floating_point():
        raise Unprovable("a constant tensor joined with values of the network")
    return value


def rearrange(r: Reader, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call that only moves entries, read off from where it puts numbered ones (0 is padding)."""
    inputs = tuple(dict.fromkeys(handles((args, kwargs))))
    total, start, known = sum(math.prod(h.shape) for h in inputs), 1, {}
    for h in inputs:
        row = torch.arange(start, start + math.prod(h.shape), dtype=torch.float64, device=r.device)
        known[h] = torch.stack([row, row + total]).reshape(PROBE, *h.shape)
        start += len(row)
    result = fn(*_fill(args, known), **_fill(kwargs, known))
    if isinstance(result, (tuple, list)):
        return tuple(_gathered(r, out, total, inputs) for out in result)
    return _gathered(r, result, total, inputs)


def _gathered(r: Reader, out: Tensor, total: int, inputs: tuple[Handle, ...]) -> Handle:
    if out.ndim < 1 or out.shape[0] != PROBE or not torch.equal(out[1], out[0] + total * (out[0] > 0)):
        raise Unprovable("the network mixes or drops the batch dimension")
    index = torch.where(out[0] > 0, out[0] - 1, float(total)).long()
    plain = len(inputs) == 1 and torch.equal(index.flatten(), torch.arange(total, device=r.device))
    if plain and index.shape == inputs[0].shape:
        return inputs[0]
    return r.add(Gather(index, tuple(h.shape for h in inputs), plain), index.shape, *inputs)


def expand(r: Reader, *xs: Handle, shapes: Sequence[Sequence[int]] = ()) -> list[Handle]:
    """The values brought to the shape that they broadcast to, together with constants of these shapes."""
    shape = tuple(torch.broadcast_shapes(*(x.shape for x in xs), *shapes))  # type: ignore[no-untyped-call]
    return [x if x.shape == shape else rearrange(r, lambda v: v.expand(len(v), *shape), x) for x in xs]


@reads("dropout", nn.Dropout, nn.Dropout2d)
def dropout(r: Reader, input: Handle, p: float = 0.5, training: bool = True, inplace: bool = False) -> Handle:
    if training:
        raise Unprovable("dropout in training mode")
    return input


@reads(nn.Identity)
def identity(r: Reader, input: Handle) -> Handle:
    return input
