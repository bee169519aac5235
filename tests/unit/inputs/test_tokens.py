"""Tokens: their law, what networks see of them, and what is said about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rarely import Execution, LinearConstraint, Misclassification, Mixture, MonteCarlo, Predicted, Problem, Splitting
from rarely import estimate as run
from rarely.core.errors import InputError
from rarely.core.parts import evened
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.inputs import Tokens
from rarely.kernels import RandomWalk

WORDS = ("red", "green", "blue")


class Bag(nn.Module):
    """Embeds tokens and adds them up."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3, dtype=dtype)
        with torch.no_grad():
            self.table.weight.copy_(torch.eye(4)[:, :3])

    def forward(self, x: Tensor) -> Tensor:
        assert not x.is_floating_point()
        y: Tensor = self.table(x).sum(1)
        return y


def test_tokens_come_as_often_as_they_should() -> None:
    law = Tokens([[0.5, 0.0, 0.3, 0.2], {3: 1.0, 0: 9.0}])
    x = law.sample(100_000, Rng(0))
    assert x.dtype == torch.long
    share = torch.stack([(x == token).double().mean(0) for token in range(4)], 1)
    truth = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.9, 0.0, 0.0, 0.1]], dtype=torch.float64)
    assert bool(((share - truth).abs() <= 5 * (truth * (1 - truth) / 100_000).sqrt()).all())
    torch.testing.assert_close(
        law.log_density(torch.tensor([[0, 3], [2, 0], [1, 0]])).exp(), torch.tensor([0.05, 0.27, 0.0])
    )
    assert law.center.tolist() == [0, 0]


def test_a_very_rare_token_is_not_lost_to_rounding() -> None:
    law = Tokens([1.0, 1e-12], 3)
    steps = 2**52 - int(law.edges[0, 0])
    assert steps / 2**52 == pytest.approx(1e-12, rel=1e-3)


def test_words_name_tokens_and_witnesses() -> None:
    law = Tokens([{"red": 1, "blue": 1}, {"green": 1}], vocabulary=WORDS)
    assert set(law.texts(law.sample(50, Rng(0)))) == {"red green", "blue green"}
    assert Tokens([1.0, 1.0], 2, decode=str).texts(torch.tensor([[0, 1]])) == ["[0, 1]"]
    with pytest.raises(InputError, match="give Tokens a vocabulary"):
        Tokens([1.0, 1.0], 2).texts(torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tokens([0.5, 0.5]), "needs a length"),
        (lambda: Tokens([[1.0], [1.0]], 3), "laws of 2 positions"),
        (lambda: Tokens([[0.5, -0.5]]), "position 0 must be a row of weights"),
        (lambda: Tokens([[1.0], [0.0, 0.0]]), "position 1 must be a row of weights"),
        (lambda: Tokens([{"red": 1.0}]), "needs a vocabulary"),
        (lambda: Tokens([{"pink": 1.0}], vocabulary=WORDS), "'pink', which is not in the vocabulary"),
        (lambda: Tokens([{-1: 1.0}]), "names the token -1"),
        (lambda: Tokens([{"red": 1.0, 0: 1.0}], vocabulary=WORDS), "names a token twice"),
        (lambda: Tokens([[float("nan")]]), "NaN"),
        (lambda: Tokens(torch.ones(2, 2, 2)), "got shape"),
        (lambda: Tokens([]), "laws"),
    ],
)
def test_laws_that_are_none_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def test_only_chosen_parts_are_drawn_anew() -> None:
    law = Tokens(torch.ones(50), 6)
    x = law.sample(200, Rng(1))
    chosen = Rng(2).uniform((200, 6)) < 0.5
    y = law.redraw(x, chosen, Rng(3))
    assert torch.equal(x[~chosen], y[~chosen])
    assert float((x == y)[chosen].double().mean()) < 0.1


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_a_network_sees_whole_numbers_whatever_its_precision(dtype: torch.dtype | None) -> None:
    problem = Problem(Bag().eval(), Predicted(2), Tokens([0.4, 0.4, 0.2, 0.0], 5))
    result = run(problem, MonteCarlo(4000), dtype=dtype)
    reference = run(problem, MonteCarlo(4000))
    assert result.log_prob == reference.log_prob, "small counts are exact in every precision"
    assert result.witnesses.inputs.dtype == torch.long
    assert bool((problem.score(result.witnesses.inputs.numpy()) >= 0).all())


@pytest.mark.parametrize(
    "network",
    [
        lambda x: torch.stack([(x == token).sum(1) for token in range(3)], 1),
        lambda x: np.stack([(np.asarray(x) == token).sum(1) for token in range(3)], 1),
    ],
    ids=["torch", "numpy"],
)
def test_functions_see_whole_numbers_and_may_return_them(network: object) -> None:
    law = Tokens([0.4, 0.4, 0.2], 5)
    counted, embedded = (run(Problem(net, Predicted(2), law), MonteCarlo(4000)) for net in (network, Bag().eval()))
    assert counted.log_prob == embedded.log_prob
    assert not Problem(network, Predicted(2), law).adapted.differentiable


