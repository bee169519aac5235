"""What a run may use: shares of it for a part of the work, and what is put back afterwards."""

from __future__ import annotations

import math
import time

import pytest
import torch

from rarely.core.spend import GRADIENT, Exhausted, Spend

ROWS = torch.tensor([0, 1])


def test_a_share_of_the_calls_that_are_left() -> None:
    spend = Spend(2, max_calls=1000)  # 50 of them are kept back for replays
    spend.charge(ROWS, 150)
    with spend.allotted(ROWS, 0.5):
        assert spend.left(ROWS) == 400
        spend.charge(ROWS, 400)
        with pytest.raises(Exhausted):
            spend.charge(ROWS, 1)
    assert spend.left(ROWS) == 400, "the rest is still there"
    spend.charge(ROWS, 400)
    with pytest.raises(Exhausted):
        spend.charge(ROWS, 1)
    assert spend.calls().tolist() == [950, 950]


def test_equal_shares_one_after_the_other_use_everything() -> None:
    """Components of a mixture: 1 / n of what is left, then 1 / (n - 1); what one has saved is left to the others."""
    spend, parts = Spend(1, max_calls=1000), 5
    row, took = torch.tensor([0]), []
    for i in range(parts):
        with spend.allotted(row, 1 / (parts - i)):
            took.append(min(int(spend.left(row)), 40 if i == 1 else 10**9))
            spend.charge(row, took[-1])
    assert took[0] == 190
    assert took[1] == 40
    assert took[2:] == [240, 240, 240]


def test_the_case_that_has_fewest_decides() -> None:
    spend = Spend(3, max_calls=1000)
    spend.charge(torch.tensor([2]), 750)
    with spend.allotted(torch.tensor([0, 1]), 0.5):
        assert spend.left(torch.tensor([0, 1])) == 475
    with spend.allotted(torch.tensor([1, 2]), 0.5):
        assert spend.left(torch.tensor([1, 2])) == 100
        assert spend.left(torch.tensor([1])) == 850, "the limit is one number: cases that spent less have more"


def test_gradients_count_in_a_share() -> None:
    spend = Spend(2, max_calls=1000)
    with spend.allotted(ROWS, 0.1):
        spend.charge(ROWS, 0, 95 // GRADIENT)
        with pytest.raises(Exhausted):
            spend.charge(ROWS, 0, 1)


def test_shares_of_shares() -> None:
    spend = Spend(2, max_calls=1000)
    with spend.allotted(ROWS, 0.5), spend.allotted(ROWS, 0.5):
        assert spend.left(ROWS) == pytest.approx(950 / 4, abs=1)
    assert spend.left(ROWS) == 950


def test_what_was_allotted_ends_with_an_error_too() -> None:
    spend = Spend(2, max_calls=1000, timeout=100.0)
    deadline = spend.deadline
    with pytest.raises(ZeroDivisionError), spend.allotted(ROWS, 0.1):
        raise ZeroDivisionError
    assert (spend.max_calls, spend.deadline) == (1000, deadline)


def test_a_share_of_the_seconds_that_are_left() -> None:
    spend = Spend(2, timeout=10.0)
    with spend.allotted(ROWS, 0.002):
        assert 0 < spend.left_seconds <= 0.02
        time.sleep(0.03)
        assert spend.late
        with pytest.raises(Exhausted):
            spend.check()
    assert not spend.late
    assert 9 < spend.left_seconds < 10


def test_without_limits_a_share_is_no_limit() -> None:
    spend = Spend(2)
    with spend.allotted(ROWS, 0.1):
        spend.charge(ROWS, 10**6)
        assert spend.left(ROWS) == math.inf
        assert spend.left_seconds == math.inf
    assert spend.max_calls is None
