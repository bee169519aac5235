"""Comparing two campaigns, and exporting one."""

from __future__ import annotations

import copy
import csv
import json
import math
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import pytest
from campaign_helpers import Inline

import made_campaign as made
from rarely import Campaign
from rarely.campaign.compare import _median, compare_records, compare_stores, in_a_sentence, ratio
from rarely.campaign.store import Store
from rarely.campaign.tables import COLUMNS, export_store, frame, from_csv, write_csv
from rarely.core.errors import InputError
from rarely.questions.result import Outcome
from rarely.report.comparison import write_comparison


@pytest.fixture
def two(plan: dict[str, Any], tmp_path: Path) -> tuple[Store, Store]:
    """The same images on a network and on one with an output that wins more often."""
    plan["campaign"]["replicates"] = 1
    (tmp_path / "worse.py").write_text(
        (tmp_path / "net.py").read_text().replace("x @ self.weight", "x @ self.weight + torch.tensor([0.3, 0, 0])")
    )
    other = copy.deepcopy(plan)
    other["networks"] = [{"path": f"{tmp_path}/worse.py:Net", "name": "worse"}]
    other["campaign"]["replicates"] = 2
    stores = [Campaign(p).run(tmp_path / name, engine=Inline()) for p, name in ((plan, "a"), (other, "b"))]
    return stores[0], stores[1]


