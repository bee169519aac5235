"""Adaptive multi-level splitting: Algorithm 1 of Webb et al. (2019), and its relatives."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from rarely.core.arguments import settle
from rarely.core.batch import Batch, check_finite, check_first
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Exhausted
from rarely.core.thresholds import LOG_FLOOR
from rarely.kernels import Kernel, RandomWalk, State, default_kernel
from rarely.methods.arrivals import arrivals
from rarely.methods.base import Progress, Run, progress
from rarely.methods.compass import slopes
from rarely.methods.evening import UPRIGHT, evenly, leans, log_weights
from rarely.methods.islands import Island, evidence_of
from rarely.methods.moves import Moved, chains, move
from rarely.methods.walk import Walk
from rarely.stats.levels import Selection, ancestors, select

_PATIENCE = 5  # levels in a row without progress before a population counts as stalled (the paper's rule)

_MIN_STEPS = 2  # of steps="auto"


@dataclass(frozen=True)
class Splitting:
    """Splitting on the event score >= 0 through levels that a fraction `quantile` of the particles exceeds.

    `islands` independent populations of `particles` each are run side by side and averaged, which keeps the estimate
    unbiased and gives an interval that assumes nothing about the correlation inside a population. `islands=1`,
    `kernel=RandomWalk()`, `rule="paper"`, `steps=1000`, `particles=10000` is the paper's setting.

    keep="last": every particle moves `steps` times and its last state is used (the paper). keep="all": only the
    survivors move, and every state of their chains is used (subset simulation; Au and Beck 2001, Dau and Chopin 2022);
    `steps` then thins the chains. resample="killed": survivors stay where they are and only clones that replace killed
    particles move (Guyader et al. 2011); with quantile = 1 - 1/N this is the last-particle algorithm.
    """

    particles: int = 1000  # N in the paper
    quantile: float = 0.1  # rho: the share of particles that survive a level
    steps: int | Literal["auto"] = "auto"  # M: of the kernel at each level
    kernel: Kernel | None = None  # None: what the input model can be moved by, see kernels/default.py
    log_p_min: float = LOG_FLOOR
    islands: int = 8
    rule: Literal["strict", "paper"] = "strict"
    keep: Literal["last", "all"] = "last"
    resample: Literal["all", "killed"] = "all"
    max_steps: int = 200  # cap for steps="auto"

    def __post_init__(self) -> None:
        settle(self)
        if self.particles < 2:
            raise InputError(f"particles must be at least 2, got {self.particles}")
        if not 0 < self.quantile < 1:
            raise InputError(f"quantile must lie strictly between 0 and 1, got {self.quantile}")
        if math.floor(self.quantile * self.particles) < 1:
            raise InputError(f"quantile {self.quantile} of {self.particles} particles leaves nobody; raise either")
        if self.steps != "auto" and self.steps < 1:
            raise InputError(f"steps must be at least 1 or 'auto', got {self.steps}")
        if not self.log_p_min < 0:
            raise InputError(f"log_p_min is a natural logarithm and must be negative, got {self.log_p_min}")
        if self.islands < 1:
            raise InputError(f"islands must be at least 1, got {self.islands}")
        for name, allowed in (
            ("rule", ("strict", "paper")),
            ("keep", ("last", "all")),
            ("resample", ("all", "killed")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.keep == "all" and self.resample == "killed":
            raise InputError("keep='all' moves survivors, resample='killed' leaves them in place; choose one")

    @classmethod
    def last_particle(
        cls, particles: int = 100, islands: int = 32, steps: int = 20, kernel: Kernel | None = None
    ) -> Splitting:
        """Kill one particle at a time (Guyader, Hengartner and Matzner-Lober 2011), many small populations at once."""
        quantile = 1 - 1 / particles
        return cls(particles, quantile + 1e-9, steps, kernel, islands=islands, resample="killed")

    @property
    def at_once(self) -> int:
        return self.particles * self.islands

    def forecast(self, log_prob: float) -> float:
        levels = max(log_prob, self.log_p_min) / math.log(self.quantile)
        return self.at_once * (1 + levels * self._steps)

    @property
    def _steps(self) -> int:
        """Steps that every particle of a level takes, about."""
        return (1 if self.keep == "all" else 10) if self.steps == "auto" else self.steps

    def run(self, batch: Batch, rng: Rng) -> Run:
        before = batch.calls()
        runs = yield from self.populations(batch, rng)
        spent = (batch.calls() - before).tolist()
        return [evidence_of(islands, "splitting", calls) for islands, calls in zip(runs, spent, strict=True)]

    def populations(
        self, batch: Batch, rng: Rng, sloped: bool = False
    ) -> Generator[Progress, None, list[list[Island]]]:
        """Run the islands of every problem; `evidence_of` says what they have learnt.

        `sloped`: where scores rise is learnt on the way, with keep="all" in the space of normals.
        """
        kernel = self.kernel or default_kernel(batch.inputs)
        if kernel.space == "normal" and batch.inputs.normal_dim is None:
            raise InputError(
                f"{type(kernel).__name__} works on standard normals, and this input model has no from_normal; "
                "use RandomWalk, or give the input model a from_normal"
            )
        if isinstance(kernel, RandomWalk) and batch.network.whole:
            raise InputError("RandomWalk moves by lengths, and whole numbers such as tokens have none; use Redraw")
        drawn = evenly(batch) if kernel.space == "input" and self.rule == "strict" else batch
        return (yield from _Populations(self, kernel, drawn, batch, rng, sloped).run())


@dataclass
class _Populations:
    """The populations of one run: row r of the tensors is island r % islands of problem r // islands."""

    settings: Splitting
    kernel: Kernel
    batch: Batch
    asked: Batch  # with the law asked about, where populations climb from another
    rng: Rng
    sloped: bool
    islands: list[list[Island]] = field(default_factory=list)
    means: list[float] = field(default_factory=list)  # of log p over the islands of each problem

    def run(self) -> Generator[Progress, None, list[list[Island]]]:
        self.islands = [[Island() for _ in range(self.settings.islands)] for _ in range(len(self.batch))]
        self.means = [0.0] * len(self.batch)
        try:
            yield from self._climb()
        except Exhausted:
            for island in (island for group in self.islands for island in group):
                island.ended = island.ended or "budget"
            yield self._progress(torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool))
        return self.islands

    def _climb(self) -> Generator[Progress, None, None]:
        s, b = self.settings, len(self.batch)
        length = max(2, round(1 / s.quantile))
        n = s.particles // length * length if s.keep == "all" else s.particles
        quantile = 1 / length if s.keep == "all" else s.quantile
        rows = torch.arange(b).repeat_interleave(s.islands)  # problem of each population still running
        slots = torch.arange(s.islands).repeat(b)
        part = self.batch.take(rows)
        walk = self._walk(part, n)
        state = walk.scored(self.kernel.init(part, n, self.rng))
        first = check_first(part.property, state.score)
        hits = (state.score >= 0).sum(1).tolist()
        for r, (i, j) in enumerate(zip(rows.tolist(), slots.tolist(), strict=True)):
            self.islands[i][j].begin(*((n, hits[r]) if self.asked is self.batch else (0, 0)), first[r])
        level = state.score.new_full((len(rows),), -torch.inf)
        while True:
            check_finite(state.score)
            choice = select(state.score, quantile, s.rule == "paper")
            ended = self._record(part, rows, slots, state, choice, level)
            level = torch.maximum(level, choice.level)
            yield self._progress(level, rows, ended)
            going = (~ended).nonzero().squeeze(1)
            if len(going) == 0:
                return
            if len(going) < len(rows):
                rows, slots = rows[going], slots[going]
                index = going.to(level.device)
                part, state, level = self.batch.take(rows), state.rows(index), level[index]
                walk = walk.take(part, index)
                choice = Selection(*(getattr(choice, f)[index] for f in choice.__dataclass_fields__))
            cap = self._cap(rows, n, int(choice.survivors.min()))
            moved = self._advance(walk, state, choice, level, n, length, cap)
            state = moved.state
            history = zip(moved.acceptance.tolist(), moved.correlation.tolist(), strict=True)
            for i, j, (acceptance, left) in zip(rows.tolist(), slots.tolist(), history, strict=True):
                self.islands[i][j].moved(acceptance, left, moved.steps)
            if self.sloped:
                for i, j, slope in zip(rows.tolist(), slots.tolist(), slopes(state, length), strict=True):
                    before = self.islands[i][j].slope
                    self.islands[i][j].slope = slope if before is None else before + slope

    def _walk(self, part: Batch, n: int) -> Walk:
        strict, evaluations = self.settings.rule == "strict", len(part) * n * self.settings._steps
        return Walk(self.kernel, part, strict, self.rng, evaluations)

    def _advance(
        self, walk: Walk, state: State, choice: Selection, level: Tensor, n: int, length: int, cap: int
    ) -> Moved:
        s = self.settings
        steps = None if s.steps == "auto" else s.steps
        if s.keep == "all":
            start = state.clone(ancestors(choice, n // length, self.rng, multinomial=False))
            return chains(walk, start, level, length, steps or 1)
        if s.resample == "all":
            start = state.clone(ancestors(choice, n, self.rng, multinomial=s.rule == "paper"))
            return move(walk, start, level, steps, cap)
        return self._replace_killed(walk, state, choice, level, n, steps, cap)

    def _replace_killed(
        self, walk: Walk, state: State, choice: Selection, level: Tensor, n: int, steps: int | None, cap: int
    ) -> Moved:
        """Survivors stay; the others become clones of random survivors and move."""
        order = state.score.argsort(dim=1, descending=True)
        fewest = int(choice.survivors.min())
        if fewest == n:  # ties at a level of the paper's rule, of which each survives
            stays = level.new_zeros(len(level))
            return Moved(state, stays, stays + 1, 0)
        clones = state.clone(ancestors(choice, n - fewest, self.rng, multinomial=True))
        moved = move(walk, clones, level, steps, cap)
        # Rows differ in their survivors only by ties: a row with more of them keeps them and uses fewer clones.
        rank = torch.arange(fewest, n, device=order.device)
        replaced = rank >= choice.survivors.unsqueeze(1)
        tail = replace(state.clone(order[:, fewest:]), scale=moved.state.scale).accept(moved.state, replaced)
        joined = State.join([state.clone(order[:, :fewest]), tail])
        return Moved(joined, moved.acceptance, moved.correlation, moved.steps)

    def _record(
        self, part: Batch, rows: Tensor, slots: Tensor, state: State, choice: Selection, previous: Tensor
    ) -> Tensor:
        """Write the level into every island's history; say which populations end here, (R,) on the CPU."""
        finished, plateau = choice.finished.tolist(), choice.plateau.tolist()
        paper = self.settings.rule == "paper"
        risen = ((choice.level > previous) | (not paper)).tolist()  # above a strict level everybody has risen
        levels, increments, counts = choice.level.tolist(), choice.log_increment.tolist(), choice.survivors.tolist()
        n, least = state.score.shape[1], _MIN_STEPS if self.settings.steps == "auto" else self.settings.steps
        left = self.batch.left_each()
        fewest = min((c for c, f, p in zip(counts, finished, plateau, strict=True) if not (f or p)), default=0)
        late, reserve = self.batch.spend.late, least * self._cost_of_step(n, fewest)
        weights = self._weights(part, rows, state)
        above = torch.where(choice.finished.unsqueeze(1), state.score >= 0, state.score > choice.level.unsqueeze(1))
        lean = [UPRIGHT] * len(rows) if weights is None else leans(weights, above)
        arrived = arrivals(part, self.kernel.space, state, choice.finished.nonzero().squeeze(1), weights)
        ended = []
        for r, (i, j) in enumerate(zip(rows.tolist(), slots.tolist(), strict=True)):
            island = self.islands[i][j]
            if not plateau[r]:
                island.lean = lean[r]
            if finished[r]:
                island.finish(increments[r], counts[r], n, *next(arrived))
            elif plateau[r] or not risen[r]:
                island.wait(_PATIENCE if paper else 1)
            else:
                island.climb(levels[r], increments[r], counts[r], n)
                if island.log_prob < self.settings.log_p_min:
                    island.ended = "floor"
            if island.ended is None and (late or left[i] < reserve):
                island.ended = "budget"
            ended.append(island.ended is not None)
        return torch.tensor(ended)

    def _weights(self, part: Batch, rows: Tensor, state: State) -> Tensor | None:
        """Log-weights (R, n) of particles that come from another law than that asked about."""
        if self.asked is self.batch:
            return None
        return log_weights(self.asked.take(rows).inputs, part.inputs, state.position)

    def _cost_of_step(self, n: int, survivors: int) -> int:
        """Calls that one step of all islands of one problem takes at most, when no island has fewer survivors."""
        s = self.settings
        moving = n if s.resample == "all" else max(1, n - survivors)
        return moving * s.islands * self.kernel.cost

    def _cap(self, rows: Tensor, n: int, survivors: int) -> int:
        """Steps that every problem still running can pay for, up to `max_steps`."""
        left = self.batch.spend.left(self.batch.rows[rows])
        return int(min(self.settings.max_steps, left // self._cost_of_step(n, survivors)))

    def _progress(self, level: Tensor, rows: Tensor, ended: Tensor) -> Progress:
        for problem in set(rows.tolist()):
            group = self.islands[problem]
            self.means[problem] = sum(island.log_prob for island in group) / len(group)
        lowest = torch.zeros(len(self.batch))
        lowest.scatter_reduce_(0, rows, level.float().cpu(), "amin")
        active = len(set(rows[~ended].tolist()))
        return progress("splitting", self.batch, self.means, active, lowest.clamp_max(0.0))
