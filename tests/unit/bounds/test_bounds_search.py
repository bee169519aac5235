"""What branch and bound on ReLUs rests on: bounds in float32, affine forms, and domains that keep the root's bounds."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from nasty import box, generate, points, runs
from torch import Tensor, nn

import rarely.bounds.backward
import rarely.bounds.domains as domains_of
import rarely.bounds.graph
import rarely.bounds.region
from rarely.bounds import (
    BallRegion,
    BoxRegion,
    Graph,
    Unprovable,
    bothsplit,
    build,
    decide,
    decide_boxes,
    operators,
    relusplit,
)
from rarely.bounds.backward import Propagated, backward
from rarely.bounds.crown import propagate
from rarely.bounds.domains import Root
from rarely.bounds.layers.dense import Dense
from rarely.bounds.ledger import Ledger
from rarely.bounds.region import Region
from rarely.bounds.relusplit import _refined, bounds_at_root
from rarely.bounds.single import lowered, outward
from rarely.bounds.spec import spec_of
from rarely.bounds.splits import Domains, children


def _dense(*widths: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).requires_grad_(False)


def _convolutional(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    first, second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 4, 3, stride=2)
    return nn.Sequential(first, nn.ReLU(), second, nn.LeakyReLU(), nn.Flatten(), nn.Linear(36, 3)).requires_grad_(False)


def _everywhere(graph: Graph, state: Propagated, x: Tensor) -> bool:
    """Whether every value of the network at inputs x (N, ...) lies in its bounds."""
    return all(
        bool(((value >= low) & (value <= high)).all())
        for value, (low, high) in zip(graph.values(x), state.bounds, strict=True)
    )


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_every_value_lies_in_bounds_by_forms_and_in_float32(ahead: bool, fast: bool) -> None:
    for seed in range(4):
        module, shape = (_convolutional(seed), (2, 7, 7)) if seed % 2 else (_dense(6, 40, 30, 4, seed=seed), (6,))
        graph = build(module, shape)
        centre = torch.randn(1, *shape, dtype=torch.float64)
        region = BoxRegion(centre - 0.1, centre + 0.1)
        state = propagate(graph, region, ahead=ahead, single=lowered(graph) if fast else None)
        x = region.low + torch.rand(500, *shape, dtype=torch.float64) * 0.2
        corners = torch.where(torch.rand(500, *shape) < 0.5, region.low, region.high)
        assert _everywhere(graph, state, torch.cat([x, corners]))


def test_forms_tighten_intervals_and_float32_comes_close_to_float64() -> None:
    graph = build(_convolutional(), (2, 7, 7))
    centre = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    region = BoxRegion(centre - 0.1, centre + 0.1)

    def width(state: Propagated) -> float:
        return float((state.bounds[graph.output][1] - state.bounds[graph.output][0]).sum())

    plain, forms = propagate(graph, region, rows=0), propagate(graph, region, rows=0, ahead=True)
    assert width(forms) < 0.9 * width(plain)
    single = lowered(graph)
    assert single is not None
    wide = propagate(graph, region)
    narrow = propagate(single, BoxRegion(*outward(region.low, region.high)))
    for i in graph.bounded:  # float32 claims no more than float64 does, and not much less
        spread = wide.bounds[i][1] - wide.bounds[i][0]
        assert bool((narrow.bounds[i][0].double() <= wide.bounds[i][0] + 1e-9).all())
        assert bool(((wide.bounds[i][0] - narrow.bounds[i][0].double()) <= 0.01 * spread.max()).all())


def test_weights_that_float32_cannot_hold_are_not_lowered() -> None:
    module = _dense(3, 5, 2).double()
    module[0].weight.data += 1e-12
    assert lowered(build(module, (3,))) is None
    assert lowered(build(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), (3,))) is None


def _wrong(seed: int, free: bool = False) -> bool:
    """Whether a bound on a nasty network that rests on float32 and on forms is broken by some way to run it.

    `free`: in float32 alone, and the network's own rounding is not charged.
    """
    network = generate(seed)
    low, high = box(network, seed)
    x = points(low, high, seed)
    try:
        graph = build(network.module(), (network.length,))
    except Unprovable:
        return False
    single = lowered(graph)
    assert single is not None
    C = torch.cat([torch.eye(graph.classes), -torch.eye(graph.classes)]).double()[None]
    if free:
        single = replace(single, arithmetic=replace(single.arithmetic, eps=0.0, tiny=0.0))
        state = propagate(single, BoxRegion(low.float(), high.float()))
        lower = backward(state, graph.output, C.float()).lower.double()
    else:
        state = propagate(graph, BoxRegion(low, high), ahead=True, single=single)
        lower = backward(state, graph.output, C).lower
    with np.errstate(over="ignore"):
        seen = [y.astype(np.float64) for y in runs(network, x.astype(np.float32))]
    exact = [network.exact([Fraction(v) for v in row]) for row in x.tolist()]
    for bound, row in zip(lower[0].tolist(), C[0].tolist(), strict=True):
        if math.isnan(bound) or bound == -math.inf:
            continue
        j = max(range(len(row)), key=lambda k: abs(row[k]))
        sign = int(row[j])
        if bound == math.inf or any((sign * y[:, j] < bound).any() for y in seen):
            return True
        if any(sign * y[j] < Fraction(bound) for y in exact):
            return True
    return False


def test_many_outputs_of_few_inputs_are_summed_in_float64_and_charged_as_little() -> None:
    """3,000 coefficients for each of 4 inputs: a sum in float32 may be off by 3,000 roundings, this one by one."""
    torch.manual_seed(0)
    dense = lowered(build(nn.Linear(4, 3000), (4,)))
    assert dense is not None
    (op,) = (node.op for node in dense.nodes if isinstance(node.op, Dense))
    A = torch.randn(1, 2, 3000)
    terms = op.terms(torch.ones(1, 4))
    assert terms.back == 1
    exact = A.double() @ op.weight.double()
    size = A.abs().double() @ op.weight.abs().double()
    assert bool(((op.transpose(A)[0].double() - exact).abs() <= size * operators.gamma(1, torch.float32)).all())


def test_no_bound_on_a_nasty_network_by_float32_and_forms_is_wrong() -> None:
    assert [seed for seed in range(300) if _wrong(seed)] == []


def test_float32_without_its_charges_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operators, rarely.bounds.graph, rarely.bounds.backward, rarely.bounds.region):
        monkeypatch.setattr(module, "gamma", lambda n, dtype: 0.0)
    assert any(_wrong(seed, free=True) for seed in range(300))


def _root(module: nn.Module, region: Region) -> Root:
    graph = build(module, region.low.shape[1:])
    outputs = [(torch.eye(graph.classes)[i : i + 1] - torch.eye(graph.classes)[:1], torch.zeros(1)) for i in (1, 2)]
    spec = spec_of(outputs, graph.classes, 1, region.low.device)
    state = bounds_at_root(graph, region, math.inf, steps=4)
    return Root(state, spec, lowered(graph))


def _around(root: Root, x: Tensor, count: int) -> Domains:
    """Domains that hold x (1, ...): splits of random ReLUs, on the side where x is."""
    values = root.graph.values(x)
    inputs = root.gathered({i: values[root.source(i)] for i in root.graph.relus})
    domains = root.first()
    for place in torch.randperm(inputs.shape[1])[:count].tolist():
        both = children(replace(domains, cuts=torch.full_like(domains.cuts, place)))
        domains = both.pick(slice(0 if float(inputs[0, place]) >= 0 else 1, None, 2))
    return domains


@pytest.mark.parametrize("compact", [False, True])
def test_a_domain_bounds_what_happens_in_it(compact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compact:
        monkeypatch.setattr(domains_of, "_DENSE", 0)
    torch.manual_seed(1)
    centre = torch.randn(1, 6, dtype=torch.float64)
    region = BoxRegion(centre - 0.4, centre + 0.4)
    root = _root(_dense(6, 20, 20, 3), region)
    assert (root.compact is not None) is compact
    closed = 0
    for _ in range(40):
        x = region.low + torch.rand(1, 6, dtype=torch.float64) * 0.8
        found, at = root.improved(_around(root, x, 8), 6)
        rows = root.spec.C[0] @ root.graph(x)[0] + root.spec.d[0]  # one for each polytope, and domain
        assert bool((found.lower <= rows).all())
        assert bool((found.real <= rows).all())
        assert not bool(found.empty.any())
        assert at.shape == (2, 6)
        assert bool(((at >= region.low) & (at <= region.high)).all())
        closed += int((found.lower > 0).sum())
    assert closed > 0  # such bounds say something


def test_bounds_that_the_root_keeps_are_those_of_every_domain() -> None:
    centre = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    region = BoxRegion(centre - 0.4, centre + 0.4)
    root = _root(_dense(6, 20, 20, 3), region)
    both = children(replace(root.first(), cuts=torch.zeros(2, dtype=torch.long)))
    found, _ = root.improved(both, 4)
    assert torch.equal(found.low, both.low)
    assert torch.equal(found.high, both.high)
    low, high = root.first().low[:1], root.first().high[:1]
    assert bool((found.low >= low).all())
    assert bool((found.high <= high).all())


def _regions(shape: tuple[int, ...], seed: int) -> list[Region]:
    centre = torch.randn(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [BoxRegion(centre - 0.3, centre + 0.3), BallRegion(centre, torch.full((1,), 0.7, dtype=torch.float64))]


@pytest.mark.parametrize("seed", range(4))
def test_a_compact_network_bounds_as_the_graph_does(seed: int) -> None:
    module, shape = (_convolutional(seed), (2, 7, 7)) if seed % 2 else (_dense(6, 20, 20, 3, seed=seed), (6,))
    for region in _regions(shape, seed):
        root = _root(module, region)
        domains = _around(root, region.low + (region.high - region.low) / 3, 5)
        domains = replace(domains, slopes=torch.rand_like(domains.slopes), multipliers=torch.rand_like(domains.slopes))
        assert root.compact is not None
        lower, met, A = root._finder(domains)(domains)
        exact = root._by_graph(root._state(domains), domains)
        for found, known in zip((lower, met, A), exact, strict=True):
            assert bool(((found - known).abs() <= 1e-4 * (1 + known.abs())).all())


@pytest.mark.parametrize("seed", range(4))
def test_refined_bounds_hold_and_are_tighter(seed: int) -> None:
    module, shape = (_convolutional(seed), (2, 7, 7)) if seed % 2 else (_dense(6, 30, 30, 30, 3, seed=seed), (6,))
    region = _regions(shape, seed)[0]
    root = _root(module, region)
    new = _refined(root, region, 8, 4, math.inf)
    x = region.low + torch.rand(2000, *shape, dtype=torch.float64) * (region.high - region.low)
    corners = torch.where(torch.rand(2000, *shape) < 0.5, region.low, region.high)
    assert _everywhere(root.graph, new.state, torch.cat([x, corners]))

    def width(one: Root) -> float:
        last = one.source(max(one.graph.relus))
        return float((one.state.bounds[last][1] - one.state.bounds[last][0]).sum())

    assert width(new) < 0.97 * width(root)


def test_nothing_is_refined_where_no_relu_comes_before() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(False)
    region = _regions((6,), 0)[0]
    root = _root(module, region)
    assert _refined(root, region, 8, 4, math.inf) is root


def _misrefined(seed: int) -> bool:
    """Whether a refined bound on the outputs of a nasty network is broken by some way to run it."""
    network = generate(seed)
    low, high = box(network, seed)
    try:
        graph = build(network.module(), (network.length,))
    except Unprovable:
        return False
    region = BoxRegion(low, high)
    spec = spec_of([(torch.eye(graph.classes)[:1], torch.zeros(1))], graph.classes, 1, low.device)
    root = _refined(Root(bounds_at_root(graph, region, math.inf), spec), region, 6, 2, math.inf)
    C = torch.cat([torch.eye(graph.classes), -torch.eye(graph.classes)]).double()[None]
    ends = backward(root.state, graph.output, C).lower[0].chunk(2)
    least, most = ends[0].numpy(), -ends[1].numpy()  # what is not a number is neither above nor below
    x = points(low, high, seed)
    with np.errstate(over="ignore", invalid="ignore"):
        seen = [y.astype(np.float64) for y in runs(network, x.astype(np.float32))]
        return any(bool(((y < least) | (y > most)).any()) for y in seen)


def test_no_refined_bound_on_a_nasty_network_is_wrong() -> None:
    assert [seed for seed in range(150) if _misrefined(seed)] == []


def test_bounds_are_refined_where_a_tree_does_not_close_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep networks, whose layers widen what those before them miss: a clock says when, so every tree ends at once."""
    asked: list[int] = []
    real = relusplit.refined

    def told(*args: object) -> object:
        asked.append(1)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(relusplit, "refined", told)
    module = _dense(40, 40, 40, 40, 40, 1, seed=3)
    low, high = torch.full((1, 40), -0.1), torch.full((1, 40), 0.1)
    values = module(low + torch.rand(4000, 40) * 0.2)
    most = float(values.max() + 10 * (values.max() - values.min()))
    (proof,) = decide_boxes(module, low, high, [(torch.tensor([[-1.0]]), torch.tensor([-most]))], 60.0)
    assert proof.status == "proved"
    assert asked


