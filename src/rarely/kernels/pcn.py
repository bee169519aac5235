"""Preconditioned Crank-Nicolson: the random walk that keeps a standard normal invariant in any dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.gpu.chip import Chip, chip_for
from rarely.gpu.moves import moves_of
from rarely.kernels.base import State, allowed, nudge, passes
from rarely.stats import fused

_FIT_FROM = 12  # chains whose spread says something


@dataclass(frozen=True)
class PCN:
    """z' = sqrt(1 - beta^2) z + beta xi, kept when its score passes the level (Cotter et al. 2013, eq. 4.8).

    beta may differ by coordinate. The proposal is reversible for the normal law: only the level is left to check, and
    where the input model keeps some normals more often than others, their chances.
    """

    scale: float = 0.5  # beta at the start
    target: float = 0.4  # acceptance that beta is adapted to, per problem
    rate: float = 0.4

    space: Literal["normal"] = "normal"
    adapts: Literal["step"] = "step"
    cost: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise InputError(f"the scale of PCN must lie in (0, 1], got {self.scale}")
        if not 0 < self.target < 1:
            raise InputError(f"the target acceptance must lie in (0, 1), got {self.target}")

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        z = batch.normals(n, rng)
        scale = z.new_full((len(batch), 1), self.scale)
        return State(z, _scored(batch, z, rng), scale, log_density=batch.log_kept(z))

    def fit(self, state: State) -> State:
        """Shorter steps in coordinates where the population is very narrow (after Papaioannou et al. 2015).

        Only under an eighth of the widest, and in powers of eight: steps that follow every fluctuation of the spread
        pull wide coordinates in and let narrow ones out, which biased p by a third in 20 dimensions with 100 chains.
        """
        if state.score.shape[1] < _FIT_FROM:
            return state
        centred = state.position - state.position.mean(1, keepdim=True)
        spread = centred.square_().mean(1, keepdim=True).sqrt_()
        ratio = (spread / spread.amax(-1, keepdim=True).clamp_min(1e-12)).clamp_min(1e-3)
        return replace(state, unit=torch.exp2(3 * torch.ceil(torch.log2(ratio) / 3)))

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        moves = moves_of(batch, state.position, state.scale, state.unit, rng)
        if moves is not None:
            scores, passed = moves.judged(state.score, moves.inputs(), level, strict)
            moves.keep(passed)
            return replace(state, score=scores), passed
        beta = (state.scale.unsqueeze(-1) * (1.0 if state.unit is None else state.unit)).clamp_max(1.0)
        score, moved, chance = [], [], []
        # Piece by piece, from the proposal to its acceptance: all that a piece needs stays in the caches of a CPU.
        for chains, noise, sign in rng.moves(state.position.shape, state.position.dtype, batch.chains_per_pass()):
            part = state.part(chains)
            z = _blend(part.position, noise, beta, sign)
            proposal = State(z, batch.score_normal(z), state.scale, log_density=batch.log_kept(z))
            ok = allowed(batch, part, proposal, passes(proposal.score, level, strict), rng)
            after = part.accept(proposal, ok)
            score.append(after.score)
            moved.append(ok)
            if after.log_density is not None:
                chance.append(after.log_density)
        if chance:
            state = replace(state, log_density=torch.cat(chance, 1))
        if len(score) == 1:
            return replace(state, score=score[0]), moved[0]
        return replace(state, score=torch.cat(score, 1)), torch.cat(moved, 1)

    def chip(self, batch: Batch) -> Chip | None:
        """Many steps at once, where a GPU can hold all they need."""
        return chip_for(batch, normal=True)

    def adapt(self, state: State, accepted: Tensor) -> State:
        return nudge(state, accepted, self.target, self.rate, 1.0 if state.unit is None else 8.0)


def _scored(batch: Batch, z: Tensor, rng: Rng) -> Tensor:
    """Scores (B, N) as a step gives them: the same number from the same outputs, see `Walk.scored`."""
    still = z.new_zeros(len(batch), 1)
    moves = moves_of(batch, z, still, None, rng)
    if moves is None:
        return batch.score_normal(z)
    before = z.new_zeros(z.shape[:2])
    return moves.judged(before, moves.inputs(), torch.full_like(still, -torch.inf), strict=False)[0]


def _blend(z: Tensor, noise: Tensor, beta: Tensor, sign: float) -> Tensor:
    whole = fused.blend(z, noise, sign * beta)
    return torch.mul(z, torch.sqrt(1 - beta * beta)).addcmul_(noise, beta, value=sign) if whole is None else whole
