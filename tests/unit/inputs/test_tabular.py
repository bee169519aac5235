"""Rows of mixed columns: their laws, their correlation, what a fit makes of data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rarely import Auto, Execution, LinearConstraint, Mixture, Outcome, Problem, Splitting, estimate
from rarely.core.each_inputs import EachInputs, stack_inputs
from rarely.core.errors import InputError
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.inputs import Choice, Empirical, Fixed, Normal, OneHot, Tabular, Uniform
from rarely.inputs.laws import category_chances

FIVE_SIGMA = 5.7e-7
N = 20_000


class Frame:
    """What is used of a pandas frame: columns by name."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self._data = list(columns), columns

    def __getitem__(self, name: str) -> Any:
        return self._data[name]


def test_choices_are_made_as_often_as_asked() -> None:
    x = Tabular([Choice([2, 7, 9], [1, 2, 1]), OneHot([0.1, 0.2, 0.7]), Choice.integers(-1, 3)]).sample(N, Rng(0))
    assert x.shape == (N, 5)
    groups = (
        ([(x[:, 0] == v).sum() for v in (2, 7, 9)], [0.25, 0.5, 0.25]),
        ([x[:, k].sum() for k in (1, 2, 3)], [0.1, 0.2, 0.7]),
        ([(x[:, 4] == v).sum() for v in range(-1, 4)], [0.2] * 5),
    )
    for seen, share in groups:
        assert sum(int(s) for s in seen) == N
        assert stats.chisquare([int(s) for s in seen], N * np.array(share)).pvalue > FIVE_SIGMA
    assert torch.equal(x[:, 1:4].sum(1), torch.ones(N))


def test_a_very_rare_category_keeps_its_digits() -> None:
    for share, edge in (([1 - 1e-9, 1e-9], 1), ([1e-9, 1 - 1e-9], -1)):
        law = Choice([0, 1], share)
        assert float(law.edges[0]) == pytest.approx(edge * stats.norm.isf(1e-9), rel=1e-6)


def test_correlation_is_that_of_the_normals_behind_the_columns() -> None:
    table = Tabular({"a": Normal(1, 2), "b": Fixed(7), "c": Uniform(0, 1)}, correlation=[[1, 0.8], [0.8, 1]])
    x = table.sample(N, Rng(1)).double().numpy()
    assert (x[:, 1] == 7).all()
    behind = stats.norm.ppf(x[:, 2].clip(1e-7, 1 - 1e-7))
    # Var of a sample correlation: (1 - r^2)^2 / n.
    assert abs(np.corrcoef(x[:, 0], behind)[0, 1] - 0.8) < 5 * (1 - 0.8**2) / math.sqrt(N)
    assert stats.kstest(x[:, 0], stats.norm(1, 2).cdf).pvalue > FIVE_SIGMA


def test_tables_with_different_numbers_stack() -> None:
    tables = [
        Tabular([Normal(m, 1), Choice([0, m], [m, 1]), OneHot([m, 2]), Empirical([m, 5, 6])], np.eye(4) * 0.5 + 0.5)
        for m in (1.0, 3.0)
    ]
    stacked = stack_inputs(tables)
    assert isinstance(stacked, Tabular)
    z = Rng(2).normal((2, 30, 4))
    for row, table in enumerate(tables):
        torch.testing.assert_close(stacked.from_normal(z)[row], table.from_normal(z[row]))
    assert isinstance(stack_inputs([tables[0], Tabular([Normal(0, 1)] * 3 + [OneHot([1, 1])])]), EachInputs)


