"""The page about one decision: what it says, that names cannot break it, and that its record can be read back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import made_campaign as made
from rarely.campaign.again import read_answers
from rarely.campaign.content import sha256
from rarely.campaign.gate import Entrant, together
from rarely.core.errors import FormatError
from rarely.core.evidence import Bracket, Draws, Found, Levels, Number, Searched
from rarely.core.witnesses import Witnesses
from rarely.questions.result import Estimate, Outcome
from rarely.questions.threshold import Decision, Ruling
from rarely.report.argument import Node, argument, assumptions, claim, standing
from rarely.report.evidence import write_evidence
from rarely.stats.statistic import Exceeded, LogNormal

NASTY = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked=1">\'"&$name <!--'
FOUND = Found("attack", Witnesses(torch.rand(2, 6), torch.tensor([0.4, 0.1])), 12, replayed=True)
NUMBER = Number("line sampling", "lines", LogNormal(-17.9, 0.08), 500, "its lines saw every region that matters")


def decision(ruling: Ruling = Ruling.ACCEPTED, **changes: Any) -> Decision:
    evidence = (
        Bracket(-20.0, -15.0, "bounds over 12 boxes", arithmetic="float32"),
        Draws(1000, 0, 1000),
        NUMBER,
        FOUND,
    )
    asked = {"question": "certify", "network": "models/net.onnx", "property": "brake.vnnlib", "settings": {"seed": 3}}
    provenance = {
        "seed": 3,
        "asked": asked,
        "words": {"network": "inputs 6", "violation": "output 0 >= 0", "inputs": "uniform: x0 in [0, 1]"},
        "files": [{"role": "network", "name": "net.onnx", "sha256": "ab" * 32, "bytes": 12}],
        "command": "rarely certify models/net.onnx brake.vnnlib",
    }
    settled = {"ruling": ruling, "p_max": 1e-6, "confidence": 0.95, "sentence": "p < 1e-06 by statistics", "name": "x"}
    cost = {"evaluations": 1500, "gradients": 4, "seconds": 0.5, "evidence": evidence, "witnesses": FOUND.witnesses}
    return Decision(**{**settled, **cost, "provenance": provenance, **changes})  # type: ignore[arg-type]


class Reader(HTMLParser):
    """The elements of a page with their attributes, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += f"{data} "


def page(folder: Path, answer: Any, witnesses: Path | None = None) -> tuple[Reader, Path]:
    source, out = folder / "answer.json", folder / "evidence.html"
    source.write_text(answer.to_json())
    write_evidence(out, answer, source, witnesses, out.name)
    return Reader(out.read_text()), out


def test_a_page_says_all_that_an_assessor_asks_for(tmp_path: Path) -> None:
    read, out = page(tmp_path, decision())
    for words in (
        "net.onnx violates brake.vnnlib with a probability below 1e-06", "supported", "uniform: x0 in [0, 1]",
        "by bounds over 12 boxes", "0 of 1,000 independent inputs", "its lines saw every region", "ab" * 32,
        "rarely evidence evidence.html --replay", "2 violating inputs were found and replayed", "What was not checked",
        "Whether the input model describes what the network meets", sha256(tmp_path / "answer.json"),
    ):  # fmt: skip
        assert words in " ".join(read.words.split()), words
    (answer,) = read_answers(out)
    assert isinstance(answer, Decision)
    assert json.loads(answer.to_json())["evidence"] == json.loads(decision().to_json())["evidence"]


def test_a_page_asks_nothing_of_the_network_and_runs_nothing(tmp_path: Path) -> None:
    read, _ = page(tmp_path, decision())
    policy = next(a["content"] for tag, a in read.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline';")
    scripts = [attributes for tag, attributes in read.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "record"}]
    for _, attributes in read.elements:
        assert not attributes.keys() & {"src", "srcset", "onerror", "onload"} or attributes["src"].startswith("data:")  # type: ignore[union-attr]
        assert (attributes.get("href") or "#").startswith("#")


def test_nasty_names_stay_text(tmp_path: Path) -> None:
    tame, _ = page(tmp_path, decision())
    asked = {"question": "certify", "network": NASTY, "property": NASTY, "settings": {NASTY: NASTY}}
    provenance = {
        "asked": asked, "words": dict.fromkeys(("network", "violation", "inputs"), NASTY), "command": NASTY,
        "files": [{"role": NASTY, "name": NASTY, "sha256": NASTY, "bytes": NASTY}], "uncovered": [NASTY], "date": NASTY,
        "packages": {NASTY: NASTY}, "seed": NASTY,
    }  # fmt: skip
    nasty = decision(provenance=provenance, name=NASTY, sentence=NASTY)
    read, out = page(tmp_path, replace(nasty, evidence=(replace(NUMBER, method=NASTY, assumes=NASTY),)))
    kinds = [{tag for tag, _ in one.elements} for one in (tame, read)]
    assert kinds[1] <= kinds[0] | {"li", "dd"}
    assert sum(tag == "script" for tag, _ in read.elements) == 1
    assert NASTY in read.words
    assert len(read_answers(out)) == 1


