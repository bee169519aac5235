"""Verdicts: proofs never contradict sampling, witnesses replay, and time is kept."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn

import rarely
from rarely.bounds import Unprovable, build, decide_balls, decide_boxes
from rarely.bounds.crown import propagate
from rarely.bounds.graph import pruned
from rarely.bounds.inputsplit import decide_by_inputs
from rarely.bounds.ledger import Ledger
from rarely.bounds.region import BoxRegion
from rarely.bounds.relusplit import decide_by_relus
from rarely.bounds.spec import spec_of
from rarely.core.errors import InputError


def _score(module, outputs, x):
    """The definition, in plain words: any polytope, all its rows."""
    with torch.no_grad():
        y = module(x).flatten(1).double()
    return torch.stack([(b.double() - y @ A.double().mT).amin(1) for A, b in outputs]).amax(0)


def _mlp(seed, width=3, hidden=12, out=3, act=nn.ReLU):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(width, hidden), act(), nn.Linear(hidden, hidden), act(), nn.Linear(hidden, out)
    ).eval()


def _grid(low, high, steps):
    axes = [torch.linspace(float(l), float(h), steps) for l, h in zip(low, high, strict=True)]
    return torch.stack([a.flatten() for a in torch.meshgrid(*axes, indexing="ij")], 1)


def _outputs(seed):
    """Random disjunctions of conjunctions, about as often met as not."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(1,), (2,), (1, 2), (3, 1, 1)][seed % 4]
    return [(torch.randn(m, 3, generator=g), 0.1 * torch.randn(m, generator=g) - 0.15) for m in shapes]


@pytest.mark.parametrize("act", [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid])
def test_verdicts_agree_with_an_exhaustive_grid(act):
    proved = violated = 0
    for seed in range(12):
        module, outputs = _mlp(seed, act=act), _outputs(seed)
        low = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)) * 0.5
        high = low + 0.4
        for i, verdict in enumerate(decide_boxes(module, low, high, outputs, 10.0)):
            best = _score(module, outputs, _grid(low[i], high[i], 17)).max()
            if verdict.status == "proved":
                proved += 1
                assert best < 0
                assert verdict.bound < 0
                assert best <= verdict.bound + 1e-5
            else:
                assert verdict.status == "violated"
                violated += 1
                assert verdict.witness.dtype == torch.float32
                assert (verdict.witness >= low[i]).all()
                assert (verdict.witness <= high[i]).all()
                assert _score(module, outputs, verdict.witness.unsqueeze(0)) >= 0
    assert min(proved, violated) >= 4


def test_the_answer_is_right_just_above_and_just_below_the_maximum():
    for seed in range(6):
        module = _mlp(seed, width=2, out=1)
        low, high = torch.full((1, 2), -1.0), torch.full((1, 2), 1.0)
        top = module(_grid(low[0], high[0], 301)).max().item()
        A = torch.tensor([[-1.0]])  # y >= t
        above = decide_boxes(module, low, high, [(A, torch.tensor([-(top + 0.02)]))], 10.0)[0]
        below = decide_boxes(module, low, high, [(A, torch.tensor([-(top - 1e-3)]))], 10.0)[0]
        assert (above.status, below.status) == ("proved", "violated")


def test_many_problems_with_their_own_polytopes_are_decided_at_once():
    module = _mlp(3, width=2, out=2)
    g = torch.Generator().manual_seed(0)
    low = torch.randn(40, 2, generator=g)
    A, b = torch.randn(40, 1, 2, generator=g), torch.randn(40, 1, generator=g) * 0.2
    together = decide_boxes(module, low, low + 0.3, [(A, b)], 20.0)
    for i in range(0, 40, 5):
        alone = decide_boxes(module, low[i : i + 1], low[i : i + 1] + 0.3, [(A[i], b[i])], 20.0)[0]
        assert alone.status == together[i].status != "unknown"


