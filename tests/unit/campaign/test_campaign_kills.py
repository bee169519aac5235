"""Drivers and workers killed with signal 9 in the middle of things, on both engines, with real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_helpers import Inline, content

from rarely import Campaign
from rarely.campaign.store import Store
from rarely.core.errors import StoreError

START = """
import sys
from rarely import Campaign
if __name__ == "__main__":
    Campaign(sys.argv[1]).run(sys.argv[2], engine=sys.argv[3], workers=int(sys.argv[4])).close()
"""


@pytest.fixture
def many(plan: dict[str, Any], tmp_path: Path) -> Path:
    """300 problems in 60 chunks."""
    plan["campaign"].update(replicates=15, batch=5)
    file = tmp_path / "plan.toml"
    file.write_text(Campaign(plan).plan.to_toml())
    return file


def start(plan: Path, out: Path, engine: str, pause: float, workers: int = 2) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RARELY_TEST_PAUSE": str(pause)}
    script = plan.with_name("start.py")  # a file: Dask's processes import it again
    script.write_text(START)
    return subprocess.Popen([sys.executable, script, plan, out, engine, str(workers)], env=environment)


def done(out: Path) -> int:
    try:
        with Store.open(out) as store:
            return store.counts()["done"]
    except StoreError:
        return 0


def children(pid: int) -> list[int]:
    """Python processes below a process that compute: those of the engine, not Dask's helper that tracks semaphores."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_text()
            except (OSError, ValueError):
                continue
            if parent == pid and "resource_tracker" not in words:
                found.append(int(entry.name))
    return found


def torture(plan: Path, out: Path, engine: str, kills: int, pause: float, workers: int = 2) -> None:
    """Kill the driver or one of its workers `kills` times at random moments, then let it end."""
    chance = random.Random(kills)
    driver = start(plan, out, engine, pause, workers)
    for number in range(kills):
        before = done(out)
        while done(out) == before:  # so that some work has happened since the last one
            assert driver.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.3))
        pool = children(driver.pid)
        if number % 2 and pool:
            os.kill(chance.choice(pool), signal.SIGKILL)
        else:
            driver.kill()
            driver.wait()
            await_end_of(pool)
            driver = start(plan, out, engine, pause, workers)
    assert driver.wait(timeout=600) == 0


def await_end_of(workers: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived its driver"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return bool(
            Path(f"/proc/{pid}/cmdline").read_text()
        )  # empty when it has ended and nobody has asked for its code
    except OSError:
        return False


def check(plan: Path, out: Path, whole: Path) -> None:
    Campaign(plan).run(whole, engine=Inline()).close()
    found = content(out)
    assert len(found) == 300
    assert {row[2] for row in found.values()} == {"done"}
    assert found == content(whole)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")


@needs_proc
def test_three_kills_leave_no_trace(many: Path, tmp_path: Path) -> None:
    torture(many, tmp_path / "out", "local", kills=3, pause=0.005, workers=1)
    check(many, tmp_path / "out", tmp_path / "whole")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_twenty_kills_leave_no_trace(many: Path, tmp_path: Path, engine: str) -> None:
    torture(many, tmp_path / "out", engine, kills=20, pause=0.05)
    check(many, tmp_path / "out", tmp_path / "whole")


def test_dask_gives_the_same_numbers(plan: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    plan["campaign"].update(replicates=1)
    file = tmp_path / "plan.toml"
    file.write_text(Campaign(plan).plan.to_toml())
    assert start(file, tmp_path / "dask", "dask", pause=0).wait(timeout=300) == 0
    Campaign(plan).run(tmp_path / "whole", engine=Inline()).close()
    assert content(tmp_path / "dask") == content(tmp_path / "whole")


def test_a_problem_that_kills_its_worker_is_recorded(plan: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal, torch\n\ndef net(x):\n    if x.mean() > 0.9:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return torch.cat([x, -x], 1)\n"
    )
    np.savez(tmp_path / "data.npz", images=np.array([[0.1], [1.0], [0.2]], np.float32), labels=np.array([0, 0, 0]))
    plan.update(networks=[{"path": f"{tmp_path}/deadly.py:net", "name": "net"}])
    plan["campaign"].update(replicates=1, batch=1)
    plan["problems"][0]["radii"] = [0.05]
    with Campaign(plan).run(tmp_path / "out", workers=1) as store:
        assert store.counts() == {"waiting": 0, "done": 2, "failed": 1}
        (failed,) = store.records("failed")
    assert (failed.item, failed.attempts) == ("data.npz[1]", 3)
    assert failed.reason == "the worker process died while it ran this (signal 9)"
