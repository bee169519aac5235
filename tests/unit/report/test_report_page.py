from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import made_campaign as made
from rarely.campaign.store import Header, Record
from rarely.campaign.witnesses import WitnessSet
from rarely.core.evidence import SPLITTING, Number
from rarely.questions.result import Outcome, scientific
from rarely.report.page import WITH_WITNESS, write_page
from rarely.report.tally import STANDINGS
from rarely.stats.statistic import Interval, LogNormal

NASTY = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked=1">\'"&$name <!--'


class Reader(HTMLParser):
    """Elements in order, and the text of each script, as a browser would split them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def no_witness(key: str) -> WitnessSet | None:
    return None


@pytest.fixture
def page(tmp_path: Path):
    def write(records: Iterable[Record], header: Header | None = None, witnesses=no_witness, **options: int) -> Reader:
        file = tmp_path / "report.html"
        write_page(file, header or made.header(), records, witnesses, **options)
        assert list(tmp_path.iterdir()) == [file]
        return Reader(file.read_text(encoding="utf-8"))

    return write


def test_the_page_says_what_was_found(page) -> None:
    records = list(made.records(200))
    read = page(records, witnesses=made.witnesses)
    text = " ".join(read.words)
    assert "Of 200 problems" in text
    assert "Road signs under noise" in text
    for part in ("How probable violations are", "Robustness over the radius", "Worst problems", "How to reproduce"):
        assert part in text
    assert "rarely campaign run signs.toml --out signs" in text
    assert "Auto(target_error=0.1), cpu, float32" in text
    assert "9f2c41d07ab3e655" in text
    standings = {row[read.data["fields"].index("standing")] for row in read.data["rows"]}
    assert standings == {name for name in STANDINGS if name != "waiting"}


def test_rows_hold_everything_worst_first(page) -> None:
    estimates = [made.violated(-30.0), made.unseen(Outcome.PROVED_SAFE, -math.inf), None, made.violated(-3.0)]
    estimates += [made.unseen(Outcome.BELOW_FLOOR, -230.0)]
    read = page([made.record(i, estimate) for i, estimate in enumerate(estimates)])
    rows = [dict(zip(read.data["fields"], row, strict=False)) for row in read.data["rows"]]
    assert [row["key"] for row in rows] == [f"{i:016x}" for i in (3, 0, 4, 2, 1)]
    assert rows[0]["levels"] == [-4.0, 0.0]
    assert rows[0]["evidence"][2] == ["line sampling", "log p = -3.00 ± 0.08; 9 lines", 12678]
    assert rows[0]["notes"] == ["effective sample size 1277 of 4000, Pareto index 0.31"]
    assert rows[2]["log_prob"] is None
    assert rows[2]["upper"] == -230.0
    assert rows[3]["reason"].startswith("NetworkError")


def test_nothing_that_a_user_named_becomes_markup(page) -> None:
    record = made.record(
        0,
        made.violated(-5.0, notes=(NASTY,)),
        name=NASTY,
        network=NASTY,
        item=NASTY,
        label=NASTY,
        norm=NASTY,
        key=NASTY,
    )
    failed = made.record(1, None, reason=NASTY, network=NASTY, norm=NASTY)
    curve = [made.record(i, made.violated(-9.0), network=f"{NASTY}{i % 2}", norm=NASTY) for i in range(2, 26)]
    header = made.header(name=NASTY, plan=NASTY, command=NASTY, digest=NASTY, created=NASTY)
    tame = page([made.record(i, r.estimate) for i, r in enumerate((record, failed, *curve))])
    read = page([record, failed, *curve], header)
    assert len(read.scripts) == len(tame.scripts) == 2
    assert {tag for tag, _ in read.elements} - {tag for tag, _ in tame.elements} == set()
    assert not [attributes for _, attributes in read.elements if any(name.startswith("on") for name in attributes)]
    row = dict(zip(read.data["fields"], next(r for r in read.data["rows"] if r[1] == NASTY), strict=False))
    assert row["label"] == row["network"] == row["notes"][0] == NASTY
    assert NASTY in "".join(read.words)  # shown as it is, not cut


def test_a_name_with_no_unicode_is_written(page) -> None:
    assert "odd" in "".join(page([made.record(0, made.violated(-5.0), name="odd \udcff")]).words)


def test_dollars_are_not_mathematics(page) -> None:
    records = [made.record(i, made.violated(-9.0), network=f"$\\frac{{{i % 2}") for i in range(24)]
    assert "$\\frac{1" in "".join(page(records).words)


def test_the_page_forbids_itself_the_network(page) -> None:
    read = page(made.records(20))
    policy = next(a["content"] for tag, a in read.elements if tag == "meta" and "http-equiv" in a) or ""
    digest = base64.b64encode(hashlib.sha256(read.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for tag, attributes in read.elements:
        for name in ("src", "href", "xlink:href", "action", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:image/png")), (tag, name, target)


def test_charts_have_words_and_numbers(page) -> None:
    read = page(made.records(200))
    drawings = [attributes for tag, attributes in read.elements if tag == "svg"]
    ids = {attributes["id"]: tag for tag, attributes in read.elements if "id" in attributes}
    assert len(drawings) == 2
    for drawing in drawings:
        named = (drawing["aria-labelledby"] or "").split()
        assert [ids[name] for name in named] == ["title", "desc"]
    assert "".join(read.words).count("The numbers behind this chart") == 2


def test_ids_are_unique(page) -> None:
    ids = [
        attributes["id"]
        for _, attributes in page(made.records(200), witnesses=made.witnesses).elements
        if "id" in attributes
    ]
    assert len(ids) == len(set(ids))


def test_no_colour_of_a_drawing_ignores_the_dark(page, tmp_path: Path) -> None:
    curves = [made.record(i, made.violated(-9.0), network=f"net{i % 3}") for i in range(54)]
    page(curves)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    drawn = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert drawn
    for drawing in drawn:
        styles = "".join(re.findall(r'style="[^"]*"', drawing))
        assert "var(--" in styles
        assert not re.search(r"#[0-9a-fA-F]{3,6}|white|black|font-family", styles)


@pytest.mark.parametrize("nan", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_valid_json(page, nan: float) -> None:
    said = Number("splitting", SPLITTING, LogNormal(nan, nan), 7, levels=(nan, 0.0), acceptance=(nan,))
    numbers = {"log_prob": nan, "log_prob_std": nan, "upper_bound": nan, "evidence": (said,)}
    odd = replace(made.violated(-5.0), interval=Interval(0.95, nan, nan), **numbers)
    read = page([made.record(0, odd), made.record(1, made.violated(-5.0))])
    assert len(read.data["rows"]) == 2
    assert "NaN" not in read.scripts[0]
    assert "Infinity" not in read.scripts[0]


def test_the_table_has_the_digits_that_the_cards_have(page) -> None:
    """The table makes its texts of the numbers in the page; 0.9985 is in the middle between two of them."""
    logs = [math.log(k / 2000) for k in range(1, 2000)] + [-100 * math.log(10), -1234.5678901]
    read = page([made.record(i, made.violated(log)) for i, log in enumerate(logs)])
    data = read.data
    sent = sorted(row[data["fields"].index("log_prob")] for row in data["rows"])
    assert [scientific(log) for log in sent] == [scientific(log) for log in sorted(logs)]
    six = [scientific(float(f"{log:.6g}")) for log in logs]
    assert six != [scientific(log) for log in logs]  # what was sent before


def test_an_empty_campaign(page) -> None:
    read = page([])
    assert "This campaign has no problems." in "".join(read.words)
    assert read.data["rows"] == []


def test_all_failed(page) -> None:
    read = page([made.record(i, None) for i in range(3)])
    assert "Of 3 problems, 3 failed." in "".join(read.words)
    assert not [tag for tag, _ in read.elements if tag == "svg"]


def test_one_problem(page) -> None:
    read = page([made.record(0, made.violated(math.log(0.02)))])
    text = "".join(read.words)
    assert "Of 1 problem, 1 is violated. The most probable violation happens 1 in 50 (p = 0.02)" in text
    assert "Robustness over the radius" not in text


def test_a_campaign_that_still_runs(page) -> None:
    waiting = [made.record(i, None, state="waiting", reason="") for i in range(3)]
    text = "".join(page([*waiting, made.record(3, made.violated(-5.0))]).words)
    assert "1 is violated and 3 are still waiting" in text
    assert "1 of 4" in text


def test_ten_thousand_problems_make_a_small_page(page, tmp_path: Path) -> None:
    asked = []

    def witnesses(key: str) -> WitnessSet:
        asked.append(key)
        return made.witnesses(key)

    read = page(made.records(10_000), witnesses=witnesses)
    assert len(read.data["rows"]) == 10_000
    assert len(asked) <= WITH_WITNESS
    assert (tmp_path / "report.html").stat().st_size < 7e6
    assert len(read.elements) < 5000  # rows are made by the script, a page of them at a time


def test_more_problems_than_the_table_holds(page) -> None:
    records = list(made.records(300))
    read = page(records, max_rows=100)
    assert "the worst 100 of 300 problems" in " ".join(read.words)
    assert "Of 300 problems" in " ".join(read.words)
    kept = {row[0] for row in read.data["rows"]}
    found = [r for r in records if r.estimate is not None and math.isfinite(r.estimate.log_prob)]
    found.sort(key=lambda r: -r.estimate.log_prob if r.estimate else 0)
    assert kept == {record.key for record in found[:100]}


def test_replicates_do_not_fill_the_cards(page) -> None:
    same = [made.record(0, made.violated(-2.0 - i / 10), key=f"{i:016x}", replicate=i) for i in range(8)]
    other = made.record(50, made.violated(-9.0))
    read = page([*same, other])
    opened = [a["data-open"] for tag, a in read.elements if tag == "button" and "data-open" in a]
    assert opened == [same[0].key, other.key]


def test_an_old_page_survives_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")

    def broken():
        yield from made.records(3)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk"):
        write_page(file, made.header(), broken(), no_witness)
    assert file.read_text() == "old"


def test_witnesses_are_shown_once(page) -> None:
    read = page(made.records(100), witnesses=made.witnesses)
    pictures = [a["src"] for tag, a in read.elements if tag == "img"]
    holders = [a["id"] for tag, a in read.elements if (a.get("id") or "").startswith("witness-")]
    assert len(holders) == len(set(holders)) == WITH_WITNESS
    assert len(pictures) > WITH_WITNESS
    assert np.mean([len(source or "") for source in pictures]) < 3000


def test_the_network_says_what_it_answers_and_where_the_nearest_lies(page) -> None:
    read = page([made.record(0, made.violated(-5.0))], witnesses=made.witnesses)
    text = " ".join(read.words)
    assert "The nearest violation that was found lies at 0.431 of the radius from the centre." in text
    (answer,) = [words for words in read.words if words.startswith("The network answers: ")]
    outputs = made.witnesses(f"{0:016x}").outputs
    assert outputs is not None
    assert answer.startswith(f"The network answers: {made.CLASSES[int(outputs[0].argmax())]} (")


@pytest.mark.parametrize("plan", ["not = [toml", '[[problems]]\ndataset = "a"\nclasses = 3\n', "problems = 7"])
def test_classes_of_a_strange_plan_are_numbers(page, plan: str) -> None:
    read = page([made.record(0, made.violated(-5.0))], made.header(plan=plan), witnesses=made.witnesses)
    assert any(words.startswith("The network answers: class ") for words in read.words)


def test_rows_and_cards_have_stems_and_whole_names_behind_them(page) -> None:
    names = ("nets/deep/signs.onnx", "nets/wide/signs.onnx", "nets/small.onnx.gz", "package.models:build")
    records = [
        made.record(
            i, made.violated(-5.0 - i), network=network, name=f"{network} signs.npz[3] linf 0.1", item="signs.npz[3]"
        )
        for i, network in enumerate(names)
    ]
    read = page(records)
    openers = [attributes for _, attributes in read.elements if attributes.get("class") == "open"]
    assert [a["title"] for a in openers] == [record.name for record in records]
    assert read.data["stems"] == dict(zip(names, (names[0], names[1], "small", names[3]), strict=True))
    text = " ".join(read.words)
    for called in (f"{names[0]} signs[3] linf 0.1", "small signs[3] linf 0.1", f"{names[3]} signs[3] linf 0.1"):
        assert called in text
    ending = read.data["fields"].index("ending")
    assert {row[ending] for row in read.data["rows"]} == {".npz"}


@pytest.mark.parametrize("hits", [1997, 1999, 1001, 3, 1995, 2, 1987])
def test_a_card_and_its_row_say_the_same(page, hits: int) -> None:
    """Shares on the edge of rounding: 0.9985 is 0.998 in one arithmetic and 0.999 in another."""
    estimate = made.violated(math.log(hits / 2000))
    read = page([made.record(0, estimate)])
    fields, (row,) = read.data["fields"], read.data["rows"]
    chance, between = row[fields.index("chance")], row[fields.index("between")]
    (card,) = [" ".join(words.split()) for words in read.words if "95% interval" in words]
    assert card == f"p = {chance}, 95% interval {between}"
    assert chance == scientific(estimate.log_prob)


def test_more_groups_than_curves(page) -> None:
    text = "".join(page([made.record(i, made.violated(-5.0), network=f"net{i // 6}") for i in range(54)]).words)
    assert "The first 6 of 9 groups are drawn." in text
    chart = text.split("Robustness over the radius")[1].split("Worst problems")[0]
    assert "net5" in chart
    assert "net6" not in chart
