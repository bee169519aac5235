"""A problem: network, property, input model. This is the only place that calls the network, and counts it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rarely.core.errors import InputError, NetworkError
from rarely.core.input_model import InputModel, stack_inputs
from rarely.core.input_model import adapt as adapt_inputs
from rarely.core.network import Network
from rarely.core.network import adapt as adapt_network
from rarely.core.properties import (
    Misclassification,
    Property,
    Way,
    adapt_property,
    stack_properties,
)
from rarely.core.rng import Rng
from rarely.core.stacking import place, take

Forward = Callable[[Tensor, Tensor], Tensor]  # inputs (B, N, *event), problems (B,) on the CPU -> (B, N, *out)

_FEWEST = 32  # chains of every row taken at a time
_PROBE = 16  # inputs drawn to check a problem before any long work


@dataclass(frozen=True, init=False)
class Problem:
    """What is the probability that `property` is violated, score >= 0, for inputs drawn from `inputs`?

    `network` is a torch module or any function of a batch, of tensors or numpy arrays. `property` is one of the
    library's or a function (x, y) -> scores (n,). `inputs` is an input model, a `torch.distributions` object, or any
    object with `sample` and `log_density` or `from_normal`. Shapes, labels and NaN are checked at once, on a few draws.
    """

    network: Any  # as the user gave it: problems share a batch when this is the same object
    property: Property
    inputs: InputModel
    name: str
    adapted: Network = field(repr=False)

    def __init__(self, network: Any, property: Any, inputs: Any, name: str = "") -> None:
        model = adapt_inputs(inputs)
        probe = model.sample(_PROBE, Rng(0))
        _check_support(model, probe)
        adapted = adapt_network(network, probe.to(torch.float32) if probe.dtype == torch.float64 else probe)
        prop = adapt_property(property, len(model.event_shape))
        if isinstance(prop, Misclassification) and prop.label is None:
            y = _call(adapted, model.center.unsqueeze(0).to(adapted.dtype)).flatten(1)
            prop = Misclassification(int(y.argmax(1)))
        for name_, value in (
            ("network", network),
            ("property", prop),
            ("inputs", model),
            ("name", name),
            ("adapted", adapted),
        ):
            object.__setattr__(self, name_, value)
        self._check(probe)

    def _check(self, probe: Tensor) -> None:
        y = _call(self.adapted, probe.to(self.adapted.dtype))
        if y.ndim == 0 or y.shape[0] != _PROBE:
            raise NetworkError(
                f"the network turned {_PROBE} inputs into outputs of shape {tuple(y.shape)}; "
                "its first dimension must be the batch"
            )
        if not bool(torch.isfinite(y).all()):
            raise NetworkError("the network returns NaN or inf on inputs drawn from the input model")
        outputs = y[0].numel()
        for name, label in _labels(self.property):
            if label >= outputs:
                raise InputError(f"{name} {label} is out of range: the network has {outputs} outputs")
        score = self.property.score(probe.to(self.adapted.dtype), y)
        if score.shape != (_PROBE,):
            raise InputError(f"the property gives scores of shape {tuple(score.shape)} for {_PROBE} inputs")
        if bool(torch.isnan(score).any()):
            raise InputError("the property's score is NaN on inputs drawn from the input model")

    def score(self, x: Any) -> Tensor:
        """Scores (n,) of inputs (n, *event) in the network's own precision: >= 0 is a violation."""
        batch = torch.as_tensor(x)
        if tuple(batch.shape[1:]) != tuple(self.inputs.event_shape):
            raise InputError(f"inputs have shape {tuple(batch.shape)}, expected (n, {self.inputs.event_shape})")
        batch = batch.to(self.adapted.dtype)
        prop = place(self.property, batch.device, self.adapted.dtype)
        return prop.score(batch, _call(self.adapted, batch))


def _labels(prop: object) -> Iterator[tuple[str, int]]:
    """The labels that a property names, through `&` and `|`."""
    for name in ("label", "target"):
        label = getattr(prop, name, None)
        if isinstance(label, Tensor):
            yield name, int(label)
    for part in ("left", "right", "whole"):
        if hasattr(prop, part):
            yield from _labels(getattr(prop, part))


def _check_support(model: InputModel, probe: Tensor) -> None:
    if tuple(probe.shape) != (_PROBE, *model.event_shape):
        raise InputError(f"the input model drew {tuple(probe.shape)}, expected {(_PROBE, *model.event_shape)}")
    if not bool(torch.isfinite(probe).all()):
        raise InputError("the input model draws NaN or inf")
    if model.support is not None:
        low, high = model.support
        if bool(((probe < low) | (probe > high)).any()):
            raise InputError("the input model draws inputs outside its own support; check its sample and support")
    if model.normal_dim is None:  # then the density is what the random walk relies on
        density = model.log_density(probe)
        if bool(torch.isnan(density).any() | (density == -torch.inf).any()):
            raise InputError(
                "the input model draws inputs whose log_density is -inf or NaN: its samples fall outside its support"
            )


@torch.no_grad()
def _call(network: Network, x: Tensor) -> Tensor:
    with network.evaluating():
        return network.call(x)


