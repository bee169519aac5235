"""Moving a population above a level: how many steps, what is kept, and how well it mixed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.kernels.base import Kernel, State
from rarely.problem import Batch
from rarely.rng import Rng

# After which steps `steps="auto"` looks at the decorrelation: doubling, with one stop in between.
_CHECKPOINTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SCORE_CORRELATION = 0.2  # what is left of the starting scores when a population counts as moved
POSITION_CORRELATION = 0.8  # looser: positions in directions that do not matter need not be forgotten


@dataclass(frozen=True)
class Moved:
    state: State
    acceptance: Tensor  # (B,) mean over chains and steps
    correlation: Tensor  # (B,) left between scores before and after
    steps: int


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation over everything but the first dimension, (B,). Zero where nothing varies."""
    a, b = a.flatten(1), b.flatten(1)
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    lengths = torch.mul(a.square().sum(1), b.square().sum(1)).sqrt()
    return (a * b).sum(1) / lengths.clamp_min(1e-30)


def _position_correlation(a: Tensor, b: Tensor) -> Tensor:
    mean = a.mean(1, keepdim=True)
    centred = a - mean
    shared: Tensor = torch.linalg.vecdot(centred.flatten(1), (b - mean).flatten(1))
    own: Tensor = torch.linalg.vecdot(centred.flatten(1), centred.flatten(1))
    return shared / own.clamp_min(1e-30)


def _by_problem(batch: Batch, value: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Mean of a correlation over the populations of each problem, and three of its standard errors.

    Without them the noise of many small populations would keep some of them over any threshold for ever.
    """
    count = torch.bincount(batch.rows)
    total = torch.zeros(len(count), dtype=value.dtype).index_add_(0, batch.rows, value.cpu())
    here = count > 0
    return total[here] / count[here], 3 / torch.sqrt(count[here] * n)


def _adapted(kernel: Kernel, state: State, accepted: Tensor, when: str) -> State:
    return kernel.adapt(state, accepted) if kernel.adapts == when else state


def move(
    kernel: Kernel, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng, steps: int | None, cap: int
) -> Moved:
    """Apply `steps` moves to all chains (Alg. 1 l. 12), or with None as many as decorrelate them, up to `cap`."""
    state = kernel.fit(state)
    start, threshold = state, level.unsqueeze(1)
    total = torch.zeros_like(state.score)
    limit, done = steps if steps is not None else cap, 0
    while done < limit:
        state, ok = kernel.step(batch, state, threshold, strict, rng)
        done, total = done + 1, total + ok
        state = _adapted(kernel, state, ok, "step")
        if steps is None and done in _CHECKPOINTS:
            left, slack = _by_problem(batch, correlation(start.score, state.score), state.score.shape[1])
            if not bool((left < SCORE_CORRELATION + slack).all()):  # then the positions need no look
                continue
            stuck, _ = _by_problem(batch, _position_correlation(start.position, state.position), state.score.shape[1])
            if bool((stuck < POSITION_CORRELATION + slack).all()):
                break
    state = _adapted(kernel, state, total / done, "level")
    return Moved(state, (total / done).mean(1), correlation(start.score, state.score), done)


def chains(
    kernel: Kernel, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng, length: int, thin: int
) -> Moved:
    """Run every chain for `length` states, its start the first, and keep them all."""
    state = kernel.fit(state)
    start, threshold = state, level.unsqueeze(1)
    kept, total, done = [state], torch.zeros_like(state.score), 0
    for _ in range(length - 1):
        for _ in range(thin):
            state, ok = kernel.step(batch, state, threshold, strict, rng)
            done, total = done + 1, total + ok
            state = _adapted(kernel, state, ok, "step")
        kept.append(state)
    state = _adapted(kernel, state, total / max(done, 1), "level")
    left = correlation(start.score, state.score)
    return Moved(State.join(kept), (total / max(done, 1)).mean(1), left, done)
