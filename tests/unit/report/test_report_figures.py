from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import made_campaign as made
from rarely.campaign.robustness import Curve
from rarely.campaign.store import Record
from rarely.core.errors import FormatError, InputError
from rarely.display.figures import LN10, plot_estimate, plot_levels, plot_probabilities
from rarely.io.files import save_figure
from rarely.questions.result import Outcome
from rarely.report import interactive
from rarely.report.charts import Drawing, inline
from rarely.report.figures import MAX_POINTS, histogram, plot_curves, plot_distribution
from rarely.report.interactive import Marks, write_climbs, write_interactive
from rarely.report.page import render
from rarely.report.tally import read_records, tally


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def _svg(drawing: Drawing) -> str:
    return render("drawing.html", drawing=drawing)


@pytest.mark.parametrize(
    "values",
    [[-1.0], [-1.0, -1.0], [0.0, -700.0], [0.0], [-0.3, -0.1, -0.2], [-1e5, 0.0], [0.1 * math.log(10) * 3]],
)
def test_the_histogram_loses_nobody(values: list[float]) -> None:
    edges, heights, doubts = histogram(values, values[:1])
    assert heights.sum() == len(values)
    assert doubts.sum() == 1
    assert len(edges) <= 31
    assert (np.diff(edges) > 0).all()


def test_quartiles_do_not_mix_numbers_and_nothing() -> None:
    curve = Curve("", [0.1], [[-math.inf, -math.inf, -4.0, -2.0]])
    assert curve.quartiles().tolist() == [[-math.inf, -math.inf, -4.0]]


def test_nothing_found_is_no_number_and_no_line_leads_there() -> None:
    """It stands below the lowest number, on a strip of its own."""
    columns = [[-math.inf] * 3, [-math.inf, -30.0, -math.inf], [-math.inf, -20.0, -10.0], [-9.0, -6.0, -3.0]]
    (axes,) = plot_curves([Curve("", [0.1, 0.2, 0.3, 0.4], columns)]).axes
    lines = {line.get_label(): np.array(line.get_data(), dtype=float) for line in axes.get_lines()}
    median = lines["median"]
    assert np.isnan(median[1]).tolist() == [True, True, False, False]
    assert median[1, 2:] == pytest.approx(np.array([-20.0, -6.0]) / LN10)
    (strip, *ticks), (named, *_) = axes.get_yticks(), axes.get_yticklabels()
    assert named.get_text() == "none found"
    (edge,) = [line.get_ydata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert strip < edge < min(-30.0 / LN10, *ticks)
    drawn = np.concatenate([np.atleast_1d(line.get_ydata()) for line in axes.get_lines()])
    assert {strip} == set(drawn[drawn < edge].tolist())
    assert (drawn == strip).sum() == 3 + 2 + 1 + 2  # the problems, and two medians


@pytest.mark.parametrize("columns", [[[-math.inf], [-math.inf]], [[], [-3.0]], [[], []]])
def test_curves_of_next_to_nothing(columns: list[list[float]], tmp_path: Path) -> None:
    save_figure(plot_curves([Curve("", [0.1, 0.2], columns)]), tmp_path / "c.svg")
    assert ("none found" in _texts((tmp_path / "c.svg").read_text())) == (columns[0] == [-math.inf])


def test_a_drawing_in_a_page_is_well_formed_and_named() -> None:
    curves = [Curve(f"<b>&{i}", [0.1, 0.2], [[-9.0, -math.inf], [-3.0, -2.0]]) for i in range(2)]
    drawing = _svg(inline(plot_curves(curves), "here", "a < b", "c & d"))
    assert drawing.startswith("<svg viewBox=")
    body = drawing.replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    )
    assert {"<b>&0", "<b>&1", "none found"} <= set(_texts(body))
    assert '<title id="here-title">a &lt; b</title>' in drawing
    assert _svg(inline(plot_curves(curves), "here", "a < b", "c & d")) == drawing  # the same data, the same file