@pytest.mark.parametrize("split", [decide_by_inputs, decide_by_relus])
def test_both_ways_to_split_agree_where_both_work(split):
    """ReLU splitting on problems small enough for input splitting, without the attack."""
    for seed in range(10):
        module = _mlp(seed, width=4, hidden=8)
        graph = build(module, (4,))
        low = torch.randn(1, 4, generator=torch.Generator().manual_seed(seed)).double() * 0.3
        region = BoxRegion(low, low + 0.5)
        x = torch.lerp(region.low, region.high, torch.rand(20000, 4, dtype=torch.float64)).float()
        y = module(x).detach()
        gap = (y[:, 0] - y[:, 1]).max()
        A = torch.tensor([[-1.0, 1.0, 0.0]])
        for shift, wanted in ((0.05, "proved"), (-0.01, "violated")):
            spec = spec_of([(A, -(gap + shift).reshape(1))], 3, 1, torch.device("cpu"))
            ledger = Ledger(module, torch.float32, region, spec, "float32")
            reason = split(graph, ledger, time.monotonic() + 20)
            (verdict,) = ledger.finish(reason)
            assert verdict.status in (wanted, "unknown")
            if split is decide_by_inputs:
                assert verdict.status == wanted


@pytest.mark.parametrize("most", [1, 8, 20])
def test_a_longer_attempt_goes_on_where_the_first_stopped(most):
    module = _mlp(5, width=4, hidden=24, out=1)
    low, high = -torch.ones(3, 4), torch.ones(3, 4)
    with torch.no_grad():
        top = module(torch.rand(100_000, 4) * 2 - 1).max()
    A, far = torch.tensor([[-1.0]]).expand(3, 1, 1), torch.tensor([[-0.01], [5.0], [-0.02]])  # the second is violated
    outputs = [(A, far - top)]
    whole = decide_boxes(module, low, high, outputs, 20.0)
    first = decide_boxes(module, low, high, outputs, 20.0, boxes=most)
    assert any(proof.rest is not None for proof in first)
    second = decide_boxes(
        module, low[[2, 0]], high[[2, 0]], [(A[:2], far[[2, 0]] - top)], 20.0, earlier=[first[2], first[0]]
    )
    for proof, before, alone in zip(second, (first[2], first[0]), (whole[2], whole[0]), strict=True):
        assert proof.status == alone.status == "proved"
        assert before.status == "proved" or proof.boxes > before.boxes
        assert before.status == "proved" or proof.boxes < alone.boxes + before.boxes  # no box is bounded twice
        assert proof.bound < 0


def test_high_dimension_uses_relu_splits_and_balls():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)).eval()
    centre = torch.randn(1, 40)
    y = module(centre)[0].detach()
    winner = int(y.argmax())
    row = torch.zeros(1, 2)
    row[0, winner], row[0, 1 - winner] = 1.0, -1.0  # the other class wins: y_w - y_o <= 0
    outputs = [(row, torch.zeros(1))]
    assert decide_boxes(module, centre - 1e-4, centre + 1e-4, outputs, 5.0)[0].status == "proved"
    assert decide_balls(module, centre, torch.tensor([1e-3]), outputs, 5.0)[0].status == "proved"
    wide = decide_boxes(module, centre - 3, centre + 3, outputs, 10.0)[0]
    assert wide.status == "violated"
    ball = decide_balls(module, centre, torch.tensor([30.0]), outputs, 10.0)[0]
    assert ball.status == "violated"
    assert (ball.witness - centre[0]).double().norm() <= 30.0


def test_splitting_relus_proves_what_plain_bounds_cannot():
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    low, high = torch.full((1, 24), -0.2), torch.full((1, 24), 0.2)
    A = torch.tensor([[-1.0]])
    x = low + (high - low) * torch.rand(4096, 24).round()
    top = module(x).max().item()
    verdicts = [decide_boxes(module, low, high, [(A, torch.tensor([-(top + m)]))], 20.0)[0] for m in (0.03, 0.1, 1.0)]
    assert all(v.status != "unknown" for v in verdicts)
    assert verdicts[-1].status == "proved"
    assert max(v.boxes for v in verdicts) > 1


def test_an_operator_that_cannot_be_bounded_gives_no_proof_but_may_give_a_witness():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return torch.cosh(self.layer(x))

    module = Odd()
    with pytest.raises(Unprovable):
        build(module, (2,))
    low, high = torch.zeros(1, 2), torch.ones(1, 2)
    never = decide_boxes(module, low, high, [(torch.tensor([[1.0]]), torch.tensor([-1.0]))], 5.0)[0]
    assert never.status == "unknown"
    assert "no proof" in never.reason
    always = rarely.Problem(module.eval(), rarely.LinearConstraint([[-1.0]], [0.0]), rarely.Box([0.0, 0.0], [1.0, 1.0]))
    assert rarely.verify(always, 5.0).status == "sat"


