"""`pytest --rarely-report`, in sessions of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rarely

pytest_plugins = ["pytester"]
ROOT = Path(rarely.__file__).parents[2]
PLUGIN = ("-p", "rarely.integrations.pytest_plugin")
SUITE = """
import pytest, torch, rarely
from rarely.testing import assert_rarely

def tail(threshold, name):
    network = torch.nn.Identity().eval()
    return rarely.Problem(network, lambda x, y: x[:, 0] - threshold, rarely.Box([0.0, 0.0], [1.0, 1.0]), name)

def test_good(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the report still goes where it was asked to
    assert_rarely(tail(0.999, "a thousandth"), p_max=0.1)

def test_bad():
    assert_rarely(tail(0.5, "a half"), p_max=0.1)

@pytest.fixture
def checked():
    assert_rarely(tail(0.99, "a hundredth"), p_max=0.1)

def test_of_a_fixture(checked):
    pass

def test_of_something_else():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # else it would be there twice once it is installed
    pytester.makepyfile(SUITE)
    return pytester


def _decided(file: Path) -> list[tuple[str, str, str, str]]:
    content = json.loads(file.read_text(encoding="utf-8"))
    assert (content["schema"], content["rarely"]) == (1, rarely.__version__)
    return [
        (test["test"].partition("::")[2], test["outcome"], decision["problem"], decision["ruling"])
        for test in content["tests"]
        for decision in test["decisions"]
    ]


EXPECTED = [
    ("test_bad", "failed", "a half", "rejected"),
    ("test_good", "passed", "a thousandth", "accepted"),
    ("test_of_a_fixture", "passed", "a hundredth", "accepted"),
]


def test_decisions_are_kept_and_summed_up(suite: pytest.Pytester) -> None:
    done = suite.runpytest_inprocess(*PLUGIN, "--rarely-report", "gate.json")
    done.assert_outcomes(passed=3, failed=1)
    assert _decided(suite.path / "gate.json") == EXPECTED
    done.stdout.fnmatch_lines(["*how rarely networks fail*", "*test_bad a half", "*rejected: p > 0.1 by *"])
    done.stdout.fnmatch_lines(["3 decisions in *gate.json"])


def test_workers_send_theirs(suite: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    done = suite.runpytest_subprocess(*PLUGIN, "-p", "xdist", "-n", "1", "--rarely-report", "gate.json")
    done.assert_outcomes(passed=3, failed=1)
    assert _decided(suite.path / "gate.json") == EXPECTED


def test_without_the_option_nothing_happens(suite: pytest.Pytester) -> None:
    done = suite.runpytest_inprocess(*PLUGIN)
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.no_fnmatch_line("*how rarely networks fail*")
    assert not list(suite.path.glob("*.json"))


def test_a_report_that_cannot_be_written_is_told_before_the_tests(suite: pytest.Pytester) -> None:
    done = suite.runpytest_inprocess(*PLUGIN, "--rarely-report", "nowhere/gate.json")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*nowhere/gate.json cannot be written: No such file or directory*"])


def test_every_session_of_pytest_imports_little() -> None:
    """The entry point is loaded wherever rarely is installed, in test suites that have nothing to do with it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert declared["pytest11"] == {"rarely": PLUGIN[1]}
    code = f"import sys, {PLUGIN[1]}\nassert not {{'torch', 'numpy', 'rarely.core', 'rich'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
