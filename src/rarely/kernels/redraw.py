"""Drawing some parts of an input anew: moves for tokens, categories and other inputs that are no matter of degree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.parts import redrawn
from rarely.core.rng import Rng
from rarely.kernels.base import State, normal_init, nudge, passes


@dataclass(frozen=True)
class Redraw:
    """Every part is drawn anew with probability `scale`, and one at least; kept when the score passes the level.

    Parts are what the input model names: the positions of `Tokens`, say. Drawn from its law given all others, they
    leave that law as it is, so that only the level is left to check (Gibbs' moves of random blocks). In the space of
    normals the parts are the normals.
    """

    scale: float = 0.5  # share of the parts at the start
    target: float = 0.3  # acceptance that the share is adapted to, per problem
    rate: float = 0.4
    space: Literal["normal", "input"] = "input"

    adapts: Literal["step"] = "step"
    cost: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise InputError(f"the scale of Redraw is a share of the parts in (0, 1], got {self.scale}")
        if not 0 < self.target < 1:
            raise InputError(f"the target acceptance must lie in (0, 1), got {self.target}")

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        if self.space == "normal":
            return normal_init(batch, n, rng, self.scale)
        if not redrawn(batch.inputs):
            raise InputError(
                f"Redraw needs an input model with `parts` and `redraw`, which {type(batch.inputs).__name__} has not; "
                "use another kernel, or Redraw(space='normal') where there is a map from normals"
            )
        x = batch.sample(n, rng)
        score = batch.score(x)
        return State(x, score, score.new_full((len(batch), 1), self.scale))

    def fit(self, state: State) -> State:
        return state

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        x = state.position
        parts = x.shape[-1] if self.space == "normal" else batch.inputs.parts  # type: ignore[attr-defined]
        u = rng.uniform((*state.score.shape, parts), state.scale.dtype)
        chosen = (u < state.scale.unsqueeze(-1)) | (u == u.amin(-1, keepdim=True))
        if self.space == "normal":
            y = torch.where(chosen, rng.normal(x.shape, x.dtype), x)
            score = batch.score_normal(y)
        else:
            y = batch.taken(batch.inputs.redraw(x, chosen, rng))  # type: ignore[attr-defined]
            score = batch.score(y)
        ok = passes(score, level, strict)
        return state.accept(State(y, score, state.scale), ok), ok

    def adapt(self, state: State, accepted: Tensor) -> State:
        return nudge(state, accepted, self.target, self.rate, 1.0)
