"""A referee for counterexamples of property files: the file's own words, and onnxruntime for ONNX networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rarely.io.formats.specification import PropertyCase, Specification
from rarely.io.onnx.model import input_port, read_onnx
from rarely.io.onnx.runtime import replay

Floats = NDArray[np.float64]
_TRIED = 20  # candidates replayed of those that one search finds, best first
_ROUNDING = 1e-5  # distance to a region, in its own width, that rounding explains


@dataclass(frozen=True)
class Counterexample:
    x: Floats  # (n_inputs,) inside its region; cast to the network's type it is what was replayed
    y: Floats  # (n_outputs,) replayed


class Referee:
    """Accepts a counterexample only if its replay violates the specification with no tolerance at all."""

    accepted: Counterexample | None = None

    def __init__(self, path: str | Path, network: Any, specification: Specification) -> None:
        self.specification = specification
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        if str(path).lower().endswith((".onnx", ".onnx.gz")):
            self.dtype = input_port(read_onnx(path)).dtype
            self._replay: Callable[[NDArray[Any]], NDArray[Any]] = lambda x: replay(path, x)
        else:
            self._replay = lambda x: _run_alone(network, x)

    def judge(self, candidates: Tensor) -> int | None:
        """The first candidate (n, *event) that stands; it is kept as `accepted`."""
        for which, candidate in enumerate(candidates[:_TRIED].flatten(1).double().cpu().numpy()):
            for case in self.specification.cases:
                x = nearest(candidate, case, self.dtype)
                if x is None or not (case.input_constraints is None or case.input_constraints.holds(x)):
                    continue
                y = self._replay(x.astype(self.dtype)).astype(np.float64).ravel()
                if any(polytope.holds(y) for polytope in case.outputs):
                    self.accepted = Counterexample(x, y)
                    return which
        return None


def nearest(x: Floats, case: PropertyCase, dtype: np.dtype[Any]) -> Floats | None:
    """The nearest point of the case's box that `dtype` can represent, None when that is further than rounding.

    Where a bound pins an input to a value between two representable ones, the bound itself is given: it lies in the
    box, and casts to the value that is replayed. None as well where a bound that is left out is all there is.
    """
    if (np.maximum(case.low - x, x - case.high) > _ROUNDING * (1 + np.abs(x))).any():
        return None
    lowest, highest = case.low.astype(dtype), case.high.astype(dtype)
    under = np.where(case.open_low, lowest.astype(np.float64) <= case.low, lowest.astype(np.float64) < case.low)
    over = np.where(case.open_high, highest.astype(np.float64) >= case.high, highest.astype(np.float64) > case.high)
    lowest = np.where(under, np.nextafter(lowest, np.inf, dtype=dtype), lowest)
    highest = np.where(over, np.nextafter(highest, -np.inf, dtype=dtype), highest)
    moved = np.clip(x.astype(dtype), lowest, highest).astype(np.float64)
    result: Floats = np.clip(moved, case.low, case.high)
    out = (case.open_low & (result <= case.low)) | (case.open_high & (result >= case.high))
    return None if out.any() else result


def _run_alone(network: Any, x: NDArray[Any]) -> NDArray[Any]:
    """One input through a network that is no ONNX file, in its own precision."""
    shape = getattr(network, "input_shape", x.shape)
    one = torch.from_numpy(x).reshape(1, *shape)
    with torch.no_grad():
        y = network(one if isinstance(network, torch.nn.Module) else one.numpy())
    return np.asarray(y)