def test_labels_come_from_the_likeliest_sequence() -> None:
    problem = Problem(Bag().eval(), Misclassification(), Tokens([0.1, 0.8, 0.1], 4))
    assert int(problem.property.label) == 1  # type: ignore[attr-defined]


def test_no_other_output_is_higher_where_a_target_is_predicted() -> None:
    law, network = Tokens([0.3, 0.3, 0.4], 4), Bag().eval()
    rows = torch.tensor([[-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]])
    same = LinearConstraint(-rows, torch.zeros(2))
    x = law.sample(200, Rng(0))
    torch.testing.assert_close(Problem(network, Predicted(2), law).score(x), Problem(network, same, law).score(x))
    with pytest.raises(InputError, match="target 3 is out of range"):
        Problem(network, Predicted(3), law)


def test_problems_with_other_laws_and_targets_share_a_batch() -> None:
    network, laws = Bag().eval(), [Tokens([0.4, 0.4, 0.2], 5), Tokens([{0: 1, 1: 1, 2: w} for w in (1, 2, 3, 4, 5)])]
    problems = [Problem(network, Predicted(target), law) for target, law in zip((2, 0), laws, strict=True)]
    together = run(problems, MonteCarlo(20_000))
    for problem, result in zip(problems, together, strict=True):
        alone = run(problem, MonteCarlo(20_000), seed=1)
        assert abs(result.prob - alone.prob) < 5 * math.sqrt(2 * alone.prob / 20_000)
    assert len(list(Execution(device="cpu").place(problems, Spend(2)))) == 1


def test_a_walk_is_refused_where_nothing_says_how_to_move() -> None:
    class Bare:
        whole, event_shape = True, (3,)

        def sample(self, n: int) -> Tensor:
            return torch.randint(0, 3, (n, 3))

        def log_density(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x))

    with pytest.raises(InputError, match="give it `parts` and `redraw`"):
        run(Problem(Bag().eval(), Predicted(2), Bare()), Splitting(100))
    with pytest.raises(InputError, match="use Redraw"):
        run(Problem(Bag().eval(), Predicted(2), Tokens([1.0, 1.0], 3)), Splitting(100, kernel=RandomWalk()))


def test_a_mixture_moves_by_its_components() -> None:
    mixture = Mixture([Tokens([1.0, 0.0], 3), Tokens([0.5, 0.5], 3)])
    assert mixture.parts == 3
    x = torch.ones(1000, 3, dtype=torch.long)  # which the second alone can have drawn
    y = mixture.redraw(x, torch.ones(1000, 3, dtype=torch.bool), Rng(0))
    assert float(y.double().mean()) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(3000))


def test_evener_tokens_are_the_same_with_rare_ones_oftener() -> None:
    law = Tokens([{0: 0.9, 1: 0.09, 2: 0.01}, {1: 1.0}, {0: 0.5, 3: 0.5}])
    even = law.evened(0.5)
    x = torch.cartesian_prod(torch.arange(3), torch.tensor([1]), torch.tensor([0, 3]))
    p, q = law.log_density(x).double().exp(), even.log_density(x).double().exp()
    assert float(q.sum()) == pytest.approx(1, abs=1e-5)
    assert float(1 / (p * p / q).sum()) == pytest.approx(0.5, abs=1e-3), "what its draws are worth, weighed back"
    power = (q[0] / q[4]).log() / (p[0] / p[4]).log()
    assert 0 < float(power) < 1
    assert float((q[0] / q[2]).log() / (p[0] / p[2]).log()) == pytest.approx(float(power), abs=1e-4), (
        "one power for all"
    )
    drawn = even.sample(100_000, Rng(0))
    for row, chance in zip(x, q.tolist(), strict=True):
        share = float((drawn == row).all(1).double().mean())
        assert abs(share - chance) < 5 * math.sqrt(chance * (1 - chance) / 100_000)
    assert float(law.evened(0.0).log_density(x).exp().std()) < 1e-6, "at most even"
    assert float(even.log_density(torch.tensor([0, 0, 0]))) == -math.inf, "what cannot come does not come here either"


def test_one_law_for_all_positions_is_evened_for_all_of_them() -> None:
    shared, each = Tokens([0.9, 0.1], 12), Tokens([[0.9, 0.1]] * 12)
    x = shared.sample(50, Rng(0))
    torch.testing.assert_close(shared.evened(0.2).log_density(x), each.evened(0.2).log_density(x))


def test_laws_that_share_a_batch_are_evened_each_for_itself() -> None:
    laws = [Tokens([0.9, 0.1], 5), Tokens([0.6, 0.4], 5)]
    problems = [Problem(Bag().eval(), Predicted(1), law) for law in laws]
    (batch,) = Execution(device="cpu").place(problems, Spend(2))
    found = evened(batch.inputs, 0.2)
    x = torch.randint(0, 2, (2, 40, 5), generator=torch.Generator().manual_seed(0))
    for row, law in enumerate(laws):
        torch.testing.assert_close(found.log_density(x)[row], law.evened(0.2).log_density(x[row]))