def _data(n: int = 2_000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    age = rng.gamma(9, 5, n)
    return {
        "age": age,
        "children": rng.poisson(0.02 * age),
        "city": rng.choice(["Bonn", "Köln", "Ulm"], n, p=[0.5, 0.3, 0.2]),
        "year": np.full(n, 2024),
    }


def test_a_fit_follows_a_frame() -> None:
    data = _data()
    table = Tabular.fit(Frame(**data), integer=["children"], fixed={"year": 2025})
    assert table.names == ("age", "children", "city", "year")
    assert table.event_shape == (6,)
    assert table.normal_dim == 3
    x = table.sample(N, Rng(3)).double().numpy()
    assert stats.ks_2samp(x[:, 0], data["age"]).pvalue > FIVE_SIGMA
    counts = np.unique(data["children"], return_counts=True)
    seen = [(x[:, 1] == value).sum() for value in counts[0]]
    large = counts[1] > 5
    share = counts[1][large] / counts[1][large].sum()
    kept = np.array(seen)[large]
    assert stats.chisquare(kept, kept.sum() * share).pvalue > FIVE_SIGMA
    for k, city in enumerate(["Bonn", "Köln", "Ulm"]):
        p = (data["city"] == city).mean()
        assert abs(x[:, 2 + k].mean() - p) < 5 * math.sqrt(p * (1 - p) / N)
    assert (x[:, 5] == 2025).all()
    record = table.records(torch.from_numpy(x[:3]))[0]
    assert record["city"] in {"Bonn", "Köln", "Ulm"}
    assert record["year"] == 2025


def test_a_fit_keeps_rank_correlation_and_can_be_told_not_to() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=5_000)
    data = np.stack([a, np.exp(0.6 * a + 0.8 * rng.normal(size=5_000))], 1)
    truth = 6 / math.pi * math.asin(0.6 / 2)  # rank correlation of a normal pair with correlation 0.6
    for correlated, expected in ((True, truth), (False, 0.0)):
        x = Tabular.fit(data, correlated=correlated).sample(N, Rng(4)).numpy()
        # Of the fit and of the sample; a rank correlation varies by at most 1/sqrt(n) nearly.
        assert abs(stats.spearmanr(x).statistic - expected) < 5 * math.sqrt(1 / 5_000 + 1 / N)


def test_a_fit_by_codes_and_with_a_law_of_ones_own() -> None:
    data = np.array([[1.0, 5.0, 0.1], [2.0, 5.0, 0.2], [2.0, 6.0, 0.3]])
    table = Tabular.fit(data, categorical=[0], one_hot=False, laws={2: Normal(10, 1)})
    assert table.event_shape == (3,)
    x = table.sample(1_000, Rng(5))
    assert set(x[:, 0].tolist()) == {1.0, 2.0}
    assert float(x[:, 2].min()) > 5


def _two_columns() -> tuple[Problem, float]:
    """A normal and a die: P(x + d >= 9), summed over the die."""
    table = Tabular({"x": Normal(0, 1), "die": Choice.integers(1, 6)})
    problem = Problem(lambda x: x.sum(1), lambda x, y: y - 11.0, table)
    return problem, float(np.log(np.mean(stats.norm.sf(11.0 - np.arange(1, 7)))))


def test_auto_is_right_on_mixed_columns() -> None:
    problem, exact = _two_columns()
    found = estimate(problem, Auto(), seed=6)
    assert found.outcome.trusted
    assert abs(found.log_prob - exact) < 5 * found.log_prob_std


def test_splitting_is_right_on_mixed_columns() -> None:
    problem, exact = _two_columns()
    repeats = 16
    found = estimate([problem] * repeats, Splitting(300, islands=1, steps=15), seed=7)
    p = np.exp([e.log_prob - exact for e in found])
    assert abs(p.mean() - 1) < 5 * p.std(ddof=1) / math.sqrt(repeats)


def test_categories_are_written_as_codes_and_read_again() -> None:
    table = Tabular([Choice([2, 7, 9], [1, 2, 1]), OneHot([0.1, 0.2, 0.7]), Fixed(4)])
    law = table.codes
    assert law is not None
    assert law.parts == 3
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3), torch.tensor([0]))
    x, chance = table.coded(every), law.log_density(every).double().exp()
    assert x.shape == (9, 5)
    assert float(chance.sum()) == pytest.approx(1, abs=1e-6)
    drawn = table.sample(N, Rng(0))
    seen = (drawn.unsqueeze(1) == x).all(2).double().sum(0)
    assert int(seen.sum()) == N, "nothing else can be drawn"
    assert stats.chisquare(seen.numpy(), N * (chance / chance.sum()).numpy()).pvalue > FIVE_SIGMA