def test_pairs_and_their_spread(two: tuple[Store, Store]) -> None:
    found = compare_stores(*two)
    pairs = list(found.matches.pairs())
    assert len(pairs) == found.done == 20
    assert (found.matches.only_a, found.matches.only_b, found.unfinished) == (0, 20, 0)
    assert sum(found.verdicts.values()) == 20
    differences = []
    for pair in pairs:
        assert pair.a.item == pair.b.item
        assert pair.a.radius == pair.b.radius
        assert pair.b.replicate == 0
        if pair.difference is not None:
            assert pair.difference == pair.b.estimate.log_prob - pair.a.estimate.log_prob
            assert pair.low <= pair.difference <= pair.high
            differences.append(pair.difference)
    assert found.undefined == 20 - len(differences)
    assert found.mean.value == pytest.approx(fmean(differences))
    assert found.median.value == median(differences)
    from scipy.stats import t

    reach = t.ppf(0.975, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    assert found.mean.high - found.mean.value == pytest.approx(reach, rel=1e-6)


def test_the_interval_of_a_median_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    runs = 2000
    hits = 0
    for _ in range(runs):
        spread = _median(rng.exponential(size=17).tolist(), 0.95)
        hits += spread.low <= math.log(2) <= spread.high
    from scipy.stats import binom

    exact = 1 - 2 * binom.cdf(4, 17, 0.5)  # between the 5th and the 13th of 17
    assert exact >= 0.95
    assert abs(hits / runs - exact) < 5 * math.sqrt(exact * (1 - exact) / runs)
    assert _median([1.0, 2.0, 3.0], 0.95).low == -math.inf
    assert _median([1.0], 0.95) is None


def test_nothing_in_common_is_told(two: tuple[Store, Store], plan: dict[str, Any], tmp_path: Path) -> None:
    plan["problems"][0]["radii"] = [0.2]
    other = Campaign(plan).run(tmp_path / "c", engine=Inline())
    with other, pytest.raises(InputError, match="have no problem in common"):
        compare_stores(two[0], other)
    plan["problems"][0]["radii"] = [0.1]
    plan["campaign"]["confidence"] = 0.9
    other = Campaign(plan).run(tmp_path / "d", engine=Inline())
    with other, pytest.raises(InputError, match=r"intervals of confidence \[0.9, 0.95\]"):
        compare_stores(two[0], other)


def test_several_networks_are_matched_by_name(two: tuple[Store, Store], plan: dict[str, Any], tmp_path: Path) -> None:
    plan["networks"].append({"path": f"{tmp_path}/worse.py:Net", "name": "worse"})
    with Campaign(plan).run(tmp_path / "both", engine=Inline()) as both:
        found = compare_stores(two[0], both)
        assert {pair.b.network for pair in found.matches.pairs()} == {"net"}
    assert found.done == 20
    assert found.matches.only_b == 20


def test_export(two: tuple[Store, Store], tmp_path: Path) -> None:
    store = two[0]
    for name in ("x.csv", "x.json", "x.parquet"):
        assert export_store(store, tmp_path / name) == 20
    records = list(store.records())
    with (tmp_path / "x.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    data = json.loads((tmp_path / "x.json").read_text())
    table = frame(store)
    pandas = pytest.importorskip("pandas")
    parquet = pandas.read_parquet(tmp_path / "x.parquet")
    assert tuple(table.columns) == tuple(parquet.columns) == tuple(rows[0]) == tuple(data[0]) == COLUMNS
    for i, record in enumerate(records):
        assert float(rows[i]["log_prob"]) == float(data[i]["log_prob"]) == record.estimate.log_prob
        assert table.log_prob[i] == parquet.log_prob[i] == record.estimate.log_prob
        assert rows[i]["key"] == data[i]["key"] == table.key[i] == parquet.key[i] == record.key
    with pytest.raises(InputError, match=r"written as .csv, .json, .parquet"):
        export_store(store, tmp_path / "x.xlsx")


def test_no_text_becomes_a_formula(tmp_path: Path) -> None:
    texts = ["=1+1", "+x", "-x", "@x", "\tx", "\uff1d1+1", "'=x", "'x", "x=", ""]
    write_csv(tmp_path / "x.csv", ["text", "number"], ({"text": text, "number": -1.5} for text in texts))
    with (tmp_path / "x.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["text"] for row in rows[:2]] == ["'=1+1", "'+x"]
    assert [from_csv(row["text"]) for row in rows] == texts
    assert {row["text"][0] for row in rows[:6]} == {"'"}
    assert {row["number"] for row in rows} == {"-1.5"}


def test_clear_differences_come_first_and_undefined_ones_last(two: tuple[Store, Store]) -> None:
    found = compare_stores(*two, shown=1000)
    known = [pair.difference is not None for pair in found.largest]
    assert known == sorted(known, reverse=True)
    assert 0 < known.count(False) == found.undefined < len(known)
    clear = [abs(pair.difference) for pair in found.largest if "fails" in pair.verdict]
    assert clear == sorted(clear, reverse=True)
    assert [pair.name for pair in compare_stores(*two, shown=3).largest] == [pair.name for pair in found.largest[:3]]


def test_records_are_matched_by_name_and_else_by_place() -> None:
    """Twice the log p, replicates of one name in their order; whatever a campaign says of a pair is said here."""
    one = [made.record(i, made.violated(-3.0 - i), name=name) for i, name in enumerate(("a", "b", "b", "c"))]
    other = [made.record(i, made.violated(-4.0 - i), name=name) for i, name in enumerate(("b", "d", "b"))]
    found = compare_records(one, other)
    pairs = list(found.matches.pairs())
    assert [(pair.a.index, pair.b.index) for pair in pairs] == [(1, 0), (2, 2)]
    assert (found.matches.only_a, found.matches.only_b, found.unfinished) == (2, 1, 0)
    assert pairs[1].difference == pytest.approx(-1.0)
    reach = math.hypot(0.16, 0.16)  # each interval reaches 0.16 to both sides
    assert pairs[1].low == pytest.approx(-1 - reach)
    assert (pairs[1].verdict, pairs[1].clear) == ("B fails less", True)
    assert (pairs[0].verdict, pairs[0].clear) == ("no clear difference", False)
    strangers = [made.record(i, made.violated(-9.0), name=f"z{i}") for i in range(4)]
    placed = compare_records(one, strangers)
    assert placed.done == 4
    assert "by their place" in in_a_sentence(placed)
    with pytest.raises(InputError, match="there are 3 and 4 of them"):
        compare_records(other, strangers)


def test_ratios_of_any_size() -> None:
    assert [ratio(x) for x in (0.0, math.log(2), -math.log(2), 800.0, -math.inf, math.inf)] == [
        "1", "2", "0.5", "2.73e+347", "0", "inf",
    ]  # fmt: skip
    assert ratio(-800.0) == "3.67e-348"
    assert ratio(math.log(1.9e10)) == "1.9e+10"


def test_the_page_of_a_comparison_keeps_names_as_text(tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=alert(1)>"
    sides = [[made.record(i, made.violated(-k - i), name=nasty) for i in range(3)] for k in (3.0, 9.0)]
    sides[0].append(made.record(3, made.unseen(Outcome.PROVED_SAFE, -math.inf), name="safe"))
    sides[1].append(made.record(3, made.violated(-9.0), name="safe"))
    file = tmp_path / "c.html"
    write_comparison(file, compare_records(*sides), (nasty, nasty))
    text = file.read_text()
    assert "<img" not in text
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert text.count("&lt;/script&gt;&lt;img") >= 3 + 2
    assert "violation found in B only" in text
    write_comparison(file, compare_records(sides[0][3:], sides[0][3:]), ("a", "b"))
    assert "<svg" not in file.read_text()  # there is nothing to draw
