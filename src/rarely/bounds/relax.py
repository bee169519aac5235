"""Linear relaxations of the non-linear operators: l(x) <= f(x) <= u(x) on an interval per entry.

ReLU: the chord above and any line of slope in [0, 1] through the origin below (CROWN, Zhang et al. 2018, sec. 3;
the free slope is what alpha-CROWN, Xu et al. 2021, optimises). Sigmoid and tanh: a chosen slope, with the shift
that makes the line valid found from the stationary points, so that no root search has to be trusted. Max-pool:
see `MaxWindows`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rarely.bounds.linear import Interval, gamma, magnitude


def contract(A: Tensor, t: Tensor) -> Tensor:
    """Sum over the event of A (B or 1, m, *event) times t (B, *event) -> (B, m)."""
    flat = t.expand(t.shape[0], *A.shape[2:]).flatten(1)
    if A.shape[0] == 1:
        return flat @ A[0].flatten(1).mT
    return (A.flatten(2) @ flat.unsqueeze(-1)).squeeze(-1)


class Relaxation(Protocol):
    """One step of backward propagation: coefficients of the output to those of the input."""

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Elementwise:
    """lower_slope x + lower_shift <= f(x) <= upper_slope x + upper_shift, entry by entry.

    A positive coefficient takes the lower line and a negative one the upper: with A+ = (A + |A|) / 2 and
    A- = (A - |A|) / 2 that is A (l + u) / 2 + |A| (l - u) / 2, for slopes and shifts alike. The rounding charge
    |A| slack rides on the second term.
    """

    lower_slope: Tensor  # (B, *event)
    upper_slope: Tensor
    mid_shift: Tensor
    half_shift: Tensor  # less the slack
    free: Tensor | None  # where the lower slope may be any value in [floor, 1]
    floor: float

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        size = A.abs()
        lower, upper = self.lower_slope.unsqueeze(1), self.upper_slope.unsqueeze(1)
        if alpha is not None and self.free is not None:
            slope = self.floor + (1 - self.floor) * alpha.clamp(0, 1)
            lower = torch.where(self.free.unsqueeze(1), slope, lower)
        bias = contract(A, self.mid_shift) + contract(size, self.half_shift)
        return torch.addcmul(A * ((lower + upper) / 2), size, (lower - upper) / 2), bias


def _lines(
    lower_slope: Tensor,
    lower_shift: Tensor,
    upper_slope: Tensor,
    upper_shift: Tensor,
    H: Tensor,
    free: Tensor | None = None,
    floor: float = 0.0,
) -> Elementwise:
    steepest = torch.maximum(lower_slope.abs(), upper_slope.abs())
    if free is not None:
        steepest = torch.where(free, torch.ones_like(steepest), steepest)
    shifts = lower_shift.abs() + upper_shift.abs()
    n = H[0].numel()
    slack = steepest * H * gamma(16, H.dtype) + shifts * gamma(n, H.dtype)
    return Elementwise(
        lower_slope,
        upper_slope,
        (lower_shift + upper_shift) / 2,
        (lower_shift - upper_shift) / 2 - slack,
        free,
        floor,
    )


class NonlinearOp(Protocol):
    """An operator that backward propagation must relax, given bounds on its input.

    `unsettled` says which input entries deserve tighter bounds. `influence` guides branching: for coefficients of
    absolute size `size` at the output, how much the bound loses per unit of width of each input entry.
    """

    def forward(self, *xs: Tensor) -> Tensor: ...

    def interval(self, *xs: Interval) -> Interval: ...

    def relax(self, x: Interval) -> Relaxation: ...

    def unsettled(self, x: Interval) -> Tensor: ...

    def influence(self, x: Interval, size: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LeakyReLU:
    """max(x, a x) with 0 <= a < 1; the ReLU is a = 0."""

    leak: float

    def forward(self, *xs: Tensor) -> Tensor:
        x = xs[0]
        return x.clamp(min=0) if self.leak == 0 else torch.where(x >= 0, x, self.leak * x)

    def interval(self, *xs: Interval) -> Interval:
        low, high = (self.forward(x) for x in xs[0])
        if self.leak == 0:
            return low, high
        margin = magnitude((low, high)) * gamma(1, low.dtype)
        return low - margin, high + margin

    def unsettled(self, x: Interval) -> Tensor:
        return (x[0] < 0) & (x[1] > 0)

    def gap(self, x: Interval) -> Tensor:
        """Largest gap of the relaxation: the intercept of the chord."""
        low, high = x
        width = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        return torch.where(self.unsettled(x), -(1 - self.leak) * high * (low / width), low * 0)

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        return size * self.gap(x) / (x[1] - x[0]).clamp(min=torch.finfo(size.dtype).tiny)

    def relax(self, x: Interval) -> Elementwise:
        low, high = x
        one = torch.ones_like(low)
        open_ = self.unsettled(x)
        width = torch.where(open_, high - low, one)
        chord = torch.where(open_, (high - self.leak * low) / width, torch.where(low >= 0, one, one * self.leak))
        shift = torch.where(open_, (1 - chord) * high, low * 0)
        # Zhang et al.: of the two extreme lower lines, the one that leaves the smaller triangle.
        lower = torch.where(open_, torch.where(high > -low, one, one * self.leak), chord)
        return _lines(lower, low * 0, chord, shift, magnitude(x), open_, self.leak)


@dataclass(frozen=True)
class SShape:
    """Sigmoid or tanh: increasing, convex below zero, concave above."""

    name: str

    def forward(self, *xs: Tensor) -> Tensor:
        return torch.sigmoid(xs[0]) if self.name == "sigmoid" else torch.tanh(xs[0])

    def interval(self, *xs: Interval) -> Interval:
        margin = gamma(16, xs[0][0].dtype)
        return self.forward(xs[0][0]) - margin, self.forward(xs[0][1]) + margin

    def unsettled(self, x: Interval) -> Tensor:
        return torch.ones_like(x[0], dtype=torch.bool)

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        steepest = self._slope_at(torch.clamp(x[0] * 0, x[0], x[1]))
        return size * (steepest - torch.minimum(self._slope_at(x[0]), self._slope_at(x[1]))) / 4

    def _slope_at(self, x: Tensor) -> Tensor:
        y = self.forward(x)
        return y * (1 - y) if self.name == "sigmoid" else 1 - y * y

    def _point_of(self, slope: Tensor) -> Tensor:
        """The x >= 0 whose derivative is `slope` (0 where the slope is too large to occur)."""
        top = 0.25 if self.name == "sigmoid" else 1.0
        root = (1 - slope / top).clamp(0, 1 - torch.finfo(slope.dtype).eps).sqrt()
        return torch.atanh(root) * (2 if self.name == "sigmoid" else 1)

    def _upper_slope(self, low: Tensor, high: Tensor, chord: Tensor) -> Tensor:
        """Slope of a good upper line: the tangent from (low, f(low)), or the chord, or the tangent midway."""
        base, ends = self.forward(low), [low.clamp(min=0), high.clamp(min=0)]
        for _ in range(24):
            d = (ends[0] + ends[1]) / 2
            above = self.forward(d) + self._slope_at(d) * (low - d) >= base
            ends = [torch.where(above, ends[0], d), torch.where(above, d, ends[1])]
        straight = (high <= 0) | (self.forward(high) + self._slope_at(high) * (low - high) < base)
        tangent = torch.where(low >= 0, self._slope_at((low + high) / 2), self._slope_at(ends[1]))
        return torch.where(straight, chord, tangent)

    def relax(self, x: Interval) -> Elementwise:
        low, high = x
        f_low, f_high = self.forward(low), self.forward(high)
        narrow = high - low < 1e-6
        width = torch.where(narrow, torch.ones_like(low), high - low)
        chord = torch.where(narrow, self._slope_at((low + high) / 2), (f_high - f_low) / width)
        upper = self._upper_slope(low, high, chord)
        # f(-x) mirrors f(x), so the lower line is the upper line of the mirrored interval.
        lower = self._upper_slope(-high, -low, chord)

        def shifts(slope: Tensor) -> Tensor:
            p = self._point_of(slope)
            points = [low, high, torch.clamp(p, low, high), torch.clamp(-p, low, high)]
            return torch.stack([self.forward(q) - slope * q for q in points])

        # A stationary point found to relative precision e costs only e^2; the margin covers tanh and exp.
        margin = 64 * torch.finfo(low.dtype).eps * (1 + magnitude(x))
        return _lines(lower, shifts(lower).amin(0) - margin, upper, shifts(upper).amax(0) + margin, magnitude(x))


@dataclass(frozen=True)
class Windows:
    """Lines over the window of each output: sum_j c_j x_j + t, below (no shift) and above."""

    index: Tensor  # (n_out, w) positions in the flattened input
    in_shape: tuple[int, ...]
    lower: Tensor  # (B, n_out, w)
    upper: Tensor
    upper_shift: Tensor  # (B, n_out)
    slack: Tensor  # (B, n_out)

    def backward(self, A: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        flat = A.flatten(2)
        above, below = flat.clamp(min=0), flat.clamp(max=0)
        bias = contract(below, self.upper_shift) - contract(flat.abs(), self.slack)
        batch = max(A.shape[0], self.lower.shape[0])
        back = A.new_zeros(batch, A.shape[1], math.prod(self.in_shape))
        for j in range(self.index.shape[1]):
            part = above * self.lower[:, None, :, j] + below * self.upper[:, None, :, j]
            back = back.index_add(2, self.index[:, j], part)
        return back.reshape(batch, A.shape[1], *self.in_shape), bias


@dataclass(frozen=True)
class MaxWindows:
    """Maximum over windows of entries (max-pool of any dimension, stride, padding and dilation).

    Below: the entry with the largest lower bound. Above, for any c >= max_j l_j: max_j x_j <= c + sum_j
    relu(x_j - c), each term under its chord; c = max_j l_j uses every entry that can win, and
    c = max(second largest u, max_j l_j) only the one that reaches highest. The better of both at the centre.
    """

    index: Tensor  # (n_out, w)
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]

    def _windows(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, self.index]

    def forward(self, *xs: Tensor) -> Tensor:
        return self._windows(xs[0]).amax(-1).reshape(-1, *self.out_shape)

    def interval(self, *xs: Interval) -> Interval:
        return self.forward(xs[0][0]), self.forward(xs[0][1])

    def unsettled(self, x: Interval) -> Tensor:
        return torch.ones_like(x[0], dtype=torch.bool)

    def influence(self, x: Interval, size: Tensor) -> Tensor:
        low, high = self._windows(x[0]), self._windows(x[1])
        live = high > low.amax(-1, keepdim=True)
        live = live & (live.sum(-1, keepdim=True) > 1)
        part = torch.where(live, size.flatten(1).unsqueeze(-1) / 4, low * 0)
        flat = torch.zeros_like(x[0]).flatten(1).index_add(1, self.index.flatten(), part.flatten(1))
        return flat.reshape(x[0].shape)

    def relax(self, x: Interval) -> Windows:
        low, high = self._windows(x[0]), self._windows(x[1])
        floor, best = low.max(-1, keepdim=True)
        lower = torch.zeros_like(low).scatter(-1, best, 1.0)

        def plane(c: Tensor) -> tuple[Tensor, Tensor]:
            live = high > c
            width = torch.where(live, high - low, torch.ones_like(low))
            slope = torch.where(live, ((high - c) / width).clamp(max=1), low * 0)
            # At x_j = u_j the term must reach u_j - c; below, it must stay above zero: both ends are checked.
            shift = torch.where(live, torch.maximum(high - c - slope * high, -slope * low), low * 0)
            return slope, c.squeeze(-1) + shift.sum(-1)

        runner = high.topk(2, -1).values[..., 1:] if high.shape[-1] > 1 else floor
        all_, one = plane(floor), plane(torch.maximum(runner, floor))
        centre = (low + high) / 2
        pick = (all_[0] * centre).sum(-1) + all_[1] <= (one[0] * centre).sum(-1) + one[1]
        upper = torch.where(pick.unsqueeze(-1), all_[0], one[0])
        shift = torch.where(pick, all_[1], one[1])
        size = (magnitude((low, high)) * (lower + upper.abs() + 1)).sum(-1) + shift.abs()
        slack = size * gamma(self.index.shape[0] + 4 * self.index.shape[1], low.dtype)
        return Windows(self.index, self.in_shape, lower, upper, shift, slack)
