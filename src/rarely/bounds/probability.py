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
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from rarely.bounds.backward import backward
from rarely.bounds.boxes import halves
from rarely.bounds.crown import propagate
from rarely.bounds.graph import Graph, Unprovable, chunks, one_thread_if_small
from rarely.bounds.inputsplit import cut_scores
from rarely.bounds.measure import Measure
from rarely.bounds.placing import boxes_at_once
from rarely.bounds.region import BoxRegion
from rarely.bounds.spec import Polytope, Spec, spec_of
from rarely.bounds.trace import build
from rarely.bounds.volume import log_or_ninf
from rarely.core.errors import InputError

_SUM = 1e-9  # relative margin for sums over up to 9 million boxes in float64, n u of the sum in any order


@dataclass(frozen=True)
class ProbabilityBounds:
    """log_lower <= log P(violation) <= log_upper, for the network as it runs; natural logarithms."""

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
        # Columns: owner, low (n), high (n), lower, upper, axis, and `planes` times a slope (n) and a constant.
        self.data = torch.empty(1024, 2 * n + 4 + planes * (n + 1), dtype=torch.float64, device=device)

    @property
    def rows(self) -> Tensor:
        return self.data[: self.count]

    @property
    def owner(self) -> Tensor:
        return self.rows[:, 0].long()

    @property
    def lower(self) -> Tensor:
        return self.rows[:, 2 * self.n + 1]

    @property
    def upper(self) -> Tensor:
        return self.rows[:, 2 * self.n + 2]

    def append(self, rows: Tensor) -> None:
        while self.count + len(rows) > len(self.data):
            self.data = torch.cat([self.data, torch.empty_like(self.data)])
        self.data[self.count : self.count + len(rows)] = rows
        self.count += len(rows)

    def totals(self, problems: int) -> tuple[list[float], list[float]]:
        """Sums of the lower and of the upper bounds of each problem's boxes, rounded outward."""
        # On the CPU, in one order: a GPU adds in another each time.
        owner, bounds = self.owner.cpu(), self.rows[:, 2 * self.n + 1 : 2 * self.n + 3].cpu()
        sums = torch.zeros(problems, 2, dtype=torch.float64).index_add_(0, owner, bounds)
        return (sums[:, 0] * (1 - _SUM)).tolist(), (sums[:, 1] * (1 + _SUM)).tolist()

    def halve(self, k: int, going: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The slots of some boxes, and both halves of each, side by side.

        Of every problem that is `going` (P,) those with the widest contributions, k in all, as many of each.
        """
        gap = torch.where(going[self.owner], self.upper - self.lower, 0.0)
        order = gap.argsort(descending=True)
        order = order[self.owner[order].argsort(stable=True)]  # problem by problem, widest first
        owner = self.owner[order]
        sizes = torch.bincount(owner, minlength=len(going))
        rank = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[owner]
        slots = order[(rank < max(1, k // max(1, int(going.sum())))) & (gap[order] > 0)]
        chosen = self.rows[slots]
        axis = chosen[:, 2 * self.n + 3].long()
        low, high = halves(chosen[:, 1 : self.n + 1], chosen[:, self.n + 1 : 2 * self.n + 1], axis)
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
    """Columns of the pool: a box, bounds on its violating mass, the coordinate to halve it along, and its planes."""
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

    def mass_above(A: Tensor, c: Tensor, upper: bool) -> Tensor:
        rows = A.shape[1]
        wide = (t.repeat_interleave(rows, 0) for t in (low, high))
        laws = _picked(law, torch.arange(size, device=low.device).repeat_interleave(rows))
        return laws.above(A.flatten(0, 1), c.flatten(), *wide, upper=upper).reshape(size, rows)

    # Rows: C y + d >= A x + b, so the row's score -(C y + d) is at most -(A x + b), and the other way round.
    over = mass_above(-bound.A[:, :m], -b[:, :m], True)
    columns = [_planes(spec, -bound.A[:, :m], -b[:, :m], over, most)] if planes else []
    under = mass_above(bound.A[:, m:], b[:, m:], False)
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
            failing = mass_above(-bound.A[:, m:][:, rows], -b[:, m:][:, rows], True)
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


def _picked(law: Measure, index: Tensor) -> Measure:
    """The laws of chosen boxes."""
    rows = {f.name: getattr(law, f.name) for f in fields(law)}  # type: ignore[arg-type]
    return replace(law, **{k: None if v is None else v[index.to(v.device)] for k, v in rows.items()})  # type: ignore[type-var]


class Search:
    """Branch and bound for P(the output lies in any polytope {A y <= b}), of many problems that share a network.

    The inputs of each are drawn from its law; laws are of one kind. `outputs` holds A (m, k) and b (m,) for all of
    them, or (P, m, k) and (P, m). With `planes` it remembers the plane of each box for `cuts`. Boxes live on `device`,
    by default where the laws are.
    """

    def __init__(
        self,
        laws: Sequence[Measure],
        outputs: Sequence[Polytope],
        graph: Graph,
        *,
        planes: bool = False,
        device: torch.device | None = None,
    ) -> None:
        flat = [law.flat() for law in laws]
        self.graph, self.planes, self.problems = graph, planes, len(flat)
        self.frames = [law.frames() for law in flat]
        first: Any = flat[0]
        names = [f.name for f in fields(first) if getattr(first, f.name) is not None]
        low = self.frames[0][0][0]
        self.device, self.n = device or low.device, len(low)
        stacked = {name: torch.stack([getattr(law, name) for law in flat]).to(self.device) for name in names}
        self.laws = replace(first, **stacked)
        self.spec = spec_of(outputs, graph.classes, self.problems, self.device)
        self._size = boxes_at_once(graph, low.to(self.device))  # laws may have stayed behind
        self._pool = _Pool(self.n, self.spec.count if planes else 0, self.device)

    def tighten(self, timeout: float, gap: float, most_boxes: int | None = None) -> Iterator[list[ProbabilityBounds]]:
        """Ever tighter bounds of each problem, until all are within `gap`, or time or boxes (of each) are spent."""
        begin, problems, pool = time.monotonic(), self.problems, self._pool
        floor, ceil, boxes = [0.0] * problems, [1.0] * problems, [0] * problems
        outside = [0.0] * problems
        for depth in range(max(map(len, self.frames)) - 1, -1, -1):
            own = [p for p in range(problems) if depth < len(self.frames[p])]
            low = torch.stack([self.frames[p][depth][0] for p in own]).to(self.device)
            high = torch.stack([self.frames[p][depth][1] for p in own]).to(self.device)
            rows = self._bound(torch.tensor(own, device=self.device), low, high, begin + timeout)
            for p, most in zip(own, rows[:, 2 * self.n + 2].tolist(), strict=True):
                outside[p], boxes[p] = self.frames[p][depth][2], boxes[p] + 1
                ceil[p] = min(ceil[p], most + outside[p])
        pool.append(rows)
        while True:
            least, most_ = pool.totals(problems)
            floor = [max(a, b) for a, b in zip(floor, least, strict=True)]
            ceil = [min(a, b + c * (1 + _SUM)) for a, b, c in zip(ceil, most_, outside, strict=True)]
            seconds = time.monotonic() - begin
            ends = zip(floor, ceil, boxes, strict=True)
            now = [ProbabilityBounds(log_or_ninf(a), log_or_ninf(b), n, seconds) for a, b, n in ends]
            yield now
            spent = [most_boxes is not None and n >= most_boxes for n in boxes]
            going = [b.log_upper > -math.inf and b.gap > gap and not s for b, s in zip(now, spent, strict=True)]
            if not any(going) or seconds > timeout:
                return
            slots, lows, highs = pool.halve(self._size // 2, torch.tensor(going, device=self.device))
            if not len(slots):
                return
            owner = pool.owner[slots].repeat_interleave(2)
            rows = self._bound(owner, lows, highs, begin + timeout)
            pool.data[slots] = rows[::2]
            pool.append(rows[1::2])
            for p, count in enumerate(torch.bincount(owner, minlength=problems).tolist()):
                boxes[p] += count

    def _bound(self, owner: Tensor, low: Tensor, high: Tensor, deadline: float) -> Tensor:
        """Rows of the pool, in pieces that fit."""
        found = []
        with one_thread_if_small(self.graph):
            for piece in chunks(len(owner), self._size):
                law, spec = _picked(self.laws, owner[piece]), self.spec.pick(owner[piece])
                columns = _contribution(self.graph, law, spec, low[piece], high[piece], deadline, self.planes)
                found.append(torch.cat([owner[piece].to(columns.dtype).unsqueeze(1), columns], 1))
        return torch.cat(found)

    def cuts(self) -> list[Cuts]:
        """What is left of each problem's boxes in which violations were not ruled out."""
        n, rows = self.n, self._pool.rows[self._pool.upper > 0]
        owner = rows[:, 0].long()
        rows = rows[owner.argsort(stable=True)]
        planes = rows[:, 2 * n + 4 :].reshape(len(rows), self.spec.count, n + 1)
        every = rows[:, 1 : n + 1], rows[:, n + 1 : 2 * n + 1], planes[..., :n], planes[..., n]
        sizes = torch.bincount(owner, minlength=self.problems).tolist()
        return [Cuts(*own) for own in zip(*(torch.split(part, sizes) for part in every), strict=True)]


def bracket(
    module: nn.Module,
    law: Measure,
    outputs: Sequence[Polytope],
    timeout: float,
    *,
    gap: float = 0.05,
    graph: Graph | None = None,
    most: int | None = None,
) -> Iterator[ProbabilityBounds]:
    """Ever tighter bounds on P(the output lies in any polytope {A y <= b}), x drawn from `law`.

    `outputs` holds A (m, k) and b (m,). The iterator ends when the logarithms are within `gap`, or after `timeout`
    seconds or `most` boxes. It never loosens: each item is at least as tight as the one before. A network that cannot
    be bounded gives one item, 0 <= P <= 1.
    """
    begin = time.monotonic()
    try:
        graph = graph or build(module, law.shape)
    except Unprovable:
        yield ProbabilityBounds(-math.inf, 0.0, 0, time.monotonic() - begin)
        return
    if any(A.ndim != 2 for A, _ in outputs):
        raise InputError("probability bounds take one problem at a time")
    for (bounds,) in Search([law], outputs, graph).tighten(timeout, gap, most):
        yield bounds
