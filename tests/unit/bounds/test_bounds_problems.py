"""Proofs and bounds for whole problems, and what `estimate` and `certify` make of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import rarely
from rarely.bounds import build, graphs, probability_bounds, prove
from rarely.bounds.graphs import Graphs
from rarely.bounds.problems import prove_all
from rarely.bounds.spec import polytopes
from rarely.core.properties import Scored
from rarely.core.rng import Rng
from rarely.questions.threshold import Ruling
from rarely.testing import assert_rarely


def small_network(seed: int, inputs: int = 2, outputs: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 12), torch.nn.ReLU(), torch.nn.Linear(12, outputs)).eval()


def identity(offset: float) -> rarely.Problem:
    """Uniform on the unit square, violated when x0 + x1 >= offset."""
    network = torch.nn.Linear(2, 1, bias=False).eval()
    torch.nn.init.ones_(network.weight)
    return rarely.Problem(network, rarely.LinearConstraint([[-1.0]], [-offset]), rarely.Box([0.0, 0.0], [1.0, 1.0]))


PROPERTIES = [
    rarely.Misclassification(1),
    rarely.Targeted(0, 2),
    rarely.LinearConstraint([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], [0.1, -0.2]),
    rarely.LinearConstraint.any_of([([[1.0, 0.0, 0.0]], [0.0]), ([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [0.3, 0.1])]),
    rarely.Targeted(0, 2) | rarely.Targeted(1, 2),
    rarely.Misclassification(0) & rarely.LinearConstraint([[0.0, 0.0, 1.0]], [0.2]),
]


@pytest.mark.parametrize("prop", PROPERTIES)
def test_polytopes_are_the_violating_outputs(prop):
    y = torch.randn(2000, 3)
    score = prop.score(torch.zeros(1, 2000, 2), y.unsqueeze(0))[0]
    inside = torch.zeros(2000, dtype=torch.bool)
    for A, b in polytopes(prop, 3):
        inside |= (y.double() @ A.T <= b).all(1)
    clear = score.abs() > 1e-5
    assert torch.equal(inside[clear], (score >= 0)[clear])


@pytest.mark.parametrize("seed", range(20))
def test_prove_agrees_with_dense_sampling(seed):
    problem = rarely.Problem(small_network(seed), rarely.Misclassification(), rarely.LpBall(torch.rand(2), 0.3))
    verdict = prove(problem, 10.0)
    worst = float(problem.score(problem.inputs.sample(20_000, Rng(seed))).max())
    if verdict.status == "proved":
        assert worst < 0
        assert verdict.bound < 0
    else:
        assert verdict.status == "violated"
        assert float(problem.score(verdict.witness[None])) >= 0


@pytest.mark.parametrize("norm", [1, 2])
def test_a_ball_is_proved_by_way_of_its_region_and_witnesses_lie_in_it(norm):
    problem = identity(1.65)
    ball = rarely.LpBall([0.5, 0.5], 0.4, norm=norm)
    verdict = prove(rarely.Problem(problem.network, problem.property, ball), 5.0)
    assert verdict.status != "violated"  # x0 + x1 <= 1 + 0.4 sqrt(2) = 1.566 in the l2 ball, 1.4 in the l1 ball
    nearer = rarely.Problem(problem.network, rarely.LinearConstraint([[-1.0]], [-1.3]), ball)
    found = prove(nearer, 5.0)
    if found.status == "violated":
        assert float(ball.log_density(found.witness[None])) > -math.inf


def test_what_cannot_be_bounded_is_unknown_with_a_reason():
    network = small_network(0)
    inputs = rarely.Box([0.0, 0.0], [1.0, 1.0])
    black_box = rarely.Problem(lambda x: np.asarray(x).sum(1, keepdims=True), lambda x, y: y[:, 0] - 3, inputs)
    user = rarely.Problem(network, Scored(lambda x, y: y[:, 0] - 9), inputs)
    endless = rarely.Problem(network, rarely.Misclassification(0), rarely.Gaussian([0.0, 0.0], 1.0))
    for problem in (black_box, user, endless):
        verdict = prove(problem, 1.0)
        assert verdict.status == "unknown"
        assert verdict.reason
    (trivial,) = probability_bounds(user, 1.0)
    assert (trivial.log_lower, trivial.log_upper) == (-math.inf, 0.0)


@pytest.mark.parametrize(
    ("second", "weights", "status"),
    [(0.6, None, "proved"), (0.9, None, "violated"), (0.9, [1.0, 0.0], "proved")],
    ids=["both safe", "one violated", "a component that is never drawn"],
)
def test_a_mixture_is_proved_component_by_component(second, weights, status):
    whole = identity(1.5)
    boxes = [rarely.Box([0.0, 0.0], [0.5, 0.5]), rarely.Box([0.5, 0.5], [second, second])]
    problem = rarely.Problem(whole.network, whole.property, rarely.Mixture(boxes, weights))
    verdict = prove(problem, 5.0)
    assert verdict.status == status
    assert (verdict.bound < 0) == (status == "proved")
    found = rarely.estimate(problem, rarely.Auto(proof_seconds=2.0))
    assert (found.outcome is rarely.Outcome.PROVED_SAFE) == (status == "proved")


def test_a_mixture_with_an_unknown_part_is_unknown():
    whole = identity(2.5)
    parts = [whole.inputs, rarely.Gaussian([0.0, 0.0], 0.1)]
    verdict = prove(rarely.Problem(whole.network, whole.property, rarely.Mixture(parts)), 1.0)
    assert verdict.status == "unknown"
    assert "Gaussian" in verdict.reason


def test_quick_proofs_of_a_mixed_list_keep_their_places():
    problems = [identity(2.5), identity(1.5), identity(2.1)]
    shared = [rarely.Problem(problems[0].network, p.property, p.inputs) for p in problems]
    proofs = prove_all(shared, 5.0, quick=True)
    assert [proof.status for proof in proofs] == ["proved", "violated", "proved"]


def test_a_second_attempt_reads_no_graph_again_and_bounds_no_box_again(monkeypatch):
    built = []
    monkeypatch.setattr(graphs, "build", lambda *args: built.append(1) or build(*args))
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1)).eval()
    with torch.no_grad():
        top = float(net(torch.rand(100_000, 4) * 2 - 1).max())
    problem = rarely.Problem(net, rarely.LinearConstraint([[-1.0]], [-top - 0.01]), rarely.Box([-1.0] * 4, [1.0] * 4))
    (alone,) = prove_all([problem], 20.0)
    read = Graphs()
    first = prove_all([problem], math.inf, boxes=20, graphs=read)
    assert first[0].status == "unknown"
    (second,) = prove_all([problem], 20.0, graphs=read, earlier=first)
    assert len(built) == 2  # one of them alone
    assert second.status == alone.status == "proved"
    assert first[0].boxes < second.boxes < alone.boxes + first[0].boxes


@pytest.mark.parametrize("inputs", [rarely.Box([0.0, 0.0], [1.0, 1.0]), rarely.Gaussian([0.3, 0.1], 0.5)])
def test_probability_bounds_hold_the_estimate(inputs):
    for seed in range(10):
        problem = rarely.Problem(small_network(seed), rarely.Misclassification(), inputs)
        *_, last = probability_bounds(problem, 5.0)
        n = 200_000
        hits = int((problem.score(inputs.sample(n, Rng(seed))) >= 0).sum())
        p = hits / n
        slack = 5 * math.sqrt(max(p * (1 - p), 1 / n) / n)  # 5 standard errors of the sample
        assert math.exp(last.log_lower) <= p + slack
        assert p - slack <= math.exp(last.log_upper)


def test_estimate_proves_what_never_happens_and_samples_what_does():
    safe, rare = identity(2.5), identity(1.99)
    found = rarely.estimate([safe, rare], seed=0, confidence=1 - 5.7e-7)  # five sigma
    assert found[0].outcome is rarely.Outcome.PROVED_SAFE
    assert found[0].calls < 1000
    assert found[1].outcome is rarely.Outcome.VIOLATED
    offset = float(torch.tensor(1.99))  # as the network's precision has it: the interval is narrower than what it moves
    assert math.log((2 - offset) ** 2 / 2) in found[1].interval


def test_certify_says_on_what_it_rests():
    proof = rarely.certify(identity(2.5), 1e-6)
    assert proof.ruling is Ruling.ACCEPTED
    assert "no input violates" in proof.sentence
    assert proof.confidence == 1.0
    bound = rarely.certify(identity(1.99), 1e-3)
    assert bound.ruling is Ruling.ACCEPTED
    assert "by proof" in bound.sentence
    rejected = rarely.certify(identity(1.9), 1e-3)
    assert rejected.ruling is Ruling.REJECTED
    assert float(identity(1.9).score(rejected.witnesses.inputs)[0]) >= 0


def test_assert_rarely_shows_a_witness():
    assert_rarely(identity(1.99), p_max=1e-3)
    with pytest.raises(AssertionError, match="a violating input"):
        assert_rarely(identity(1.9), p_max=1e-3)
