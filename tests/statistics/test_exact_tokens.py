"""Token problems with exact answers, by binomial laws and by dynamic programming, down to 1e-12.

Through splitting alone (unbiased: the mean of repeats is within five of its standard errors), importance sampling
alone, and `estimate`, whose answers must lie within five of the standard deviations that they tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from rarely import Box, Gaussian, ImportanceSampling, Mixture, Outcome, Problem, Splitting, estimate
from rarely.core.evidence import Number
from rarely.inputs import Choice, Product, Tabular, Tokens
from rarely.inputs.beside import Beside
from rarely.methods.neighbours import Proposal, _unseen

LENGTH, OFTEN = 30, 0.1


def _count(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True)


def at_least(k: int, law: object | None = None) -> Problem:
    """P(token 1, of probability 0.1, stands in k of 30 places at least)."""
    return Problem(_count, lambda x, y: y[:, 0] - k, law or Tokens([1 - OFTEN, OFTEN], LENGTH))


def log_tail(k: int) -> float:
    return float(stats.binom.logsf(k - 1, LENGTH, OFTEN))


WORDS, PATTERN = 20, (3, 1, 4, 1)


def _longest(x: Tensor) -> Tensor:
    """How many tokens of the pattern stand in a row in the best place of x."""
    return (x.unfold(1, len(PATTERN), 1) == torch.tensor(PATTERN)).sum(2).amax(1, keepdim=True)


def pattern(length: int) -> Problem:
    return Problem(_longest, lambda x, y: y[:, 0] - len(PATTERN), Tokens(torch.ones(WORDS), length))


def log_pattern(length: int) -> float:
    """P(the pattern stands somewhere): a chain over how much of it the last tokens match (Knuth, Morris, Pratt)."""
    k = len(PATTERN)

    def after(state: int, token: int) -> int:
        seen = (*PATTERN[:state], token)
        return next(n for n in range(min(k, len(seen)), -1, -1) if seen[len(seen) - n :] == PATTERN[:n])

    chance = [1.0] + [0.0] * k
    for _ in range(length):
        following = [0.0] * k + [chance[k]]
        for state in range(k):
            for token in range(WORDS):
                following[after(state, token)] += chance[state] / WORDS
        chance = following
    return math.log(chance[k])


SELDOM = 1e-3


def made_of_rare_tokens(k: int) -> Problem:
    """P(token 2, of probability 0.001, stands in k of 4 places at least): hardly any draw of the law holds one."""

    def seen(x: Tensor) -> Tensor:
        return (x == 2).sum(1, keepdim=True)

    return Problem(seen, lambda x, y: y[:, 0] - k, Tokens([0.9, 0.1 - SELDOM, SELDOM], 4))


def log_rare(k: int) -> float:
    return float(stats.binom.logsf(k - 1, 4, SELDOM))


def test_splitting_alone_is_unbiased() -> None:
    """200 repeats of one population each: about 1e-5; a needle in many places, 6e-5; made of rare tokens, 4e-9."""
    for problem, truth, n in (
        (at_least(11), log_tail(11), 150),
        (pattern(12), log_pattern(12), 1000),
        (made_of_rare_tokens(3), log_rare(3), 1000),
    ):
        runs = estimate([problem] * 200, Splitting(n, steps=3, islands=1))
        ratio = torch.tensor([run.prob / math.exp(truth) for run in runs], dtype=torch.float64)
        assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(len(ratio))
        assert float(ratio.std()) < 3, "or the test says nothing"


@pytest.mark.parametrize("k", [8, 13, 18])
def test_importance_sampling_alone(k: int) -> None:
    answer = estimate(at_least(k), ImportanceSampling(pilot=Splitting(300, 0.1, 2, keep="all")))
    number = next(e for e in answer.evidence if isinstance(e, Number) and e.family == "neighbours")
    assert number.std < 0.5
    assert abs(number.log_prob - log_tail(k)) < 5 * number.std


@pytest.mark.parametrize(
    ("problem", "truth"),
    [
        (at_least(8), log_tail(8)),
        (at_least(19), log_tail(19)),  # 2e-12
        (pattern(4), log_pattern(4)),  # one sequence of 160,000
        (made_of_rare_tokens(3), log_rare(3)),
        (
            at_least(19, Mixture([Tokens([0.9, 0.1], LENGTH), Tokens([0.6, 0.4], LENGTH)], [1 - 1e-6, 1e-6])),
            math.log((1 - 1e-6) * math.exp(log_tail(19)) + 1e-6 * float(stats.binom.sf(18, LENGTH, 0.4))),
        ),
    ],
    ids=["often", "1e-12", "a needle", "made of rare tokens", "a rare component"],
)
def test_estimate(problem: Problem, truth: float) -> None:
    answer = estimate(problem)
    assert answer.outcome is Outcome.VIOLATED
    assert answer.log_prob_std < 0.5
    assert abs(answer.log_prob - truth) < 5 * answer.log_prob_std
    assert bool((problem.score(answer.witnesses.inputs) >= 0).all())


BESIDE = stats.binom(12, OFTEN)


@pytest.mark.parametrize(
    ("beside", "above", "tail"),
    [
        (Box([0.0], [1.0]), 8.5, lambda t: float(np.clip(1 - t, 0, 1))),
        (Gaussian([0.0], 1.0), 8.5, lambda t: float(stats.norm.sf(t))),
        (Tabular([Choice([0.0, 1.0], [0.8, 0.2])]), 8.5, lambda t: 0.2 * (t <= 1) + 0.8 * (t <= 0)),
        (Tokens([0.8, 0.2], 1), 8.5, lambda t: 0.2 * (t <= 1) + 0.8 * (t <= 0)),
    ],
    ids=["a uniform number", "a normal one", "a category", "a token"],
)
def test_words_beside_others(beside: object, above: float, tail: Callable[[float], float]) -> None:
    """12 tokens, and what else there is, add up to so much."""
    truth = math.log(sum(float(BESIDE.pmf(k)) * tail(above - k) for k in range(13)))
    law = Product([Tokens([1 - OFTEN, OFTEN], 12), beside])
    problem = Problem(lambda x: x.sum(1, keepdim=True), lambda x, y: y[:, 0] - above, law)
    answer = estimate(problem)
    assert answer.outcome is Outcome.VIOLATED
    assert answer.log_prob_std < 0.2
    assert abs(answer.log_prob - truth) < 5 * answer.log_prob_std
    assert bool((problem.score(answer.witnesses.inputs) >= 0).all())


@pytest.mark.parametrize("calls", [30_000, 60_000])
def test_a_small_budget_is_enough_for_categories(calls: int) -> None:
    """Populations are as large as a budget pays for."""
    answer = estimate(at_least(11), max_evaluations=calls)
    assert answer.outcome is Outcome.VIOLATED
    assert abs(answer.log_prob - log_tail(11)) < 5 * answer.log_prob_std


def test_the_density_of_a_proposal_is_that_of_its_draws() -> None:
    """Weights add up: over draws of any proposal the mean of p / q is one, within five standard errors."""
    from rarely.core.rng import Rng

    law = Tokens([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
    proposal = Proposal.of(law, torch.tensor([[0, 1, 2], [2, 2, 0], [0, 1, 0]]))
    for one in (proposal, proposal.refitted(torch.tensor([[0, 2, 2], [1, 1, 1], [0, 1, 2]]))):
        assert float(one.log_shares.exp().sum()) == pytest.approx(1, abs=1e-6)
        x = one.draw(20_000, Rng(0))
        weights = torch.exp(-torch.logsumexp(one.log_ratios(x), 1))
        assert abs(float(weights.mean()) - 1) < 5 * float(weights.std()) / math.sqrt(len(x))
        every = torch.cartesian_prod(*[torch.arange(3)] * 3)
        density = law.log_density(every).double() + torch.logsumexp(one.log_ratios(every), 1)
        share = (x.unsqueeze(1) == every).all(2).double().mean(0)
        assert float(density.exp().sum()) == pytest.approx(1, abs=1e-6)
        assert bool(((share - density.exp()).abs() < 5 * (density.exp() / len(x)).sqrt()).all())


def test_the_density_of_a_proposal_beside_normals_is_that_of_its_draws() -> None:
    """The mean of p / q over draws is one, and so is that of q / p over draws of p; the second moments are finite."""
    from rarely.core.rng import Rng

    law = Beside(Tokens([[0.5, 0.3, 0.2], [0.1, 0.9]]), 2)
    points = torch.tensor([[0, 1, 0.5, -0.3], [2, 0, -1.0, 1.0], [0, 1, 0.2, 0.1]])
    proposal = Proposal.of(law, points)
    for one in (proposal, proposal.refitted(torch.tensor([[0, 1, 0.4, 0.2], [1, 1, -0.5, 0.0]]))):
        for drawn, sign in ((one.draw(40_000, Rng(0)), -1), (law.sample(40_000, Rng(1)), 1)):
            weights = torch.exp(sign * torch.logsumexp(one.log_ratios(drawn), 1))
            assert abs(float(weights.mean()) - 1) < 5 * float(weights.std()) / math.sqrt(len(drawn))


def test_what_one_population_alone_has_found_is_held_against_the_number() -> None:
    assert _unseen(0.0, 0.0, 8) == 0.0
    assert _unseen(1.0, 0.0, 8) > 1, "every population found something else: most is unknown"
    assert _unseen(0.02, 0.1, 8) < 0.01
    # Animals, each caught by each of 8 populations with probability 0.2: 0.2 of those caught are missing.
    caught = 1 - 0.8**8
    alone, twice = 8 * 0.2 * 0.8**7 / caught, 28 * 0.2**2 * 0.8**6 / caught
    assert 0.5 * (1 - caught) / caught < _unseen(alone, twice, 8) < 2 * (1 - caught) / caught


def test_a_budget_that_ends_early_does_not_hide_what_may_be_missing() -> None:
    """Two needles, each found by one population: whatever rounds the budget pays for, the number says so."""
    from rarely import Execution
    from rarely.core.rng import Rng
    from rarely.core.spend import Spend
    from rarely.methods.neighbours import Neighbours
    from rarely.questions.estimate import finish

    needles = torch.tensor([[3] * 6, [7] * 6])
    problem = Problem(
        lambda x: (x.unsqueeze(1) == needles).all(2).any(1, keepdim=True).float(),
        lambda x, y: y[:, 0] - 0.5,
        Tokens(torch.ones(10), 6),
    )
    for calls in (15_000, 17_500, None):
        batch = next(Execution(device="cpu").place([problem], Spend(1, calls)))
        learnt = finish(Neighbours(0.001, 2000, 4).weigh(batch, [[needles[:1], needles[1:]]], Rng(0)))[0]
        (number,) = [e for e in learnt if isinstance(e, Number)]
        assert "populations found different violations" in number.doubt
        assert abs(number.log_prob - math.log(2e-6)) < 0.5
