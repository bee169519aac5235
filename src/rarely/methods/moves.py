"""Moving a population above a level: how many steps, what is kept, and how well it mixed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.kernels.base import State
from rarely.methods.walk import Walk

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


def move(walk: Walk, state: State, level: Tensor, steps: int | None, cap: int) -> Moved:
    """Apply `steps` moves to all chains (Alg. 1 l. 12), or with None as many as decorrelate them, up to `cap`."""
    start, n = state.copy() if steps is None else state, state.score.shape[1]
    walk.begin(state, level)
    if steps is not None:
        walk.advance(steps)
        return _moved(walk, start, walk.finish())
    for stop in sorted({*(point for point in _CHECKPOINTS if point < cap), cap}):
        walk.advance(stop - walk.done)
        if stop in _CHECKPOINTS:
            left, slack = _by_problem(walk.batch, correlation(start.score, walk.state.score), n)
            if not bool((left < SCORE_CORRELATION + slack).all()):  # then the positions need no look
                continue
            stuck, _ = _by_problem(walk.batch, _position_correlation(start.position, walk.state.position), n)
            if bool((stuck < POSITION_CORRELATION + slack).all()):
                break
    return _moved(walk, start, walk.finish())


def chains(walk: Walk, state: State, level: Tensor, length: int, thin: int) -> Moved:
    """Run every chain for `length` states, its start the first, and keep them all."""
    walk.begin(state, level)
    kept = [walk.state.copy()]
    for _ in range(length - 1):
        walk.advance(thin)
        kept.append(walk.state.copy())
    scale = walk.finish().scale
    return _moved(walk, kept[0], State.join([replace(state, scale=scale) for state in kept]))


def _moved(walk: Walk, start: State, state: State) -> Moved:
    left = correlation(start.score, walk.state.score)
    return Moved(state, (walk.total / max(walk.done, 1)).mean(1), left, walk.done)
