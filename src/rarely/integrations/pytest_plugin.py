"""`pytest --rarely-report FILE.json`: the decisions of `assert_rarely` in one session, as one file and a summary.

pytest imports this in every session once rarely is installed, so what does the work is imported with the option alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rarely").addoption(
        "--rarely-report", metavar="FILE.json", help="write the decisions of rarely.testing.assert_rarely"
    )


def pytest_configure(config: pytest.Config) -> None:
    name: str | None = config.getoption("rarely_report")  # text: pytest-xdist sends it to its workers
    if name is None:
        return
    file = Path(name).absolute()  # a test may go to another folder
    worker = hasattr(config, "workerinput")  # of pytest-xdist: it sends what it learns, and writes nothing
    if not worker:
        try:
            file.open("a", encoding="utf-8").close()
        except OSError as error:  # now, and not after the tests
            raise pytest.UsageError(f"--rarely-report {file} cannot be written: {error.strerror}") from error
    from rarely.integrations.pytest_report import Listener, Report

    config.pluginmanager.register(Listener())
    if not worker:
        config.pluginmanager.register(Report(file))
