"""`pytest --rarely-report FILE.json`: the decisions of `assert_rarely` in one session, as one file and a summary.

pytest imports this in every session once rarely is installed, so nothing heavy is imported before the option is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rarely import __version__

if TYPE_CHECKING:
    from collections.abc import Generator

    from rarely.core.problem import Problem
    from rarely.questions.threshold import Decision

SCHEMA = 1
_KEPT = "rarely_decisions"  # of a test's report, which pytest-xdist sends from its workers with all its attributes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rarely").addoption(
        "--rarely-report", metavar="FILE.json", help="write the decisions of rarely.testing.assert_rarely"
    )


def pytest_configure(config: pytest.Config) -> None:
    name: str | None = config.getoption("rarely_report")  # text: pytest-xdist sends it to its workers
    if name is None:
        return
    file = Path(name).absolute()  # a test may go to another folder
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist send what they learn, and write nothing
        try:
            file.touch()
        except OSError as error:  # now, and not after the tests
            raise pytest.UsageError(f"--rarely-report {file} cannot be written: {error.strerror}") from error
        config.pluginmanager.register(_Report(file))
    config.pluginmanager.register(_Listener())


class _Listener:
    """Where tests run: puts what is decided meanwhile into their reports."""

    def __init__(self) -> None:
        from rarely.testing import listeners

        self.decisions: list[dict[str, Any]] = []
        self.listeners = listeners

    def hear(self, problem: Problem, decision: Decision) -> None:
        self.decisions.append({"problem": problem.name, "said": str(decision), **json.loads(decision.to_json())})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.listeners.append(self.hear)
        try:
            return (yield)
        finally:
            self.listeners.remove(self.hear)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield  # of the test itself, or of what its fixtures do before and after
        setattr(report, _KEPT, self.decisions)
        self.decisions = []
        return report


class _Report:
    """Where reports arrive: writes the file and the summary."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        decisions = getattr(report, _KEPT, [])
        if decisions:
            self.tests.append({"test": report.nodeid, "outcome": report.outcome, "decisions": decisions})

    def pytest_sessionfinish(self) -> None:
        self.tests.sort(key=lambda test: test["test"])  # workers finish in any order
        content = {"schema": SCHEMA, "rarely": __version__, "tests": self.tests}
        self.file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        said = [(test["test"], decision) for test in self.tests for decision in test["decisions"]]
        terminalreporter.section("how rarely networks fail")
        for test, decision in said:
            terminalreporter.line(f"{test} {decision['problem']}".rstrip())
            terminalreporter.line(f"    {decision['said']}")
        terminalreporter.line(f"{len(said)} decision{'s' * (len(said) != 1)} in {self.file}")
