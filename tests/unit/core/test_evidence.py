"""Evidence as plain data and back, whatever is inside."""

from __future__ import annotations

import json
import math

import pytest

from rarely.core.evidence import (
    STRATA,
    Bracket,
    Draws,
    Evidence,
    Levels,
    Number,
    Searched,
    Stratum,
    from_data,
    pooled,
    to_data,
)
from rarely.stats.statistic import Binomial, Exceeded, LogNormal, Replicates, Sum

SUM = Sum((-1.0, -2.0), (LogNormal(-9.0, 0.1), Replicates((-5.0, -math.inf, -6.0), 0.05)))
RECORDS: list[Evidence] = [
    Draws(100, 3, 100),
    Bracket(-math.inf, -math.inf, "boxes", 7),
    Bracket(-9.0, -8.0, "boxes", 7),
    Number("lines", "lines", LogNormal(-9.0, 0.1), 50, "they point everywhere", seen=Replicates((-9.0, -9.5))),
    Number(
        "splitting",
        "splitting",
        Replicates((-9.0, -math.inf)),
        50,
        lost="half of it",
        levels=(-2.0, 0.0),
        climbs=((-2.0, 0.0), (-1.5, -math.inf, 0.0), ()),
    ),
    Number("components together", STRATA, SUM, 0),
    Number("counting", "counts", Binomial(3, 100, -7.0, 1e-12), 100),
    Levels("splitting", Exceeded((-231.0, -math.inf)), "floor", 500, levels=(-1.0, -0.5), acceptance=(0.5,)),
    Searched("attack", "nothing", 64, broke=True),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back(record: Evidence) -> None:
    data = json.loads(json.dumps(to_data(record)))
    assert from_data(data) == record
    assert data["sentence"] == record.sentence


def test_a_component_comes_back_with_what_was_learnt_of_it() -> None:
    inner = Stratum("component 1", math.log(0.25), 2, tuple(RECORDS))
    outer = Stratum("component 2", math.log(0.75), 2, (inner, RECORDS[0]))
    data = json.loads(json.dumps(to_data(outer)))
    assert from_data(data) == outer
    assert data["calls"] == outer.calls == sum(record.calls for record in RECORDS) + 100
    assert "weight 0.75" in outer.sentence
    assert "3 of 100 independent inputs" in outer.sentence


def test_draws_of_a_component_are_no_draws_of_the_whole() -> None:
    stratum = Stratum("component 1", math.log(0.25), 2, (Draws(1000, 1000),))
    assert pooled([stratum, Draws(10, 1), Draws(20, 2)]).statistic == Binomial(3, 30)
