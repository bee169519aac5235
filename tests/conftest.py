"""What all tests share: one thread each, since pytest-xdist fills the cores, and the folder of large data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
            "so report and documentation were not tried in one"
        )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder
