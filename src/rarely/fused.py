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


def between(z: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
    """`normal.between` in one pass, or None where there is no such kernel."""
    return _call(_BETWEEN, z, low, high)


def blend(z: Tensor, noise: Tensor, beta: Tensor) -> Tensor | None:
    """sqrt(1 - beta^2) z + beta noise in one pass, or None where there is no such kernel."""
    return _call(_BLEND, z, noise, beta)


def _call(source: str, *values: Tensor) -> Tensor | None:
    if values[0].device.type != "cuda":
        return None
    kernel = _kernel(source)
    if kernel is None:
        return None
    result: Tensor = kernel(*values)
    return result


@lru_cache
def _kernel(source: str) -> Callable[..., Any] | None:
    """The compiled kernel, or None when this build of torch cannot compile any (ROCm, no NVRTC)."""
    try:
        kernel: Callable[..., Any] = torch.cuda.jiterator._create_jit_fn(source)
        probe = torch.zeros(1, device="cuda")
        kernel(probe, probe, probe)
    except (RuntimeError, AttributeError):
        return None
    return kernel
