"""What a proof says, and the record kept while it is being made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rarely.bounds.boxes import Rest
from rarely.bounds.region import BallRegion, Region
from rarely.bounds.spec import Spec
from rarely.core.evidence import REAL

_REPLAYS = 20  # points that one problem's network is run on at most
Network = Callable[[Tensor], Tensor]  # (N, *event) -> (N, ...)


@dataclass(frozen=True)
class Proof:
    """One problem's answer.

    `bound` is an upper bound on the score over the whole region (negative when proved, inf when there is none). It
    holds for the network as it runs in its `arithmetic`, or, where that is "real", in real arithmetic only. `score` is
    that of the witness, by the network itself.
    """

    status: Literal["proved", "violated", "unknown"]
    bound: float
    boxes: int  # sub-problems that were bounded
    witness: Tensor | None = None  # event-shaped, in the network's precision
    score: float | None = None
    reason: str = ""
    calls: int = 0  # of the network: candidates that were replayed
    arithmetic: str = ""  # of what is proved: "float32" and the like, or "real"
    rest: Rest | None = field(default=None, repr=False, compare=False)  # what a longer attempt goes on with


class Ledger:
    """Open problems of a batch, their bounds and witnesses."""

    def __init__(self, network: Network, dtype: torch.dtype, region: Region, spec: Spec, arithmetic: str) -> None:
        count = region.low.shape[0]
        self.network, self.dtype, self.region, self.spec, self.arithmetic = network, dtype, region, spec, arithmetic
        self.proofs: list[Proof | None] = [None] * count
        self.open = torch.ones(count, dtype=torch.bool, device=region.low.device)
        self.boxes = torch.zeros_like(self.open, dtype=torch.long)
        self.replays = [0] * count
        # Largest upper bound on the score among sub-problems that are closed, and among those that are not.
        self.closed = torch.full_like(self.open, -torch.inf, dtype=torch.float64)
        self.pending = torch.full_like(self.closed, torch.inf)
        # The same for problems all of whose sub-problems are closed, some in real arithmetic only.
        self.in_reals = torch.full_like(self.closed, torch.inf)
        self.rests: list[Rest | None] = [None] * count

    @property
    def todo(self) -> Tensor:
        """Problems that nothing is proved of."""
        return self.open & ~(self.in_reals < 0)

    def offer(self, problem: Tensor, x: Tensor, score: Tensor) -> None:
        """Candidates x (N, *event) with their approximate scores: the best one of each problem is replayed."""
        near = (score >= -1e-6) & self.open[problem]
        if not bool(near.any()):
            return
        problem, x, score = problem[near], x[near], score[near]
        rows: dict[int, int] = {}
        best = score.argsort(descending=True)
        for p, i in zip(problem[best].tolist(), best.tolist(), strict=True):
            if self.replays[p] < _REPLAYS:
                rows.setdefault(p, i)
        if not rows:
            return
        who, where = (torch.tensor(list(part), device=problem.device) for part in (rows, rows.values()))
        points, found = self._replay(who, x[where])
        for p, point, s in zip(rows, points, found.tolist(), strict=True):
            self.replays[p] += 1
            if s >= 0:
                self.open[p] = False
                calls = self.replays[p]
                self.proofs[p] = Proof("violated", float("inf"), int(self.boxes[p]), point.cpu(), s, calls=calls)

    @torch.no_grad()
    def _replay(self, who: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """One candidate (B, *event) for each of some problems, rounded to the network's precision and truly evaluated.

        Gives the rounded points and their scores (B,); a score >= 0 is a violation that anyone can repeat. A point of
        a ball that rounding pushed out of it scores -inf.
        """
        region, spec = self.region.pick(who), self.spec.pick(who)
        y = representable(x, region, self.dtype)
        outputs = self.network(y.clone()).flatten(1).unsqueeze(1).to(torch.float64)
        score = spec.score(outputs).squeeze(1)
        if isinstance(region, BallRegion):
            away = torch.linalg.vector_norm((y.double() - region.centre).flatten(1), dim=1)
            score = torch.where(away <= region.radius, score, -torch.inf)
        return y, score

    def proved(self, problem: int) -> None:
        self.open[problem] = False
        self.proofs[problem] = self._proof(problem, float(self.closed[problem]), self.arithmetic)

    def proved_in_reals(self, problem: int, bound: float) -> None:
        """Proved but for sub-problems with this upper bound in real arithmetic, which may still be closed."""
        self.in_reals[problem] = max(bound, float(self.closed[problem]))

    def _proof(self, problem: int, bound: float, arithmetic: str) -> Proof:
        boxes, calls = int(self.boxes[problem]), self.replays[problem]
        return Proof("proved", bound, boxes, calls=calls, arithmetic=arithmetic)

    def count(self, problem: Tensor) -> None:
        """One more sub-problem bounded, for each entry of `problem` (N,)."""
        self.boxes.scatter_add_(0, problem, torch.ones_like(problem))

    def close(self, problem: Tensor, bound: Tensor) -> None:
        """Sub-problems (N,) decided with these upper bounds on the score."""
        self.closed.scatter_reduce_(0, problem, bound, "amax")

    def hope(self, problem: Tensor, bound: Tensor) -> None:
        """All the open sub-problems (N,) there are, with their upper bounds on the score; no number bounds nothing."""
        bound = torch.where(bound.isnan(), torch.inf, bound)
        worst = torch.full_like(self.closed, -torch.inf).scatter_reduce(0, problem, bound, "amax")
        self.pending = torch.minimum(self.pending, torch.where(worst > -torch.inf, worst, torch.inf))

    def finish(self, reason: str) -> list[Proof]:
        """The answers, with `reason` for every problem still open."""
        for p in (self.open & (self.in_reals < 0)).nonzero().squeeze(1).tolist():
            self.proofs[p] = self._proof(p, float(self.in_reals[p]), REAL)
        best = torch.maximum(self.pending, self.closed).tolist()
        boxes, calls = self.boxes.tolist(), self.replays
        return [
            proof or Proof("unknown", best[p], boxes[p], reason=reason, calls=calls[p], rest=self.rests[p])
            for p, proof in enumerate(self.proofs)
        ]


def representable(x: Tensor, region: Region, dtype: torch.dtype) -> Tensor:
    """x rounded to `dtype` without leaving the bounding box, where the box holds such a number at all."""
    y = x.to(dtype)
    up = torch.nextafter(y, torch.full_like(y, torch.inf))
    down = torch.nextafter(y, torch.full_like(y, -torch.inf))
    y = torch.where((y.double() < region.low) & (up.double() <= region.high), up, y)
    return torch.where((y.double() > region.high) & (down.double() >= region.low), down, y)
