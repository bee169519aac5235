"""Rigorous bounds on the probability of violation, by branch and bound over boxes of exact mass.

Each box is bounded by CROWN from both sides: linear functions over and under the score. A violation needs the upper
one to be >= 0 and follows from the lower one being >= 0, and the mass of a box cut by a plane is known, so a box
contributes an interval that closes with the square of its width rather than with the width. Boxes with the largest
intervals are halved next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rarely.bounds.backward import backward
from rarely.bounds.crown import propagate
from rarely.bounds.graph import Graph, Unprovable, one_thread_if_small
from rarely.bounds.inputsplit import cut_scores, halves
from rarely.bounds.measure import Measure
from rarely.bounds.region import BoxRegion
from rarely.bounds.spec import Polytope, Spec, spec_of
from rarely.bounds.trace import build
from rarely.bounds.volume import log_or_ninf
from rarely.core.errors import InputError

_SUM = 1e-9  # relative margin for sums over up to millions of boxes in float64


@dataclass(frozen=True)
class ProbabilityBounds:
    """log_lower <= log P(violation) <= log_upper, in real arithmetic; natural logarithms."""

    log_lower: float
    log_upper: float
    boxes: int  # bounded so far
    seconds: float

    @property
    def gap(self) -> float:
        return self.log_upper - self.log_lower


class _Pool:
    """Open boxes; halving writes one half over its parent and appends the other, in storage that doubles."""

    def __init__(self, n: int, planes: int, device: torch.device) -> None:
        self.n, self.count = n, 0
        # Columns: low (n), high (n), lower, upper, axis, and `planes` times a slope (n) and a constant.
        self.data = torch.empty(1024, 2 * n + 3 + planes * (n + 1), dtype=torch.float64, device=device)

    @property
    def rows(self) -> Tensor:
        return self.data[: self.count]

    @property
    def lower(self) -> Tensor:
        return self.rows[:, 2 * self.n]

    @property
    def upper(self) -> Tensor:
        return self.rows[:, 2 * self.n + 1]

    def append(self, rows: Tensor) -> None:
        while self.count + len(rows) > len(self.data):
            self.data = torch.cat([self.data, torch.empty_like(self.data)])
        self.data[self.count : self.count + len(rows)] = rows
        self.count += len(rows)

    def totals(self) -> tuple[float, float]:
        return float(self.lower.sum()) * (1 - _SUM), float(self.upper.sum()) * (1 + _SUM)

    def halve(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The slots of the k boxes with the widest contributions, and both halves of each, side by side."""
        gap = self.upper - self.lower
        slots = gap.topk(min(k, self.count)).indices
        slots = slots[gap[slots] > 0]
        chosen = self.rows[slots]
        axis = chosen[:, 2 * self.n + 2].long()
        low, high = halves(chosen[:, : self.n], chosen[:, self.n : 2 * self.n], axis)
        return slots, low, high


@dataclass(frozen=True)
class Cuts:
    """Where violations may be: of each box the parts {x : A x + b >= 0} above one of its planes."""

    low: Tensor  # (K, n)
    high: Tensor
    A: Tensor  # (K, P, n)
    b: Tensor  # (K, P)