def test_rare_categories_keep_their_digits_on_either_side() -> None:
    for law in (Choice([0, 1, 2], [1e-12, 1, 3e-12]), OneHot([1e-12, 1, 3e-12])):
        chances = category_chances(law)
        assert chances is not None
        assert chances[[0, 2]].tolist() == pytest.approx([1e-12, 3e-12], rel=1e-4)


def test_what_is_no_independent_category_has_no_codes() -> None:
    two = [Choice([0, 1]), Choice([0, 1])]
    assert Tabular([Uniform(0, 1), Normal(0, 1)]).codes is None
    assert Tabular(two, correlation=[[1, 0.5], [0.5, 1]]).codes is None
    problems = [Problem(lambda x: x, lambda x, y: y[:, 0], Tabular(t)) for t in (two, [Normal(0, 1), Normal(0, 1)])]
    for batch in Execution(device="cpu").place(problems, Spend(2)):
        assert len(batch) == 1 or batch.in_codes() is batch


def test_numbers_beside_categories_are_normals_after_the_codes() -> None:
    table = Tabular([Normal(3, 2), Choice([2, 7, 9], [1, 2, 1]), Uniform(0, 1), OneHot([0.3, 0.7])])
    law = table.codes
    assert law is not None
    assert law.event_shape == (4,)
    codes = torch.tensor([[2.0, 1.0, 0.5, 0.0], [0.0, 0.0, -1.0, 1.0]])
    expected = torch.tensor([[4.0, 9.0, 0.5, 0.0, 1.0], [1.0, 2.0, float(stats.norm.cdf(1.0)), 1.0, 0.0]])
    torch.testing.assert_close(table.coded(codes), expected)
    x = table.coded(law.sample(N, Rng(3)))
    assert stats.kstest(x[:, 0].double().numpy(), stats.norm(3, 2).cdf).pvalue > FIVE_SIGMA
    assert stats.kstest(x[:, 2].double().numpy(), stats.uniform.cdf).pvalue > FIVE_SIGMA
    assert stats.binomtest(int((x[:, 1] == 7).sum()), N, 0.5).pvalue > FIVE_SIGMA
    # Moves keep the law: codes and normals alike.
    moved = law.redraw(law.sample(N, Rng(4)), Rng(5).uniform((N, 4)) < 0.7, Rng(6))
    assert stats.kstest(moved[:, 2].double().numpy(), stats.norm.cdf).pvalue > FIVE_SIGMA
    assert stats.binomtest(int((moved[:, 0] == 1).sum()), N, 0.5).pvalue > FIVE_SIGMA


def test_tables_with_other_categories_are_read_each_by_its_own() -> None:
    tables = [
        Tabular([Choice([0.0, 1.0], [0.9, 0.1]), Choice([5.0, 6.0])]),
        Tabular([Choice([2.0, 3.0, 4.0]), Choice([8.0, 9.0])]),
    ]
    network = torch.nn.Linear(2, 1, bias=False).eval()
    torch.nn.init.ones_(network.weight)
    same = [tables[0], Tabular([Choice([7.0, 9.0], [0.2, 0.8]), Choice([1.0, 2.0])])]
    for chosen in (tables, same):  # the first cannot be stacked
        problems = [Problem(network, LinearConstraint([[-1.0]], [-20.0]), table) for table in chosen]
        batches = list(Execution(device="cpu").place(problems, Spend(2)))
        assert len(batches) == 1
        batch = batches[0].in_codes()
        codes = torch.tensor([[[0, 0], [1, 0]]] * 2)
        expected = torch.stack([table.coded(codes[0]) for table in chosen])
        assert torch.equal(batch.read(codes), expected)
        assert torch.equal(batch.take(torch.tensor([1])).read(codes[:1]), expected[1:])
        torch.testing.assert_close(batch.score(codes), expected.sum(-1) - 20)


def _total(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=True)


DICE = [1 / 2**k for k in range(10)]  # each number half as often as the one before


