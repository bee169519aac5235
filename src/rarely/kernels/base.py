"""A kernel is a value with three pure functions: init, step, adapt. State is apart from diagnostics.

To write one: hold settings in a frozen dataclass; `init` draws from p(x) and scores; `step` proposes, calls the network
once, and keeps what `passes`; `fit` may look at a population first; `adapt` changes `state.scale` from acceptance
rates. See pcn.py: it takes two minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from rarely.core.batch import Batch
from rarely.core.rng import Rng
from rarely.stats import fused
from rarely.stats.levels import passes as passes

_SHORTEST = 1e-4  # step size


@dataclass(frozen=True)
class State:
    """B populations of N chains."""

    position: Tensor  # (B, N, d) normals, or (B, N, *event) inputs
    score: Tensor  # (B, N)
    scale: Tensor  # (B, 1) or (B, N) step size
    gradient: Tensor | None = None  # (B, N, d) of the score
    log_density: Tensor | None = None  # (B, N), of inputs or of normals, where it is not that of normals alone
    unit: Tensor | None = None  # (B, 1, *event) length that a step of scale 1 has in each coordinate
    own_scale: bool = False  # whether every chain has a step size of its own

    @property
    def _per_chain(self) -> tuple[str, ...]:
        """Names of the fields that have one entry per chain."""
        names = ["position", "score", "gradient", "log_density"]
        return (*names, "scale") if self.own_scale else tuple(names)

    def clone(self, ancestors: Tensor) -> State:
        """The chains at `ancestors` (B, n). Step sizes kept per chain are inherited."""

        b, n = self.score.shape
        offsets = n * torch.arange(b, device=ancestors.device).unsqueeze(1)
        flat = (ancestors + offsets).flatten()  # whole chains are copied, several times as fast as `gather`

        def pick(value: Tensor) -> Tensor:
            return value.flatten(0, 1).index_select(0, flat).reshape(*ancestors.shape, *value.shape[2:])

        return self._change(pick, self._per_chain)

    def rows(self, index: Tensor) -> State:
        """The populations at `index`."""
        return self._change(lambda value: value[index], _TENSORS)

    def part(self, chains: slice) -> State:
        """A view of some chains: what `accept` writes into its positions is written into these."""
        if chains.stop - chains.start == self.score.shape[1]:
            return self
        return self._change(lambda value: value[:, chains], self._per_chain)

    def copy(self) -> State:
        """A state that no step changes any more."""
        return self._change(torch.clone, _TENSORS)

    def accept(self, proposal: State, ok: Tensor) -> State:
        """The proposal where `ok` (B, N), the old state elsewhere; step sizes stay.

        Positions are large and are written over the old ones: a step uses its state up, and who wants to keep one
        takes a `copy`.
        """
        changes: dict[str, Any] = {}
        for name in ("position", "score", "gradient", "log_density"):
            old, new = getattr(self, name), getattr(proposal, name)
            if old is None or new is None:
                continue
            if name == "position" and old.device.type == "cpu" and len(old) == 1:
                rows = ok[0].nonzero().squeeze(1)  # whole rows are copied, twice as fast as choosing by entry
                changes[name] = old[0].index_copy_(0, rows, new[0].index_select(0, rows)).unsqueeze(0)
            else:
                out = old if name == "position" else None
                changes[name] = torch.where(ok.reshape(*ok.shape, *([1] * (old.ndim - 2))), new, old, out=out)
        return replace(self, **changes)

    @staticmethod
    def join(states: Sequence[State]) -> State:
        """The chains of all states in one population; step sizes kept per problem are the last state's."""
        first, last = states[0], states[-1]
        names = [name for name in first._per_chain if getattr(last, name) is not None]
        joined: dict[str, Any] = {name: torch.cat([getattr(state, name) for state in states], 1) for name in names}
        return replace(last, **joined)

    def _change(self, function: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> State:
        values = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: function(value) for name, value in values.items() if value is not None}
        return replace(self, **changed)


_TENSORS = tuple(spec.name for spec in fields(State) if spec.name != "own_scale")


class Kernel(Protocol):
    """Keeps p(x | score > level) invariant."""

    @property
    def space(self) -> Literal["normal", "input"]:
        """Whether positions are standard normals mapped by the input model, or inputs themselves."""
        ...

    @property
    def adapts(self) -> Literal["step", "level"]:
        """Whether `adapt` is called after each step, or once per level with the mean acceptance."""
        ...

    @property
    def cost(self) -> int:
        """Network calls of one step of one chain, a gradient counted as three."""
        ...

    def init(self, batch: Batch, n: int, rng: Rng) -> State:
        """N draws from p(x), scored."""
        ...

    def fit(self, state: State) -> State:
        """Look at the population of a new level before it moves."""
        ...

    def step(self, batch: Batch, state: State, level: Tensor, strict: bool, rng: Rng) -> tuple[State, Tensor]:
        """One move of every chain above `level` (B, 1), and whether it moved (B, N). Uses `state` up."""
        ...

    def adapt(self, state: State, accepted: Tensor) -> State:
        """Step sizes for the acceptance rates seen (B, N)."""
        ...


def normal_init(batch: Batch, n: int, rng: Rng, scale: float, gradient: bool = False) -> State:
    """The common start of the kernels in z-space."""
    z = batch.normals(n, rng)
    first, chance = z.new_full((len(batch), 1), scale), batch.log_kept(z)
    if gradient:
        score, slope = batch.gradient_normal(z)
        return State(z, score, first, gradient=slope, log_density=chance)
    return State(z, batch.score_normal(z), first, log_density=chance)


def allowed(batch: Batch, old: State, new: State, ok: Tensor, rng: Rng, log_ratio: Tensor | None = None) -> Tensor:
    """The moves `ok` that the ratio of Metropolis takes, for a proposal that is reversible for normals.

    Its logarithm is `log_ratio`, of a proposal that is not quite, and what is gained by the chance that normals are
    kept (see `InputModel`). Where that is all there is, and is the same for all normals, every move is taken.
    """
    gained = log_ratio
    if new.log_density is not None:
        before = old.log_density if old.log_density is not None else batch.log_kept(old.position)
        assert before is not None
        more = new.log_density - before
        gained = more if gained is None else gained + more
    if gained is None:
        return ok
    return ok & (torch.log(rng.uniform(ok.shape, new.score.dtype)) < gained)


def nudge(state: State, accepted: Tensor, target: float, rate: float, largest: float) -> State:
    """One step size per problem, moved towards the target acceptance (Robbins-Monro on its logarithm)."""
    seen = accepted.to(state.scale.dtype).mean(1, keepdim=True)
    gain = rate * min(1.0, accepted.shape[1] / 30)  # few chains say little about the rate
    whole = fused.nudge(state.scale, seen, target, gain, _SHORTEST, largest)
    if whole is None:
        whole = (state.scale * torch.exp(gain * (seen - target))).clamp(_SHORTEST, largest)
    return replace(state, scale=whole)
