"""Boxes cut down to where a violation may be: nothing that may be one is cut off, and what is left is small."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn

from rarely.bounds import clip, decide_boxes
from rarely.bounds.clip import clipped


def _exact(x):
    return [Fraction(v) for v in x.tolist()]


def _meets(A, b, x, room):
    """Whether A x + b <= room in every row, in rational numbers."""
    point = _exact(x)
    return all(
        sum((p * q for p, q in zip(_exact(row), point, strict=True)), Fraction(c)) <= room
        for row, c in zip(A, b.tolist(), strict=True)
    )


def _problem(seed, batch=20, n=3, m=5):
    g = torch.Generator().manual_seed(seed)
    low = torch.randn(batch, n, generator=g, dtype=torch.float64)
    high = low + torch.rand(batch, n, generator=g, dtype=torch.float64)
    A = torch.randn(batch, m, n, generator=g, dtype=torch.float64)
    A[:, :, 0] *= (torch.rand(batch, m, generator=g) < 0.7).double()  # slopes of zero as well
    centre = torch.lerp(low, high, torch.rand(batch, n, generator=g, dtype=torch.float64))
    b = -(A @ centre.unsqueeze(2)).squeeze(2) - 0.1 * torch.rand(batch, m, generator=g, dtype=torch.float64)
    rows = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 1, 1]], dtype=torch.bool)
    return g, low, high, A, b, rows


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0])
def test_no_point_that_meets_the_rows_is_cut_off(shift):
    kept = cut = 0
    for seed in range(6):
        g, low, high, A, b, rows = _problem(seed)
        b = b + shift
        room = torch.full((len(low),), 1e-3, dtype=torch.float64)
        least, most = clipped(low, high, A, b, rows, room)
        cut += int(((least > low.unsqueeze(1)) | (most < high.unsqueeze(1))).sum())
        for _ in range(40):
            x = torch.lerp(low, high, torch.rand(low.shape, generator=g, dtype=torch.float64))
            for i, p in ((i, p) for i in range(len(x)) for p in range(len(rows))):
                inside = bool(((least[i, p] <= x[i]) & (x[i] <= most[i, p])).all())
                if not inside:
                    assert not _meets(A[i, rows[p]], b[i, rows[p]], x[i], Fraction(1e-3))
                kept += inside
    assert cut > 100
    assert kept > 100 or shift == 1.0


def test_the_very_corner_that_meets_a_row_stays():
    """The row's least value is what is allowed, to the last bit: nothing but the corner is left, and it is."""
    low, high = torch.tensor([[0.1, -0.3]]).double(), torch.tensor([[0.7, 0.4]]).double()
    A = torch.tensor([[[3.0, -7.0]]]).double()
    corner = torch.tensor([0.1, 0.4], dtype=torch.float32).double()
    b = -(A[0] @ corner).reshape(1, 1)
    least, most = clipped(low, high, A, b, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1).double())
    assert (least[0, 0] <= corner).all()
    assert (corner <= most[0, 0]).all()
    assert ((most - least)[0, 0] < 1e-12).all()


def test_two_rows_that_exclude_each_other_leave_nothing():
    low, high = -torch.ones(1, 2).double(), torch.ones(1, 2).double()
    A, b = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]).double(), torch.tensor([[0.1, 0.1]]).double()
    together, apart = torch.tensor([[True, True]]), torch.tensor([[True, False], [False, True]])
    room = torch.full((1,), 0.01).double()
    assert (clipped(low, high, A, b, together, room)[0] == torch.inf).all()
    assert torch.isfinite(clipped(low, high, A, b, apart, room)[0]).all()


@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_a_number_cuts_nothing(odd):
    low, high = -torch.ones(1, 2).double(), torch.ones(1, 2).double()
    A, b = torch.tensor([[[1.0, -1.0], [2.0, 0.5]]]).double(), torch.tensor([[0.0, -0.2]]).double()
    rows, room = torch.tensor([[True, True]]), torch.full((1,), 1e-3).double()
    wild, bad = A.clone(), b.clone()
    wild[0, 0, 1], bad[0, 0] = odd, -torch.inf if odd == torch.inf else odd  # a lower bound is never inf
    x = torch.tensor([[-0.9, 0.9], [0.0, 0.2], [-0.2, 0.9]]).double()  # meets the rows as they were
    for slopes, least_values, allowed in ((wild, b, room), (A, bad, room), (A, b, room * abs(odd))):
        least, most = clipped(low, high, slopes, least_values, rows, allowed)
        assert ((least[0] <= x) & (x <= most[0])).all()


def test_a_conjunction_takes_few_boxes_and_its_bound_holds():
    """Two outputs that cannot both be large: each row alone is met in half of every box along the border."""
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        linear.bias.zero_()
    ends = -torch.ones(1, 2), torch.ones(1, 2)
    (proof,) = decide_boxes(linear, *ends, [(-torch.eye(2), torch.full((2,), -0.05))], 10.0)
    assert (proof.status, proof.boxes) == ("proved", 1)
    assert -0.05 <= proof.bound < 0  # the score is at most -0.05, where both outputs are zero


@pytest.mark.parametrize(("rows", "pairs"), [(20, True), (99, False)])
def test_many_rows_of_many_inputs_are_not_summed(monkeypatch, rows, pairs):
    """99 rows have 4,851 pairs: with 3,072 inputs they took 5.8 GB, and twice the time that was allowed."""
    summed = []
    real = clip._with_pairs
    monkeypatch.setattr(clip, "_with_pairs", lambda *some: summed.append(len(some)) or real(*some))
    g = torch.Generator().manual_seed(1)
    A, b = torch.randn(4, rows, 3072, generator=g).double(), torch.randn(4, rows, generator=g).double()
    high, room = torch.ones(4, 3072).double(), torch.zeros(4).double()
    least, most = clipped(-high, high, A, b, torch.ones(1, rows, dtype=torch.bool), room)
    assert bool(summed) == pairs
    assert bool((least >= -1).all())
    assert bool((most <= 1).all())
