"""The convex outer bound of Wong and Kolter (2018) for the network of `nets.wong_kolter`, batched and differentiable.

A ReLU whose input lies in [l, u] with l < 0 < u is enclosed by d z <= relu(z) <= d z - d l with d = u / (u - l). The
two lines are parallel, so a linear function of the activations is bounded on both sides by one backward pass; this is
the dual network of Wong and Kolter, and Fast-Lin. Every layer's bounds come from such a pass through all layers below
it: no interval arithmetic but for the first layer, where it is exact, and no random projections. The second convolution
would need a pass for each of its 1568 units; a unit sees 10 x 10 pixels only, so the pass is made on these patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class _Relaxed:
    """The lines around a layer of ReLUs."""

    slope: Tensor  # (n, *layer)
    gap: Tensor  # (n, *layer) >= 0: the upper line lies this much above the lower one

    @classmethod
    def over(cls, low: Tensor, high: Tensor) -> _Relaxed:
        crossing = (low < 0) & (high > 0)
        # The denominator of a ReLU that does not cross is never used, but must not make a NaN gradient.
        slope = torch.where(crossing, high / torch.where(crossing, high - low, 1.0), (low >= 0).to(low.dtype))
        return cls(slope, torch.where(crossing, -slope * low, 0.0))


@dataclass(frozen=True)
class _Layers:
    first: nn.Conv2d
    second: nn.Conv2d
    third: nn.Linear
    last: nn.Linear

    @classmethod
    def of(cls, network: nn.Module) -> _Layers:
        return cls(*(part for part in network.modules() if isinstance(part, nn.Conv2d | nn.Linear)))  # type: ignore[arg-type]


def margins(network: nn.Module, low: Tensor, high: Tensor, label: Tensor) -> Tensor:
    """Lower bounds (n, classes) of output[label] - output[k] over low <= x <= high; 0 for k = label.

    All others positive is a certificate (in the arithmetic of its dtype; no allowance is made for rounding).
    """
    layers = _Layers.of(network)
    middle, radius = (low + high) / 2, (high - low) / 2
    z1 = layers.first(middle)
    spread = functional.conv2d(radius, layers.first.weight.abs(), stride=2, padding=1)
    relu1 = _Relaxed.over(z1 - spread, z1 + spread)
    relu2 = _Relaxed.over(*_second(layers, middle, radius, relu1))
    rows = layers.third.weight.expand(len(low), -1, -1)
    lower3, upper3 = _dense(layers, rows, layers.third.bias, middle, radius, relu1, relu2)
    relu3 = _Relaxed.over(lower3, upper3)
    classes = layers.last.out_features
    one = torch.eye(classes, dtype=low.dtype, device=low.device)
    rows = (one[label].unsqueeze(1) - one) @ layers.last.weight  # (n, classes, hidden)
    bias = layers.last.bias[label].unsqueeze(1) - layers.last.bias
    _, down = _gaps(rows, relu3)
    rows = rows * relu3.slope.unsqueeze(1)
    bias = bias + rows @ layers.third.bias + down
    rows = rows @ layers.third.weight
    return _dense(layers, rows, bias, middle, radius, relu1, relu2)[0]


def _second(layers: _Layers, middle: Tensor, radius: Tensor, relu1: _Relaxed) -> tuple[Tensor, Tensor]:
    """Bounds of the second convolution's outputs (n, 32, 7, 7)."""
    weight = layers.second.weight
    centre = layers.second(relu1.slope * layers.first(middle))
    up = functional.conv2d(relu1.gap, weight.clamp_min(0), stride=2, padding=1)
    down = functional.conv2d(relu1.gap, weight.clamp_max(0), stride=2, padding=1)
    # Patch by patch: 4 x 4 units of 16 channels below each output, 10 x 10 pixels below these.
    slopes = functional.unfold(relu1.slope, 4, padding=1, stride=2).mT  # (n, 49, 256)
    rows = slopes.unsqueeze(2) * weight.flatten(1)  # (n, 49, 32, 256)
    units = torch.eye(256, dtype=weight.dtype, device=weight.device).reshape(256, 16, 4, 4)
    pixels = functional.conv_transpose2d(units, layers.first.weight, stride=2).flatten(1)  # (256, 100)
    reach = functional.unfold(radius, 10, padding=3, stride=4).mT.unsqueeze(3)  # (n, 49, 100, 1)
    spread = ((rows @ pixels).abs() @ reach).squeeze(3).mT.reshape(centre.shape)
    return centre + down - spread, centre + up + spread


def _bias(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _dense(
    layers: _Layers, rows: Tensor, bias: Tensor, middle: Tensor, radius: Tensor, relu1: _Relaxed, relu2: _Relaxed
) -> tuple[Tensor, Tensor]:
    """Bounds (n, k) of rows @ relu(second layer) + bias, with rows (n, k, 1568)."""
    n, k = rows.shape[:2]
    up, down = _gaps(rows, relu2)
    shaped = (rows * relu2.slope.flatten(1).unsqueeze(1)).reshape(n * k, 32, 7, 7)
    bias = bias + shaped.sum((2, 3)).reshape(n, k, 32) @ _bias(layers.second)
    rows = functional.conv_transpose2d(shaped, layers.second.weight, stride=2, padding=1).reshape(n, k, -1)
    up1, down1 = _gaps(rows, relu1)
    shaped = (rows * relu1.slope.flatten(1).unsqueeze(1)).reshape(n * k, 16, 14, 14)
    bias = bias + shaped.sum((2, 3)).reshape(n, k, 16) @ _bias(layers.first)
    rows = functional.conv_transpose2d(shaped, layers.first.weight, stride=2, padding=1).reshape(n, k, -1)
    centre = bias + (rows @ middle.flatten(1).unsqueeze(2)).squeeze(2)
    spread = (rows.abs() @ radius.flatten(1).unsqueeze(2)).squeeze(2)
    return centre + down + down1 - spread, centre + up + up1 + spread


def _gaps(rows: Tensor, relu: _Relaxed) -> tuple[Tensor, Tensor]:
    """What the gaps between the lines add to an upper bound (through positive rows) and to a lower one (negative)."""
    gap = relu.gap.flatten(1).unsqueeze(2)
    up = (rows.clamp_min(0) @ gap).squeeze(2)
    return up, (rows @ gap).squeeze(2) - up


def robust_loss(network: nn.Module, x: Tensor, label: Tensor, epsilon: float) -> Tensor:
    """Cross-entropy of the worst outputs that the bound allows in the l-infinity ball, as in Wong and Kolter."""
    return functional.cross_entropy(-margins(network, x - epsilon, x + epsilon, label), label)
