"""Decide whether an input region holds a violation: proved absent, met and replayed, or unknown."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rarely.bounds.bothsplit import decide_by_both
from rarely.bounds.graph import SMALL, Graph, Unprovable, one_thread_if_small
from rarely.bounds.inputsplit import decide_by_inputs
from rarely.bounds.ledger import Ledger, Proof
from rarely.bounds.region import BallRegion, BoxRegion, Region
from rarely.bounds.relusplit import decide_by_relus
from rarely.bounds.spec import Polytope, spec_of
from rarely.bounds.trace import build
from rarely.core.errors import InputError
from rarely.core.execution import Execution
from rarely.core.stacking import place
from rarely.core.thresholds import HALVED


def decide(
    module: nn.Module,
    region: Region,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    graph: Graph | None = None,
    boxes: int | None = None,
    open_boxes: float = math.inf,
    earlier: Sequence[Proof] = (),
) -> list[Proof]:
    """Decide a batch of problems that share one network; see `decide_boxes`."""
    deadline, here = time.monotonic() + timeout, region.low.device
    anchor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), torch.zeros(1))
    try:
        if graph is None:
            graph = place(build(module, region.low.shape[1:], (region.low[0], region.high[0])), here, torch.float64)
    except Unprovable as reason:
        return [Proof("unknown", math.inf, 0, reason=f"no proof: {reason}")] * len(region.low)

    def run(x: Tensor) -> Tensor:
        y: Tensor = module(x.to(anchor.device))
        return y.to(here)

    spec = spec_of(outputs, graph.classes, len(region.low), here)
    ledger = Ledger(run, anchor.dtype, region, spec, graph.arithmetic.name)
    if earlier:
        ledger.rests = [place(proof.rest, here, torch.float64) for proof in earlier]
    few, told = region.low[0].numel() <= HALVED, ""
    # A GPU may be set to multiply float32 with ten bits, which no charge covers.
    with one_thread_if_small(graph), Execution().running():
        if isinstance(region, BallRegion) or (graph.relus and not few):
            told = decide_by_relus(graph, ledger, deadline)
        elif graph.relus and graph.widest > SMALL and boxes is None:
            told = decide_by_both(graph, ledger, deadline)
        if isinstance(region, BoxRegion) and bool(ledger.todo.any()):
            told = decide_by_inputs(graph, ledger, deadline, boxes=boxes, open_boxes=open_boxes)
    return ledger.finish(told)


def decide_boxes(
    module: nn.Module,
    low: Tensor,
    high: Tensor,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    graph: Graph | None = None,
    boxes: int | None = None,
    open_boxes: float = math.inf,
    earlier: Sequence[Proof] = (),
) -> list[Proof]:
    """Is there a violation in each box low <= x <= high, both (B, *event)?

    A violation is an x whose output lies in ANY polytope {y : A y <= b} of `outputs`; A is (m, k) for all problems or
    (B, m, k), b likewise. The network is `module`, in evaluation mode, batch first; outputs are taken flat. It runs
    where it is, and bounds are computed where the boxes are, with its `graph` there.
    "proved" is a statement about the whole box, for the network as it runs in the arithmetic that the proof names or,
    where that is "real", in real arithmetic only. "violated" comes with a point met on the way, in the network's own
    precision, that the network itself was run on; `rarely.verify` looks for one first. `boxes` ends
    the halving of inputs by its work, on average per problem, so that with an infinite timeout no clock has a say.
    `open_boxes` ends it as soon as so many are open: `CROWDED`. `earlier`: what was said of the same problems before;
    the halving of inputs goes on from there.
    """
    if low.shape != high.shape or low.ndim < 2 or not bool((low <= high).all()):
        raise InputError("boxes need low <= high of equal shape (B, *event)")
    region = BoxRegion(low.to(torch.float64), high.to(torch.float64))
    return decide(module, region, outputs, timeout, graph=graph, boxes=boxes, open_boxes=open_boxes, earlier=earlier)


def decide_balls(
    module: nn.Module,
    centre: Tensor,
    radius: Tensor,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    graph: Graph | None = None,
) -> list[Proof]:
    """As `decide_boxes`, over l2 balls: centre (B, *event), radius (B,)."""
    if centre.ndim < 2 or radius.shape != centre.shape[:1] or not bool((radius >= 0).all()):
        raise InputError("balls need a centre (B, *event) and radii (B,) that are not negative")
    region = BallRegion(centre.to(torch.float64), radius.to(torch.float64))
    return decide(module, region, outputs, timeout, graph=graph)