def test_a_network_without_gradients_is_still_sampled():
    class Table(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.detach().numpy().sum(1, keepdims=True))

    above = rarely.LinearConstraint([[-1.0]], [-1.0])
    problem = rarely.Problem(Table().eval(), above, rarely.Box([0.0, 0.0], [1.0, 1.0]))
    assert rarely.verify(problem, 5.0, device="cpu").status == "sat"


def test_leaving_out_dead_neurons_changes_nothing_on_the_region():
    module = _mlp(2, width=4, hidden=30)
    graph = build(module, (4,))
    low = torch.randn(1, 4, dtype=torch.float64)
    region = BoxRegion(low, low + 0.2)
    state = propagate(graph, region)
    small = pruned(graph, state.bounds, state.finite)
    assert small.widest < graph.widest
    x = torch.lerp(region.low, region.high, torch.rand(500, 4, dtype=torch.float64))
    assert torch.allclose(small(x), graph(x), rtol=1e-12, atol=1e-12)


def test_dead_neurons_that_are_the_output_stay():
    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 30), nn.Linear(30, 2)

        def forward(self, x):
            h = self.first(x)
            self.last(torch.relu(h))  # nobody looks at it
            return h

    graph = build(Early().eval(), (4,))
    region = BoxRegion(torch.zeros(1, 4).double(), torch.ones(1, 4).double())
    state = propagate(graph, region)
    assert pruned(graph, state.bounds, state.finite) == graph


def test_time_is_kept_and_what_was_reached_is_told():
    torch.manual_seed(0)
    layers = [nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)]
    module = nn.Sequential(*layers).eval()
    low, high = torch.full((1, 12), -2.0), torch.full((1, 12), 2.0)
    x = low + (high - low) * torch.rand(5000, 12)
    top = module(x).max().item() + 0.6
    begin = time.monotonic()
    verdict = decide_boxes(module, low, high, [(torch.tensor([[-1.0]]), torch.tensor([-top]))], 1.0)[0]
    assert time.monotonic() - begin < 10
    if verdict.status == "unknown":
        assert verdict.boxes > 1
        assert 0 <= verdict.bound < float("inf")
        assert verdict.reason == "out of time"


def test_a_point_is_a_box():
    module = _mlp(0)
    x = torch.randn(1, 3)
    y = module(x)[0].detach()
    A = torch.tensor([[1.0, 0.0, 0.0]])
    assert decide_boxes(module, x, x, [(A, y[:1] - 1e-3)], 5.0)[0].status == "proved"
    assert decide_boxes(module, x, x, [(A, y[:1] + 1e-3)], 5.0)[0].status == "violated"


def test_unusable_arguments_are_refused():
    module = _mlp(0)
    low = torch.zeros(1, 3)
    with pytest.raises(InputError):
        decide_boxes(module, low + 1, low, [(torch.ones(1, 3), torch.ones(1))], 1.0)
    with pytest.raises(InputError):
        decide_boxes(module, low, low, [(torch.ones(1, 4), torch.ones(1))], 1.0)
    with pytest.raises(InputError):
        decide_boxes(module, low, low, [], 1.0)
    with pytest.raises(InputError):
        decide_balls(module, low, torch.tensor([-1.0]), [(torch.ones(1, 3), torch.ones(1))], 1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_answers_on_a_gpu_are_those_of_the_cpu(random_network, random_boxes):
    for seed in range(24):
        module, shape = random_network(seed)
        low, high = (t.float() for t in random_boxes(shape, 4, seed))
        classes = module(low).shape[1]
        A, b = torch.randn(1, classes), torch.randn(1) * 0.3
        here = decide_boxes(module, low, high, [(A, b)], 5.0)
        there = decide_boxes(copy.deepcopy(module).cuda(), low.cuda(), high.cuda(), [(A.cuda(), b.cuda())], 5.0)
        for one, two in zip(here, there, strict=True):
            assert "unknown" in (one.status, two.status) or one.status == two.status
