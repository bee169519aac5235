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
    """Each output entry is one input entry, or a constant.

    `index` holds, per output entry, a position in the inputs flattened and laid end to end; the position after
    the last is a constant. Only coefficients of entries that are read more than once round, as they add up.
    """

    index: Tensor  # out_shape, long
    in_shapes: tuple[tuple[int, ...], ...]
    plain: bool  # one input, order kept: a reshape
    fixed: Tensor | None  # out_shape: the constants, zero elsewhere; none where all are zero
    entrywise: ClassVar[bool] = True

    def forward(self, *xs: Tensor) -> Tensor:
        if self.plain:
            return xs[0].reshape(-1, *self.index.shape)
        flat = torch.cat([x.flatten(1) for x in xs] + [xs[0].new_zeros(xs[0].shape[0], 1)], 1)
        moved = flat[:, self.index]
        return moved if self.fixed is None else moved + self.fixed

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

    def constant(self) -> Tensor | None:
        return self.fixed

    def terms(self, *H: Tensor) -> Terms | None:
        exact = self._repeats <= 1 and self.fixed is None
        return None if exact else Terms(self.forward(*H).abs(), 0, self._repeats)

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


def _fill(value: Any, known: dict[Handle, Tensor], constants: torch.dtype | None) -> Any:
    """Arguments with tensors for handles; constant tensors as they are and numbers as this type has them, or zero."""
    if isinstance(value, Handle):
        return known[value]
    if isinstance(value, dict):
        return {key: _fill(v, known, constants) for key, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_fill(v, known, constants) for v in value)
    if isinstance(value, Tensor) and value.is_floating_point():
        value = value.detach().double()
        return torch.zeros_like(value) if constants is None else value
    if isinstance(value, float):
        return 0.0 if constants is None else float(torch.tensor(value, dtype=constants))
    return value


def _numbers(value: Any) -> bool:
    """Whether constant tensors or numbers may be among the entries that a call moves."""
    if isinstance(value, dict):
        return any(_numbers(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return any(_numbers(v) for v in value)
    return isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())


def rearrange(r: Reader, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call that only moves entries, read off from where it puts numbered ones (0 is padding).

    Constants among them are read off from a second call, with zeros for the values of the network.
    """
    inputs = tuple(dict.fromkeys(handles((args, kwargs))))
    total, start, known = sum(math.prod(h.shape) for h in inputs), 1, {}
    for h in inputs:
        row = torch.arange(start, start + math.prod(h.shape), dtype=torch.float64, device=r.device)
        known[h] = torch.stack([row, row + total]).reshape(PROBE, *h.shape)
        start += len(row)
    result = fn(*_fill(args, known, None), **_fill(kwargs, known, None))
    several = isinstance(result, (tuple, list))
    still: Any = [None] * len(result) if several else None
    if _numbers((args, kwargs)):
        zeros = {h: torch.zeros_like(v) for h, v in known.items()}
        kind = getattr(torch, r.arithmetic.name)
        still = fn(*_fill(args, zeros, kind), **_fill(kwargs, zeros, kind))
    if several:
        return tuple(_gathered(r, out, fixed, total, inputs) for out, fixed in zip(result, still, strict=True))
    return _gathered(r, result, still, total, inputs)


def _gathered(r: Reader, out: Tensor, fixed: Tensor | None, total: int, inputs: tuple[Handle, ...]) -> Handle:
    if out.ndim < 1 or out.shape[0] != PROBE or not torch.equal(out[1], out[0] + total * (out[0] > 0)):
        raise Unprovable("the network mixes or drops the batch dimension")
    if bool((out < 0).any()):
        raise Unprovable("whole numbers among the values that a call moves")
    if fixed is not None:
        if not torch.equal(fixed[0], fixed[1]):
            raise Unprovable("a constant that differs along the batch dimension")
        fixed = r.real(fixed[0]) if bool((fixed[0] != 0).any()) else None
    index = torch.where(out[0] > 0, out[0] - 1, float(total)).long()
    plain = len(inputs) == 1 and torch.equal(index.flatten(), torch.arange(total, device=r.device))
    if plain and index.shape == inputs[0].shape:
        return inputs[0]
    return r.add(Gather(index, tuple(h.shape for h in inputs), plain, fixed), index.shape, *inputs)


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