@torch.no_grad()
def _contribution(
    graph: Graph, law: Measure, spec: Spec, low: Tensor, high: Tensor, deadline: float, planes: bool
) -> Tensor:
    """Rows of the pool: a box, bounds on its violating mass, the coordinate to halve it along, and its planes."""
    shape = graph.input_shape
    box = BoxRegion(low.reshape(-1, *shape), high.reshape(-1, *shape))
    state = propagate(graph, box, lines=True, deadline=deadline)
    seen: dict[int, Tensor] = {}
    both = torch.cat([spec.C, -spec.C], 1)
    shift = torch.cat([spec.d, -spec.d], 1)
    bound = backward(state, graph.output, both, seen=seen).shifted(shift)
    b = bound.b
    m, size = spec.C.shape[1], low.shape[0]
    least, most = law.mass(low, high)

    def mass_above(A: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        rows = A.shape[1]
        wide = (t.unsqueeze(1).expand(-1, rows, -1).flatten(0, 1) for t in (low, high))
        floor, ceil = law.above(A.flatten(0, 1), c.flatten(), *wide)
        return floor.reshape(size, rows), ceil.reshape(size, rows)

    # Rows: C y + d >= A x + b, so the row's score -(C y + d) is at most -(A x + b), and the other way round.
    over = mass_above(-bound.A[:, :m], -b[:, :m])[1]
    columns = [_planes(spec, -bound.A[:, :m], -b[:, :m], over, most)] if planes else []
    under = mass_above(bound.A[:, m:], b[:, m:])[0]
    upper = -spec.by_polytope(-over)
    upper = torch.minimum(upper.sum(1) * (1 + _SUM), most)
    upper = torch.where(upper.isnan(), most, upper)
    lower = torch.zeros_like(least)
    for p in range(spec.count):
        rows = spec.owner == p
        if int(rows.sum()) == 1:
            part = under[:, rows].squeeze(1)
        else:
            # The union bound on the rows that may fail.
            failing = mass_above(-bound.A[:, m:][:, rows], -b[:, m:][:, rows])[1]
            part = least - failing.sum(1) * (1 + _SUM)
        lower = torch.maximum(lower, part)
    cuts = cut_scores(state, bound.A, seen, slope=1e-3 if low.shape[1] <= 10 else 1.0)
    axis = torch.where(high - low > 0, cuts, -torch.inf).argmax(1)
    lower = torch.minimum(lower, upper).nan_to_num(0.0).clamp(min=0)
    return torch.cat([low, high, torch.stack([lower, upper, axis.to(torch.float64)], 1), *columns], 1)


def _planes(spec: Spec, A: Tensor, b: Tensor, over: Tensor, most: Tensor) -> Tensor:
    """For each polytope the row that cuts most away, (B, P (n + 1)): slope and constant.

    Where the parts together are no smaller than the box, the first plane lies below all of it and the others above.
    """
    each = [(spec.owner == p).nonzero().squeeze(1) for p in range(spec.count)]
    best = torch.stack([rows[over[:, rows].argmin(1)] for rows in each], 1)  # (B, P)
    slopes, constants = A.gather(1, best.unsqueeze(2).expand(-1, -1, A.shape[2])), b.gather(1, best)
    least = over.gather(1, best).sum(1)
    whole = ~(least < most)  # NaN, too
    always = torch.tensor([0.0] + [-1.0] * (spec.count - 1), dtype=b.dtype, device=b.device)
    slopes = torch.where(whole[:, None, None], 0.0, slopes)
    constants = torch.where(whole[:, None], always, constants)
    return torch.cat([slopes, constants.unsqueeze(2)], 2).flatten(1)


class Search:
    """Branch and bound for P(the output lies in any polytope {A y <= b}), x drawn from `law`.

    `outputs` holds A (m, k) and b (m,). With `planes` it remembers the plane of each box for `cuts`.
    """

    def __init__(
        self, law: Measure, outputs: Sequence[Polytope], graph: Graph, *, room: int = 2**20, planes: bool = False
    ) -> None:
        self.law, self.graph, self.planes = law.flat(), graph, planes
        self.frames = self.law.frames()
        device = self.frames[0][0].device
        self.spec = spec_of(outputs, graph.classes, 1, device)
        if self.spec.C.shape[0] != 1:
            raise InputError("probability bounds take one problem at a time")
        self.n = len(self.frames[0][0])
        self._size = max(8, room * (64 if device.type == "cuda" else 1) // (2 * graph.widest * min(graph.widest, 512)))
        self._pool = _Pool(self.n, self.spec.count if planes else 0, device)

    def tighten(self, timeout: float, gap: float, most_boxes: int | None = None) -> Iterator[ProbabilityBounds]:
        """Ever tighter bounds, until they are within `gap`, or time or boxes are spent."""
        begin, floor, ceil, boxes = time.monotonic(), 0.0, 1.0, 0
        pool = self._pool
        for low, high, outside in reversed(self.frames):
            rows = self._bound(low.unsqueeze(0), high.unsqueeze(0), begin + timeout)
            boxes += 1
            ceil = min(ceil, float(rows[0, 2 * self.n + 1]) + outside)
        pool.append(rows)
        while True:
            least, most = pool.totals()
            floor, ceil = max(floor, least), min(ceil, most + outside * (1 + _SUM))
            now = ProbabilityBounds(log_or_ninf(floor), log_or_ninf(ceil), boxes, time.monotonic() - begin)
            yield now
            if ceil <= 0 or now.gap <= gap or time.monotonic() - begin > timeout:
                return
            slots, lows, highs = pool.halve(self._size // 2)
            if not len(slots) or (most_boxes is not None and boxes >= most_boxes):
                return
            rows = self._bound(lows, highs, begin + timeout)
            pool.data[slots] = rows[::2]
            pool.append(rows[1::2])
            boxes += len(rows)

    def _bound(self, low: Tensor, high: Tensor, deadline: float) -> Tensor:
        with one_thread_if_small(self.graph):
            return _contribution(self.graph, self.law, self.spec, low, high, deadline, self.planes)

    def cuts(self) -> Cuts:
        """What is left of the boxes in which violations were not ruled out."""
        n, rows = self.n, self._pool.rows[self._pool.upper > 0]
        planes = rows[:, 2 * n + 3 :].reshape(len(rows), self.spec.count, n + 1)
        return Cuts(rows[:, :n], rows[:, n : 2 * n], planes[..., :n], planes[..., n])


def bracket(
    module: nn.Module,
    law: Measure,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    gap: float = 0.05,
    graph: Graph | None = None,
    room: int = 2**20,
) -> Iterator[ProbabilityBounds]:
    """Ever tighter bounds on P(the output lies in any polytope {A y <= b}), x drawn from `law`.

    `outputs` holds A (m, k) and b (m,). The iterator ends when the logarithms are within `gap`, or after `timeout`
    seconds. It never loosens: each item is at least as tight as the one before. A network that cannot be bounded
    gives one item, 0 <= P <= 1.
    """
    begin = time.monotonic()
    try:
        graph = graph or build(module, law.shape)
    except Unprovable:
        yield ProbabilityBounds(-math.inf, 0.0, 0, time.monotonic() - begin)
        return
    yield from Search(law, outputs, graph, room=room).tighten(timeout, gap)