class Counter:
    """Network evaluations and gradients spent, per problem of the original list."""

    def __init__(self, problems: int) -> None:
        self.evaluations = torch.zeros(problems, dtype=torch.long)
        self.gradients = torch.zeros(problems, dtype=torch.long)
        self._lock = threading.Lock()

    def add(self, rows: Tensor, evaluations: int | Tensor, gradients: int | Tensor = 0) -> None:
        with self._lock:
            for total, more in ((self.evaluations, evaluations), (self.gradients, gradients)):
                if isinstance(more, Tensor):
                    total.index_add_(0, rows, more.long())
                elif more:
                    total.index_add_(0, rows, torch.full_like(rows, more))

    def add_all(self, evaluations: Tensor, gradients: Tensor) -> None:
        """Add to every problem."""
        with self._lock:
            self.evaluations += evaluations
            self.gradients += gradients

    @contextmanager
    def measuring(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is counted inside goes into the two tensors instead of the totals."""
        before = self.evaluations.clone(), self.gradients.clone()
        spent = torch.zeros_like(before[0]), torch.zeros_like(before[1])
        try:
            yield spent
        finally:
            for total, old, more in zip((self.evaluations, self.gradients), before, spent, strict=True):
                more.copy_(total - old)
                total.copy_(old)

    def calls(self) -> Tensor:
        """Cost in network calls: a gradient is a forward and a backward pass, three calls in all."""
        return self.evaluations + 3 * self.gradients


@dataclass(frozen=True)
class Batch:
    """B problems that share a network or its architecture, on a device. Row b of every tensor is of problem rows[b]."""

    network: Network
    property: Property
    inputs: InputModel
    rows: Tensor  # (B,) index into the original list of problems, on the CPU
    counter: Counter
    forward: Forward  # in chunks that fit the device
    whole: Forward  # in one piece, for gradients
    chunk: int  # rows per forward pass
    device: torch.device
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> Batch:
        """The problems at `index` (repeats allowed): dropping finished ones and making islands are both this."""
        return replace(
            self,
            property=take(self.property, index),
            inputs=take(self.inputs, index),
            rows=self.rows[index.cpu()],
        )

    def ways(self, index: Tensor) -> Batch:
        """The same rows with the event "way index[b] scores highest" for row b."""
        return replace(self, property=Way(self.property, index.to(self.device).unsqueeze(1)))

    def chains_per_pass(self) -> int:
        """Chains of every row to take at a time: a forward pass full of them, but not so few that calling it shows."""
        return max(_FEWEST, self.chunk // max(1, len(self)))

    def sample(self, n: int, rng: Rng) -> Tensor:
        return self.inputs.sample((len(self), n), rng).to(self.dtype)

    def score(self, x: Tensor) -> Tensor:
        """Scores (B, N) of inputs (B, N, *event)."""
        self.counter.add(self.rows, x.shape[1])
        with torch.no_grad():
            return self.property.score(x, self.forward(x, self.rows))

    def parts(self, x: Tensor) -> Tensor:
        """Scores (B, N, K) of each way to fail."""
        self.counter.add(self.rows, x.shape[1])
        with torch.no_grad():
            return self.property.parts(x, self.forward(x, self.rows))

    def score_normal(self, z: Tensor) -> Tensor:
        """Scores (B, N) of standard normals (B, N, d) mapped to inputs.

        Piece by piece: inputs and activations of a piece stay in the caches, and the inputs never exist all at once.
        """
        pieces = math.ceil(z.shape[1] / self.chains_per_pass())
        with torch.no_grad():
            if pieces == 1:
                return self.score(self.inputs.from_normal(z))
            return torch.cat([self.score(self.inputs.from_normal(part)) for part in z.tensor_split(pieces, 1)], 1)

    def score_ragged(self, z: Tensor, row: Tensor) -> Tensor:
        """Scores (n,) of points z (n, d), each of the problem row[n]: for searches where rows finish at other times."""
        self.counter.add(self.rows, torch.bincount(row.cpu(), minlength=len(self)))
        part = self.take(row)
        with torch.no_grad():
            x = part.inputs.from_normal(z.unsqueeze(1))
            return part.property.score(x, part.forward(x, part.rows)).squeeze(1)

    def gradient_normal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, N) and their gradients (B, N, d) in z-space."""
        if not self.network.differentiable:
            raise InputError("this network is a black box: it has no gradients; use a gradient-free kernel such as PCN")
        self.counter.add(self.rows, 0, z.shape[1])
        per, start = max(1, self.chunk // max(1, 2 * z.shape[0])), 0
        scores, gradients = [], []
        while start < z.shape[1]:
            try:
                score, gradient = self._gradient_piece(z[:, start : start + per])
            except torch.OutOfMemoryError:
                if per == 1:
                    raise
                per = per // 2
                continue
            start += per
            scores.append(score)
            gradients.append(gradient)
        return torch.cat(scores, 1), torch.cat(gradients, 1)

    @torch.enable_grad()
    def _gradient_piece(self, z: Tensor) -> tuple[Tensor, Tensor]:
        leaf = z.detach().requires_grad_()
        x = self.inputs.from_normal(leaf)
        s = self.property.score(x, self.whole(x, self.rows))
        # A score that is flat everywhere (a user's step function) is not connected to the input at all.
        if not s.requires_grad:
            return s, torch.zeros_like(leaf)
        (g,) = torch.autograd.grad(s.sum(), leaf, allow_unused=True, materialize_grads=True)
        return s.detach(), g


def make_batch(
    problems: Sequence[Problem], rows: Sequence[int], counter: Counter, network: Network,
    forward: Forward, whole: Forward, chunk: int, device: torch.device, dtype: torch.dtype,
) -> Batch:  # fmt: skip
    """Stack the problems at `rows` onto a device."""
    chosen = [problems[i] for i in rows]
    return Batch(
        network,
        place(stack_properties([p.property for p in chosen]), device, dtype),
        place(stack_inputs([p.inputs for p in chosen]), device, dtype),
        torch.tensor(list(rows)),
        counter,
        forward,
        whole,
        chunk,
        device,
        dtype,
    )
