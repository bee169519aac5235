"""What a decision says, and the record kept while it is being made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rarely.bounds.attack import Network, replay
from rarely.bounds.region import Region
from rarely.bounds.spec import Spec


@dataclass(frozen=True)
class Verdict:
    """One problem's answer.

    `bound` is an upper bound on the score over the whole region (negative when proved, inf when there is none); it
    holds in real arithmetic. `score` is that of the witness, by the network itself.
    """

    status: Literal["proved", "violated", "unknown"]
    bound: float
    boxes: int  # sub-problems that were bounded
    witness: Tensor | None = None  # event-shaped, in the network's precision
    score: float | None = None
    reason: str = ""


class Ledger:
    """Open problems of a batch, their bounds and witnesses."""

    def __init__(self, network: Network, dtype: torch.dtype, region: Region, spec: Spec) -> None:
        count = region.low.shape[0]
        self.network, self.dtype, self.region, self.spec = network, dtype, region, spec
        self.verdicts: list[Verdict | None] = [None] * count
        self.open = torch.ones(count, dtype=torch.bool, device=region.low.device)
        self.boxes = torch.zeros_like(self.open, dtype=torch.long)
        # Largest upper bound on the score among sub-problems that are closed, and among those that are not.
        self.closed = torch.full_like(self.open, -torch.inf, dtype=torch.float64)
        self.pending = torch.full_like(self.closed, torch.inf)

    def offer(self, problem: Tensor, x: Tensor, score: Tensor) -> None:
        """Candidates x (N, *event) with their approximate scores: the best one of each problem is replayed."""
        near = (score >= -1e-6) & self.open[problem]
        if not bool(near.any()):
            return
        problem, x, score = problem[near], x[near], score[near]
        order = score.argsort(descending=True)
        rows: dict[int, int] = {}
        for i in order.tolist():
            rows.setdefault(int(problem[i]), i)
        who = torch.tensor(list(rows), device=problem.device)
        points, found = replay(
            self.network, self.dtype, self.region.pick(who), self.spec.pick(who), x[list(rows.values())]
        )
        for p, point, s in zip(rows, points, found.tolist(), strict=True):
            if s >= 0:
                self.open[p] = False
                self.verdicts[p] = Verdict("violated", float("inf"), int(self.boxes[p]), point.cpu(), s)

    def proved(self, problem: int) -> None:
        self.open[problem] = False
        self.verdicts[problem] = Verdict("proved", float(self.closed[problem]), int(self.boxes[problem]))

    def count(self, problem: Tensor) -> None:
        """One more sub-problem bounded, for each entry of `problem` (N,)."""
        self.boxes.scatter_add_(0, problem, torch.ones_like(problem))

    def close(self, problem: Tensor, bound: Tensor) -> None:
        """Sub-problems (N,) decided with these upper bounds on the score."""
        self.closed.scatter_reduce_(0, problem, bound, "amax")

    def hope(self, problem: Tensor, bound: Tensor) -> None:
        """All the open sub-problems (N,) there are, with their upper bounds on the score."""
        worst = torch.full_like(self.closed, -torch.inf).scatter_reduce(0, problem, bound, "amax")
        self.pending = torch.minimum(self.pending, torch.where(worst > -torch.inf, worst, torch.inf))

    def finish(self, reason: str) -> list[Verdict]:
        """The answers, with `reason` for every problem still open."""
        best = torch.maximum(self.pending, self.closed).tolist()
        return [
            v or Verdict("unknown", best[p], int(self.boxes[p]), reason=reason) for p, v in enumerate(self.verdicts)
        ]
