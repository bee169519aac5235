"""Many independent runs of Algorithm 1 on many problems, as one batch.

`rarely.estimate` makes an Estimate of every run and replays its witnesses: a millisecond or two of Python, where the
grids of section 6.2 have 300,000 runs and a GPU needs less than a millisecond for most of them. Here a run is an island
of its problem, and what is kept of it are a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import rarely
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.methods.base import Progress
from rarely.methods.islands import Island
from rarely.questions.result import Outcome

_OUTCOMES = {"violated": Outcome.VIOLATED, "floor": Outcome.BELOW_FLOOR, "stalled": Outcome.STALLED}


@dataclass(frozen=True)
class Single:
    """What one run says."""

    outcome: Outcome
    log_prob: float  # -inf where no violation was found
    std: float  # of log_prob, as the run judges itself
    witnesses: int
    calls: int


def independent_runs(
    problems: Sequence[rarely.Problem],
    settings: rarely.Splitting,
    runs: int,
    *,
    seed: int,
    device: str,
    note: Callable[[Progress], None] = lambda _: None,
) -> list[list[Single]]:
    """So many runs of each problem. `note` is told how far they are."""
    execution = rarely.Execution(device=device)
    rng, many = Rng(seed, execution.resolve()), replace(settings, islands=runs)
    found: list[list[Single]] = [[] for _ in problems]
    for batch in execution.place(problems, Spend(len(problems)), at_once=many.at_once):
        with execution.running(), batch.network.evaluating():
            climb = many.populations(batch, rng.at(batch.device))
            while True:
                try:
                    note(next(climb))
                except StopIteration as stop:
                    finished: list[list[Island]] = stop.value
                    break
        for row, islands in zip(batch.rows.tolist(), finished, strict=True):
            found[row] = [_single(island, many.particles) for island in islands]
    return found


def _single(island: Island, particles: int) -> Single:
    assert island.ended is not None
    hit, calls = island.ended == "violated", particles * (1 + island.steps)
    number = (island.log_prob, island.single_run_std()) if hit else (-math.inf, math.inf)
    return Single(_OUTCOMES[island.ended], *number, len(island.witnesses or ()), calls)
