"""`rarely.test` and `certify` decide p < p_max: error rates at most what they state, budgets kept, witnesses in hand.

A wrong ruling of either kind has probability at most 1 - confidence = 0.05. Among n seeds its share may exceed that by
five binomial standard errors, 5 sqrt(0.05 * 0.95 / n).
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from exact import half_space
from torch import Tensor

import rarely
from rarely import Box, Gaussian, Problem
from rarely.core.errors import InputError
from rarely.questions.threshold import Decision, Ruling
from rarely.stats.sequential import draws_needed, log_evidence_above, log_evidence_below

RARE = 9e-5  # a threshold below those that independent draws decide first


def allowed(n: int, error: float = 0.05) -> float:
    return error + 5 * math.sqrt(error * (1 - error) / n)


def coin(p: float) -> Problem:
    return Problem(lambda x: x, lambda x, y: p - y[:, 0], Box([0.0], [1.0]))


def shares(decisions: list[Decision]) -> dict[Ruling, float]:
    counts = Counter(decision.ruling for decision in decisions)
    return {ruling: counts[ruling] / len(decisions) for ruling in Ruling}


def test_looking_at_a_count_any_time_costs_nothing() -> None:
    """2,000 counts at the threshold, each looked at 24 times: the evidence passes 1 / 0.05 in few of them."""
    rng, p, walks = np.random.default_rng(0), 0.03, 2000
    wrong = {"below": 0, "above": 0}
    for _ in range(walks):
        hits = n = 0
        passed = {"below": False, "above": False}
        for look in range(24):
            more = 20 * 2 ** (look // 3)
            hits, n = hits + int(rng.binomial(more, p)), n + more
            passed["below"] |= log_evidence_below(hits, n, p) >= math.log(20)
            passed["above"] |= log_evidence_above(hits, n, p) >= math.log(20)
        for side, hit in passed.items():
            wrong[side] += hit
    assert wrong["below"] / walks <= allowed(walks)
    assert wrong["above"] / walks <= allowed(walks)
    assert min(wrong.values()) > 0, "a test that never errs wastes draws"


def test_error_rates_of_the_count() -> None:
    p_max = 0.05
    at = [rarely.test(coin(p_max), p_max, seed=s) for s in range(200)]
    for ruling in (Ruling.ACCEPTED, Ruling.REJECTED):
        assert shares(at)[ruling] <= allowed(200)
    over = [rarely.test(coin(1.1 * p_max), p_max, seed=s) for s in range(200)]
    assert shares(over)[Ruling.ACCEPTED] <= allowed(200)
    under = [rarely.test(coin(0.9 * p_max), p_max, seed=s) for s in range(200)]
    assert shares(under)[Ruling.REJECTED] <= allowed(200)
    for decision in (*at, *over, *under):
        if decision.ruling is Ruling.REJECTED:
            assert len(decision.witnesses) > 0
            assert (decision.witnesses.scores >= 0).all()


@pytest.mark.parametrize(("factor", "ruling"), [(0.5, Ruling.ACCEPTED), (0.0, Ruling.ACCEPTED), (2.0, Ruling.REJECTED)])
def test_the_count_has_power(factor: float, ruling: Ruling) -> None:
    problem = coin(0.05 * factor) if factor else coin(-1.0)
    decisions = [rarely.test(problem, 0.05, seed=s) for s in range(50)]
    assert shares(decisions)[ruling] >= 0.9


def test_draws_that_accept_without_a_violation() -> None:
    needed = draws_needed(0.05, 0.975)
    assert needed == 86  # log(0.025 / 2) / log(0.95)
    assert log_evidence_below(0, needed, 0.05) >= -math.log(0.025)
    assert log_evidence_below(0, int(0.9 * needed), 0.05) < -math.log(0.025), "and not many more than needed"


@pytest.mark.parametrize("p_max", [0.01, 0.5, 0.9])
def test_a_certain_event_is_rejected(p_max: float) -> None:
    decision = rarely.test(coin(2.0), p_max)
    assert decision.ruling is Ruling.REJECTED
    assert len(decision.witnesses) > 0
    assert "rejected" in str(decision)


@pytest.mark.parametrize("limit", [1, 10, 100, 1000, 10_000])
@pytest.mark.parametrize("p_max", [0.05, RARE])
@pytest.mark.parametrize("question", [rarely.test, rarely.certify], ids=["test", "certify"])
def test_a_limit_of_evaluations_is_kept(question: object, limit: int, p_max: float) -> None:
    for p in (p_max / 100, p_max):
        decision = question(coin(p), p_max, max_evaluations=limit)  # type: ignore[operator]
        assert decision.calls <= limit
        assert decision.calls == sum(record.calls for record in decision.evidence)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
@pytest.mark.parametrize("d", [2, 30])
def test_error_rates_of_rare_thresholds(factor: float, d: int) -> None:
    problem = half_space(d, math.log(1e-6 * factor)).problem
    found = shares([rarely.test(problem, 1e-6, seed=seed) for seed in range(100)])
    if factor >= 1:
        assert found[Ruling.ACCEPTED] <= allowed(100)
    if factor <= 1:
        assert found[Ruling.REJECTED] <= allowed(100)


@pytest.mark.parametrize(("factor", "ruling"), [(0.3, Ruling.ACCEPTED), (3.0, Ruling.REJECTED)])
@pytest.mark.parametrize("d", [2, 30])
def test_rare_thresholds_are_decided(factor: float, ruling: Ruling, d: int) -> None:
    decision = rarely.test(half_space(d, math.log(1e-8 * factor)).problem, 1e-8, seed=1)
    assert decision.ruling is ruling
    assert len(decision.witnesses) > 0
    assert "assuming" in decision.sentence, "what a number takes for granted is said"


def test_that_nothing_was_found_decides_nothing() -> None:
    """Scores without a maximum below zero: populations climb to the floor, and a cliff could still be anywhere."""
    problem = Problem(lambda x: x, lambda x, y: -torch.exp(-y[:, 0]), Gaussian(torch.zeros(2), 1.0))
    decision = rarely.test(problem, 1e-9, seed=1)
    assert decision.ruling is Ruling.UNDECIDED
    assert "would accept" in decision.sentence
    assert "if the populations lost no region" in decision.sentence


def test_ties_do_not_break_the_budget() -> None:
    def stairs(x: Tensor, y: Tensor) -> Tensor:
        return torch.floor(8 * (y[:, 0] - 4.5)) / 8

    problem = Problem(lambda x: x, stairs, Gaussian(torch.zeros(2), 1.0))
    decision = rarely.test(problem, RARE, max_evaluations=30_000)
    assert decision.calls <= 30_000
    assert decision.ruling is not Ruling.REJECTED


def test_what_is_known_is_not_learnt_again() -> None:
    problem = half_space(30, math.log(1e-7)).problem
    known = rarely.estimate(problem, seed=3)
    for question in (rarely.test, rarely.certify):
        for p_max, ruling in ((1e-6, Ruling.ACCEPTED), (1e-8, Ruling.REJECTED)):
            decision = question(problem, p_max, known=known)
            assert decision.ruling is ruling
            assert decision.calls <= len(known.witnesses), "only the witnesses are run again"
    again = rarely.test(problem, 1e-6, known=rarely.test(problem, 1e-6, seed=4))
    assert again.ruling is Ruling.ACCEPTED
    assert rarely.verify(problem, 5.0, known=known).status == "sat"


@pytest.mark.parametrize(("p_max", "confidence"), [(0.0, 0.95), (1.0, 0.95), (0.1, 0.0), (0.1, 1.0)])
def test_senseless_questions_are_refused(p_max: float, confidence: float) -> None:
    for question in (rarely.test, rarely.certify):
        with pytest.raises(InputError):
            question(coin(0.1), p_max, confidence)


QUESTIONS = {
    "common": coin(0.2),
    "rare": half_space(3, math.log(1e-7)).problem,
    "rarer": half_space(40, math.log(1e-12)).problem,
    "never": coin(-1.0),
    "cliff": Problem(lambda x: x, lambda x, y: y[:, 0] > 3.0, Gaussian(torch.zeros(5), 1.0)),
    "curved": Problem(lambda x: x, lambda x, y: y.norm(dim=1) - 8.0, Gaussian(torch.zeros(20), 1.0)),
}


@pytest.mark.parametrize("problem", QUESTIONS.values(), ids=QUESTIONS.keys())
@pytest.mark.parametrize("budget", [500, 5000, 60_000])
def test_the_questions_do_not_contradict_each_other(problem: Problem, budget: int) -> None:
    said = rarely.estimate(problem, seed=5, max_evaluations=budget)
    verdict = rarely.verify(problem, 20.0, seed=5, max_evaluations=budget)
    if said.outcome is rarely.Outcome.PROVED_SAFE:
        assert verdict.status == "unsat"
    if len(said.witnesses):
        assert verdict.status != "unsat"
    assert said.outcome is not rarely.Outcome.PROVED_SAFE or verdict.status != "sat"
    for p_max in (0.5, 1e-3, 1e-6, 1e-10):
        for question in (rarely.test, rarely.certify):
            decision = question(problem, p_max, seed=5, max_evaluations=budget)
            if said.outcome is rarely.Outcome.VIOLATED:
                assert decision.ruling is not Ruling.ACCEPTED or said.interval.low < math.log(p_max)
                assert decision.ruling is not Ruling.REJECTED or said.interval.high > math.log(p_max)
            if said.outcome is rarely.Outcome.PROVED_SAFE:
                assert decision.ruling is not Ruling.REJECTED


def test_what_was_saved_is_known_to_the_next_question() -> None:
    """Without the violating inputs, which JSON does not hold."""
    problem = rarely.Problem(lambda x: x, lambda x, y: y[:, 0] - 4, rarely.Gaussian(torch.zeros(20), 1.0))
    saved = rarely.Estimate.from_json(rarely.estimate(problem, seed=3).to_json())
    for p_max, ruling in ((1e-3, Ruling.ACCEPTED), (1e-6, Ruling.REJECTED)):
        decision = rarely.test(problem, p_max, known=saved)
        assert decision.ruling is ruling
        assert decision.calls == 0
    assert rarely.verify(problem, 5.0, known=saved, max_evaluations=5000).status == "sat", "found again, and replayed"
