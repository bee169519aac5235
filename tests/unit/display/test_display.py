"""What notebooks show: escaped, in the notebook's own colours, with pictures and names where there are any."""

from __future__ import annotations

import io
import math
import re
import sys
import types
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import made_campaign as made
import rarely
from rarely import Box, LpBall, Misclassification, MonteCarlo, Outcome, Problem
from rarely.core.errors import MissingExtra
from rarely.core.evidence import Witnesses
from rarely.core.words import inputs_in_words, property_in_words
from rarely.display import html, progress
from rarely.inputs import OneHot, Tabular, Uniform
from rarely.questions.estimates import Estimates
from rarely.questions.verify import Verdict
from rarely.stats.statistic import Interval

NASTY = "</style><script>alert(1)</script><b>&'\""


class Reader(HTMLParser):
    """Whether every element that is opened is closed, and what there is to read."""

    VOID = ("img", "circle", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def picture_problem(name: str = "") -> Problem:
    return Problem(nn.Flatten().eval(), Misclassification(3), LpBall(torch.full((1, 9, 9), 0.5), 0.1), name)


def table_problem(name: str = "loans") -> Problem:
    columns = Tabular({"age": Uniform(18, 80), NASTY: OneHot([0.5, 0.5], ["home", "car"])})
    return Problem(lambda x: x[:, :1], lambda x, y: y[..., 0] - 60, columns, name)


ANSWERS = [
    made.violated(-20.0, name=NASTY, notes=(NASTY,)),
    made.violated(0.0),
    replace(made.violated(-20.0), interval=Interval(0.95, -math.inf, -3.0), outcome=Outcome.STALLED),
    made.unseen(Outcome.STALLED, -3.0),
    made.unseen(Outcome.BELOW_FLOOR, -230.0),
    made.unseen(Outcome.OUT_OF_BUDGET, 0.0),
    made.unseen(Outcome.PROVED_SAFE, -math.inf),
]


@pytest.mark.parametrize("estimate", ANSWERS)
def test_every_estimate_is_shown(estimate: rarely.Estimate) -> None:
    read = Reader(estimate._repr_html_())
    assert not read.tags("script")
    assert not read.tags("b")
    assert estimate.sentence in read.text
    assert ("do not trust" in read.text) == (estimate.outcome is Outcome.STALLED)
    assert all(note in read.text for note in estimate.notes)
    drawn = re.findall(r'(?:cx|x1|x2)="([^"]*)"', estimate._repr_html_())
    assert all(0 <= float(x) <= 440 for x in drawn)
    assert bool(drawn) == (estimate.outcome is not Outcome.PROVED_SAFE)


def test_nothing_hides_in_the_dark() -> None:
    """Text has the notebook's colour; marks are seen on white and on black, by the contrast that WCAG asks of marks."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    colors = set(re.findall(r"#[0-9a-f]{6}", "".join(estimate._repr_html_() for estimate in ANSWERS)))
    assert colors == {html.ACCENT, html.DOUBT}
    for color in colors:
        assert (1.05 / (luminance(color) + 0.05)) > 3.0
        assert ((luminance(color) + 0.05) / (luminance("#111111") + 0.05)) > 3.0


def test_a_list_is_one_table_and_prints_lines() -> None:
    many = Estimates(ANSWERS)
    read = Reader(many._repr_html_())
    assert len(read.tags("tr")) == 1 + len(ANSWERS)
    assert str(many).count("\n") == len(ANSWERS) - 1
    assert repr(many) == str(many)
    assert "no problem" in Estimates()._repr_html_()
    found = rarely.estimate([table_problem(), table_problem("more")], MonteCarlo(500))
    assert isinstance(found, list)
    assert [len(axes.get_yticks()) for axes in found.plot().axes] == [2]
    assert len(found[0].plot().axes) == 1
    assert repr(found[0]) == f"<Estimate {found[0]}>"


def test_frames() -> None:
    pytest.importorskip("pandas")
    many = Estimates(ANSWERS)
    table = many.to_frame()
    assert table.name.tolist() == [e.name for e in many]
    assert table.prob[0] == pytest.approx(math.exp(-20.0))
    assert {"low", "high", "upper_bound", "outcome", "calls", "method", "witnesses"} <= set(table.columns)
    assert many[0].to_frame().equals(table.iloc[:1])
    assert len(Estimates().to_frame()) == 0


def test_without_pandas_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'rarely\[tables\]'"):
        ANSWERS[0].to_frame()


def test_rows_of_a_table_have_their_names() -> None:
    found = rarely.estimate(table_problem(), MonteCarlo(300)).witnesses
    assert set(found.records()[0]) == {"age", NASTY}
    assert found.records()[0][NASTY] in ("home", "car")
    read = Reader(found._repr_html_())
    assert len(read.tags("tr")) == 1 + 6
    assert f"{len(found)} inputs that violate, the first 6" in read.text
    decided = rarely.test(table_problem(), 0.01)
    assert "age" in decided.witnesses.records()[0]
    assert "rejected" in Reader(decided._repr_html_()).text
    verdict = rarely.verify(table_problem(), 5.0)
    assert isinstance(verdict, Verdict)
    assert "age" in Reader(verdict._repr_html_()).text


def test_witnesses_without_names() -> None:
    one = Witnesses(torch.tensor([[0.25, 3.0]]), torch.tensor([0.5]))
    assert one.records() == [{"x0": 0.25, "x1": 3.0}]
    assert "an input that violates" in one._repr_html_()
    wide = Witnesses(torch.zeros(3, 200), torch.zeros(3))
    assert len(Reader(wide._repr_html_()).tags("th")) == 14
    for nothing in (Witnesses(torch.zeros(0), torch.zeros(0)), Witnesses(torch.zeros(7, 0), torch.zeros(7))):
        assert nothing.records() == []
        assert not Reader(nothing._repr_html_()).tags("table")


def test_pictures_are_pictures() -> None:
    found = Witnesses(torch.rand(20, 3, 9, 9), torch.rand(20))
    images = Reader(found._repr_html_()).tags("img")
    assert len(images) == 8
    assert all(str(image["src"]).startswith("data:image/png;base64,") for image in images)
    assert len(Reader(picture_problem()._repr_html_()).tags("img")) == 1


def test_a_problem_in_words() -> None:
    read = Reader(picture_problem(NASTY)._repr_html_())
    assert not read.tags("script")
    assert "Flatten, 1 × 9 × 9 inputs, 81 outputs, in float32" in read.text
    assert "another output is at least as high as output 3" in read.text
    assert "uniform in the ball of radius 0.1 in the ∞-norm around an input of 81 numbers" in read.text
    assert "age uniform in [18, 80]" in str(table_problem())
    assert repr(picture_problem()) == f"<Problem {picture_problem()}>"
    nowhere = Problem(
        nn.Identity().eval(), lambda x, y: y[..., 0], type("Law", (), {"sample": _ones, "log_density": _flat})()
    )
    assert "drawn from Law" in Reader(nowhere._repr_html_()).text  # a law without a centre


def _ones(self: object, n: int) -> torch.Tensor:
    return torch.ones(n, 2)


def _flat(self: object, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(x))


def test_properties_in_words() -> None:
    below = rarely.LinearConstraint([[1.0, 0.0], [0.0, -2.0]], [3.0, 1.0])
    assert property_in_words(below) == "output 0 <= 3 and output 1 >= -0.5"
    assert property_in_words(rarely.LinearConstraint([[1.0, -1.0]], [0.0])) == "+1 y0 -1 y1 <= 0"
    both = below & rarely.Targeted(0, 1)
    assert property_in_words(both).endswith("; and output 1 is at least as high as output 0")
    assert "linear constraints" in property_in_words(rarely.LinearConstraint(torch.zeros(1, 30), torch.zeros(1)))
    assert property_in_words(type("Own", (), {"words": "it breaks"})()) == "it breaks"
    assert inputs_in_words(Box([0.0, 1.0], [1.0, 1.0])) == "uniform in the box x0 in [0, 1], x1 = 1"


# Progress ------------------------------------------------------------------------------------------------------------


class Notebook:
    """What IPython would be sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def update(self, page: Any) -> None:
        self.sent.append(page)


def test_progress_in_a_notebook_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()
    shell = types.SimpleNamespace(HTML=str, display=lambda page, display_id: notebook)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", shell)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 0.0)
    shown = rarely.estimate([table_problem(), table_problem("b")], MonteCarlo(3000), progress=True)
    assert [e.log_prob for e in shown] == [e.log_prob for e in rarely.estimate([table_problem()] * 2, MonteCarlo(3000))]
    assert notebook.sent[-1] == ""
    assert any("0/2" in line and "calls" in line for line in notebook.sent)
    assert all("<script" not in line for line in notebook.sent)


def test_progress_says_nothing_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    rarely.estimate(table_problem(), MonteCarlo(3000), progress=True)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    rarely.certify(table_problem(), 1e-3, timeout=20, progress=True)
    assert "deciding" in screen.getvalue()


@pytest.mark.parametrize("ask", ["estimate", "test", "certify", "verify", "monitor"])
def test_a_function_is_told_by_every_question(ask: str) -> None:
    events: list[Any] = []
    problem = picture_problem()
    questions = {
        "estimate": lambda: rarely.estimate(problem, MonteCarlo(3000), progress=events.append),
        "test": lambda: rarely.test(problem, 0.1, progress=events.append),
        "certify": lambda: rarely.certify(problem, 0.1, progress=events.append),
        "verify": lambda: rarely.verify(problem, progress=events.append),
        "monitor": lambda: rarely.monitor(nn.Flatten(), problem, progress=events.append)(0),
    }
    questions[ask]()
    assert events
    assert all(event.stage for event in events)
