"""Formulas of the step loop as one GPU kernel each, where torch would launch one per operation and pass memory through.

Compiled at first use by torch's own jiterator (0.2 s, no compiler needed). Elsewhere, and where gradients are wanted,
the callers' plain torch code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_BETWEEN = """
template <typename T> T between(T z, T low, T high) {
  T tail = T(0.5) * erfc(fabs(z) * T(0.70710678118654752)) * (high - low);
  return z < T(0) ? low + tail : high - tail;
}"""
_BLEND = """
template <typename T> T blend(T z, T noise, T beta) {
  return z * sqrt(T(1) - beta * beta) + beta * noise;
}"""

# One coordinate of a step of the random walk: a uniform point of [x - r, x + r] cut to [low, high], and the log of the
# length of that piece over the length of the piece that the way back could choose from.
_WALK = """
template <typename T> void walk(T x, T u, T scale, T unit, T low, T high, T& y, T& ratio) {
  T r = scale * unit;
  T a = x - r < low ? low : x - r;
  T b = x + r > high ? high : x + r;
  T at = a + (b - a) * u;
  y = at < a ? a : (at > b ? b : at);
  T c = y - r < low ? low : y - r;
  T d = y + r > high ? high : y + r;
  T there = b - a > T(1e-30) ? b - a : T(1e-30);
  T back = d - c > T(1e-30) ? d - c : T(1e-30);
  ratio = log(there / back);
}"""
_INSIDE = """
template <typename T> T inside(T x, T low, T high) { return x >= low && x <= high ? T(1) : T(0); }"""


_NUDGE = """
template <typename T> T nudge(T scale, T seen) {{
  T moved = scale * exp(T({gain}) * (seen - T({target})));
  return moved < T({least}) ? T({least}) : (moved > T({most}) ? T({most}) : moved);
}}"""


def between(z: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
    """`normal.between` in one pass, or None where there is no such kernel."""
    result: Tensor | None = _call(_BETWEEN, z, low, high)
    return result


def blend(z: Tensor, noise: Tensor, beta: Tensor) -> Tensor | None:
    """sqrt(1 - beta^2) z + beta noise in one pass, or None where there is no such kernel."""
    result: Tensor | None = _call(_BLEND, z, noise, beta)
    return result


def walk(x: Tensor, u: Tensor, scale: Tensor, unit: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor] | None:
    """Proposals of the random walk and the log-ratio of each coordinate in one pass, or None."""
    result: tuple[Tensor, Tensor] | None = _call(_WALK, x, u, scale, unit, low, high, outputs=2)
    return result


def nudge(scale: Tensor, seen: Tensor, target: float, gain: float, least: float, most: float) -> Tensor | None:
    """scale exp(gain (seen - target)), cut to [least, most], in one pass, or None."""
    result: Tensor | None = _call(_NUDGE.format(gain=gain, target=target, least=least, most=most), scale, seen)
    return result


def box_mask(x: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
    """1 where low <= x <= high and 0 elsewhere in one pass, or None."""
    result: Tensor | None = _call(_INSIDE, x, low, high)
    return result


def _call(source: str, *values: Tensor, outputs: int = 1) -> Any:
    if values[0].device.type != "cuda":
        return None
    kernel = _kernel(source, len(values), outputs)
    return None if kernel is None else kernel(*values)


@lru_cache
def _kernel(source: str, inputs: int, outputs: int) -> Callable[..., Any] | None:
    """The compiled kernel, or None when this build of torch cannot compile any (ROCm, no NVRTC)."""
    try:
        make = torch.cuda.jiterator
        kernel: Callable[..., Any] = (
            make._create_jit_fn(source) if outputs == 1 else make._create_multi_output_jit_fn(source, outputs)
        )
        kernel(*[torch.zeros(1, device="cuda")] * inputs)
    except (RuntimeError, AttributeError):
        return None
    return kernel
