"""Proofs as a method: boxes in, evidence out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from rarely.bounds.graphs import Graphs
from rarely.bounds.ledger import Proof
from rarely.bounds.problems import probability_bounds, prove_all
from rarely.core.batch import Batch
from rarely.core.evidence import Bracket, Evidence, Found, Searched
from rarely.core.rng import Rng
from rarely.core.witnesses import Witnesses
from rarely.methods.base import Run, progress

_NAME = "bounds"
_SHARE = 0.4  # of the seconds that are left


@dataclass
class Attempts:
    """Earlier attempts on problems of one run, by their numbers: a longer one goes on where they stopped."""

    graphs: Graphs = field(default_factory=Graphs)
    proofs: dict[int, Proof] = field(default_factory=dict)


_NONE = Proof("unknown", math.inf, 0)


@dataclass(frozen=True)
class Proofs:
    """Try to prove that nothing violates, for `seconds`; what violates and is met on the way is a witness.

    `boxes` limits the work in few dimensions instead, and no clock has a say. `quick`: one bound each in many.
    """

    seconds: float = 10.0
    boxes: int | None = None
    quick: bool = False
    share: float = _SHARE  # of the seconds that are left, at most
    attempts: Attempts | None = None  # of the same run, to go on from

    @property
    def at_once(self) -> int:
        return 1

    def forecast(self, log_prob: float) -> float:
        return 0.0

    def run(self, batch: Batch, rng: Rng) -> Run:
        attempts = self.attempts or Attempts()
        spend, graphs = batch.spend, attempts.graphs
        seconds = min(math.inf if self.boxes is not None else self.seconds, self.share * spend.left_seconds)
        rows, before = batch.rows.tolist(), graphs.calls
        problems = [batch.problems[row] for row in rows]
        earlier = [attempts.proofs.get(row, _NONE) for row in rows]
        proofs = prove_all(
            problems,
            seconds,
            boxes=self.boxes,
            quick=self.quick,
            graphs=graphs,
            earlier=earlier,
            device=batch.device,
        )
        attempts.proofs.update(zip(rows, proofs, strict=True))
        calls = torch.tensor([proof.calls for proof in proofs])
        calls[0] += graphs.calls - before
        spend.count(
            torch.zeros_like(spend.evaluations).index_add_(0, batch.rows, calls), torch.zeros_like(spend.gradients)
        )
        yield progress(_NAME, batch, [0.0] * len(batch), 0)
        return [_evidence(proof, int(n)) for proof, n in zip(proofs, calls, strict=True)]


@dataclass(frozen=True)
class Brackets:
    """Rigorous bounds on p, one problem after the other, until they are `enough`.

    `hopes` are the log p of each problem down to which they would be of use. `boxes` limits the work instead of
    `seconds`, and no clock has a say.
    """

    seconds: float
    boxes: int | None = None
    hopes: Sequence[float | None] = ()
    enough: Callable[[int, Bracket], bool] = lambda row, bracket: False

    @property
    def at_once(self) -> int:
        return 1

    def forecast(self, log_prob: float) -> float:
        return 0.0

    def run(self, batch: Batch, rng: Rng) -> Run:
        found: list[list[Evidence]] = []
        graphs, begin = Graphs(), time.monotonic()
        for row, number in enumerate(batch.rows.tolist()):
            problem = batch.problems[number]
            if row and time.monotonic() - begin > self.seconds:  # one pass through a deep network may outlast them
                found.append([Searched(_NAME, "no seconds were left for rigorous bounds on p")])
                continue
            left = min(self.seconds - (time.monotonic() - begin), _SHARE * batch.spend.left_seconds)
            seconds = left / (len(batch) - row)
            hope = self.hopes[row] if self.hopes else None
            target = None if hope is None or hope >= 0 else -hope
            best = Bracket(-math.inf, 0.0, "nothing")
            ever_tighter = probability_bounds(
                problem, seconds, target=target, boxes=self.boxes, graphs=graphs, device=batch.device
            )
            for bounds in ever_tighter:
                told = f"bounds over {bounds.boxes:,} piece(s) of the inputs"
                best = Bracket(bounds.log_lower, bounds.log_upper, told, bounds.boxes)
                if self.enough(row, best):
                    break
            told = "no rigorous bounds on p can be had here"
            found.append([best] if best.log_upper < 0 or best.log_lower > -math.inf else [Searched(_NAME, told)])
            yield progress(_NAME, batch, [0.0] * len(batch), len(batch) - row - 1)
        return found


def _evidence(proof: Proof, calls: int) -> list[Evidence]:
    pieces = f"bounds over {proof.boxes:,} piece(s) of the inputs"
    if proof.status == "proved":
        told = f"{pieces}: scores are at most {proof.bound:.3g}"
        return [Bracket(-math.inf, -math.inf, told, proof.boxes, calls, arithmetic=proof.arithmetic)]
    if proof.witness is not None and proof.score is not None:
        return [Found(_NAME, Witnesses(proof.witness.unsqueeze(0), torch.tensor([proof.score])), calls)]
    return [Searched(_NAME, f"no proof by {pieces}{': ' * bool(proof.reason)}{proof.reason}", calls)]
