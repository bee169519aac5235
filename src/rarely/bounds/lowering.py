"""How single torch operators become nodes of a `Graph`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Graph, Node, Op, Unprovable
from rarely.bounds.linear import Add, Conv, Dense, Gather, Scale
from rarely.bounds.relax import LeakyReLU, MaxWindows, SShape

PROBE = 2  # batch size that shapes are worked out with


class Handle:
    """Stands for a value of the network while its graph is read."""

    def __init__(self, index: int, shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape


def _pair(value: Any, rank: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))


def _joint(*shapes: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


class Reader:
    """Collects nodes. Weights are kept in float64, which holds float32 weights exactly."""

    def __init__(self, input_shape: tuple[int, ...], device: torch.device) -> None:
        self.nodes: list[Node] = [Node(None, (), input_shape)]
        self.device = device

    def real(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            tensor = value.detach().to(self.device, torch.float64)
        else:
            tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        if not bool(tensor.isfinite().all()):
            raise Unprovable("a weight or constant of the network is not finite")
        return tensor

    def add(self, op: Op, shape: tuple[int, ...], *inputs: Handle) -> Handle:
        self.nodes.append(Node(op, tuple(h.index for h in inputs), shape))
        return Handle(len(self.nodes) - 1, shape)

    def finish(self, out: Handle) -> Graph:
        if len(out.shape) != 1:
            out = self.move(lambda x: x.flatten(1), out)
        return Graph(tuple(self.nodes), out.index)

    def move(self, fn: Callable[..., Any], *inputs: Handle) -> Any:
        """An operator that only moves entries, read off from where it puts numbered ones (0 is padding)."""
        sizes = [math.prod(h.shape) for h in inputs]
        total, start, probes = sum(sizes), 1, []
        for h, size in zip(inputs, sizes, strict=True):
            row = torch.arange(start, start + size, dtype=torch.float64, device=self.device)
            probes.append(torch.stack([row, row + total]).reshape(PROBE, *h.shape))
            start += size
        result = fn(*probes)
        if isinstance(result, (tuple, list)):
            return tuple(self._gathered(r, total, inputs) for r in result)
        return self._gathered(result, total, inputs)

    def _gathered(self, out: Tensor, total: int, inputs: tuple[Handle, ...]) -> Handle:
        if out.ndim < 1 or out.shape[0] != PROBE or not torch.equal(out[1], out[0] + total * (out[0] > 0)):
            raise Unprovable("the network mixes or drops the batch dimension")
        index = torch.where(out[0] > 0, out[0] - 1, float(total)).long()
        shape = tuple(index.shape)
        plain = len(inputs) == 1 and torch.equal(index.flatten(), torch.arange(total, device=self.device).expand(total))
        if plain and shape == inputs[0].shape:
            return inputs[0]
        return self.add(Gather(index, tuple(h.shape for h in inputs), plain), shape, *inputs)

    def dense(self, x: Handle, weight: Tensor, bias: Tensor | None) -> Handle:
        W = self.real(weight)
        b = self.real(bias) if bias is not None else W.new_zeros(W.shape[0])
        return self.add(Dense(W, b), (*x.shape[:-1], W.shape[0]), x)

    def conv(
        self,
        x: Handle,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Handle:
        W = self.real(weight)
        rank = W.ndim - 2
        if isinstance(padding, str):
            raise Unprovable(f"convolution with padding {padding!r}")
        if len(x.shape) != rank + 1:
            raise Unprovable("a convolution without a batch dimension")
        b = self.real(bias) if bias is not None else W.new_zeros(W.shape[0])
        op = Conv(W, b, x.shape, _pair(stride, rank), _pair(padding, rank), _pair(dilation, rank), groups)
        return self.add(op, tuple(op.forward(W.new_zeros(1, *x.shape)).shape[1:]), x)

    def batch_norm(self, x: Handle, m: nn.Module) -> Handle:
        mean, var = getattr(m, "running_mean", None), getattr(m, "running_var", None)
        if m.training or mean is None or var is None:
            raise Unprovable("batch norm that does not use stored statistics")
        mean, var = self.real(mean), self.real(var)
        weight = self.real(m.weight) if m.weight is not None else torch.ones_like(mean)
        bias = self.real(m.bias) if m.bias is not None else torch.zeros_like(mean)
        factor = weight / (var + float(m.eps)).sqrt()  # type: ignore[arg-type]
        size = bias.abs() + (mean * factor).abs()
        parts = (factor, bias - mean * factor, size)
        wide = (p.reshape(-1, *(1,) * (len(x.shape) - 1)) for p in parts)
        return self.add(Scale(*wide), x.shape, x)

    def scale(self, x: Handle, factor: Any, shift: Any) -> Handle:
        """factor x + shift with constants, broadcast as torch would."""
        parts = []
        for value in (factor, shift):
            c = self.real(value)
            if c.ndim == len(x.shape) + 1 and c.shape[0] == 1:
                c = c[0]
            if c.ndim > len(x.shape):
                raise Unprovable("a constant that broadcasts over the batch dimension")
            parts.append(c)
        shape = _joint(x.shape, parts[0].shape, parts[1].shape)
        if shape != x.shape:
            x = self.move(lambda v: v.expand(PROBE, *shape), x)
        return self.add(Scale(parts[0], parts[1], parts[1].abs()), shape, x)

    def sum(self, *xs: Handle) -> Handle:
        if len({len(x.shape) for x in xs}) != 1:
            raise Unprovable("a sum that broadcasts over the batch dimension")
        shape = _joint(*(x.shape for x in xs))
        same = [x if x.shape == shape else self.move(lambda v: v.expand(PROBE, *shape), x) for x in xs]
        return self.add(Add(len(same)), shape, *same)

    def leaky(self, x: Handle, leak: float = 0.0) -> Handle:
        if not 0 <= leak < 1:
            raise Unprovable(f"leaky ReLU with slope {leak}")
        return self.add(LeakyReLU(float(leak)), x.shape, x)

    def s_shape(self, x: Handle, name: str) -> Handle:
        return self.add(SShape(name), x.shape, x)

    def max_pool(
        self,
        x: Handle,
        rank: int,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Handle:
        if return_indices or len(x.shape) < rank:
            raise Unprovable("max-pool with indices or without enough dimensions")
        lead, spatial = x.shape[:-rank], x.shape[-rank:]
        kernel = _pair(kernel, rank)
        stride = kernel if stride is None or stride == [] else _pair(stride, rank)
        padding, dilation = _pair(padding, rank), _pair(dilation, rank)
        flat = torch.zeros(1, *lead, dtype=torch.long)
        for i, n in enumerate(spatial):
            reach = n + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
            count = (math.ceil if ceil_mode else math.floor)(reach / stride[i]) + 1
            if ceil_mode and (count - 1) * stride[i] >= n + padding[i]:
                count -= 1
            at = torch.arange(count)[:, None] * stride[i] - padding[i] + torch.arange(kernel[i]) * dilation[i]
            inside = (at >= 0) & (at < n)
            if not bool(inside.any(1).all()):
                raise Unprovable("a max-pool window that lies in the padding")
            # Padding never wins the maximum, so it can repeat an entry of its own window.
            first = at.gather(1, inside.int().argmax(1, keepdim=True))
            at = torch.where(inside, at, first)
            flat = flat[..., None, None] * n + at
        # flat: (1, *lead, o1, k1, o2, k2, ...) positions in one channel; add the channel, windows last.
        k = len(lead)
        order = [1 + j for j in range(k)] + [1 + k + 2 * i for i in range(rank)]
        order += [2 + k + 2 * i for i in range(rank)]
        windows = flat.permute(0, *order)[0]
        channel = torch.arange(math.prod(lead)).reshape(*lead, *(1,) * (2 * rank)) * math.prod(spatial)
        windows = (windows + channel).to(self.device)
        shape = tuple(windows.shape[: k + rank])
        index = windows.reshape(math.prod(shape), -1)
        return self.add(MaxWindows(index, x.shape, shape), shape, x)

    def avg_pool(
        self,
        x: Handle,
        rank: int,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Handle:
        kernel, padding = _pair(kernel, rank), _pair(padding, rank)
        if ceil_mode or (any(padding) and not count_include_pad):
            raise Unprovable("average pooling with windows of unequal size")
        channels = x.shape[0]
        weight = torch.ones(channels, 1, *kernel, dtype=torch.float64) / (divisor_override or math.prod(kernel))
        step = kernel if stride is None or stride == [] else stride
        return self.conv(x, weight, None, step, padding, 1, channels)

    def _last(self, x: Handle, dims: Any) -> tuple[list[int], Callable[[Tensor], Tensor]]:
        """The axes meant by `dims`, and the move that flattens them into one at the end."""
        rank = len(x.shape) + 1
        axes = [d % rank for d in (dims if isinstance(dims, Sequence) else [dims])]
        if 0 in axes or not axes:
            raise Unprovable("a reduction over the batch dimension")
        keep = [d for d in range(rank) if d not in axes]
        return axes, lambda v: v.permute(*keep, *axes).flatten(len(keep))

    def _reduced(self, x: Handle, axes: list[int], keepdim: bool) -> list[int]:
        rank = len(x.shape) + 1
        return [1 if d in axes else x.shape[d - 1] for d in range(1, rank) if keepdim or d not in axes]

    def total(self, x: Handle, dims: Any, keepdim: bool = False, *, average: bool = False) -> Handle:
        """Sum or mean over axes of the event: they are moved last and joined by a dense row."""
        axes, last = self._last(x, dims)
        flat = self.move(last, x)
        n = flat.shape[-1]
        row = self.dense(flat, torch.full((1, n), 1 / n if average else 1.0, dtype=torch.float64), None)
        shape = self._reduced(x, axes, keepdim)
        return self.move(lambda v: v.reshape(PROBE, *shape), row)  # type: ignore[no-any-return]

    def amax(self, x: Handle, dims: Any, keepdim: bool = False) -> Handle:
        """Maximum over axes of the event: windows made of the entries along them."""
        axes, last = self._last(x, dims)
        places = torch.arange(math.prod(x.shape)).reshape(1, *x.shape)
        windows = last(places)[0].to(self.device)
        shape = tuple(self._reduced(x, axes, keepdim))
        return self.add(MaxWindows(windows.reshape(-1, windows.shape[-1]), x.shape, shape), shape, x)
