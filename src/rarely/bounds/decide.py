"""Decide whether an input region holds a violation: proved absent, found and replayed, or unknown."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rarely.bounds.attack import ascend_score, starts
from rarely.bounds.graph import Graph, Unprovable, chunks
from rarely.bounds.inputsplit import decide_by_inputs
from rarely.bounds.region import BallRegion, BoxRegion, Region
from rarely.bounds.relusplit import decide_by_relus
from rarely.bounds.spec import Polytope, Spec, spec_of
from rarely.bounds.threads import one_thread_if_small
from rarely.bounds.trace import build
from rarely.bounds.verdict import Ledger, Verdict
from rarely.core.errors import InputError

LOW_DIMENSION = 20  # up to here input boxes are halved, above it ReLUs are split


def _precision(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    tensors = (t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point())
    anchor = next(tensors, torch.zeros(1))
    return anchor.device, anchor.dtype


def _attack(ledger: Ledger, deadline: float, count: int, steps: int, generator: torch.Generator) -> None:
    """Projected gradient on every open problem, in chunks that share a batch."""
    who = ledger.open.nonzero().squeeze(1)
    entries = ledger.region.low[0].numel()
    size = max(1, 2**22 // (count * max(entries, 64)))
    for part in chunks(len(who), size):
        if time.monotonic() > deadline:
            return
        problem = who[part]
        region, spec = ledger.region.pick(problem), ledger.spec.pick(problem)
        x = starts(region, count, generator)
        x, score = ascend_score(ledger.network, ledger.dtype, region, spec, x, steps)
        best, where = score.max(1)
        ledger.offer(problem, x[torch.arange(len(problem), device=x.device), where], best)


def decide(
    module: nn.Module,
    region: Region,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    graph: Graph | None = None,
    generator: torch.Generator | None = None,
    boxes: int | None = None,
) -> list[Verdict]:
    """Decide a batch of problems that share one network; see `decide_boxes`."""
    deadline = time.monotonic() + timeout
    generator = generator or torch.Generator().manual_seed(0)
    device, dtype = _precision(module)
    reason = ""
    if graph is None:
        try:
            graph = build(module, region.low.shape[1:])
        except Unprovable as error:
            reason = str(error)
    spec = _spec(module, graph, region, outputs, device, dtype)
    ledger = Ledger(module, dtype, region, spec)
    small = region.low[0].numel() <= LOW_DIMENSION
    with one_thread_if_small(graph):
        _attack(ledger, deadline, 16 if small else 4 * max(8, spec.count), 10 if small else 20, generator)
        if graph is None:
            return ledger.finish(f"no proof: {reason}")
        if isinstance(region, BallRegion) or (graph.relus and not small):
            reason = decide_by_relus(graph, ledger, deadline)
        if isinstance(region, BoxRegion) and bool(ledger.open.any()):
            reason = decide_by_inputs(graph, ledger, deadline, boxes=boxes)
        if not small and bool(ledger.open.any()):
            _attack(ledger, deadline, 16 * max(8, spec.count), 50, generator)
    return ledger.finish(reason)


@torch.no_grad()
def _spec(
    module: nn.Module,
    graph: Graph | None,
    region: Region,
    outputs: Sequence[Polytope],
    device: torch.device,
    dtype: torch.dtype,
) -> Spec:
    batch = region.low.shape[0]
    if region.low.device != device:
        raise InputError(f"the region is on {region.low.device} but the network on {device}")
    classes = graph.classes if graph is not None else module(region.low[:1].to(dtype)).flatten(1).shape[1]
    return spec_of(outputs, classes, batch, device)


def decide_boxes(
    module: nn.Module,
    low: Tensor,
    high: Tensor,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    graph: Graph | None = None,
    generator: torch.Generator | None = None,
    boxes: int | None = None,
) -> list[Verdict]:
    """Is there a violation in each box low <= x <= high, both (B, *event)?

    A violation is an x whose output lies in ANY polytope {y : A y <= b} of `outputs`; A is (m, k) for all problems or
    (B, m, k), b likewise. The network is `module`, in evaluation mode, batch first; outputs are taken flat.
    "proved" is a statement about real arithmetic over the whole box, "violated" comes with a point in the network's
    own precision that the network itself was run on. A network that cannot be bounded is only attacked. `boxes` ends
    the halving of inputs by its work, on average per problem, so that with an infinite timeout no clock has a say.
    """
    if low.shape != high.shape or low.ndim < 2 or not bool((low <= high).all()):
        raise InputError("boxes need low <= high of equal shape (B, *event)")
    region = BoxRegion(low.to(torch.float64), high.to(torch.float64))
    return decide(module, region, outputs, timeout, graph=graph, generator=generator, boxes=boxes)


def decide_balls(
    module: nn.Module,
    centre: Tensor,
    radius: Tensor,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    graph: Graph | None = None,
    generator: torch.Generator | None = None,
) -> list[Verdict]:
    """As `decide_boxes`, over l2 balls: centre (B, *event), radius (B,)."""
    if centre.ndim < 2 or radius.shape != centre.shape[:1] or not bool((radius >= 0).all()):
        raise InputError("balls need a centre (B, *event) and radii (B,) that are not negative")
    region = BallRegion(centre.to(torch.float64), radius.to(torch.float64))
    return decide(module, region, outputs, timeout, graph=graph, generator=generator)
