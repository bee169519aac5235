"""A release gate: is p below a threshold, by proof, by a rigorous bound, or by a statistical test?"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch

from rarely.bounds.problems import probability_bounds, prove
from rarely.core.errors import InputError
from rarely.core.problem import Problem
from rarely.questions.decide import Decision, Verdict, test
from rarely.questions.result import Witnesses

_BOUNDED = 10  # dimensions up to which bounds on the probability are worth their time


def certify(
    problem: Problem,
    p_max: float,
    confidence: float = 0.95,
    *,
    timeout: float = 60.0,
    seed: int = 0,
    device: str = "auto",
    max_evaluations: int | None = None,
) -> Decision:
    """Decide p < p_max by the strongest argument at hand; the decision's sentence says which it was.

    In turn: a proof that nothing violates (a third of `timeout`), rigorous bounds on the probability (another third, in
    few dimensions), and `test`, whose error is 1 - confidence. Proof and bounds have no error.
    """
    if not 0 < p_max < 1:
        raise InputError(f"p_max must lie strictly between 0 and 1, got {p_max}")
    started = time.monotonic()
    none = Witnesses(torch.zeros(0), torch.zeros(0))
    verdict = prove(problem, timeout / 3)
    if verdict.status == "proved":
        sentence = f"by proof: no input violates the property (scores are at most {verdict.bound:.3g})"
        return Decision(Verdict.ACCEPTED, p_max, 1.0, sentence, 0, 0, none)
    found = none
    if verdict.witness is not None and verdict.score is not None:
        found = Witnesses(verdict.witness.unsqueeze(0), torch.tensor([verdict.score]))
    dimension = torch.Size(problem.inputs.event_shape).numel()
    if dimension <= _BOUNDED:
        for bounds in probability_bounds(problem, max(0.0, 2 * timeout / 3 - (time.monotonic() - started))):
            log_max = math.log(p_max)
            if bounds.log_upper < log_max:
                sentence = f"by a rigorous bound: log p <= {bounds.log_upper:.2f}, log p_max = {log_max:.2f}"
                return Decision(Verdict.ACCEPTED, p_max, 1.0, sentence, 0, 0, found)
            if bounds.log_lower > log_max:
                sentence = f"by a rigorous bound: log p >= {bounds.log_lower:.2f}, log p_max = {log_max:.2f}"
                return Decision(Verdict.REJECTED, p_max, 1.0, sentence, 0, 0, found)
    decision = test(problem, p_max, confidence, seed=seed, device=device, max_evaluations=max_evaluations)
    witnesses = decision.witnesses if len(decision.witnesses) else found
    return replace(decision, sentence=f"by statistics at {confidence:g}: {decision.sentence}", witnesses=witnesses)