def test_many_points_do_not_fill_the_file() -> None:
    few = _svg(inline(plot_curves([Curve("", [0.1, 0.2], [[-5.0] * 900] * 2)]), "few", "", ""))
    many = _svg(inline(plot_curves([Curve("", [0.1, 0.2], [[-5.0] * 9000] * 2)]), "many", "", ""))
    assert len(many) < len(few) / 5


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_figures_are_written_in_their_size(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"figure.{ending}"
    save_figure(plot_distribution([-3.0, -9.0], [-4.0], size=(3.3, 2.2)), file)
    assert file.stat().st_size > 1000
    if ending == "svg":
        texts = _texts(file.read_text())
        assert {"violated", "not to be trusted", "problems"} <= set(texts)
        assert ET.fromstring(file.read_text()).get("width") == "237.6pt"


def test_names_with_dollars_are_drawn(tmp_path: Path) -> None:
    file = tmp_path / "levels.svg"
    save_figure(plot_levels([made.violated(-20.0, name="cost $x_ $"), made.violated(-20.0, name="$")]), file)
    assert {"cost $x_ $", "$"} <= set(_texts(file.read_text()))


def test_curves_are_told_apart_by_what_differs() -> None:
    records = [made.record(i, made.violated(-5.0), network=f"net{i % 2}") for i in range(12)]
    assert [curve.name for curve in tally(records).curves()] == ["net0", "net1"]
    records = [made.record(i, made.violated(-5.0), norm=norm) for i in range(6) for norm in ("inf", "2")]
    assert [curve.name for curve in tally(records).curves()] == ["norm inf", "norm 2"]
    assert [curve.name for curve in tally(records[::2]).curves()] == [""]
    assert tally(records[:2]).curves() == []


def test_what_is_not_to_be_trusted_is_left_out_of_curves() -> None:
    records = list(made.records(300))
    counted = tally(records)
    drawn = sum(len(column) for curve in counted.curves() for column in curve.log_probs)
    skipped = counted.counts["not to be trusted"] + counted.counts["failed"]
    assert counted.counts["not to be trusted"] > 0
    assert drawn == 300 - skipped


def test_records_from_estimates(tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    one.write_text(made.violated(-5.0, name="brake").to_json())
    many.write_text(f"[{made.violated(-5.0).to_json()},{made.violated(-6.0).to_json()}]")
    names = [record.name for record in read_records([one, many])]
    assert names == ["brake", "many", "many"]


def test_records_from_a_robustness_study(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    rows = [
        {"image": "a.png", "label": 2, "eps": 0.1, "estimate": json.loads(made.violated(-5.0).to_json())},
        {"image": "a.png", "label": 2, "eps": 0.2, "estimate": None},
    ]
    file.write_text(json.dumps({"schema": 1, "norm": "inf", "rows": rows}))
    first, second = read_records([file])
    assert (first.radius, first.norm, first.label, first.state) == (0.1, "inf", "2", "done")
    assert (second.radius, second.state, second.estimate) == (0.2, "waiting", None)


@pytest.mark.parametrize("text", ["", "{}", "[3]", '{"rows": 3, "norm": "inf"}', '{"rows": [{}]}', '"x"', "[{}]"])
def test_files_that_are_no_results(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(FormatError, match="odd"):
        list(read_records([file]))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        list(read_records([tmp_path / "none.json"]))


@pytest.mark.parametrize("kind", ["curve", "distribution", "levels"])
def test_figures_to_point_at(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("plotly")
    file = tmp_path / "figure.html"
    records = [made.record(i, made.violated(-5.0 - i), name=f"</script><b>{i}") for i in range(6)]
    _write(file, records, kind)
    text = file.read_text(encoding="utf-8")
    assert "</script><b>" not in text
    assert "plotly" in text
    assert ' src="http' not in text
    if kind != "levels":
        with pytest.raises(InputError, match="nothing"):
            _write(file, [made.record(0, None)], kind)


def _write(file: Path, records: list[Record], kind: str) -> None:
    if kind == "levels":
        write_climbs(file, [replace(r.estimate, name=r.name) for r in records if r.estimate])
    else:
        marks = Marks()
        write_interactive(file, kind, tally(marks.watch(records), max_rows=0), marks)


@pytest.mark.parametrize("kind", ["curve", "distribution"])
def test_a_figure_to_point_at_names_the_most_probable_of_many(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("plotly")
    count = 2 * MAX_POINTS
    records = [made.record(i, made.violated(-5.0 - i / count), name=f"problem {i:05d}") for i in range(count)]
    records += [made.record(count, made.violated(-1.0, name="x" * 10**6), name="y" * 10**6)]
    _write(tmp_path / "few.html", records[:2], kind)
    _write(tmp_path / "many.html", records, kind)
    text = (tmp_path / "many.html").read_text(encoding="utf-8")
    assert "problem 00000" in text
    assert f"problem {MAX_POINTS - 2:05d}" in text
    assert f"problem {MAX_POINTS - 1:05d}" not in text  # one place is that of the last record
    assert len(text) < (tmp_path / "few.html").stat().st_size + 400 * MAX_POINTS


def test_shares_of_a_distribution_are_those_of_all_problems(tmp_path: Path) -> None:
    """Marks stand on the line of all problems: the most probable at 1, each next one a problem lower."""
    graph_objects = pytest.importorskip("plotly.graph_objects")
    count = MAX_POINTS + 500
    records = [made.record(i, made.violated(-2.0 - i)) for i in range(count)]
    records += [made.record(count + i, made.unseen(Outcome.BELOW_FLOOR, -9.0)) for i in range(500)]
    records += [made.record(count + 500, None)]  # waits, and does not count
    marks, figure = Marks(), graph_objects.Figure()
    counted = tally(marks.watch(records), max_rows=0)
    interactive._distribution(figure, counted, marks.sorted())
    line, points = figure.data
    assert list(points.y[:2]) == [1.0, pytest.approx(1 - 1 / (count + 500))]
    assert points.x[0] == pytest.approx(-2.0 / LN10)
    assert (line.x[-1], line.y[-1]) == (points.x[0], 1.0)
    assert line.y[0] == pytest.approx(501 / (count + 500))  # 500 without a number are below all that have one


def test_long_names_leave_room_for_the_figure(tmp_path: Path) -> None:
    long = made.violated(-20.0, name=f"begin {'very ' * 5000} long end")
    for figure in (plot_levels([long, long]), plot_estimate(long), plot_probabilities([long])):
        save_figure(figure, tmp_path / "names.svg")
        text = (tmp_path / "names.svg").read_text(encoding="utf-8")
        assert "long end" in text
        assert len(text) < 100_000
