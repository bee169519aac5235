from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rarely.core.errors import FormatError
from rarely.core.evidence import Bracket, Draws, Evidence, Found, Levels, Number, Searched, Witnesses
from rarely.questions.result import SCHEMA, Estimate, Outcome, scientific
from rarely.questions.showing import in_words
from rarely.stats.statistic import Binomial, Exceeded, Interval, LogNormal, Replicates

EVIDENCE: tuple[Evidence, ...] = (
    Draws(1000, 0, 1000),
    Bracket(-math.inf, -3.0, "bounds over 12 boxes", 12, 3),
    Number(
        "splitting", "splitting", Replicates((-30.0, -math.inf, -29.5)), 800, "no region lost", "poor mixing", "1 of 3",
        (-2.0, -1.0, 0.0), (0.3, 0.2),
    ),
    Number("lines", "lines", LogNormal(-30.0, 0.1), 12),
    Number("counting", "counts", Binomial(3, 1000, -20.0, 1e-12), 1000),
    Levels("splitting", Exceeded((-40.0, -41.5)), "stalled", 99, levels=(-math.inf, -1.0)),
    Found("attack", Witnesses(torch.zeros(2, 3), torch.tensor([0.5, 0.5])), 7, replayed=True),
    Searched("attack", "no violation at 64 points", 64),
)  # fmt: skip


def _estimate(**changes: object) -> Estimate:
    estimate = Estimate(
        outcome=Outcome.VIOLATED,
        log_prob=-30.0,
        log_prob_std=0.1,
        interval=Interval(0.95, -30.2, -29.8),
        upper_bound=-29.85,
        evaluations=1000,
        gradients=20,
        seconds=1.25,
        evidence=EVIDENCE,
        witnesses=Witnesses(torch.zeros(2, 3), torch.tensor([0.5, 0.0])),
        notes=("look here",),
        provenance={"seed": 3},
        name="brake",
    )
    return replace(estimate, **changes)  # type: ignore[arg-type]


def _nothing() -> Estimate:
    return _estimate(
        outcome=Outcome.BELOW_FLOOR,
        log_prob=-math.inf,
        log_prob_std=math.inf,
        interval=Interval(0.95, -math.inf, -230.0),
        upper_bound=-230.0,
        evidence=(Levels("splitting", Exceeded((-230.3,) * 4), "floor", 99, levels=(-math.inf, -1.0)),),
        witnesses=Witnesses(torch.zeros(0), torch.zeros(0)),
        name="",
    )


@pytest.mark.parametrize("estimate", [_estimate(), _nothing()], ids=["violated", "nothing"])
def test_json_round_trip(estimate: Estimate) -> None:
    text = estimate.to_json()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["schema"] == SCHEMA
    assert strict["witnesses"] == len(estimate.witnesses)
    assert strict["sentence"] == estimate.outcome.sentence
    back = Estimate.from_json(text)
    for name in estimate.__dataclass_fields__:
        if name not in ("witnesses", "evidence"):
            assert getattr(back, name) == getattr(estimate, name), name
    for one, other in zip(back.evidence, estimate.evidence, strict=True):
        assert type(one) is type(other)
        assert one.sentence == other.sentence
        if not isinstance(one, Found):  # whose tensors stay in their own file
            assert one == other
    assert back.levels == estimate.levels


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "{nonsense",
        "null",
        '{"schema": 1}',
        json.dumps({**json.loads(_estimate().to_json()), "outcome": "?"}),
    ],
)
def test_other_json_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError, match=r"result\.json"):
        Estimate.from_json(text, "result.json")


def test_a_newer_schema_is_named() -> None:
    newer = json.loads(_estimate().to_json()) | {"schema": SCHEMA + 1}
    with pytest.raises(FormatError, match=f"schema {SCHEMA + 1}"):
        Estimate.from_json(json.dumps(newer))


def test_saving_writes_witnesses_beside(tmp_path: Path) -> None:
    estimate = _estimate()
    estimate.save(tmp_path / "e.json", tmp_path / "w.npz")
    assert Estimate.from_json((tmp_path / "e.json").read_text()).log_prob == -30.0
    with np.load(tmp_path / "w.npz") as saved:
        assert saved["inputs"].shape == (2, 3)
        assert saved["scores"].tolist() == [0.5, 0.0]


def test_str_is_one_line_with_everything_that_matters() -> None:
    text = str(_estimate())
    assert "\n" not in text
    for part in ("brake", scientific(-30.0), "95%", "1,060 calls", "-30.00 ± 0.10"):
        assert part in text
    for stalled in (_estimate(outcome=Outcome.STALLED), replace(_nothing(), outcome=Outcome.STALLED)):
        assert "do not trust" in str(stalled)
        assert "p <=" in str(stalled)
        assert "do not trust" in stalled.word
        assert "do not trust" in dict(stalled.rows())["outcome"]
    assert f"p <= {scientific(-230.0)} at 95% if no region was missed" in str(_nothing())
    assert "proved safe" in str(_estimate(outcome=Outcome.PROVED_SAFE, log_prob=-math.inf))


def test_tables_for_terminals_and_notebooks() -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=200).print(_estimate(name="<b>"))
    assert "lines" in out.getvalue()
    html = _estimate(name="<b>")._repr_html_()
    assert "&lt;b&gt;" in html
    assert "look here" in html
    assert "p &lt;= 1.29e-100 at 95% if no region was missed" in _nothing()._repr_html_()


@pytest.mark.parametrize(
    ("log_prob", "text"),
    [
        (0.0, "1"),
        (-math.inf, "0"),
        (math.log(0.25), "0.25"),
        (math.log(1.5e-7), "1.50e-07"),
        (-500.0, "7.12e-218"),
        (-2302.585092994046, "1.00e-1000"),
        (math.log(9.999e-8), "1.00e-07"),
    ],
)
def test_scientific(log_prob: float, text: str) -> None:
    assert scientific(log_prob) == text


def test_every_outcome_has_a_sentence() -> None:
    assert all(outcome.sentence.endswith(".") for outcome in Outcome)
    assert [outcome for outcome in Outcome if not outcome.trusted] == [Outcome.STALLED]


def test_interval_contains() -> None:
    assert -30.0 in Interval(0.95, -31.0, -29.0)
    assert -28.0 not in Interval(0.95, -31.0, -29.0)


@pytest.mark.parametrize(
    ("prob", "words"),
    [
        (1.0, "100% of the time"),
        (1 - 1e-9, "over 99.9% of the time"),
        (0.999, "99.9% of the time"),
        (0.9985, "99.9% of the time"),  # as a table says 0.999
        (0.996, "99.6% of the time"),
        (0.9, "90% of the time"),
        (0.25, "1 in 4"),
        (1.004e-3, "1 in 1 thousand"),
        (4.3e-7, "1 in 2.3 million"),
        (1e-30, "1 in 10^30"),
    ],
)
def test_in_words(prob: float, words: str) -> None:
    assert in_words(_estimate(log_prob=math.log(prob))) == words


def test_in_words_without_a_number() -> None:
    assert in_words(_nothing()) == "never seen"
    for stalled in (_nothing(), _estimate()):
        assert "do not trust" in in_words(replace(stalled, outcome=Outcome.STALLED))
    assert in_words(replace(_nothing(), outcome=Outcome.PROVED_SAFE)) == "never: this is proved"
