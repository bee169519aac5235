"""What `pytest --rarely-report` does: decisions travel with the reports of tests, into one file and a summary."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from rarely import __version__
from rarely.core.problem import Problem
from rarely.questions.threshold import Decision
from rarely.testing import listeners

SCHEMA = 1
_KEPT = "rarely_decisions"  # of a test's report, which pytest-xdist sends from its workers with all its attributes


class Listener:
    """Where tests run: puts what is decided meanwhile into their reports."""

    def __init__(self) -> None:
        self.decisions: list[dict[str, Any]] = []

    def hear(self, problem: Problem, decision: Decision) -> None:
        self.decisions.append({"problem": problem.name, "said": str(decision), **json.loads(decision.to_json())})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        listeners.append(self.hear)
        try:
            return (yield)
        finally:
            listeners.remove(self.hear)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield  # of the test itself, or of what its fixtures do before and after
        setattr(report, _KEPT, self.decisions)
        self.decisions = []
        return report


class Report:
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