def test_relus_are_split_where_few_inputs_feed_wide_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("decide_by_both", "decide_by_inputs"):
        real = getattr(decide, name)

        def told(*args: object, _name: str = name, _real: object = real, **named: object) -> object:
            asked.append(_name)
            return _real(*args, **named)  # type: ignore[operator]

        monkeypatch.setattr(decide, name, told)
    never = [(-torch.eye(2)[:1], torch.tensor([-1e3]))]  # output 0 is at least 1000
    low, high = torch.full((1, 3), -0.1), torch.full((1, 3), 0.1)
    for width, first in ((1100, "decide_by_both"), (20, "decide_by_inputs")):
        asked.clear()
        (proof,) = decide_boxes(_dense(3, width, 2), low, high, never, 60.0)
        assert proof.status == "proved"
        assert asked == [first]
    asked.clear()
    decide_boxes(_dense(3, 1100, 2), low, high, never, math.inf, boxes=4)  # where boxes limit the work, no clock does
    assert asked == ["decide_by_inputs"]


@pytest.mark.parametrize("seed", range(4))
def test_boxes_and_relus_split_together_decide_what_a_grid_knows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time for ReLUs in a box before it is halved, so that verdicts of parts are put together."""
    monkeypatch.setattr(bothsplit, "_SHORT", 0.0)
    monkeypatch.setattr(bothsplit, "_LONG", 0.0)
    module = _dense(2, 24, 24, 1, seed=seed)
    graph = build(module, (2,))
    low, high = torch.full((1, 2), -1.0, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    axis = torch.linspace(-1, 1, 401)
    values = module(torch.cartesian_prod(axis, axis))
    most, width = float(values.max()), float(values.max() - values.min())

    def at_least(t: float) -> Ledger:
        spec = spec_of([(torch.tensor([[-1.0]]), torch.tensor([-t]))], 1, 1, low.device)
        ledger = Ledger(module, torch.float32, BoxRegion(low, high), spec, graph.arithmetic.name)
        assert bothsplit.decide_by_both(graph, ledger, math.inf) == ""
        return ledger

    (safe,) = at_least(most + 0.02 * width).finish("")
    assert safe.status == "proved"
    assert safe.arithmetic == "float32"
    assert -0.02 * width - 1e-5 <= safe.bound < 0, "the bound holds for the largest value that was seen"
    assert safe.boxes > 1, "it took more than one box"
    (violated,) = at_least(most - 0.02 * width).finish("")
    assert violated.status == "violated"
    assert violated.witness is not None
    assert float(module(violated.witness.unsqueeze(0))) >= most - 0.02 * width


def test_halves_start_from_what_is_known_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of a half are no wider than those of the box that it is a half of."""
    seen: list[Propagated] = []

    def told(*args: object, **named: object) -> Propagated:
        seen.append(bounds_at_root(*args, **named))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(bothsplit, "bounds_at_root", told)
    module = _dense(2, 24, 24, 1)
    graph = build(module, (2,))
    low, high = torch.full((1, 2), -1.0, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    top = float(module(torch.rand(2000, 2) * 2 - 1).max())
    spec = spec_of([(torch.tensor([[-1.0]]), torch.tensor([-top - 0.01]))], 1, 1, low.device)
    ledger = Ledger(module, torch.float32, BoxRegion(low, high), spec, graph.arithmetic.name)
    for name in ("_SHORT", "_LONG"):
        monkeypatch.setattr(bothsplit, name, 0.0)
    bothsplit.decide_by_both(graph, ledger, math.inf)
    assert len(seen) > 2
    for half in seen[1:3]:
        for (a, b), (c, d) in zip(half.bounds, seen[0].bounds, strict=True):
            assert bool((a >= c).all() & (b <= d).all())


def test_what_an_attempt_left_says_nothing_of_another_problem() -> None:
    """Boxes that are left of a problem nearly proved, offered to one that is violated nearly everywhere."""
    net = _dense(2, 8, 8, 1, seed=3)
    low, high = -torch.ones(1, 2), torch.ones(1, 2)
    top = float(net(torch.rand(5000, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1).max())
    hard = [(-torch.ones(1, 1), torch.tensor([-top - 0.002]))]
    easy = [(-torch.ones(1, 1), torch.tensor([-top + 0.5]))]
    begun = decide_boxes(net, low, high, hard, math.inf, boxes=1)
    assert begun[0].rest is not None
    assert decide_boxes(net, low, high, hard, math.inf, boxes=10_000, earlier=begun)[0].status == "proved"
    assert decide_boxes(net, low, high, easy, math.inf, boxes=10_000, earlier=begun)[0].status == "violated"
    wider = decide_boxes(net, 3 * low, 3 * high, hard, math.inf, boxes=10_000, earlier=begun)
    assert wider[0].status == decide_boxes(net, 3 * low, 3 * high, hard, math.inf, boxes=10_000)[0].status


def test_a_tree_that_pauses_searches_nothing_twice() -> None:
    net = _dense(24, 22, 20, 1, seed=3)
    graph, high = build(net, (24,)), torch.ones(1, 24).double()
    x = torch.rand(2000, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    bound = float(decide_boxes(net, -high, high, [(-torch.ones(1, 1), torch.tensor([-1e9]))], 10.0)[0].bound) + 1e9
    wanted = torch.tensor([-float(net(x).max()) - 0.6 * (bound - float(net(x).max()))])

    def tree() -> tuple[Ledger, relusplit._Tree]:
        spec = spec_of([(-torch.ones(1, 1), wanted)], 1, 1, torch.device("cpu"))
        ledger = Ledger(net, torch.float32, BoxRegion(-high, high), spec, "float32")
        root = relusplit._first_root(graph, ledger, 0, time.monotonic() + 1e6, 0.0, 2, None)
        return ledger, relusplit._Tree(root, ledger, 0, 2)

    ledger, whole = tree()
    assert whole.search(math.inf, math.inf) == ""
    paused, halting = tree()
    assert halting.search(0.0, math.inf) is None
    assert halting.search(0.0, math.inf) is None
    assert halting.search(math.inf, math.inf) == ""
    assert ledger.proofs[0].status == paused.proofs[0].status
    assert whole.bounded == halting.bounded > 2
