"""Proofs about networks that floating point treats badly, against rational numbers and all ways to run them."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from nasty import Nasty, box, generate, points, runs

from rarely.bounds import BoxRegion, Unprovable, build, decide_boxes, linear_bounds
from rarely.bounds.graph import Graph
from rarely.bounds.ledger import Ledger
from rarely.bounds.operators import Arithmetic
from rarely.bounds.relusplit import decide_by_relus
from rarely.bounds.spec import spec_of
from rarely.core.evidence import REAL

FEW, MANY = range(200), range(200, 2400)


def _wrong(network: Nasty, seed: int) -> list[str]:
    """What a proof or a bound says that some way to evaluate the network contradicts."""
    low, high = box(network, seed)
    x = points(low, high, seed)
    with np.errstate(over="ignore"):
        seen = [y.astype(np.float64) for y in runs(network, x.astype(np.float32))]
    exact = [network.exact([Fraction(v) for v in row]) for row in x.tolist()]
    wrong = []
    try:
        graph = build(network.module(), (network.length,))
    except Unprovable:
        return []
    k = graph.classes
    C = torch.cat([torch.eye(k), -torch.eye(k)]).double()
    found = linear_bounds(graph, BoxRegion(low, high), C[None], steps=2)
    for r, row in enumerate(C.tolist()):
        j, sign = r % k, row[r % k]
        run, real = float(found.lower[0, r]), float(found.real[0, r])
        wrong += [f"bound {r} as it runs" for y in seen if not _holds(run, sign * y[:, j])]
        least = min(int(sign) * y[j] for y in exact)
        for kind, bound in (("real", real), ("runs", run)):
            if bound == math.inf or (math.isfinite(bound) and Fraction(bound) > least):
                wrong.append(f"bound {r}, {kind}, in rational numbers")
    return wrong + _wrong_verdicts(network, graph, BoxRegion(low, high), seen, exact)


def _holds(bound: float, values: np.ndarray) -> bool:
    """A bound that is no number, or minus infinity, says nothing."""
    return math.isnan(bound) or bound == -math.inf or bool((values >= bound).all())


def _wrong_verdicts(
    network: Nasty, graph: Graph, box: BoxRegion, seen: list[np.ndarray], exact: list[list[Fraction]]
) -> list[str]:
    """Is output 0 ever as large as some thresholds near what was seen? The verdicts against what was seen."""
    values = [v for y in seen for v in y[:, 0].tolist()] + [_float(y[0]) for y in exact]
    top = max((v for v in values if math.isfinite(v)), default=math.inf)
    asked = [top, math.nextafter(top, math.inf), top + 1e-5 * abs(top) + 1e-41]
    asked = [threshold for threshold in asked if math.isfinite(threshold)]
    if not asked:
        return []
    A = torch.zeros(len(asked), 1, graph.classes, dtype=torch.float64)
    A[:, 0, 0] = -1.0
    outputs = [(A, -torch.tensor(asked, dtype=torch.float64)[:, None])]
    region = box.pick(torch.zeros(len(asked), dtype=torch.long))
    module = network.module()
    proofs = decide_boxes(module, region.low, region.high, outputs, math.inf, graph=graph, boxes=8)
    if sum(math.prod(graph.nodes[i].shape) for i in graph.relus) <= 6:  # then all splits end soon
        ledger = Ledger(module, torch.float32, region, spec_of(outputs, graph.classes, len(asked), A.device), "float32")
        told = decide_by_relus(graph, ledger, math.inf, steps=2)
        proofs += ledger.finish(told)
    wrong = []
    for threshold, proof in zip(asked * 2, proofs, strict=False):
        if proof.status == "violated":
            assert proof.witness is not None
            x = proof.witness[None].numpy().repeat(len(asked), 0)  # batches of one and of several may round apart
            reached = max(float(y[:, 0].max()) for y in (*runs(network, x), *runs(network, x[:1])))
            inside = (proof.witness >= box.low[0].float()) & (proof.witness <= box.high[0].float())
            wrong += [] if reached >= threshold and bool(inside.all()) else ["a witness that is none"]
        elif proof.status == "proved":
            if max(y[0] for y in exact) >= Fraction(threshold):
                wrong.append(f"proved ({proof.arithmetic}) and false in rational numbers")
            if proof.arithmetic != REAL and any((~(y[:, 0] < threshold)).any() for y in seen):
                wrong.append("proved and false as it runs")
    return wrong


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


@pytest.mark.parametrize("part", range(0, 200, 20))
def test_no_proof_about_a_nasty_network_is_wrong(part):
    for seed in FEW[part : part + 20]:
        assert _wrong(generate(seed), seed) == [], seed


@pytest.mark.slow
def test_no_proof_about_two_thousand_nasty_networks_is_wrong():
    for seed in MANY:
        assert _wrong(generate(seed), seed) == [], seed


def test_the_comparison_notices_bounds_that_are_not_charged(monkeypatch):
    """The same networks, and bounds for which the network computes in real numbers."""
    of = Arithmetic.of
    monkeypatch.setattr(Arithmetic, "of", lambda dtype: dataclasses.replace(of(dtype), eps=0.0, tiny=0.0))
    caught = sum(bool(_wrong(generate(seed), seed)) for seed in range(60))
    assert caught >= 10
