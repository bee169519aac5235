"""`pytest --rarely-report`, in sessions of its own."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import rarely

pytest_plugins = ["pytester"]
ROOT = Path(rarely.__file__).parents[2]
PLUGIN = "rarely.integrations.pytest_plugin"
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
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """A session in a process of its own: one in this process would leave two copies of the package's classes."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # else it would be there twice once it is installed

    def run(suite: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(suite)
        return pytester.runpytest_subprocess("-p", PLUGIN, *arguments)

    return run


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


def test_decisions_are_kept_and_summed_up(session: Callable[..., pytest.RunResult], pytester: pytest.Pytester) -> None:
    done = session(SUITE, "--rarely-report", "gate.json")
    done.assert_outcomes(passed=3, failed=1)
    assert _decided(pytester.path / "gate.json") == EXPECTED
    done.stdout.fnmatch_lines(["*how rarely networks fail*", "*test_bad a half", "*rejected: p > 0.1 by *"])
    done.stdout.fnmatch_lines(["3 decisions in *gate.json"])


def test_workers_send_theirs(session: Callable[..., pytest.RunResult], pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    done = session(SUITE, "-p", "xdist", "-n", "1", "--rarely-report", "gate.json")
    done.assert_outcomes(passed=3, failed=1)
    assert _decided(pytester.path / "gate.json") == EXPECTED


def test_without_the_option_nothing_happens_and_little_is_imported(
    session: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    """The entry point is loaded wherever rarely is installed, in test suites that have nothing to do with it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert declared["pytest11"] == {"rarely": PLUGIN}
    done = session("import sys\ndef test(): assert not {'torch', 'numpy', 'rarely.core', 'rich'} & set(sys.modules)")
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*how rarely networks fail*")
    assert not list(pytester.path.glob("*.json"))


@pytest.mark.parametrize(("file", "why"), [("nowhere/gate.json", "No such file"), ("taken", "Is a directory")])
def test_a_report_that_cannot_be_written_is_told_before_the_tests(
    file: str, why: str, session: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    pytester.mkdir("taken")
    done = session("def test(): pass", "--rarely-report", file)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"*{file} cannot be written: {why}*"])