@pytest.mark.parametrize("provenance", [{}, {"asked": 3, "words": [], "files": "x", "packages": 1, "witnesses": "w"}])
def test_provenance_of_another_shape_is_left_away(tmp_path: Path, provenance: dict[str, Any]) -> None:
    read, _ = page(tmp_path, decision(provenance=provenance))
    assert "the network violates x with a probability below 1e-06" in read.words


def test_witnesses_are_shown_if_they_are_those_of_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "w.npz"
    FOUND.witnesses.save(file)
    told = {**decision().provenance, "witnesses": {"name": "elsewhere/w.npz", "sha256": sha256(file)}}
    read, _ = page(tmp_path, decision(Ruling.REJECTED, provenance=told))
    assert "score 0.4" in read.words
    assert sum(attributes.get("class") == "card" for _, attributes in read.elements) == 2
    np.savez(file, inputs=np.zeros((1, 6)), scores=np.zeros(1))
    with pytest.raises(FormatError, match="its sha256 is another"):
        page(tmp_path, decision(Ruling.REJECTED, provenance=told))
    with pytest.raises(FormatError, match="its sha256 is another"):  # also where it is named by hand
        page(tmp_path, decision(Ruling.REJECTED), file)
    file.unlink()
    read, _ = page(tmp_path, decision(Ruling.REJECTED, provenance=told))
    assert "their file, elsewhere/w.npz, is not here" in read.words


def elements(node: Node) -> list[Node]:
    return [node, *(one for part in (*node.beside, *node.below) for one in elements(part))]


def test_the_argument_rests_every_goal_on_something(tmp_path: Path) -> None:
    top = argument(decision())
    every = elements(top)
    assert len({node.name for node in every}) == len(every)
    assert (top.name, top.kind, top.standing) == ("G1", "goal", "supported")
    for node in every:
        if node.kind in ("goal", "strategy"):
            assert node.below or node.standing == "not developed"
        else:
            assert not node.below
    assert {node.kind for node in every} == {"goal", "strategy", "solution", "context", "assumption"}
    assert sum(node.kind == "solution" for node in every) == 4
    assert any(node.standing == "not developed" for node in every)


def test_rulings_and_outcomes_say_whether_the_claim_stands() -> None:
    assert standing(decision(Ruling.REJECTED)) == "refuted"
    assert standing(decision(Ruling.UNDECIDED)) == "undecided"
    estimate = made.violated(-17.0)
    assert claim(estimate).startswith("the network violates its property with a probability between 3.")
    assert standing(replace(estimate, outcome=Outcome.STALLED)) == "not to be trusted"
    safe = made.unseen(Outcome.PROVED_SAFE, -math.inf)
    assert claim(safe) == "the network never violates its property"
    assert "at most" in claim(made.unseen(Outcome.BELOW_FLOOR, -230.0))


def test_assumptions_are_told_once() -> None:
    left = Levels("splitting", Exceeded((-230.0, -231.0)), "floor", 10)
    real = Bracket(-math.inf, -math.inf, "bounds", arithmetic="real")
    estimate: Estimate = replace(made.violated(-3.0), evidence=(NUMBER, NUMBER, left, real, Searched("x", "nothing")))
    told = assumptions(estimate)
    assert len(told) == len(set(told)) == 4
    assert any("real arithmetic" in text for text in told)
    assert not assumptions(replace(estimate, evidence=(FOUND,)))


def test_a_gate_of_many_images_lists_the_worst_first(tmp_path: Path) -> None:
    decisions = [decision(Ruling.REJECTED if i == 70 else Ruling.ACCEPTED, name=f"image {i}") for i in range(80)]
    gate = together([Entrant(f"{i}", 1, 1) for i in range(80)], decisions)
    top = argument(replace(gate, provenance=decision().provenance))
    goals = [node.text for node in top.below[0].below]
    assert goals[0] == "image 70: below 1e-06"
    assert goals[-1] == "40 more images: 40 accepted"
    read, _ = page(tmp_path, gate)
    assert "image 79" in read.words
