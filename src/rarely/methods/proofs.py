"""Proofs as a method: boxes in, evidence out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rarely.bounds.ledger import Proof
from rarely.bounds.problems import Graphs, probability_bounds, prove_all
from rarely.core.batch import Batch
from rarely.core.evidence import Bracket, Evidence, Found, Searched, Witnesses
from rarely.core.rng import Rng
from rarely.methods.base import Run, progress

_NAME = "bounds"
_SHARE = 0.4  # of the seconds that are left


@dataclass(frozen=True)
class Proofs:
    """Try to prove that nothing violates, for `seconds`; what violates and is met on the way is a witness.

    `boxes` limits the work in few dimensions instead, and no clock has a say. `quick`: one bound each in many.
    """

    seconds: float = 10.0
    boxes: int | None = None
    quick: bool = False
    share: float = _SHARE  # of the seconds that are left, at most

    @property
    def at_once(self) -> int:
        return 1

    def forecast(self, log_prob: float) -> float:
        return 0.0

    def run(self, batch: Batch, rng: Rng) -> Run:
        spend, graphs = batch.spend, Graphs()
        seconds = min(math.inf if self.boxes is not None else self.seconds, self.share * spend.left_seconds)
        problems = [batch.problems[row] for row in batch.rows.tolist()]
        proofs = prove_all(problems, seconds, boxes=self.boxes, quick=self.quick, graphs=graphs)
        calls = torch.tensor([proof.calls for proof in proofs])
        calls[0] += graphs.calls
        spend.count(
            torch.zeros_like(spend.evaluations).index_add_(0, batch.rows, calls), torch.zeros_like(spend.gradients)
        )
        yield progress(_NAME, batch, [0.0] * len(batch), 0)
        return [_evidence(proof, int(n)) for proof, n in zip(proofs, calls, strict=True)]


@dataclass(frozen=True)
class Brackets:
    """Rigorous bounds on p by halving boxes of known mass, one problem after the other, until they are `enough`."""

    seconds: float
    enough: Callable[[int, Bracket], bool]

    @property
    def at_once(self) -> int:
        return 1

    def forecast(self, log_prob: float) -> float:
        return 0.0

    def run(self, batch: Batch, rng: Rng) -> Run:
        found: list[list[Evidence]] = []
        for row, number in enumerate(batch.rows.tolist()):
            problem = batch.problems[number]
            seconds = min(self.seconds, _SHARE * batch.spend.left_seconds) / (len(batch) - row)
            best = Bracket(-math.inf, 0.0, "nothing")
            for bounds in probability_bounds(problem, seconds):
                told = f"bounds over {bounds.boxes:,} boxes"
                best = Bracket(bounds.log_lower, bounds.log_upper, told, bounds.boxes)
                if self.enough(row, best):
                    break
            found.append([best] if best.boxes else [Searched(_NAME, "no rigorous bounds on p can be had here")])
            yield progress(_NAME, batch, [0.0] * len(batch), len(batch) - row - 1)
        return found


def _evidence(proof: Proof, calls: int) -> list[Evidence]:
    pieces = f"bounds over {proof.boxes:,} piece(s) of the inputs"
    if proof.status == "proved":
        told = f"{pieces}: scores are at most {proof.bound:.3g}"
        return [Bracket(-math.inf, -math.inf, told, proof.boxes, calls)]
    if proof.witness is not None and proof.score is not None:
        return [Found(_NAME, Witnesses(proof.witness.unsqueeze(0), torch.tensor([proof.score])), calls)]
    return [Searched(_NAME, f"no proof by {pieces}{': ' * bool(proof.reason)}{proof.reason}", calls)]
