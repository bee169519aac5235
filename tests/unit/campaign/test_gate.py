"""Decisions about several images, and the one about all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from rarely.campaign.gate import Entrant, Gate, together
from rarely.core.errors import FormatError
from rarely.core.evidence import Draws
from rarely.core.witnesses import Witnesses
from rarely.questions.threshold import Decision, Ruling

A, R, U = Ruling.ACCEPTED, Ruling.REJECTED, Ruling.UNDECIDED


def gate(*told: tuple[Ruling, float]) -> Gate:
    nothing = Witnesses(torch.zeros(0), torch.zeros(0))
    decisions = [
        Decision(ruling, 1e-3, confidence, "why", 10, 1, 0.1, (Draws(10, 0, 10),), nothing, {"seed": 0}, f"{i}")
        for i, (ruling, confidence) in enumerate(told)
    ]
    return together([Entrant(f"{i}", 1, 1) for i in range(len(told))], decisions)


@pytest.mark.parametrize(
    ("told", "ruling", "confidence"),
    [
        ([(A, 0.99), (A, 1.0)], A, 0.99),  # wrong only where one is wrong that is decided at 0.99
        ([(A, 1.0), (A, 1.0)], A, 1.0),
        ([(A, 0.99), (U, 0.99)], U, 0.99),
        ([(A, 0.99), (U, 0.99), (R, 0.99)], R, 0.97),  # any of three may have been rejected wrongly
        ([(R, 1.0), (A, 0.99), (R, 0.99)], R, 1.0),  # one was by proof
        ([(R, 0.5)] * 4, R, 0.0),
    ],
)
def test_all_are_accepted_or_the_gate_stays_shut(
    told: Sequence[tuple[Ruling, float]], ruling: Ruling, confidence: float
) -> None:
    found = gate(*told)
    assert found.ruling is ruling
    assert found.confidence == pytest.approx(confidence)


def test_sentences_count() -> None:
    assert str(gate((A, 0.95), (A, 1.0))) == (
        "accepted: p < 0.001 for each of 2 (1 by proof); were it not so for one, this would be said with a probability "
        "of at most 0.05"
    )
    assert str(gate((A, 1.0), (R, 0.9), (U, 0.9))) == (
        "rejected: not p < 0.001 for all: of 3, 1 accepted, 1 rejected, 1 undecided (1 by proof)"
    )


def test_what_is_written_is_read() -> None:
    found = gate((A, 0.95), (R, 1.0))
    again = Gate.from_data(json.loads(found.to_json()))
    assert again.to_json() == found.to_json()
    assert again.decisions[1].ruling is R


@pytest.mark.parametrize(
    "change", [{"decisions": []}, {"images": []}, {"ruling": "maybe"}, {"decisions": [{}, {}]}, {"images": [1, 2]}]
)
def test_what_is_no_gate_is_refused(change: dict[str, object]) -> None:
    data = json.loads(gate((A, 0.95), (A, 0.95)).to_json())
    with pytest.raises(FormatError):
        Gate.from_data({**data, **change})
