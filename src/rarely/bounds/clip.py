"""Boxes cut down to where linear bounds leave room for a violation.

A violation in a polytope meets all its rows, C y + d <= 0. A bound A x + b <= C y + d of a row therefore confines it to
a half-space of inputs, and so does every sum of such bounds. What remains to be searched is the box around what all of
them leave: halving alone, which closes a box where a single row is out of reach, finds that out in small steps (Zhou et
al. 2025, Clip-and-Verify).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rarely.bounds.operators import EPS, TINY, gamma, magnitude

_ROUNDS = 2  # what one half-space leaves lets another cut deeper
_ENTRIES = 2**24  # of one chunk, up to which cutting costs no more than bounding does
_BISECTIONS = 8  # of the weight of one row against another


def clipped(low: Tensor, high: Tensor, A: Tensor, b: Tensor, rows: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """For each polytope a box (N, P, n) that holds all x of low <= x <= high, (N, n), with A x + b <= room in its rows.

    A (N, m, n), b (N, m), `rows` (P, m) says whose they are, and `room` (N,) >= 0. Where nothing is left, all lower
    ends are infinite. Many rows of many inputs are not summed, or cut nothing.
    """
    least, most = (end.unsqueeze(1).expand(-1, len(rows), -1) for end in (low, high))
    together = (rows.mT.double() @ rows.double()).triu(1).nonzero()
    if least.numel() * (len(together) + A.shape[1]) <= _ENTRIES:
        A, b, rows = _with_pairs(low, high, A, b, rows, together)
    elif least.numel() * A.shape[1] > _ENTRIES:
        return least, most
    size, allowed = A.abs(), room.reshape(-1, 1, 1)
    for _ in range(_ROUNDS):
        fall = (most - least) / 2 @ size.mT
        terms = (least.abs() + most.abs()) @ size.mT + fall + b.abs().unsqueeze(1) + allowed
        # How far each row, (N, P, m), may rise from its least value in the box.
        rise = allowed - b.unsqueeze(1) - (least + most) / 2 @ A.mT + fall + gamma(A.shape[2], A.dtype) * terms + TINY
        lost = (rows & (rise < 0)).any(2, keepdim=True)
        step = torch.where(rows, rise, torch.inf).unsqueeze(3) / size.unsqueeze(1)
        up, down = (torch.where(side.unsqueeze(1), step, torch.inf).amin(2) for side in (A > 0, A < 0))
        slip = 8 * EPS * (least.abs() + most.abs() + (most - least)) + TINY
        # An end that is not a number cuts nothing.
        least, most = torch.fmax(least, most - down - slip), torch.fmin(most, least + up + slip)
        least = torch.where(lost | (least > most).any(2, keepdim=True), torch.inf, least)
    return least, most


def _with_pairs(
    low: Tensor, high: Tensor, A: Tensor, b: Tensor, rows: Tensor, together: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The bounds, and for any two rows of a polytope the sum whose least value in the box is about the highest.

    That value is concave in the weight of one row against the other, so that its slope says where to look.
    """
    i, j = together.unbind(1)
    (one, two), (at_one, at_two) = (A[:, i], A[:, j]), (b[:, i], b[:, j])
    ends = [torch.zeros_like(at_one), torch.ones_like(at_one)]
    for _ in range(_BISECTIONS):
        t = (ends[0] + ends[1]) / 2
        corner = torch.where(torch.lerp(two, one, t.unsqueeze(2)) > 0, low.unsqueeze(1), high.unsqueeze(1))
        rising = ((one - two) * corner).sum(2) + at_one - at_two > 0
        ends = [torch.where(rising, t, ends[0]), torch.where(rising, ends[1], t)]
    t = (ends[0] + ends[1]) / 2
    u, v = t.unsqueeze(2), (1 - t).unsqueeze(2)
    size = (u * one.abs() + v * two.abs()) @ magnitude((low, high)).unsqueeze(2)
    slip = (size.squeeze(2) + t * at_one.abs() + (1 - t) * at_two.abs()) * gamma(low.shape[1], A.dtype) + TINY
    sums, shifts = u * one + v * two, t * at_one + (1 - t) * at_two - slip
    return torch.cat([A, sums], 1), torch.cat([b, shifts], 1), torch.cat([rows, rows[:, i] & rows[:, j]], 1)
