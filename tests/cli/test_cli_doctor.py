"""`rarely doctor`: what it reports, and that it notices an installation whose numbers are wrong."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rarely.cli.app import app
from rarely.cli.doctor import GIVES, Part, optional_parts
from rarely.demo import selfcheck
from rarely.demo.selfcheck import Check

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_a_good_installation(rarely, tmp_path) -> None:
    out = tmp_path / "doctor.json"
    text = rarely("doctor", "--json", out).stdout
    assert "Every check passed." in text
    report = json.loads(out.read_text())
    assert report["passed"] is True
    assert "cpu" in report["devices"]
    assert report["versions"]["torch"]
    assert [check["passed"] for check in report["checks"]] == [True] * len(report["checks"])
    assert any(check["exact"] == "-inf" for check in report["checks"])


def test_json_alone_on_stdout() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "-"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["passed"] is True


def test_a_wrong_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    good = next(selfcheck.checks())
    assert good.passed
    wrong = Check(good.name, good.exact + 1.0, good.estimate)  # off by a factor of e
    monkeypatch.setattr(selfcheck, "checks", lambda: iter([good, wrong]))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "trust no number" in result.output


def test_a_proof_where_violations_exist_is_wrong() -> None:
    *_, proof = selfcheck.checks()
    assert proof.passed
    assert not Check(proof.name, math.log(1e-6), proof.estimate).passed


def test_every_extra_says_what_it_gives() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(GIVES), set(extras) - set(GIVES)


def test_a_missing_package_makes_a_part_missing() -> None:
    assert Part("x", "", {"a": "1.0"}).installed
    assert not Part("x", "", {"a": "1.0", "b": None}).installed
    parts = {part.extra: part for part in optional_parts()}
    assert parts["onnxruntime"].packages.keys() == {"onnxruntime"}
