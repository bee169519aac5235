"""Gradient ascent on whatever a linear bound leaves free; every iterate is a valid bound, the best is kept.

Free are the lower slopes of unsettled ReLUs (alpha-CROWN, Xu et al. 2021), the multipliers of split ReLUs
(beta-CROWN, Wang et al. 2021), and, for a polytope of several rows, the convex weights over its rows: if
sum_r w_r (A_r y - b_r) > 0 everywhere in the region then some row is broken at each of its points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.bounds.backward import LinearBound, Propagated, backward
from rarely.bounds.operators import Elementwise, contract, gamma, magnitude


def first_slopes(state: Propagated, stop: int, rows: int) -> dict[int, Tensor]:
    """The slopes that CROWN starts from, for each ReLU before node `stop`: (B, rows, *event)."""
    out = {}
    for i in state.graph.relus:
        line = state.relaxations.get(i)
        if i < stop and isinstance(line, Elementwise):
            start = ((line.lower_slope - line.floor) / (1 - line.floor)).unsqueeze(1)
            out[i] = start.expand(state.batch, rows, *start.shape[2:]).clone()
    return out


def _kept(won: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(won.reshape(*won.shape, *(1,) * (new.ndim - won.ndim)), new, old)


def _better(now: LinearBound, best: LinearBound) -> tuple[Tensor, LinearBound]:
    won = (now.lower > best.lower) | best.lower.isnan()
    pairs = ((now.A, best.A), (now.b, best.b), (now.lower, best.lower))
    A, b, lower = (_kept(won, new.detach(), old) for new, old in pairs)
    return won, LinearBound(A, b, lower, torch.fmax(now.real.detach(), best.real))


Group = tuple[list[Tensor], float, tuple[float, float]]  # tensors, the rate of their ascent, and their range


class Ascent:
    """Adam, projected to a range after each step, with a rate that falls by 5 % a step.

    Our own thirty lines: importing torch.optim costs two seconds, more than most proofs take.
    """

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups
        self.memory = [[(torch.zeros_like(t), torch.zeros_like(t)) for t in g[0]] for g in groups]
        self.time = 0

    @torch.no_grad()
    def step(self, gradients: list[Tensor | None]) -> None:
        """Move every tensor up its gradient; they come in the order of the groups."""
        self.time += 1
        fade, queue = 0.95 ** (self.time - 1), iter(gradients)
        for (tensors, rate, (least, most)), memory in zip(self.groups, self.memory, strict=True):
            for t, (mean, square) in zip(tensors, memory, strict=True):
                g = next(queue)
                if g is None:
                    continue
                mean.mul_(0.9).add_(g, alpha=0.1)
                square.mul_(0.999).addcmul_(g, g, value=0.001)
                size = (square / (1 - 0.999**self.time)).sqrt_().add_(1e-12)
                t.addcdiv_(mean, size, value=rate * fade / (1 - 0.9**self.time)).clamp_(least, most)


def _gradients(total: Tensor, tensors: list[Tensor]) -> list[Tensor | None]:
    if not total.requires_grad:  # none of them lies between the input and the node that is bounded
        return [None] * len(tensors)
    found = iter(torch.autograd.grad(total, [t for t in tensors if t.requires_grad], allow_unused=True))
    return [next(found) if t.requires_grad else None for t in tensors]


def climb(
    bound: Callable[[bool], LinearBound], groups: list[Group], steps: int, best: LinearBound | None = None
) -> tuple[LinearBound, list[Tensor]]:
    """Ascent with `steps` evaluations of a bound, told which is the last: the best per row, and what reached it."""
    ascent, tensors = Ascent(groups), [t for group in groups for t in group[0]]
    kept = [t.detach().clone() for t in tensors]
    for step in range(max(steps, 1)):
        last = step >= steps - 1
        with torch.set_grad_enabled(not last):
            now = bound(last)
            slopes = [] if last else _gradients(now.lower.sum(), tensors)
        if best is None:
            best = LinearBound(now.A.detach(), now.b.detach(), now.lower.detach(), now.real.detach())
        else:
            won, best = _better(now, best)
            kept = [_kept(won, new.detach(), old) for new, old in zip(tensors, kept, strict=True)]
        if not last:
            ascent.step(slopes)
    assert best is not None
    return best, kept


def optimise(
    state: Propagated,
    start: int,
    A: Tensor,
    steps: int,
    rate: float = 0.25,
    real: bool = False,
    fast: Propagated | None = None,
) -> LinearBound:
    """Lower bounds of A v at node `start` with the slopes optimised for each row apart.

    `real` as in `backward`. The slopes are looked for in the `fast` state in float32, if there is one.
    """
    with torch.no_grad():
        best = backward(state, start, A, real=real)
    climbed, rows = (state, A) if fast is None else (fast, A.float())
    slopes = first_slopes(climbed, start, A.shape[1])
    if slopes:
        groups: list[Group] = [([a.requires_grad_() for a in slopes.values()], rate, (0.0, 1.0))]

        def bound(last: bool) -> LinearBound:
            return backward(climbed, start, rows, slopes, real=real and last and fast is None)

        found, kept = climb(bound, groups, steps, best if fast is None else None)
        if fast is None:
            return found
        slopes = {i: a.to(A.dtype) for i, a in zip(slopes, kept, strict=True)}
        with torch.no_grad():
            return _better(backward(state, start, A, slopes, real=real), best)[1]
    return best


@dataclass(frozen=True)
class Freedom:
    """The free parameters of bounds on Q weighted sums of rows, for a batch of B regions."""

    slopes: dict[int, Tensor]  # ReLU node -> (B, Q, *event)
    multipliers: dict[int, Tensor]  # ReLU node -> (B, Q, *event), >= 0; empty without splits
    logits: Tensor  # (B, Q, m): the weights are their softmax over the rows of the polytope


def weighted(
    state: Propagated,
    C: Tensor,
    d: Tensor,
    member: Tensor,
    freedom: Freedom,
    signs: dict[int, Tensor] | None = None,
    seen: dict[int, Tensor] | None = None,
    real: bool = False,
) -> LinearBound:
    """Bounds of sum_r w_r (C_r y + d_r) for Q choices of weights, (B, Q).

    C (B or 1, m, k), d (B or 1, m); `member` (B or 1, Q, m) says which rows may carry weight. `signs` gives the
    splits, +1 for z >= 0 and -1 for z <= 0, whose multipliers enter as -beta sign z (Wang et al. 2021, eq. 8).
    """
    weights = torch.where(member, freedom.logits, -torch.inf).softmax(-1)
    push = {i: -b * signs[i].unsqueeze(1) for i, b in freedom.multipliers.items()} if signs else None
    bound = backward(state, state.graph.output, weights @ C, freedom.slopes, push, seen, real)
    # Weights that miss summing to one only scale the sum; forming the combined row rounds, against |y|.
    shift = (weights * d.unsqueeze(1)).sum(-1)
    reach = contract(weights.detach() @ C.abs(), magnitude(state.bounds[state.graph.output]))
    size, margin = (weights * d.abs().unsqueeze(1)).sum(-1) + reach, gamma(C.shape[1], C.dtype)
    b, lower, apart = (t + shift - (size + t.abs()) * margin for t in (bound.b, bound.lower, bound.real))
    return LinearBound(bound.A, b, lower, apart)


def ascend(
    state: Propagated,
    C: Tensor,
    d: Tensor,
    member: Tensor,
    freedom: Freedom,
    steps: int,
    signs: dict[int, Tensor] | None = None,
    rate: float = 0.25,
) -> tuple[LinearBound, Freedom, dict[int, Tensor]]:
    """Ascent on everything free, `steps` evaluations; gives the best bound per row and what reached it.

    Also the coefficients that the last pass met at each relaxed node.
    """
    shared = bool((member.sum(-1) > 1).any())  # a row alone has all the weight, whatever its logit
    free = Freedom(
        {i: a.detach().clone().requires_grad_() for i, a in freedom.slopes.items()},
        {i: b.detach().clone().requires_grad_() for i, b in freedom.multipliers.items()},
        freedom.logits.detach().clone().requires_grad_(shared),
    )
    seen: dict[int, Tensor] = {}
    groups: list[Group] = [
        (list(free.slopes.values()), rate, (0.0, 1.0)),
        (list(free.multipliers.values()), rate / 2, (0.0, math.inf)),
        ([free.logits], 4 * rate, (-math.inf, math.inf)),
    ]

    def bound(last: bool) -> LinearBound:
        return weighted(state, C, d, member, free, signs, seen if last else None, real=last)

    best, kept = climb(bound, groups, steps)
    count = len(free.slopes)
    found = Freedom(
        dict(zip(free.slopes, kept[:count], strict=True)),
        dict(zip(free.multipliers, kept[count:-1], strict=True)),
        kept[-1],
    )
    return best, found, seen
