"""Small networks that floating point treats badly, and what they are, exactly and in every order of summation.

Weights run from the smallest denormal to the largest float32, biases absorb what is added to them, terms cancel, and
values tie. A network is a list of layers of float32 arrays, so that it can be evaluated in rational numbers, in float32
with sums in any order, by torch and by onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

Order = Callable[[np.ndarray], np.ndarray]  # float32 terms (..., n) -> their sum
SCALES = (1.0, 1.0, 1.0, 1e-3, 1e4, 2.0**23, 1e-20, 1e-38, 1e-42, 1e19, 3e38)


@dataclass(frozen=True)
class Layer:
    """An affine map, dense (out, in) or a convolution (out, in, k) over a line; then max(x, leak x)."""

    weight: np.ndarray
    bias: np.ndarray
    leak: float | None  # none after the last layer

    @property
    def conv(self) -> bool:
        return self.weight.ndim == 3


@dataclass(frozen=True)
class Nasty:
    layers: tuple[Layer, ...]
    length: int  # of the inputs: channels times places where the first layer is a convolution

    def windows(self, layer: Layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows (out, n) of the affine map as a matrix on flat x, and biases (out,)."""
        if not layer.conv:
            return layer.weight, layer.bias
        out, channels, k = layer.weight.shape
        places = x.size // channels
        rows = []
        for o in range(out):
            for p in range(places - k + 1):
                row = np.zeros((channels, places), dtype=layer.weight.dtype)
                row[:, p : p + k] = layer.weight[o]
                rows.append(row.ravel())
        return np.stack(rows), np.repeat(layer.bias, places - k + 1)

    def exact(self, x: Sequence[Fraction]) -> list[Fraction]:
        """The outputs in rational numbers, leaky slopes as float32 holds them."""
        values = list(x)
        for layer in self.layers:
            rows, bias = self.windows(layer, np.zeros(len(values)))
            pairs = zip(rows.tolist(), bias.tolist(), strict=True)
            values = [
                sum((Fraction(w) * v for w, v in zip(row, values, strict=True) if w), Fraction(b)) for row, b in pairs
            ]
            if layer.leak is not None:
                leak = Fraction(layer.leak)
                values = [v if v >= 0 else leak * v for v in values]
        return values

    def run(self, x: np.ndarray, order: Order) -> np.ndarray:
        """The outputs (N, k) in float32 for inputs (N, n), every sum in this order."""
        values = x.astype(np.float32)
        with np.errstate(all="ignore"):
            for layer in self.layers:
                rows, bias = self.windows(layer, values[0])
                terms = np.concatenate(
                    [values[:, None, :] * rows[None], np.broadcast_to(bias[:, None], (len(values), len(bias), 1))], 2
                )
                values = order(terms)
                if layer.leak is not None:
                    below = np.float32(layer.leak) * values if layer.leak else np.float32(0)
                    values = np.where(values < 0, below, values)  # NaN stays
        return values

    def module(self) -> nn.Sequential:
        parts: list[nn.Module] = []
        if self.layers[0].conv:
            parts.append(nn.Unflatten(1, (self.layers[0].weight.shape[1], -1)))
        for i, layer in enumerate(self.layers):
            if layer.conv:
                part: nn.Module = nn.Conv1d(*layer.weight.shape[1::-1], layer.weight.shape[2])
            else:
                if i and self.layers[i - 1].conv:
                    parts.append(nn.Flatten())
                part = nn.Linear(*layer.weight.shape[::-1])
            with torch.no_grad():
                part.weight.copy_(torch.from_numpy(layer.weight))
                part.bias.copy_(torch.from_numpy(layer.bias))
            parts.append(part)
            if layer.leak is not None:
                parts.append(nn.LeakyReLU(layer.leak) if layer.leak else nn.ReLU())
        return nn.Sequential(*parts).eval()

    def onnx(self) -> bytes:
        """The same network as an ONNX file."""
        nodes, stored, now = [], [], "x"

        def add(kind: str, *constants: np.ndarray, **attributes: object) -> None:
            nonlocal now
            names = [f"c{len(stored) + i}" for i in range(len(constants))]
            stored.extend(numpy_helper.from_array(c, name) for c, name in zip(constants, names, strict=True))
            nodes.append(helper.make_node(kind, [now, *names], [f"v{len(nodes)}"], **attributes))
            now = f"v{len(nodes) - 1}"

        if self.layers[0].conv:
            add(
                "Reshape", np.array([-1, self.layers[0].weight.shape[1], self.length // self.layers[0].weight.shape[1]])
            )
        for i, layer in enumerate(self.layers):
            if layer.conv:
                add("Conv", layer.weight, layer.bias)
            else:
                if i and self.layers[i - 1].conv:
                    add("Flatten")
                add("Gemm", layer.weight, layer.bias, transB=1)
            if layer.leak is not None:
                add(*("LeakyRelu",) if layer.leak else ("Relu",), **({"alpha": layer.leak} if layer.leak else {}))
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
            for name, size in (("x", self.length), (now, None))
        ]
        graph = helper.make_graph(nodes, "nasty", ends[:1], ends[1:], stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model.SerializeToString()


def sequential(terms: np.ndarray) -> np.ndarray:
    total = terms[..., 0]
    for i in range(1, terms.shape[-1]):
        total = total + terms[..., i]
    return total


def reverse(terms: np.ndarray) -> np.ndarray:
    return sequential(terms[..., ::-1])


def pairwise(terms: np.ndarray) -> np.ndarray:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], -1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def flushed(terms: np.ndarray) -> np.ndarray:
    """One after the other, denormal numbers set to zero."""
    tiny = np.finfo(np.float32).tiny
    terms = np.where(np.abs(terms) < tiny, np.float32(0), terms)
    total = terms[..., 0]
    for i in range(1, terms.shape[-1]):
        total = total + terms[..., i]
        total = np.where(np.abs(total) < tiny, np.float32(0), total)
    return total


ORDERS = (sequential, reverse, pairwise, flushed)


def runs(network: Nasty, x: np.ndarray) -> list[np.ndarray]:
    """The outputs as torch, onnxruntime, and each order of summation compute them."""
    with torch.no_grad():
        found = [network.module()(torch.from_numpy(x)).flatten(1).numpy()]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(network.onnx(), options, providers=["CPUExecutionProvider"])
    found.append(session.run(None, {"x": x})[0].reshape(len(x), -1))
    return found + [network.run(x, order) for order in ORDERS]


def generate(seed: int) -> Nasty:
    """One to three layers, dense or starting with a convolution, of sizes and scales that hurt."""
    g = np.random.default_rng(seed)
    length = int(g.choice([1, 2, 3, 6]))
    conv, depth = length == 6 and bool(g.random() < 0.7), int(g.integers(1, 4))
    layers, width = [], length
    for i in range(depth):
        last = i == depth - 1
        out = 1 if last and g.random() < 0.7 else int(g.choice([2, 3, 4, 60 if i == 0 and length > 1 else 5]))
        shape = (2, 2, 2) if conv and i == 0 else (out, width)
        weight, bias = _numbers(g, shape), _numbers(g, shape[:1])
        if g.random() < 0.3:  # cancellation: rows that are nearly each other's opposite
            weight[-1] = -weight[0]
        if g.random() < 0.2:  # ties
            weight, bias = np.sign(weight), np.zeros_like(bias)
        leak = None if last else float(g.choice([0.0, 0.0, 0.01, 0.5]))
        layers.append(Layer(weight.astype(np.float32), bias.astype(np.float32), leak))
        width = 2 * (length // 2 - 1) if conv and i == 0 else out
    return Nasty(tuple(layers), length)


def _numbers(g: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers times one scale for all, or each its own."""
    scale = g.choice(SCALES) if g.random() < 0.75 else g.choice(SCALES, size=shape)
    numbers = np.clip(g.standard_normal(shape) * scale, -3.4e38, 3.4e38)
    return np.where(g.random(shape) < 0.1, 0.0, numbers)


def box(network: Nasty, seed: int) -> tuple[Tensor, Tensor]:
    """A box of real inputs, (1, n) each, whose ends float32 need not hold."""
    g = np.random.default_rng([seed, 1])
    centre = g.standard_normal(network.length) * g.choice([1.0, 1.0, 1e-3, 1e3, 1e-39, 2.0**24])
    half = np.abs(centre) * g.choice([0.0, 1e-8, 1e-3, 1.0]) + g.choice([0.0, 1e-6, 0.5])
    return torch.from_numpy(centre - half)[None], torch.from_numpy(centre + half)[None]


def points(low: Tensor, high: Tensor, seed: int, count: int = 16) -> np.ndarray:
    """Inputs of the box (N, n) in float64: drawn from it, its corners, and its centre."""
    g = np.random.default_rng([seed, 2])
    ends = torch.cat([low, high]).numpy()
    n = ends.shape[1]
    drawn = ends[0] + g.random((count, n)) * (ends[1] - ends[0])
    corners = ends[g.integers(0, 2, (count, n)), np.arange(n)]
    return np.clip(np.concatenate([drawn, corners, ends, ends.mean(0, keepdims=True)]), ends[0], ends[1])
