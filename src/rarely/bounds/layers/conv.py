"""Convolutions, of which average pooling is a case, and their transposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.convolve import convolve
from rarely.bounds.graph import Unprovable
from rarely.bounds.operators import Affine, Interval, Terms
from rarely.bounds.reader import Handle, Reader, per_axis, reads


@dataclass(frozen=True)
class Conv(Affine):
    """Convolution over one, two or three spatial axes, zero padding."""

    weight: Tensor  # (out, in / groups, *kernel)
    bias: Tensor  # (out,)
    in_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[int, ...] | None = None) -> Tensor:
        """The convolution, or its transpose with `rest` for the output padding."""
        place = (self.stride, self.padding, self.dilation)
        return convolve(x, weight, bias, *place, rest is not None, rest or (0,) * len(self.stride), self.groups)

    def forward(self, *xs: Tensor) -> Tensor:
        return self._apply(xs[0], self.weight, self.bias)

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        centre = self.forward((low + high) / 2)
        reach = self._apply((high - low) / 2, self.weight.abs(), None)
        return centre - reach, centre + reach

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        # What the strided convolution never looked at comes back as zeros through the output padding.
        rest = tuple(
            self.in_shape[1 + i]
            - ((A.shape[3 + i] - 1) * self.stride[i] - 2 * self.padding[i] + self.dilation[i] * (k - 1) + 1)
            for i, k in enumerate(self.weight.shape[2:])
        )
        back = self._apply(A.flatten(0, 1), self.weight, None, rest)
        return (back.reshape(*A.shape[:2], *self.in_shape),)

    def constant(self) -> Tensor:
        return self.bias.reshape(-1, *(1,) * len(self.stride))

    def terms(self, *H: Tensor) -> Terms:
        (out, n), size = self.weight.shape[:2], math.prod(self.weight.shape[2:])
        return Terms(self._apply(H[0], self.weight.abs(), self.bias.abs()), n * size, out * size)


@reads("conv1d", "conv2d", nn.Conv1d, nn.Conv2d)
def conv(
    r: Reader,
    input: Handle,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Handle:
    W, b = r.weights(weight, bias)
    rank = W.ndim - 2
    if isinstance(padding, str) or padding_mode != "zeros":
        raise Unprovable(f"convolution with padding {padding!r}, {padding_mode}")
    if len(input.shape) != rank + 1:
        raise Unprovable("a convolution without a batch dimension")
    op = Conv(W, b, input.shape, per_axis(stride, rank), per_axis(padding, rank), per_axis(dilation, rank), groups)
    return r.add(op, op.forward(W.new_zeros(1, *input.shape)).shape[1:], input)


@dataclass(frozen=True)
class ConvTranspose(Affine):
    """The transpose of a convolution over one, two or three spatial axes."""

    weight: Tensor  # (in, out / groups, *kernel)
    bias: Tensor  # (out,)
    in_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, turned: bool = True) -> Tensor:
        rest = self.output_padding if turned else (0,) * len(self.stride)
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, turned, rest, self.groups)

    def forward(self, *xs: Tensor) -> Tensor:
        return self._apply(xs[0], self.weight, self.bias)

    def interval(self, *xs: Interval) -> Interval:
        low, high = xs[0]
        centre = self.forward((low + high) / 2)
        reach = self._apply((high - low) / 2, self.weight.abs(), None)
        return centre - reach, centre + reach

    def transpose(self, A: Tensor) -> tuple[Tensor, ...]:
        # Output padding adds entries that no window reaches; windows that would fit among them are left away.
        back = self._apply(A.flatten(0, 1), self.weight, None, turned=False)
        for axis, size in enumerate(self.in_shape[1:], 2):
            back = back.narrow(axis, 0, size)
        return (back.reshape(*A.shape[:2], *self.in_shape),)

    def constant(self) -> Tensor:
        return self.bias.reshape(-1, *(1,) * len(self.stride))

    def terms(self, *H: Tensor) -> Terms:
        (n, out), size = self.weight.shape[:2], math.prod(self.weight.shape[2:])
        return Terms(self._apply(H[0], self.weight.abs(), self.bias.abs()), n * size // self.groups, out * size)


@reads("conv_transpose1d", "conv_transpose2d", nn.ConvTranspose1d, nn.ConvTranspose2d)
def conv_transpose(
    r: Reader,
    input: Handle,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Handle:
    W = r.real(weight)
    rank = W.ndim - 2
    if len(input.shape) != rank + 1:
        raise Unprovable("a transposed convolution without a batch dimension")
    b = W.new_zeros(W.shape[1] * groups) if bias is None else r.real(bias)
    strides, pads, more, steps = (per_axis(v, rank) for v in (stride, padding, output_padding, dilation))
    op = ConvTranspose(W, b, input.shape, strides, pads, more, steps, groups)
    return r.add(op, op.forward(W.new_zeros(1, *input.shape)).shape[1:], input)


@reads("avg_pool2d", nn.AvgPool2d)
def avg_pool2d(
    r: Reader,
    input: Handle,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Handle:
    kernel, padding = per_axis(kernel_size, 2), per_axis(padding, 2)
    if ceil_mode or (any(padding) and not count_include_pad):
        raise Unprovable("average pooling with windows of unequal size")
    channels = input.shape[0]
    weight = torch.ones(channels, 1, *kernel, dtype=torch.float64) / (divisor_override or math.prod(kernel))
    return conv(r, input, weight, None, stride or kernel, padding, 1, channels)
