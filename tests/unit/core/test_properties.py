from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rarely import LinearConstraint, Misclassification, Targeted
from rarely.core.errors import InputError
from rarely.core.properties import EachProperty, Property, Scored, Way, Within, adapt_property, stack_properties
from rarely.core.stacking import place, take

K, D, N = 4, 3, 50


def _rows(seed: int, n: int = N, problems: int = 1) -> tuple[Tensor, Tensor]:
    generator, lead = torch.Generator().manual_seed(seed), (problems, n)
    return torch.randn((*lead, D), generator=generator), torch.randn((*lead, K), generator=generator)


def _linear(seed: int) -> LinearConstraint:
    generator = torch.Generator().manual_seed(seed)
    sets = [(torch.randn((m, K), generator=generator), torch.randn(m, generator=generator)) for m in (1, 3)]
    return LinearConstraint.any_of(sets)


def _own_function(x: Tensor, y: Tensor) -> Tensor:
    return y[:, 0] + x[:, 1]


PAIRS: dict[str, tuple[Property, Property]] = {
    "misclassification": (Misclassification(1), Misclassification(3)),
    "targeted": (Targeted(0, 1), Targeted(2, 3)),
    "linear": (_linear(1), _linear(2)),
    "within": (
        Within(torch.full((D,), -1.0), torch.ones(D)),
        Within(torch.full((D,), -2.0), torch.zeros(D)),
    ),
    "and": (Targeted(0, 1) & Misclassification(2), Targeted(1, 2) & Misclassification(0)),
    "or": (Targeted(0, 1) | _linear(3), Targeted(1, 2) | _linear(4)),
    "function": (Scored(_own_function), Scored(_own_function)),
    "way": (Way(Misclassification(1), torch.tensor(0)), Way(Misclassification(0), torch.tensor(2))),
    "nested": ((Targeted(0, 1) | Targeted(0, 2)) & _linear(5), (Targeted(3, 1) | Targeted(3, 2)) & _linear(6)),
    "different kinds": (Targeted(0, 1), _linear(1)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_single_and_stacked_agree(pair: tuple[Property, Property]) -> None:
    x, y = _rows(0, N, 2)
    both = stack_properties(pair)
    assert both.score(x, y).shape == (2, N)
    for row, prop in enumerate(pair):
        mine = slice(row, row + 1)
        torch.testing.assert_close(both.score(x, y)[mine], prop.score(x[mine], y[mine]))
        parts, own = both.parts(x, y)[row], prop.parts(x[mine], y[mine])[0]
        torch.testing.assert_close(parts[:, : own.shape[-1]], own)
        torch.testing.assert_close(parts.amax(-1), both.score(x, y)[row])
    swapped = take(both, torch.tensor([1, 0, 1]))
    torch.testing.assert_close(swapped.score(x[[1, 0, 1]], y[[1, 0, 1]]), both.score(x, y)[[1, 0, 1]])


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_the_pieces_of_a_violation_are_disjoint_and_fill_it(pair: tuple[Property, Property]) -> None:
    x, y = _rows(1, 2000)
    prop = pair[0]
    ways = prop.parts(x, y).shape[-1]
    hit = torch.stack([Way(prop, torch.tensor(i)).score(x, y) >= 0 for i in range(ways)], -1)
    assert not torch.isnan(torch.stack([Way(prop, torch.tensor(i)).score(x, y) for i in range(ways)])).any()
    violated = prop.score(x, y) >= 0
    assert torch.equal(hit.any(-1), violated)
    # `&` pairs up parts, so that a minimum can be shared by several pairs; ties have probability zero elsewhere.
    if not any("and" in name or "nested" in name for name, value in PAIRS.items() if value is pair):
        assert hit.sum(-1).max() <= 1


def test_misclassification_is_the_best_other_class() -> None:
    x, y = _rows(2)
    others = torch.cat([y[..., :2], y[..., 3:]], -1).amax(-1)
    torch.testing.assert_close(Misclassification(2).score(x, y), others - y[..., 2])
    assert torch.equal(Misclassification(2).score(x, y) >= 0, (y.argmax(-1) != 2))


def test_targeted() -> None:
    x, y = _rows(3)
    torch.testing.assert_close(Targeted(1, 3).score(x, y), y[..., 3] - y[..., 1])


def test_linear_constraint_is_violated_inside_the_set() -> None:
    x, y = _rows(4)
    A, b = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]), torch.tensor([0.2, 0.4])
    expected = (y[..., 0] <= 0.2) & (y[..., 1] <= 0.4)
    assert torch.equal(LinearConstraint(A, b).score(x, y) >= 0, expected)
    either = LinearConstraint.any_of([(A, b), ([0.0, 0, -1, 0], -1.0)])
    assert torch.equal(either.score(x, y) >= 0, expected | (y[..., 2] >= 1))