def test_estimate_is_right_and_quick_where_all_is_categories() -> None:
    """10 numbers from 0 to 9 that add up to 40, and a mixture of such tables; exact by convolution."""

    def tail(k: int, weights: list[float]) -> float:
        law, chances = np.ones(1), np.array(weights) / sum(weights)
        for _ in range(10):
            law = np.convolve(law, chances)
        return float(law[k:].sum())

    often = [1.0] * 3 + DICE[3:]
    tables = [Tabular([Choice(list(range(10)), weights)] * 10) for weights in (DICE, often)]
    for law, truth in (
        (tables[0], math.log(tail(40, DICE))),
        (Mixture(tables, [0.999, 0.001]), math.log(0.999 * tail(40, DICE) + 0.001 * tail(40, often))),
    ):
        problem = Problem(_total, lambda x, y: y[:, 0] - 39.5, law)
        answer = estimate(problem)
        assert answer.outcome is Outcome.VIOLATED
        assert abs(answer.log_prob - truth) < 5 * answer.log_prob_std
        assert answer.log_prob_std < 0.2
        assert answer.witnesses.inputs.shape[1:] == (10,)
        assert bool((problem.score(answer.witnesses.inputs) >= 0).all())


@pytest.mark.parametrize("above", [35.0, 65.0])
def test_estimate_is_right_and_quick_where_some_are_categories(above: float) -> None:
    """Weights of 15 switches, each on with probability 0.1, and of 3 normal numbers; exact by convolution."""
    weights, sigma = [9, -7, 8, 3, -2, 6, 9, 1, -5, 4, 7, -9, 2, 5, 8], 4.0
    law, lowest = np.ones(1), 0
    for weight in weights:
        after = np.zeros(len(law) + abs(weight))
        after[max(0, -weight) : max(0, -weight) + len(law)] += 0.9 * law
        after[max(0, weight) : max(0, weight) + len(law)] += 0.1 * law
        law, lowest = after, lowest + min(0, weight)
    truth = math.log(float(law @ stats.norm.sf((above - lowest - np.arange(len(law))) / (sigma * math.sqrt(3)))))
    table = Tabular([*[Choice([0.0, 1.0], [0.9, 0.1])] * 15, *[Normal(0, sigma)] * 3])
    row = torch.tensor([*map(float, weights), 1.0, 1.0, 1.0])
    problem = Problem(lambda x: x @ row.to(x).unsqueeze(1), lambda x, y: y[:, 0] - above, table)
    answer = estimate(problem)
    assert answer.outcome is Outcome.VIOLATED
    assert abs(answer.log_prob - truth) < 5 * answer.log_prob_std
    assert answer.log_prob_std < 0.3
    assert bool((problem.score(answer.witnesses.inputs) >= 0).all())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Tabular([]), "at least one column"),
        (lambda: Tabular([Fixed(1)]), "every column is fixed"),
        (lambda: Tabular({"age": 3}), "column 'age' must have a law"),  # type: ignore[dict-item]
        (lambda: Tabular([Normal(0, 1)] * 2, correlation=np.eye(3)), "one row per varying column"),
        (lambda: Tabular([Normal(0, 1)] * 2, correlation=[[1, 2], [2, 1]]), "not positive definite"),
        (lambda: Tabular([Normal(0, 1)] * 2, correlation=[[1, 0.2], [0.3, 1]]), "symmetric"),
        (lambda: Choice([1, 2], [0.5]), "1 probabilities for 2 values"),
        (lambda: Choice([1, 2], [-1, 2]), "at least 0"),
        (lambda: OneHot([1, 1], names=["a"]), "1 names for 2 categories"),
        (lambda: Empirical([1.0]), "at least two values"),
        (lambda: Tabular.fit(np.zeros(3)), "must be a table"),
        (lambda: Tabular.fit(np.zeros((3, 2)), integer=[5]), "no column 5"),
        (lambda: Tabular.fit(np.array([[0.5], [1.0]]), integer=[0]), "holds fractions"),
        (lambda: Tabular.fit(np.array([[0.5], [np.nan]])), "missing or infinite"),
        (lambda: Tabular([Normal(0, 1)]).log_density(torch.zeros(1)), "no density"),
    ],
)
def test_errors_say_what_to_do(build, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        build()
