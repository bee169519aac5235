"""What all tests share: one thread each, since pytest-xdist fills the cores, and the folder of large data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def pytest_runtest_setup() -> None:
    """Torch's own stream starts afresh, so that a test draws the same numbers whatever ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("RARELY_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("RARELY_DATA is not set")
    return Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped browser would otherwise be one letter among a thousand dots."""
    if shutil.which("chromedriver") is None:
        terminalreporter.write_line(
            "tests/browser was skipped: no browser is installed (chromium and chromium-driver), "
            "so the report page was not tried in one"
        )