def test_linear_constraint_in_double_precision_meets_single_outputs() -> None:
    x, y = _rows(5)
    A, b = torch.randn(2, K, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(
        LinearConstraint(A, b).score(x, y).float(), LinearConstraint(A.float(), b.float()).score(x, y)
    )


def test_and_or_are_min_and_max() -> None:
    x, y = _rows(6)
    a, b = Targeted(0, 1), Targeted(2, 3)
    torch.testing.assert_close((a & b).score(x, y), torch.minimum(a.score(x, y), b.score(x, y)))
    torch.testing.assert_close((a | b).score(x, y), torch.maximum(a.score(x, y), b.score(x, y)))


def test_outputs_of_any_shape_are_flattened() -> None:
    x, y = _rows(7)
    torch.testing.assert_close(Misclassification(1).score(x, y.reshape(1, N, 2, 2)), Misclassification(1).score(x, y))
    one = LinearConstraint([1.0], 0.5)
    torch.testing.assert_close(one.score(x, y[..., 0]), 0.5 - y[..., 0])


def test_true_and_false_are_scores_of_either_sign() -> None:
    x, y = _rows(7)
    score = Scored(lambda x, y: y[:, 0] > 0.5).score(x, y)
    assert torch.equal(score >= 0, y[..., 0] > 0.5)
    assert score.dtype == y.dtype


def test_what_does_not_stack_is_looped_over() -> None:
    first, second = Scored(_own_function), Scored(lambda x, y: -_own_function(x, y))
    both = stack_properties([first, second])
    assert isinstance(both, EachProperty)
    x, y = _rows(8, N, 2)
    torch.testing.assert_close(both.score(x, y)[1], second.score(x[1:], y[1:])[0])


def test_placed_in_another_precision() -> None:
    x, y = _rows(9)
    placed = place(stack_properties([_linear(1)]), torch.device("cpu"), torch.float64)
    assert placed.score(x.double(), y.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: Misclassification(-1), "label"),
        (lambda: Misclassification(1.5), "label"),  # type: ignore[arg-type]
        (lambda: Targeted(1, 1), "target"),
        (lambda: Targeted(1, -2), "target"),
        (lambda: LinearConstraint([[1.0, float("nan")]], [0.0]), "A"),
        (lambda: LinearConstraint([[1.0, 0.0]], [float("inf")]), "b"),
        (lambda: LinearConstraint([[1.0, 0.0]], [0.0, 1.0]), "b"),
        (lambda: LinearConstraint([1.0, 0.0], [0.0, 1.0]), "b"),
        (lambda: LinearConstraint.any_of([]), "alternative"),
        (lambda: LinearConstraint.any_of([([1.0], 0.0), ([1.0, 2.0], 0.0)]), "outputs"),
        (lambda: Targeted(0, 1) & 3, "int"),
        (lambda: adapt_property("safe", torch.float32), "str"),
        (lambda: LinearConstraint([[1.0, 0.0]], [0.0]).score(*_rows(0)), "columns"),
        (lambda: Scored(lambda x, y: y).score(*_rows(0)), "score"),
        (lambda: Misclassification().score(*_rows(0)), "label"),
    ],
)
def test_bad_properties(make: object, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        make()  # type: ignore[operator]
