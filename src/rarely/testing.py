"""For a user's own test suite: `assert_rarely` fails a test when a network fails too often."""

from __future__ import annotations

from collections.abc import Callable

from rarely.core.problem import Problem
from rarely.questions.threshold import Decision, Ruling, certify

# Who is told of every decision: the report of `pytest --rarely-report` is made from what passes here.
listeners: list[Callable[[Problem, Decision], None]] = []


def assert_rarely(
    problem: Problem, *, p_max: float, confidence: float = 0.95, timeout: float = 60.0, seed: int = 0
) -> None:
    """Raise AssertionError unless p < p_max is accepted, by proof, rigorous bound or test at `confidence`.

    The message shows a violating input when there is one. An undecided test fails too: it is not an acceptance.
    `pytest --rarely-report FILE.json` keeps the decisions of a session.
    """
    __tracebackhide__ = True  # pytest shows the caller's line, not this one
    decision = certify(problem, p_max, confidence, timeout=timeout, seed=seed)
    for listener in listeners:
        listener(problem, decision)
    if decision.ruling is Ruling.ACCEPTED:
        return
    name = f"{problem.name}: " if problem.name else ""
    lines = [f"{name}{decision}"]
    if len(decision.witnesses):
        witness, score = decision.witnesses.inputs[0], float(decision.witnesses.scores[0])
        lines.append(f"a violating input (score {score:.4g}): {witness.tolist()}")
    raise AssertionError("\n".join(lines))
