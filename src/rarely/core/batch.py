"""B problems on a device. This is where networks are called in a run, and every call is charged to `Spend`.

Inside a batch tensors always lead with (B, N): N points of each of B problems.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from rarely.core.each_inputs import stack_inputs
from rarely.core.errors import InputError, NetworkError
from rarely.core.input_model import InputModel, kept_normals, log_kept
from rarely.core.network import Network
from rarely.core.parts import Coded
from rarely.core.problem import Problem
from rarely.core.properties import Property, Way, is_function
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.core.stacking import place, take
from rarely.core.thresholds import FITTED

Forward = Callable[[Tensor, Tensor], Tensor]  # inputs (B, N, *event), problems (B,) on the CPU -> (B, N, *out)

_FEWEST = 32  # chains of every row taken at a time
_CODED = 128  # parts up to which categories are written as codes: each of more weighs too little to stand on
_TWO_VALUED = 16  # scores from which two values are no chance


@dataclass(frozen=True)
class Batch:
    """B problems that share a network or its architecture. Row b of every tensor is of problem rows[b]."""

    problems: Sequence[Problem]  # the original list
    rows: Tensor  # (B,) index into it, on the CPU
    network: Network
    property: Property
    inputs: InputModel
    spend: Spend
    forward: Forward  # in passes that fit the device and the clock
    whole: Forward  # in one pass, for gradients
    chunk: int  # rows per forward pass
    device: torch.device
    dtype: torch.dtype
    reader: Any = None  # of `inputs` that are codes: the input models that read them

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> Batch:
        """The problems at `index` (repeats allowed): dropping finished ones and making islands are both this."""
        return replace(
            self,
            property=take(self.property, index),
            inputs=take(self.inputs, index),
            reader=take(self.reader, index),
            rows=self.rows[index.cpu()],
        )

    def ways(self, index: Tensor) -> Batch:
        """The same rows with the event "way index[b] scores highest" for row b."""
        return replace(self, property=Way(self.property, index.to(self.device).unsqueeze(1)))

    def in_codes(self) -> Batch:
        """The same problems with categories written as codes, and normals for all else; itself where that is too much.

        Among many normals it is directions that tell, and those are of normals alone.
        """
        models: list[Any] = [self.problems[row].inputs for row in self.rows.tolist()]
        laws: list[Any] = [model.codes if isinstance(model, Coded) else None for model in models]
        few = all(law and law.parts <= _CODED and getattr(law, "normals", 0) <= FITTED for law in laws)
        if not few or len({(type(law), law.parts) for law in laws}) > 1:
            return self
        return replace(self, inputs=place(stack_inputs(laws), self.device, self.dtype), reader=self.inputs)

    def read(self, x: Tensor) -> Tensor:
        """Inputs (B, N, *event) as the network sees them."""
        return x if self.reader is None else self.reader.coded(x)

    def calls(self) -> Tensor:
        """Calls so far of the problem of each row, (B,)."""
        return self.spend.calls()[self.rows]

    def left(self) -> float:
        """Calls left to the problem that has fewest."""
        return self.spend.left(self.rows)

    def left_each(self) -> list[float]:
        """Calls left to the problem of each row."""
        return self.spend.left_each(self.rows)

    def chains_per_pass(self) -> int:
        """Chains of every row to take at a time: a forward pass full of them, but not so few that calling it shows."""
        return max(_FEWEST, self.chunk // max(1, len(self)))

    def taken(self, x: Tensor) -> Tensor:
        """Inputs where and as this batch runs them: whole numbers as such, all others in its precision."""
        return x.to(self.device, None if self.network.whole or self.reader is not None else self.dtype)

    def sample(self, n: int, rng: Rng) -> Tensor:
        return self.taken(self.inputs.sample((len(self), n), rng))

    def normals(self, n: int, rng: Rng) -> Tensor:
        """Normals (B, N, d) that map to independent inputs."""
        return kept_normals(self.inputs, (len(self), n), rng, self.dtype)

    def log_kept(self, z: Tensor) -> Tensor | None:
        """Log-chance (B, N) that normals are kept, in float64; None where all of them are."""
        with torch.no_grad():
            return log_kept(self.inputs, z)

    def log_weight(self, z: Tensor) -> Tensor | None:
        """Log-density (B, N) of the normals kept by that of all normals (B, N, d); None where it is 0 everywhere."""
        chance, model = self.log_kept(z), cast(Any, self.inputs)
        return None if chance is None else chance - model.log_share.to(chance)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs (B, N, *out) of inputs (B, N, *event) that are no codes."""
        self.spend.charge(self.rows, x.shape[1])
        with torch.no_grad():
            return self.forward(x, self.rows)

    def score(self, x: Tensor) -> Tensor:
        """Scores (B, N) of inputs (B, N, *event)."""
        self.spend.charge(self.rows, x.shape[1])
        with torch.no_grad():
            x = self.read(x)
            return self.property.score(x, self.forward(x, self.rows))

    def parts(self, x: Tensor) -> Tensor:
        """Scores (B, N, K) of each way to fail."""
        self.spend.charge(self.rows, x.shape[1])
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
        """Scores (n,) of points z (n, d), each of the problem row[n]: for searches where rows finish at other times.

        The points are laid out by row and padded for the input model and the property; the network sees only them.
        """
        self.spend.charge(self.rows, torch.bincount(row.cpu(), minlength=len(self)))
        order = torch.argsort(row, stable=True)
        counts = torch.bincount(row, minlength=len(self))
        first = torch.cumsum(counts, 0) - counts
        sorted_row = row[order]
        column = torch.arange(len(row), device=row.device) - first[sorted_row]
        with torch.no_grad():
            padded = z.new_zeros(len(self), int(counts.max()), z.shape[-1])
            padded[sorted_row, column] = z[order]
            x = self.inputs.from_normal(padded)
            owners = self.rows[sorted_row.cpu()]
            y = self.forward(x[sorted_row, column].unsqueeze(1), owners).squeeze(1)
            outputs = y.new_zeros(*x.shape[:2], *y.shape[1:])
            outputs[sorted_row, column] = y
            scores = self.property.score(x, outputs)[sorted_row, column]
        return torch.empty_like(scores).scatter_(0, order, scores)

    def gradient_normal(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, N) and their gradients (B, N, d) in z-space."""

        def scored(leaf: Tensor, _: slice) -> tuple[Tensor, Tensor]:
            x = self.inputs.from_normal(leaf)
            score = self.property.score(x, self.whole(x, self.rows))
            return score, score

        return self._gradient(z, scored)

    def gradient_ways(self, points: Tensor, way: Tensor, normal: bool) -> tuple[Tensor, Tensor]:
        """Scores (B, N) of inputs, or of normals, and the gradients of one way (B, N) to fail of each."""

        def aimed(leaf: Tensor, chains: slice) -> tuple[Tensor, Tensor]:
            x = self.inputs.from_normal(leaf) if normal else leaf
            parts = self.property.parts(x, self.whole(x, self.rows))
            return parts.amax(-1), parts.gather(-1, way[:, chains].unsqueeze(-1))

        return self._gradient(points, aimed)

    def _gradient(
        self, points: Tensor, function: Callable[[Tensor, slice], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What `function` gives first, and the gradient of what it gives second, in pieces that fit."""
        if not self.network.differentiable:
            raise InputError("this network is a black box: it has no gradients; use a gradient-free kernel such as PCN")
        b, n = points.shape[:2]
        self.spend.charge(self.rows, 0, n)
        most, start = max(1, self.chunk // 2), 0
        scores, gradients = [], []
        while start < n:
            per = max(1, self.spend.rows(most) // b)
            piece = slice(start, min(start + per, n))
            begun = time.monotonic()
            try:
                score, gradient = _differentiated(points[:, piece], piece, function)
            except torch.OutOfMemoryError:
                if per == 1:
                    raise
                most = per * b // 2
                continue
            if self.device.type == "cpu":
                self.spend.took(score.numel(), time.monotonic() - begun)
            start = piece.stop
            scores.append(score)
            gradients.append(gradient)
        return torch.cat(scores, 1), torch.cat(gradients, 1)


@torch.enable_grad()
def _differentiated(
    points: Tensor, piece: slice, function: Callable[[Tensor, slice], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    leaf = points.detach().requires_grad_()
    shown, aim = function(leaf, piece)
    # A score that is flat everywhere (a user's step function) is not connected to the input at all.
    if not aim.requires_grad:
        return shown.detach(), torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(aim.sum(), leaf, allow_unused=True, materialize_grads=True)
    return shown.detach(), gradient


def check_first(prop: Property, scores: Tensor) -> list[bool]:
    """Whether the first scores (B, N) of problems are all one value, or one for no and one for yes: nothing to climb.

    Zeros and ones alone of a user's function are refused: they are meant as no and yes, and both would be violations.
    """
    check_finite(scores)
    if scores.shape[1] < _TWO_VALUED:
        return [False] * len(scores)
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    if is_function(prop) and bool(((scores == 0) | (scores == 1)).all(1).any()):
        raise InputError(
            "every score is 0 or 1, and a score >= 0 is a violation, so that every input would count as one. Return a "
            "margin that rises towards the violation, such as y[:, 1] - y[:, 0] or rarely.Misclassification(label); "
            "where there is none return True for a violation and False otherwise"
        )
    two = ((scores == low) | (scores == high)).all(1) & ((low == high) | ((low < 0) & (high >= 0))).squeeze(1)
    flat: list[bool] = two.tolist()
    return flat


def check_finite(scores: Tensor) -> None:
    if bool(torch.isnan(scores).any()):
        raise NetworkError(
            "the score became NaN during the run: the network overflows on inputs that the input model can draw; "
            "run in float64 or narrow the input model"
        )
